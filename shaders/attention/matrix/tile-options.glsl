// A tile, with what attention/extras.glsl has. `next_key` is where the next tile that counts begins.

void add_tile(uint first_key, uint next_key, bool masked, bool read) {
    tile_after = next_key;
    bool seen = true;  // whether any of this subgroup's rows sees any of these keys
    if (masked && MASK_IS_BITS && read) fetch_mask(first_key);
    store_keys(K_AT);
    fetch_values(first_key);
    if (masked) seen = find_seen(first_key, HAS_MASK_MOD && read);
    barrier();
    if (seen && on(DROPOUT)) find_kept(first_key);  // here, where registers are many
    if (seen) begin_chunk(first_key, 0u, masked, read);
    if (!seen) FETCH_AHEAD(next_key)
#if BUFFERS == 1
    barrier();
#endif
    store_values(V_AT, masked || MODIFIED);
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
