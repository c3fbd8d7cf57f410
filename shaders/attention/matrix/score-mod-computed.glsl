// What change scores by a rule: the soft-cap and ALiBi.

#define MODIFIED_FACTOR LOG2_E

void find_lean_within();
#include "distance.glsl"
#include "cap.glsl"

// ---- ALiBi, in tiles on one side of the diagonal ----

SUMS lean_within;     // what products begin with: the part within 16 keys, before scores are base 2
float lean_fragment;  // and base 2 the part of the chunk's first 16 keys that a row's maximum is short of

void find_lean_within() {
    float each = level / SCORE_SCALE;
    [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) lean_within[e] = each * float(PLACE_COLUMN(e));
}
void begin_leaning_scores(uint first_key) {
    lean_fragment = level * float(int(first_key) - int(first_row) - BASE_SHIFT);
    EACH_FRAGMENT s_frag[i][f] = lean_within;
}
#define LEVEL_OF(i, r, f) (leaning ? fma(level, float((f) * MATRIX_N), lean_fragment) - top[i][r] : -top[i][r])

// ---- the soft-cap of small scores ----

// What each is multiplied by is a polynomial in its square, as in cap_scores.
float cap_third, cap_fifth;   // its coefficients, scores becoming base 2
float cap_reach;              // scores up to this are small
float size[RF][SLOTS];        // the largest of a chunk
shared uint steep;            // raised once a score was too large

void begin_cap() {
    if (!on(SOFT_CAP)) return;
    float inverse = SCORE_SCALE / x_cap, square = inverse * inverse;
    cap_third = NEARER_THIRD * SCORE_SCALE * square;
    cap_fifth = NEARER_FIFTH * SCORE_SCALE * square * square;
    cap_reach = inverse > 1e-6 ? NEARER_ZERO / inverse : -1.0;
}
void note_sizes() {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) size[i][r] = 0.0;
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) size[i][SLOT(e)] = max(size[i][SLOT(e)], abs(s_frag[i][f][e]));
        }
    }
}
bool sizes_exceed() {
    bool fit = true;
    EACH_SLOT fit = fit && size[i][r] <= cap_reach;
    return !fit;
}
#define FACTOR_OF(score) (capped ? fma(fma(cap_fifth, score * score, cap_third), score * score, factor) : factor)
