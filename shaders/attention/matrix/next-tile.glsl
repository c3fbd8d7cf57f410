// Which tile of keys comes next, where tiles have classes (attention-tiles.comp).

// Parameters, after those of extras.glsl: where in tiles_data a mask made bits is.
// constants: parameters
const uint MASK_BITS = 47u, MASK_BITS_BATCH = 48u, MASK_BITS_HEAD = 49u, MASK_BITS_ROW = 50u;

uint tiles_from, tiles_kept, tiles_seen;  // classes of SUBGROUP tiles from this one on, a bit each
uint tile_ahead;                  // the class of one of the SUBGROUP tiles after these
bool next_seen;                   // whether the class of the tile that next_tile() found is TILE_FULL

// One tile a lane, a group ahead of its use, so that nobody waits for classes.
void fetch_tiles(uint from) {
    tile_ahead = tile_class(batch, head, first_row / ROWS, min(from + lane, (end - 1u) / KEYS));
}
void read_tiles(uint from) {
    tiles_kept = subgroupOr(uint(tile_ahead != TILE_EMPTY) << lane);
    tiles_seen = subgroupOr(uint(tile_ahead == TILE_FULL) << lane);
    tiles_from = from;
    fetch_tiles(from + SUBGROUP);
}

// The first tile from `first_key` on that is not hidden as a whole; `end` or more if there is none.
uint next_tile(uint first_key) {
    uint tile_ = first_key / KEYS;
    bool looking = tile_ * KEYS < end;
    [[dont_unroll]] while (looking) {
        if (tile_ - tiles_from >= SUBGROUP) read_tiles(tiles_from + SUBGROUP);
        uint kept = tiles_kept >> (tile_ - tiles_from);
        if (kept != 0u) tile_ += uint(findLSB(kept));
        else tile_ = tiles_from + SUBGROUP;
        looking = kept == 0u && tile_ * KEYS < end;
    }
    next_seen = tile_ - tiles_from < SUBGROUP && (tiles_seen >> (tile_ - tiles_from) & 1u) != 0u;
    return tile_ * KEYS;
}
