// The order of tiles where a rule changes scores (COMPUTED): clear tiles, and mixed ones, which some row does not see or which lie
// beside the diagonal. With ALiBi first mixed tiles, then clear ones, from the diagonal to the left and from there to the right:
// so scores become smaller from tile to tile, and weights hardly ever are too large (RETRY).

// Keys of clear tiles: those before left_end, which distances change on their left side, and from right_from to clear.
uint left_end, right_from, clear_tiles, mixed_tiles;
void find_clear() {
    clear = CAUSAL == 0 ? end : uint(clamp(int(first_row) + SHIFT + 1, 0, int(end)));
    MASK_FROM_BLIND(min(first_row + ROWS, QUERIES) - 1u, clear, 0u)
    if (MASK != 0 || (DEPENDS_ON_DISTANCE && !leans())) clear = 0u;
    clear -= clear % KEYS;
    left_end = right_from = 0u;
    if (leans()) {
        int stands = int(first_row) + BASE_SHIFT;
        if (abs(level_left) < 1e30) left_end = min(uint(max(stands - lean_reach + 1, 0)) / KEYS * KEYS, clear);
        right_from = clear;
        if (abs(level_right) < 1e30) {
            right_from = min((uint(max(stands + int(ROWS) - 1 + lean_reach, 0)) + KEYS - 1u) / KEYS * KEYS, clear);
        }
    }
    clear_tiles = (left_end + clear - right_from) / KEYS;
    mixed_tiles = (end + KEYS - 1u) / KEYS - clear_tiles;
}

uint first_clear() { return left_end != 0u ? left_end - KEYS : right_from; }
uint first_tile() {
    if (!leans()) return 0u;
    if (mixed_tiles == 0u) return first_clear();
    return left_end == right_from ? clear : left_end;
}
// Where the tile after this one begins, when `left` are left with this one; `end` after the last.
uint tile_after(uint first_key, uint left) {
    uint next_key = first_key + KEYS;
    if (!leans()) return min(next_key, end);
    if (left == 1u) return end;
    if (left == clear_tiles + 1u) return first_clear();
    if (left <= clear_tiles && first_key < left_end) return first_key != 0u ? first_key - KEYS : right_from;
    return left > clear_tiles && next_key == right_from ? clear : next_key;
}
// Whether the next of so many tiles is mixed, or to be done like these.
bool is_mixed(uint left) { return left != 0u && (too_large || (leans() ? left > clear_tiles : left <= mixed_tiles)); }
