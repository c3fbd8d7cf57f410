// The loop over the tiles that count, with classes of tiles and a mask alone.

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
    first_key = next_tile(first_key);
    FIND_SCALE

    if (thread == 0u) poisoned = 0u;
    BEGIN_STEPS
    if (first_key < end) fetch_keys(first_key);
    load_queries();
    CLEAR_SUMS
    FILL_PLACES
    barrier();  // q has been read from where k goes
    read_places();

    if (first_key < end) fetch_mask(first_key);
    // Only the last tile may have keys past the end.
    [[dont_unroll]] while (is_clear(first_key)) {
        uint next_key = next_tile(first_key + KEYS);
        add_tile(first_key, next_key, false, false);
        first_key = next_key;
    }
    [[dont_unroll]] while (first_key < end) {
        uint next_key = next_tile(first_key + KEYS);
        add_tile(first_key, next_key, true, true);
        first_key = next_key;
    }
    note_output();
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) store_rows();
    else compute_rows();
}
