// The loop over the tiles that count, with what attention/extras.glsl has: runs of clear tiles and of others take turns.

#define NEXT_TILE find_tile

void main() {
#include "loop-begin.glsl"

    if (first_key < end) FETCH_AHEAD(first_key)
    BEGIN_LEANING
    bool clear = is_clear(first_key), read = !next_seen;
    [[dont_unroll]] while (first_key < end) {
#if SPLIT_LOOPS
        [[dont_unroll]] while (clear) {
            uint next_key = NEXT_TILE(first_key + KEYS);
            LEAN(first_key, true)
            add_tile(first_key, next_key, false, false);
            first_key = next_key;
            clear = is_clear(first_key);
        }
        read = !next_seen;
        bool mixed = first_key < end;
        LEAN(first_key, false)
        [[dont_unroll]] while (mixed) {
            uint next_key = NEXT_TILE(first_key + KEYS);
            add_tile(first_key, next_key, true, read);
            first_key = next_key;
            read = !next_seen;
            clear = is_clear(first_key);
            mixed = first_key < end && !clear;
        }
#else
        uint next_key = NEXT_TILE(first_key + KEYS);
        LEAN(first_key, clear)
        add_tile(first_key, next_key, !clear, read);
        first_key = next_key;
        read = !next_seen;
        clear = is_clear(first_key);
#endif
    }
    LEAN(first_key, false)
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) store_rows();
    else compute_rows();
}
