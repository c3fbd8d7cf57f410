// The loop over the tiles that count, with what attention/extras.glsl has: runs of clear tiles and of others take turns.

void main() {
    FIND_INVOCATION
    begin_extras(batch, head);
    q_base = q_index(batch, head, row_start());
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
    FIND_ROWS
    if (on(LENGTHS) && first_row >= QUERIES) return;
    find_keys();
    uint first_key = hidden_keys(first_row) / KEYS * KEYS;
    if (on(TILES) && first_key < end) {
        fetch_tiles(first_key / KEYS);
        read_tiles(first_key / KEYS);
    }
    first_key = find_tile(first_key);
    FIND_SCALE

    if (thread == 0u) poisoned = 0u;
    BEGIN_STEPS
    if (first_key < end) fetch_keys(first_key);
    load_queries();
    CLEAR_SUMS
    FILL_PLACES
    barrier();  // q has been read from where k goes
    read_places();

    bool clear = is_clear(first_key), read = !next_seen;
    [[dont_unroll]] while (first_key < end) {
#if SPLIT_LOOPS
        [[dont_unroll]] while (clear) {
            uint next_key = find_tile(first_key + KEYS);
            add_tile(first_key, next_key, false, false);
            first_key = next_key;
            clear = is_clear(first_key);
        }
        read = !next_seen;
        bool mixed = first_key < end;
        [[dont_unroll]] while (mixed) {
            uint next_key = find_tile(first_key + KEYS);
            add_tile(first_key, next_key, true, read);
            first_key = next_key;
            read = !next_seen;
            clear = is_clear(first_key);
            mixed = first_key < end && !clear;
        }
#else
        uint next_key = find_tile(first_key + KEYS);
        add_tile(first_key, next_key, !clear, read);
        first_key = next_key;
        read = !next_seen;
        clear = is_clear(first_key);
#endif
    }
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) store_rows();
    else compute_rows();
}
