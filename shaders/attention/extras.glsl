// What changes scores (score_mod) or masks them (mask_mod) beyond the mask and causality of attention.glsl, which includes this where EXTRAS is defined.
//
// The bits of the specialization constant FEATURES say which of them are on; a kernel with all of them off is the same
// machine code as one compiled without. The order is scale, soft-cap, bias (additive bias, ALiBi, T5), mask, softmax.
//
// Everything that is not an operand lies in one buffer of 32-bit words. A dispatch has a block of parameters there, at word pc.extra;
// it and what it points to are laid out by compute/attention/parameters.py. Rows, keys, heads and batches of a dispatch count from the
// block's FIRST_..., so that a call cut into dispatches changes every score as the whole would.
//
// A kernel calls begin_extras(batch, head) first, uses QUERIES, KEY_COUNT and SHIFT for pc.queries, pc.keys and
// pc.causal_shift, returns where a workgroup has no rows (first_row >= QUERIES), and adds row_start() and key_start() rows
// to where it reads q, o, lse and k, v.

#ifndef GRILLY_EXTRAS_GLSL
#define GRILLY_EXTRAS_GLSL

#include "kept.glsl"

// registry/names.py says what each is called; Python has the bits from here.
// constants: features
const int WINDOW = 1;      // keys too far to the left are hidden (to the right: causal_shift)
const int SOFT_CAP = 2;
const int BIAS = 4;        // a float32 array, broadcast like a mask
const int ALIBI = 8;
const int T5 = 16;
const int SINKS = 32;
const int PREFIX = 64;
const int SEGMENTS = 128;
const int LENGTHS = 256;   // every sample has its own first row, rows, first key and keys
const int BLOCKS = 512;    // a map of blocks of keys that blocks of rows see
const int DROPOUT = 1024;
const int TILES = 2048;    // a class for every tile: TILE_EMPTY, TILE_PARTIAL or TILE_FULL
const int PAGED = 4096;    // keys and values lie in pages that a table orders
// Of what is added, where a kernel cares:
const int BIAS_HALVES = 8192;  // the bias has q's 16-bit type, not float32
const int BIAS_PAIRS = 16384;  // its numbers are read two at a time: they lie beside each other, rows at even places
const int MASK_PAIRS = 32768;  // likewise an additive mask's
const int ADDED_LATE = 65536;  // all of it is read after the products, which takes fewer registers
const int ADDED_FOURS = 131072;  // all of it is read four numbers at a time: as with pairs, at places that are multiples of four
// Tiles of rows of which what is added mixes nearly all tiles of keys are of a dispatch of their own, which has no use for
// classes: with TILES all others, without TILES these alone. For kernels that define APART.
const int MIXED_APART = 262144;
// Functions of users (functions.glsl).
const int SCORE_FUNCTION = 524288, MASK_FUNCTION = 1048576;
const int POSITIONS = 2097152;  // beside these

#if TILED
const int FEATURES = TILES;
#else
layout(constant_id = 6) const int FEATURES = 0;
#endif

layout(set = 0, binding = 6, std430) restrict readonly buffer Extra { uint extra_data[]; };
layout(set = 0, binding = 7, std430) restrict readonly buffer Bias { float bias_data[]; };
#ifndef WITHOUT_TILES
layout(set = 0, binding = 8, std430) restrict readonly buffer Tiles { uint tiles_data[]; };
#endif

// Parameters, which Python writes by these names, in lower case.
// constants: parameters
const uint FIRST_BATCH = 0u, FIRST_HEAD = 1u, FIRST_ROW = 2u, FIRST_KEY = 3u, HEADS = 4u;
const uint LEFT = 5u, RIGHT = 6u, CAP = 7u;
const uint SLOPES = 8u, SLOPES_BATCH = 9u;
const uint T5_BUCKETS = 10u, T5_REACH = 11u, T5_TABLE = 12u, T5_ROW = 13u;
const uint SINK = 14u, SINK_HERE = 15u, PREFIXES = 16u;
const uint Q_SEGMENTS = 17u, Q_SEGMENTS_BATCH = 18u, K_SEGMENTS = 19u, K_SEGMENTS_BATCH = 20u;
const uint SAMPLES = 21u, PACKED = 22u;
const uint BLOCK_MAP = 23u, BLOCK_BATCH = 24u, BLOCK_HEAD = 25u, BLOCK_ROW = 26u, BLOCK_Q = 27u, BLOCK_KV = 28u;
const uint KEEP_BELOW = 29u, KEEP_SCALE = 30u, SEED_LOW = 31u, SEED_HIGH = 32u, DROPOUT_OFFSET = 33u;
const uint BIAS_OFFSET = 34u, BIAS_BATCH = 35u, BIAS_HEAD = 36u, BIAS_ROW = 37u, BIAS_KEY = 38u;
const uint TILE_BATCH = 39u, TILE_HEAD = 40u, TILE_ROW = 41u;
const uint PAGES = 42u, PAGES_BATCH = 43u, PAGE_KEYS = 44u, K_PAGE = 45u, V_PAGE = 46u;

// constants: tiles
const uint TILE_EMPTY = 0u, TILE_PARTIAL = 1u, TILE_FULL = 2u;

// With ENDS (matrix/flash.glsl) only two of them can be, with COMPUTED four, and beside functions on matrix units not those
// that functions say as well, nor dropout, so that compilers leave out the others.
#if COMPUTED
bool on(int feature) { return (FEATURES & (feature & (SINKS | LENGTHS | SOFT_CAP | ALIBI))) != 0; }
#elif ENDS
bool on(int feature) { return (FEATURES & (feature & (SINKS | LENGTHS))) != 0; }
#elif defined(FUNCTIONS) && defined(MATRIX_M)
const int AS_FUNCTIONS = ALIBI | T5 | PREFIX | SEGMENTS | BLOCKS;
bool on(int feature) { return (FEATURES & (feature & ~(AS_FUNCTIONS | DROPOUT | PAGED | BIAS_HALVES))) != 0; }
#else
bool on(int feature) { return (FEATURES & feature) != 0; }
#endif
// A kernel may keep the parameters elsewhere.
#ifndef PARAMETER
#define PARAMETER(n) extra_data[pc.extra + (n)]
#endif
uint parameter(uint n) { return PARAMETER(n); }
float number(uint n) { return uintBitsToFloat(PARAMETER(n)); }

// Whether every score needs score_mod(). For the kernels of decode/: what hides keys from some rows in mask_mod(), and what makes
// some scores NEVER in score_mod().
#ifdef FUNCTIONS
#define HAS_SCORE_MOD ((FEATURES & (SOFT_CAP | BIAS | ALIBI | T5 | SCORE_FUNCTION)) != 0)
#define HIDING_KEYS (WINDOW | PREFIX | SEGMENTS | BLOCKS | MASK_FUNCTION)
#define HIDING_SCORES (BIAS | SCORE_FUNCTION)
#else
#define HAS_SCORE_MOD ((FEATURES & (SOFT_CAP | BIAS | ALIBI | T5)) != 0)
#define HIDING_KEYS (WINDOW | PREFIX | SEGMENTS | BLOCKS)
#define HIDING_SCORES BIAS
#endif

uint x_batch, x_head, x_first_row, x_first_key;  // of the whole call
uint x_queries, x_keys, x_row_start, x_key_start, x_prefix, x_bias;
int x_shift, x_rows_seeing, x_left, x_right;
float x_slope, x_cap;

#define QUERIES (on(LENGTHS) ? x_queries : pc.queries)
#define KEY_COUNT (on(LENGTHS) ? x_keys : pc.keys)
// Query i of the dispatch stands at key i + BASE_SHIFT of it, and sees keys up to i + SHIFT under causality.
#define BASE_SHIFT (on(LENGTHS) ? x_shift : pc.causal_shift - x_right)
#define SHIFT (on(LENGTHS) ? x_shift + x_right : pc.causal_shift)

void begin_extras(uint batch, uint head) {
    if (FEATURES == 0) return;
    x_batch = parameter(FIRST_BATCH) + batch;
    x_head = parameter(FIRST_HEAD) + head;
    x_first_row = parameter(FIRST_ROW);
    x_first_key = parameter(FIRST_KEY);
    x_left = int(parameter(LEFT));
    x_right = int(parameter(RIGHT));
    if (on(LENGTHS)) {
        // A sample: first row, rows, first key, keys; of which this dispatch has rows and keys from x_first_... on.
        uint at = parameter(SAMPLES) + 4u * x_batch;
        uint rows = extra_data[at + 1u], keys = extra_data[at + 3u];
        x_row_start = extra_data[at];
        x_key_start = extra_data[at + 2u];
        x_shift = int(keys) - int(rows) + int(x_first_row) - int(x_first_key);
        x_rows_seeing = int(rows) - int(x_first_row);
        x_keys = uint(clamp(int(keys) - int(x_first_key), 0, int(pc.keys)));
        x_queries = parameter(PACKED) != 0u ? uint(clamp(x_rows_seeing, 0, int(pc.queries))) : pc.queries;
    }
    if (on(ALIBI)) x_slope = uintBitsToFloat(extra_data[parameter(SLOPES) + x_batch * parameter(SLOPES_BATCH) + x_head]) * LOG2_E;
    if (on(BIAS)) x_bias = parameter(BIAS_OFFSET) + batch * parameter(BIAS_BATCH) + head * parameter(BIAS_HEAD);
    if (on(SOFT_CAP)) x_cap = number(CAP) * LOG2_E;
    if (on(PREFIX)) x_prefix = uint(max(int(extra_data[parameter(PREFIXES) + x_batch]) - int(x_first_key), 0));
}

#ifdef FUNCTIONS
#include "functions.glsl"
// A kernel that knows where a mask function sees all of a tile defines it.
#ifndef FUNCTION_SEES_ALL
#define FUNCTION_SEES_ALL false
#endif
#endif

uint row_start() { return on(LENGTHS) ? x_row_start : 0u; }
uint key_start() { return on(LENGTHS) ? x_key_start : 0u; }

// Elements from the first key's row of k or v to that of `key`.
uint key_place(uint key, uint row_stride, uint page_stride_parameter) {
    if (!on(PAGED)) return key * row_stride;
    uint whole = x_first_key + key, size = parameter(PAGE_KEYS);
    uint page = extra_data[parameter(PAGES) + x_batch * parameter(PAGES_BATCH) + whole / size];
    return page * parameter(page_stride_parameter) + whole % size * row_stride;
}
#define K_PLACE(key) key_place(key, pc.k_row, K_PAGE)
#define V_PLACE(key) key_place(key, pc.v_row, V_PAGE)

// ---- which keys a query sees ----

// The number of leading keys that any row up to `last_row` may see, and the number that no row from `first_row` on sees.
uint visible_keys(uint first_row, uint last_row) {
    if (on(LENGTHS) && int(first_row) >= x_rows_seeing) return 0u;
    if (CAUSAL == 0) return KEY_COUNT;
    uint last = uint(clamp(int(last_row) + SHIFT + 1, 0, int(KEY_COUNT)));
    return on(PREFIX) ? max(last, min(x_prefix, KEY_COUNT)) : last;
}
uint hidden_keys(uint first_row) {
    if (!on(WINDOW) || on(PREFIX)) return 0u;
    return uint(clamp(int(first_row) + BASE_SHIFT - x_left, 0, int(KEY_COUNT)));
}

// Whether all rows first_row .. last_row see all keys first_key .. last_key, masks and modified scores aside. With TILES on,
// segments and blocks are aside too: the class of the tile accounts for them and for the mask, so a kernel leaves mask_mod()
// and the mask out where mask_is_full() and tile_class() == TILE_FULL both say so, and passes over a tile of TILE_EMPTY.
bool mask_is_full(uint first_row, uint last_row, uint first_key, uint last_key) {
    if ((FEATURES & (SEGMENTS | BLOCKS)) != 0 && !on(TILES)) return false;
#ifdef FUNCTIONS
    if (on(MASK_FUNCTION) && !on(TILES) && !FUNCTION_SEES_ALL) return false;
#endif
    if (last_key >= KEY_COUNT || (CAUSAL != 0 && int(last_key) > int(first_row) + SHIFT)) return false;
    if (on(LENGTHS) && int(last_row) >= x_rows_seeing) return false;
    return !on(WINDOW) || int(first_key) >= int(last_row) + BASE_SHIFT - x_left;
}

bool in_block_mask(uint row, uint key) {
    uint at = x_batch * parameter(BLOCK_BATCH) + x_head * parameter(BLOCK_HEAD) + (x_first_row + row) / parameter(BLOCK_Q) * parameter(BLOCK_ROW)
            + (x_first_key + key) / parameter(BLOCK_KV);
    return (extra_data[parameter(BLOCK_MAP) + (at >> 2)] >> ((at & 3u) * 8u) & 0xffu) != 0u;
}

// Whether a row sees a key below KEY_COUNT, mask aside.
bool mask_mod(uint row, uint key) {
    bool seen = CAUSAL == 0 || int(key) <= int(row) + SHIFT;
    if (on(WINDOW)) seen = seen && int(key) >= int(row) + BASE_SHIFT - x_left;
    if (on(PREFIX)) seen = seen || key < x_prefix;
    if (on(LENGTHS)) seen = seen && int(row) < x_rows_seeing;
    if (on(SEGMENTS) && seen) {
        uint q_id = extra_data[parameter(Q_SEGMENTS) + x_batch * parameter(Q_SEGMENTS_BATCH) + x_first_row + row];
        seen = q_id == extra_data[parameter(K_SEGMENTS) + x_batch * parameter(K_SEGMENTS_BATCH) + x_first_key + key];
    }
    if (on(BLOCKS) && seen) seen = in_block_mask(row, key);
#ifdef FUNCTIONS
    if (on(MASK_FUNCTION) && seen) seen = function_sees(row, key);
#endif
    return seen;
}

#ifndef WITHOUT_TILES
#if APART
#define HAS_CLASSES (on(TILES) || on(MIXED_APART))
#else
#define HAS_CLASSES on(TILES)
#endif
// The class of a tile of the dispatch, counted in tiles of the size that the kernel's data file states (tile.rows,
// tile.keys): what mask, segments and blocks say of it, made by attention-tiles.comp. Causality, windows, prefixes and
// lengths are not in it. TILE_EMPTY holds whatever they say.
uint tile_class(uint batch, uint head, uint row_tile, uint key_tile) {
    if (!HAS_CLASSES) return TILE_PARTIAL;
    return tiles_data[batch * parameter(TILE_BATCH) + head * parameter(TILE_HEAD) + row_tile * parameter(TILE_ROW) + key_tile];
}
#endif

// ---- what a score becomes ----

// tanh to about one unit in the last place; the built-in one may overflow or cancel. The polynomial is a Chebyshev fit
// of (tanh(x) / x - 1) / x^2 on |x| <= 0.7.
float whole_tanh(float x) {
    float z = x * x;
    if (z < 0.49) {
        float p = 0.002112818;
        p = p * z - 0.008172847;
        p = p * z + 0.021712804;
        p = p * z - 0.053951893;
        p = p * z + 0.1333327;
        p = p * z - 0.33333334;
        return x + x * z * p;
    }
    float t = 1.0 - 2.0 / (exp2(2.0 * LOG2_E * min(abs(x), 20.0)) + 1.0);
    return isnan(x) ? x : x < 0.0 ? -t : t;
}

#if ORDER == 1 && !TILED  // score-mod-quads.glsl
float bias_number(uint at) {
    if (!on(BIAS_HALVES)) return bias_data[at];
    uint bits = floatBitsToUint(bias_data[at >> 1]) >> (16u * (at & 1u)) & 0xffffu;
#ifdef DTYPE_float16
    return unpackHalf2x16(bits).x;
#else
    return uintBitsToFloat(bits << 16);
#endif
}
#define BIAS_NUMBER(at) bias_number(at)
#else
#define BIAS_NUMBER(at) bias_data[at]
#endif

// A base-2 score after a score function, soft-cap and biases. With DERIVATIVES the caller has called the function.
float score_mod(float score, uint row, uint key) {
#if defined(FUNCTIONS) && !defined(DERIVATIVES)
    if (on(SCORE_FUNCTION)) {
        score = function_score(score * LN_2, row, key);
        if (floatBitsToUint(score) == 0xff800000u) return NEVER;
        score = floored(score * LOG2_E);
    }
#endif
    if (on(SOFT_CAP)) score = x_cap * whole_tanh(score / x_cap);
    int distance = int(key) - int(row) - BASE_SHIFT;
    if (on(BIAS)) {
        // Minus infinity masks the key, the lowest finite number does not.
        float bias = BIAS_NUMBER(x_bias + row * parameter(BIAS_ROW) + key * parameter(BIAS_KEY));
        score = floatBitsToUint(bias) == 0xff800000u ? NEVER : score + floored(bias * LOG2_E);
    }
    if (on(ALIBI) && score > NEVER) score -= x_slope * float(abs(distance));
    if (on(T5) && score > NEVER) {
        int reach = int(parameter(T5_REACH));
        uint bucket = extra_data[parameter(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)];
        score += uintBitsToFloat(extra_data[parameter(T5_TABLE) + bucket * parameter(T5_ROW) + x_head]) * LOG2_E;
    }
    return score;
}

// ---- dropout ----

// The counter of the generator that decides on keys 16 n to 16 n + 15 of the whole call (kept.glsl).
uvec4 drop_counter(uint n, uint row) {
    return uvec4(n, x_first_row + row, x_head + parameter(HEADS) * x_batch, parameter(DROPOUT_OFFSET));
}
uvec2 drop_seed() { return uvec2(parameter(SEED_LOW), parameter(SEED_HIGH)); }

// What dropout multiplies a weight by. `like` is the key but for a multiple of eight: one for many keys takes fewer registers.
float dropout_factor(uint row, uint key, uint like) {
    if (!on(DROPOUT)) return 1.0;
    uint whole = x_first_key + key;
    uint alike = x_first_key + like, up = ~(alike << 3) & 24u;
    uvec4 words = philox(drop_counter(whole / 16u, row), drop_seed());
    if ((whole & 8u) != 0u) words = words.zwxy;
    if ((alike & 4u) != 0u) words.xy = words.yz;
    uint drawn = words.x << up & 0xff000000u | words.y << up >> 8 & 0x00ff0000u;
    return drawn < parameter(KEEP_BELOW) << 16 ? number(KEEP_SCALE) : 0.0;
}
float dropout_factor(uint row, uint key) { return dropout_factor(row, key, key); }

// ---- sinks ----

// The sink's part in a row's base-2 maximum and sum, which are scaled anew: `decay` is what the output is scaled by.
void add_sink(uint row, inout float maximum, inout float sum, out float decay) {
    decay = 1.0;
    if (!on(SINKS) || parameter(SINK_HERE) == 0u || (on(LENGTHS) && int(row) >= x_rows_seeing)) return;
    float sink = uintBitsToFloat(extra_data[parameter(SINK) + x_head]) * LOG2_E;
    float raised = max(maximum, sink);
    decay = sum == 0.0 ? 0.0 : exp2(maximum - raised);
    sum = sum * decay + exp2(sink - raised);
    maximum = raised;
}

#endif
