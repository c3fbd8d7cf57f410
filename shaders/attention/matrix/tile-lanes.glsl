// A tile, with classes of tiles and a mask alone. `next_key` is where the next tile that counts begins.

void add_tile(uint first_key, uint next_key, bool masked, bool read) {
    bool seen = true;  // every subgroup takes part in a tile that counts
    take_mask(next_key);
    store_keys(K_AT);
    fetch_values(first_key);
    barrier();
    if (seen) begin_chunk(first_key, 0u, masked, read);
#if BUFFERS == 1
    barrier();
#endif
    store_values(V_AT, false);  // note_output() finds what matters
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
