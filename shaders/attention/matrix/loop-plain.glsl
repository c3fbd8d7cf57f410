// The loop over tiles: leading ones that every row of the workgroup sees, then the others.

void main() {
#include "loop-ends.glsl"
    TAKE_SPLIT
    FIND_SCALE

    if (thread == 0u) poisoned = 0u;
    BEGIN_STEPS
    if (end > BEGIN) {
        fetch_keys(BEGIN);
        FETCH_FIRST_VALUES(BEGIN)
    }
    load_queries();
    CLEAR_SUMS
    FILL_PLACES
    NOTE_FIRST_KEYS
    barrier();  // q has been read from where k goes
    NOTE_QUERIES

    // Leading keys in whole tiles that every row of the workgroup sees.
    clear = 0u;
    if (MASK == 0) {
        clear = CAUSAL == 0 ? end : uint(clamp(int(QUERY_OF(first_row)) + SHIFT + 1, 0, int(end)));
        MASK_FROM_BLIND(min(first_row + ROWS, QUERIES) - 1u, clear, 0u)
        clear -= clear % KEYS;  // splits begin with whole tiles
    }
    uint first_key = BEGIN;
    BEGIN_TILES
#if SPLIT_LOOPS
    [[dont_unroll]] for (; first_key < clear; first_key += KEYS) add_tile(first_key, first_key + KEYS, false);
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, first_key + KEYS, true);
#else
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, first_key + KEYS, first_key >= clear);
#endif
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) {
        STORE_ROWS
    } else {
        compute_rows();
    }
}
