// Passing over the tiles of keys that no row of a tile of rows sees: for kernels that offer "tiles". After attention.glsl.

#ifndef GRILLY_TILE_WALK_GLSL
#define GRILLY_TILE_WALK_GLSL

#extension GL_EXT_control_flow_attributes : require

// The first tile of keys from `key_tile` on, and below `key_tiles`, that is not hidden as a whole; `key_tiles` or more if
// there is none. Classes are loaded eight at a time: one after the other, each would be waited for.
uint shown_tile(uint batch, uint head, uint row_tile, uint key_tile, uint key_tiles) {
    if (!on(TILES)) return key_tile;
    uint base = batch * parameter(TILE_BATCH) + head * parameter(TILE_HEAD) + row_tile * parameter(TILE_ROW);
    [[dont_unroll]] while (key_tile < key_tiles) {
        uint found[8];
        [[unroll]] for (uint n = 0u; n < 8u; ++n) found[n] = tiles_data[base + min(key_tile + n, key_tiles - 1u)];
        uint shown = 0u;
        [[unroll]] for (uint n = 0u; n < 8u; ++n) shown |= (found[n] != TILE_EMPTY ? 1u : 0u) << n;
        if (shown != 0u) return key_tile + uint(findLSB(shown));
        key_tile += 8u;
    }
    return key_tiles;
}

#endif
