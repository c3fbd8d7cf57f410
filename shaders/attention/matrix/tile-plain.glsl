// A tile; `next_key` is where the next one begins. Tiles of k and v take turns, or have a place each, or two (BUFFERS).

// Whether this subgroup's last row sees any of the keys from here on.
bool sees_some(uint first_key, bool masked) {
    return CAUSAL == 0 || !masked || int(first_key) <= LAST_QUERY(first_row + (subgroup + 1u) * ROWS_EACH) + SHIFT;
}

#if BUFFERS == 4
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
#define BEGIN_TILES \
    if (end > BEGIN) { \
        store_keys(K_AT); \
        store_values(V_AT, masked_values(BEGIN)); \
    }
#define FETCH_FIRST_VALUES(first_key) fetch_values(first_key);
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
#define BEGIN_TILES
#define FETCH_FIRST_VALUES(first_key) fetch_values(first_key);
#else
void add_tile(uint first_key, uint next_key, bool masked) {
    bool seen = sees_some(first_key, masked);
    store_keys(K_AT);
    fetch_values(first_key);
    barrier();
    if (seen) begin_chunk(first_key, 0u, masked, false);
    NOTE_VALUES
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
    NOTE_KEYS
#if BUFFERS == 1 || CHUNK < KEYS
    barrier();
#endif
}
#define BEGIN_TILES
#define FETCH_FIRST_VALUES(first_key)
#endif
