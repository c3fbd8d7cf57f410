// How main() begins where a loop goes over the tiles that count: NEXT_TILE(first_key) finds the first of them.

    FIND_INVOCATION
    FIND_ROWS
    SHARE_ADDED
    begin_extras(batch, head);
#ifdef FUNCTIONS
    hold_function_words();
#endif
    q_base = q_index(batch, head, row_start());
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
    if (on(LENGTHS) && first_row >= QUERIES) return;
    find_keys();
#ifdef APART
    if (is_apart()) return;
#endif
    uint first_key = hidden_keys(first_row) / KEYS * KEYS;
    if (on(TILES) && first_key < end) {
        fetch_tiles(first_key / KEYS);
        read_tiles(first_key / KEYS);
    }
    first_key = NEXT_TILE(first_key);
    FIND_SCALE

    if (thread == 0u) poisoned = 0u;
    BEGIN_STEPS
    if (first_key < end) fetch_keys(first_key);
    load_queries();
    CLEAR_SUMS
    FILL_PLACES
    barrier();  // q has been read from where k goes
    read_places();
