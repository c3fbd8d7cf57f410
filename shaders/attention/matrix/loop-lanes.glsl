// The loop over the tiles that count, with classes of tiles and a mask alone.

#define NEXT_TILE next_tile

void main() {
#include "loop-begin.glsl"

    if (first_key < end) fetch_mask(first_key);
    // Only the last tile may have keys past the end.
    [[dont_unroll]] while (is_clear(first_key)) {
        uint next_key = NEXT_TILE(first_key + KEYS);
        add_tile(first_key, next_key, false, false);
        first_key = next_key;
    }
    [[dont_unroll]] while (first_key < end) {
        uint next_key = NEXT_TILE(first_key + KEYS);
        add_tile(first_key, next_key, true, true);
        first_key = next_key;
    }
    note_output();
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) store_rows();
    else compute_rows();
}
