// mask_mod: keys by classes of tiles and a boolean mask alone (TILED), with CAUSAL a mask that has what causality masks. Of EXTRAS it
// has nothing but the classes, so that there is room for what makes the plain kernel fast.
//
// Under a mask the classes say which tiles are hidden, and the mask comes as bits in the order in which lanes hold scores
// (attention-mask-lanes.comp): a word a lane for MATRIX_M rows and UNIT_KEYS keys. Without one, a map of blocks that are
// multiples of tiles is nothing but its classes.

#include "next-tile.glsl"

#define UNIT_KEYS (4 * MATRIX_N)
#define UNITS (KEYS / UNIT_KEYS)

uint mask_place;             // where in tiles_data the words of the subgroup's first rows are
uint mask_next[RF * UNITS];  // the lane's words of the next tile
uint mask_held[RF * UNITS];  // of the present one

void find_keys() { end = visible_keys(first_row, min(first_row + ROWS, pc.queries) - 1u); }

// Whether every row sees all of a tile.
bool is_clear(uint first_key) { return MASK == 0 && first_key + KEYS <= end; }

void read_places() {
    uint unit = (first_row + subgroup * ROWS_EACH) / MATRIX_M;
    mask_place = parameter(MASK_BITS) + batch * parameter(MASK_BITS_BATCH) + head * parameter(MASK_BITS_HEAD) + unit * parameter(MASK_BITS_ROW) + lane;
}

// A tile ahead: loaded when the tile begins, they would be waited for.
void fetch_mask(uint first_key) {
    if (MASK == 0 || first_key >= end) return;
    uint row_stride = parameter(MASK_BITS_ROW), unit = first_key / UNIT_KEYS;
    [[unroll]] for (uint n = 0u; n < RF * UNITS; ++n) {
        mask_next[n] = tiles_data[mask_place + n / UNITS * row_stride + (unit + n % UNITS) * SUBGROUP];
    }
}
void take_mask(uint next_key) {
    [[unroll]] for (uint n = 0u; n < RF * UNITS; ++n) mask_held[n] = mask_next[n];
    fetch_mask(next_key);
}

// Changes nothing, as no call has 2^31 queries. But no compiler knows, so none keeps what it found out about each bit for a
// second use that hardly ever comes, in registers that are needed (NVIDIA's did: half as many instructions again a tile).
void forget_tests() {
    [[unroll]] for (uint n = 0u; n < RF * UNITS; ++n) mask_held[n] ^= pc.queries >> 31;
}

// Whether the row of element e sees the key of it in fragment f of a chunk.
bool element_is_visible(uint first_key, uint chunk, uint i, uint f, uint e) {
    uint n = chunk / MATRIX_N + f;
    if (MASK != 0) return (mask_held[i * UNITS + n / 4u] & (1u << MASK_BIT(n % 4u, e))) != 0u;
    return first_key + n * MATRIX_N + PLACE_COLUMN(e) < end;
}

// Scores to which products are added: minus infinity where a key is hidden, so that nothing is left to do after the products.
// If the product of a hidden key is not finite the weight is NaN: with RETRY the chunk is done again, else the output shows it.
void begin_seen_scores(uint first_key, uint chunk, bool masked) {
    float never = minus_infinity();
    EACH_SCORE {
        s_frag[i][f][e] = !masked || element_is_visible(first_key, chunk, i, f, e) ? 0.0 : never;
    }
}

// The same after the products, whatever these are.
void apply_mask_mod(uint first_key, uint chunk) {
    float never = minus_infinity();
    EACH_SCORE {
        s_frag[i][f][e] = element_is_visible(first_key, chunk, i, f, e) ? s_frag[i][f][e] : never;
    }
}

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// Raises `poisoned` where an output or a sum of weights is NaN: what is hidden and not finite may have made it. In bfloat16 a
// weight that is NaN shows in the sum alone (factors.glsl).
void note_output() {
    bool found = false;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) found = found || is_nan(sum[i][r]);
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                found = found || is_nan(o_frag[i][c][e]);
            }
        }
    }
    if (found) poisoned = 1u;
}
