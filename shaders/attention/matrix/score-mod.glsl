// What changes scores: the soft-cap, ALiBi, and what is added to them.

#include "score-mod-one.glsl"

#define MODIFIED_FACTOR 1.0
#define BEGIN_LEANING
#define LEAN(first_key, clear)
#define FETCH_ADDED(first_key)
#define FETCH_AHEAD(first_key) {}
#define SHARE_ADDED

#ifdef FUNCTIONS
#include "function-mods.glsl"
#endif

bool leans() { return false; }
bool leans_as_whole(uint first_key) { return false; }

void cap_scores() {
    float turn = 2.0 * LOG2_E / x_cap, inverse = 1.0 / x_cap;
    if (x_cap <= SMALL_CAP) {
        EACH_SCORE s_frag[i][f][e] = softly_capped(s_frag[i][f][e], turn);
    } else {
        EACH_SCORE s_frag[i][f][e] = x_cap * bounded_tanh(s_frag[i][f][e] * inverse);
    }
}

#if ORDER
// All of a chunk's numbers are under way at once. They are floats first, not elements of matrices: the build tool does not
// unroll loops that hold conditions, and matrices that the driver finds in loops end in memory.
void add_biases(uint first_key) {
    float more[RF * KF * ELEMENTS];
    [[unroll]] for (uint n = 0u; n < RF * KF * ELEMENTS; ++n) {
        uint e = n % ELEMENTS, row = MY_ROW + n / (KF * ELEMENTS) * MATRIX_M + PLACE_ROW(e);
        uint key = first_key + n / ELEMENTS % KF * MATRIX_N + PLACE_COLUMN(e);
        more[n] = added(min(row, QUERIES - 1u), min(key, end - 1u));
    }
    EACH_SCORE {
        s_frag[i][f][e] = with_added(s_frag[i][f][e], more[(i * KF + f) * ELEMENTS + e]);
    }
}
#else
void add_biases(uint first_key) {
    [[dont_unroll]] for (uint n = 0u; n < RF * KF; ++n) {
        uint row0 = MY_ROW + n / KF * MATRIX_M, key0 = first_key + n % KF * MATRIX_N;
        SYNC_SUBGROUP;
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            uint at = e * SUBGROUP + lane, row = row0 + at / MATRIX_N, key = key0 + at % MATRIX_N;
            float one = added(min(row, QUERIES - 1u), min(key, end - 1u));
            tile[MY_SCRATCH + at / 4u][at % 4u] = floatBitsToUint(one);
        }
        SYNC_SUBGROUP;
        SUMS more;
        coopMatLoad(more, tile, MY_SCRATCH, MATRIX_N / 4, ROW_MAJOR);
        // A matrix's registers must be known when compiling: one branch each.
        EACH_FRAGMENT {
            if (n == i * KF + f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = with_added(s_frag[i][f][e], more[e]);
            }
        }
    }
}
#endif

void apply_score_mod(uint first_key) {
#ifdef FUNCTIONS
    if (on(SCORE_FUNCTION)) apply_score_function(first_key);
    else
#endif
    EACH_FRAGMENT s_frag[i][f] *= SCORE_SCALE;
    if (on(SOFT_CAP)) cap_scores();
    if (on(ALIBI)) {
        FIND_PLACES
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                // Whole numbers below 2^24, so exact.
                float distance = float(int(first_key + PLACE_COLUMN(e)) - int(MY_ROW + i * MATRIX_M + PLACE_ROW(e)) - BASE_SHIFT);
                [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f][e] -= x_slope * abs(distance + float(f * MATRIX_N));
            }
        }
    }
    if (ADDS) add_biases(first_key);
}
