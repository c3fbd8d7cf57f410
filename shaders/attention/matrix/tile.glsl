// A tile of keys; `next_key` is where the next one begins, or the next that counts. Tiles of k and v take turns, or have a place
// each, or two (BUFFERS).

// Whether this subgroup's last row sees any of the keys from here on.
bool sees_some(uint first_key, bool masked) {
    return CAUSAL == 0 || !masked || int(first_key) <= LAST_QUERY(first_row + (subgroup + 1u) * ROWS_EACH) + SHIFT;
}

#if TILED || SCORE_MODS
void add_tile(uint first_key, uint next_key, bool masked, bool read) {
#if SCORE_MODS
    tile_after = next_key;
#endif
    bool seen = true;  // whether any of this subgroup's rows sees any of these keys
#if TILED
    take_mask(next_key);
#else
    if (masked && MASK_IS_BITS && read) fetch_mask(first_key);
#endif
    store_keys(K_AT);
    fetch_values(first_key);
#if SCORE_MODS
    if (masked) seen = find_seen(first_key, HAS_MASK_MOD && read);
#endif
    barrier();
#if SCORE_MODS
    if (seen && on(DROPOUT)) find_kept(first_key);  // here, where registers are many
#endif
    if (seen) begin_chunk(first_key, 0u, masked, read);
#if SCORE_MODS
    if (!seen) FETCH_AHEAD(next_key)
#endif
#if BUFFERS == 1
    barrier();
#endif
#if TILED
    store_values(V_AT, false);  // note_output() finds what matters
#else
    store_values(V_AT, masked || MODIFIED);
#endif
    fetch_keys(next_key);
    barrier();
    if (seen) {
        end_chunk(first_key, 0u, masked, read);
        [[unroll]] for (uint chunk = CHUNK; chunk < KEYS; chunk += CHUNK) {
            begin_chunk(first_key, chunk, masked, read);
            end_chunk(first_key, chunk, masked, read);
        }
    }
#if BUFFERS == 1 || CHUNK < KEYS
    barrier();
#endif
}
#elif BUFFERS == 4
void add_tile(uint first_key, uint next_key, bool masked) {
    uint other = SIDE - tile_side;
    barrier();  // this tile has been stored, and the one before it read
    fetch_keys(next_key);
    [[unroll]] for (uint chunk = 0u; chunk < KEYS; chunk += CHUNK) {
        bool seen = sees_some(first_key + chunk, masked);
        if (seen) begin_chunk(first_key, chunk, masked, false);
        if (chunk == KEYS / CHUNK / 2u * CHUNK) {
            store_keys(other);
            fetch_values(next_key);
        }
        if (seen) end_chunk(first_key, chunk, masked, false);
    }
    store_values(other + K_VECTORS, masked_values(next_key));
    tile_side = other;
}
#elif BUFFERS == 3
void add_tile(uint first_key, uint next_key, bool masked) {
    store_keys(K_AT);
    store_values(V_AT, masked);
    barrier();
    if (next_key < end) {
        fetch_keys(next_key);
        fetch_values(next_key);
    }
    [[unroll]] for (uint chunk = 0u; chunk < KEYS; chunk += CHUNK) {
        if (sees_some(first_key + chunk, masked)) {
            begin_chunk(first_key, chunk, masked, false);
            end_chunk(first_key, chunk, masked, false);
        }
    }
    barrier();
}
#else
void add_tile(uint first_key, uint next_key, bool masked) {
    bool seen = sees_some(first_key, masked);
    store_keys(K_AT);
    fetch_values(first_key);
    barrier();
    if (seen) begin_chunk(first_key, 0u, masked, false);
#if SPLIT
    note_values();
#endif
#if BUFFERS == 1
    barrier();
#endif
    store_values(V_AT, masked);
    fetch_keys(next_key);
    barrier();
    if (seen) end_chunk(first_key, 0u, masked, false);
#if CHUNK < KEYS
    [[unroll]] for (uint chunk = CHUNK; chunk < KEYS; chunk += CHUNK) {
        if (sees_some(first_key + chunk, masked)) {
            begin_chunk(first_key, chunk, masked, false);
            end_chunk(first_key, chunk, masked, false);
        }
    }
#endif
#if SPLIT
    note_keys();
#endif
#if BUFFERS == 1 || CHUNK < KEYS
    barrier();
#endif
}
#endif
