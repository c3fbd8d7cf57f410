// Which tiles of keys count, and how much must be done to their scores, with what attention/extras.glsl has.
//
// A tile of keys is hidden (and skipped), clear (all rows of the workgroup see all of its keys; where no score is modified, the same
// code as without EXTRAS) or neither. In the last kind each subgroup finds, for each of its rows, which keys are seen, one
// bit each: what follows from indices alone is computed by the lanes that hold the row, and what is read (a boolean mask,
// segments, blocks) four keys a lane, gathered through the subgroup's scratch memory. Where a key is hidden its score
// becomes minus infinity once all else is done to it. Where a boolean mask has classes of tiles it also has been made bits
// already (attention-mask-bits.comp), and a map of blocks as wide as a word of bits needs one look a word. What dropout
// keeps are bits as well. Soft-cap and ALiBi change scores where they are; a bias, an additive mask and T5's table are read by the
// lanes that hold the elements, a chunk at a time, or where nobody knows who holds which through the scratch memory, a
// fragment at a time.

// What is asked for each key.
#ifdef FUNCTIONS
const int BY_KEY = SEGMENTS | BLOCKS | MASK_FUNCTION;
#else
const int BY_KEY = SEGMENTS | BLOCKS;
#endif

// Whether what is read masks keys, whether something is added to scores that must be read, and whether the scores of tiles
// that are not clear are scaled to base 2 before their maximum is taken.
#define HAS_MASK_MOD (MASK == MASK_BOOLEAN || (FEATURES & BY_KEY) != 0)
#define MASK_IS_BITS (MASK == MASK_BOOLEAN && on(TILES))
#define ADDS (MASK == MASK_ADDED || (FEATURES & (BIAS | T5)) != 0)
#define SCALED (MASK == MASK_ADDED || HAS_SCORE_MOD)

#include "masks/mask-bits.glsl"

uint tile_after;                  // where the next tile that counts begins
uint clear_from, clear_to;        // every row of the workgroup sees all keys between, as far as indices say

#include "next-tile.glsl"

// The same where there may be no classes.
uint find_tile(uint first_key) {
    if (on(TILES)) return next_tile(first_key);
    next_seen = true;
    if (HAS_MASK_MOD) next_seen = false;
    return first_key;
}

#if APART
// Whether another dispatch makes the workgroup's rows (MIXED_APART). All subgroups find the same.
bool is_apart() {
    if (!on(MIXED_APART)) return false;
    uint tiles = (end + KEYS - 1u) / KEYS, mixed = 0u;
    [[dont_unroll]] for (uint from = 0u; from < tiles; from += SUBGROUP) {  // as many turns for every lane
        uint class_ = tile_class(batch, head, first_row / ROWS, min(from + lane, tiles - 1u));
        mixed += from + lane < tiles && class_ == TILE_PARTIAL ? 1u : 0u;
    }
    return (8u * subgroupAdd(mixed) >= 7u * tiles) == on(TILES);
}
#endif

// Whether indices mask no key of a tile from any row of the workgroup.
bool is_inside(uint first_key) { return first_key >= clear_from && first_key + KEYS <= clear_to; }

bool leans();  // score-mod.glsl or score-mod-quads.glsl
bool leans_as_whole(uint first_key);

// Whether more is done to the scores of every tile than hiding keys. Without classes that is so of any tile under an additive
// mask: what is known when compiling leaves out what is not needed.
#define MODIFIED ((HAS_SCORE_MOD && !leans()) || on(DROPOUT) || (MASK == MASK_ADDED && !on(TILES)))

// Whether no key of a tile is hidden from any row of the workgroup but by what is added to scores.
bool is_clear(uint first_key) {
#ifdef FUNCTIONS
    if (on(SCORE_FUNCTION)) return false;  // such tiles would take a loop of their own, as long again
#endif
    if (leans() && !leans_as_whole(first_key)) return false;
    return next_seen && is_inside(first_key);
}

// The number of leading keys that some row of the workgroup sees, and where tiles are clear.
void find_keys() {
    uint last_row = min(first_row + ROWS, QUERIES) - 1u;
    end = visible_keys(first_row, last_row);
    int from = on(WINDOW) ? int(last_row) + BASE_SHIFT - x_left : 0;
    int to = int(end);
    if (CAUSAL != 0) to = min(to, int(first_row) + SHIFT + 1);
    if (on(LENGTHS) && int(last_row) >= x_rows_seeing) to = 0;
    clear_from = uint(max(from, 0));
    clear_to = uint(max(to, 0));
}
