// What the kernels of attention's gradients share: bindings, push constants, specialization constants, element access,
// and what one query and one key have to do with each other.
//
// With S the modified and biased scores, P = exp(S - lse) the weights, m the dropout factors (1 without dropout), G the
// gradient of the output and delta[i] = sum_d G[i,d] O[i,d] (Dao 2023, "FlashAttention-2", algorithm 2):
//   dV = (m P)^T G     dP = m (G V^T)     dS = P (dP - delta)     dQ = scale (dS score_mod') K     dK = scale (dS score_mod')^T Q
//
// Shapes
//   q (B, H, queries, HEAD_DIM)   k (B, H / GROUP, keys, HEAD_DIM)   v (B, H / GROUP, keys, VALUE_DIM)
//   g (B, H, queries, VALUE_DIM)  stats (B, H, queries, 4): lse, delta, rest, and the sum of weights so far, float32
// The log-sum-exp that users have is one float32 number, whose rounding is a relative error of all weights of a row. The
// kernel for dq adds up the weights that it makes (and the sink's); rest = log2 of their sum mends what comes after it.
//   mask broadcast to (B, H, queries, keys); what else changes scores (score_mod) or masks them (mask_mod): attention/extras.glsl
// Results lie in rows of HEAD_DIM or VALUE_DIM elements, a row's number being
//   out_offset + batch * out_batch + head * out_head + (query or key)
// Offsets and strides are in elements of the array they belong to (bytes for a boolean mask, rows for stats).
//
// The including shader is compiled with DTYPE_* (include/elements.glsl) and ALIGN 1, 4, or 8 for 16-bit types, as in
// attention/attention.glsl, and must enable GL_GOOGLE_include_directive.

#ifndef GRILLY_FLASH_BACKWARD_GLSL
#define GRILLY_FLASH_BACKWARD_GLSL

#include "attention/access.glsl"

layout(constant_id = 0) const int HEAD_DIM = 64;
layout(constant_id = 1) const int VALUE_DIM = 64;
layout(constant_id = 2) const int MASK = 0;        // constants "masks" of include/elements.glsl
layout(constant_id = 3) const int CAUSAL = 0;      // 1: query i sees key j when j <= i + causal_shift
layout(constant_id = 4) const int GROUP = 1;       // query heads per key head
layout(constant_id = 5) const int ACCUMULATE = 0;  // bits of constants "accumulate", below
layout(constant_id = 7) const int WIDE = 0;        // 1: the results are float32 whatever the element type is

layout(push_constant, std430) uniform Push {
    uint q_offset, q_batch, q_head, q_row;
    uint k_offset, k_batch, k_head, k_row;
    uint v_offset, v_batch, v_head, v_row;
    uint g_offset, g_batch, g_head, g_row;
    uint mask_offset, mask_batch, mask_head, mask_row, mask_key;
    uint stats_offset, stats_batch, stats_head;
    uint out_offset, out_batch, out_head;
    uint queries, keys;
    int causal_shift;
    float scale;
    uint extra;
} pc;

#ifndef STATS_ACCESS
#define STATS_ACCESS readonly
#endif

layout(set = 0, binding = 0, std430) restrict readonly buffer Queries { IO_ELEMENT q_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Keys { IO_ELEMENT k_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Values { IO_ELEMENT v_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Mask { uint mask_data[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer OutputGradient { IO_ELEMENT g_data[]; };
layout(set = 0, binding = 5, std430) restrict STATS_ACCESS buffer Stats { vec4 stats_data[]; };

const float LOG2_E = 1.44269504088896340736;
// A score that stands for "never attend", as in attention.glsl.
// constants: numbers
const float NEVER = -3.4e38;

#ifdef FUNCTIONS
// Functions of users, the score function with its derivative (attention/functions.glsl).
#define DERIVATIVES
#ifndef WORDS_IN_SHARED
#define HOLDS_WORDS
#endif
#define FUNCTION_SEES_ALL function_sees_all
bool function_sees_all = false;  // in the present tile, by a block mask
#endif
#include "attention/extras.glsl"

// Add to what the results hold; and for dq: dispatches with later keys of the same queries follow.
// constants: accumulate
const int ADD_TO_RESULT = 1, KEYS_FOLLOW = 2;

// Whether results are added to what is there (float32 ones only), and what they are multiplied by after that.
bool adds = (ACCUMULATE & ADD_TO_RESULT) != 0;
float factor = 1.0;

// ---- element access: load_*4(element, count) reads elements element .. + 3, those at position count and later as zeros

#if ALIGN == 8
// The shader unpacks q, k, v and g itself, and packs by its pack_pair. Eight elements of a result at a time.
#define GRILLY_RESULT(NAME, BINDING) \
    layout(set = 0, binding = BINDING, std430) buffer Narrow_##NAME { uvec4 NAME##_narrow[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer Wide_##NAME { vec4 NAME##_wide[]; }; \
    void store_##NAME##8(uint element, vec4 low, vec4 high) { \
        if (WIDE == 0) { \
            NAME##_narrow[element >> 3] = \
                uvec4(pack_pair(low.xy), pack_pair(low.zw), pack_pair(high.xy), pack_pair(high.zw)); \
        } else { \
            uint at = element >> 2; \
            NAME##_wide[at] = adds ? NAME##_wide[at] + low : low; \
            NAME##_wide[at + 1u] = adds ? NAME##_wide[at + 1u] + high : high; \
        } \
    }
#elif ALIGN == 4
// A result that WIDE makes float32 is declared twice on one binding; only one declaration is ever used.
#define GRILLY_RESULT(NAME, BINDING) \
    layout(set = 0, binding = BINDING, std430) buffer Narrow_##NAME { IO_VECTOR NAME##_narrow[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer Wide_##NAME { vec4 NAME##_wide[]; }; \
    void store_##NAME##4(uint element, vec4 value, int count) { \
        if (count <= 0) return; \
        if (WIDE == 0) NAME##_narrow[element >> 2] = IO_STORE4(value * factor); \
        else NAME##_wide[element >> 2] = (adds ? NAME##_wide[element >> 2] + value : value) * factor; \
    }
#else
#define GRILLY_RESULT(NAME, BINDING) \
    layout(set = 0, binding = BINDING, std430) buffer Narrow_##NAME { IO_SCALAR NAME##_narrow[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer Wide_##NAME { float NAME##_wide[]; }; \
    void store_##NAME##4(uint element, vec4 value, int count) { \
        [[unroll]] for (int i = 0; i < 4; ++i) { \
            if (i >= count) return; \
            uint e = element + uint(i); \
            if (WIDE == 0) NAME##_narrow[e] = IO_STORE(value[i] * factor); \
            else NAME##_wide[e] = (adds ? NAME##_wide[e] + value[i] : value[i]) * factor; \
        } \
    }
#endif

GRILLY_LOADS(q, q_data)
GRILLY_LOADS(k, k_data)
GRILLY_LOADS(v, v_data)
GRILLY_LOADS(g, g_data)

// Element index of column 0. `head` is the query head everywhere but in k_base and v_base.
uint q_base(uint batch, uint head) { return pc.q_offset + batch * pc.q_batch + head * pc.q_head; }
uint k_base(uint batch, uint key_head) { return pc.k_offset + batch * pc.k_batch + key_head * pc.k_head; }
uint v_base(uint batch, uint key_head) { return pc.v_offset + batch * pc.v_batch + key_head * pc.v_head; }
uint g_base(uint batch, uint head) { return pc.g_offset + batch * pc.g_batch + head * pc.g_head; }
uint stats_base(uint batch, uint head) { return pc.stats_offset + batch * pc.stats_batch + head * pc.stats_head; }
uint out_row(uint batch, uint head) { return pc.out_offset + batch * pc.out_batch + head * pc.out_head; }

// ---- what a query and a key have to do with each other

// Rows of q and k that belong to this dispatch and sample: what is read and written, whether or not it is attended to.
uint query_rows() { return QUERIES; }
uint key_rows() { return on(LENGTHS) && parameter(PACKED) == 0u ? pc.keys : KEY_COUNT; }

// The first row that may see a key from `first_key` on, and the number of rows of which the last may see `last_key`.
uint first_seeing_row(uint first_key) {
    if (CAUSAL == 0 || (on(PREFIX) && first_key < x_prefix)) return 0u;
    return uint(clamp(int(first_key) - SHIFT, 0, int(query_rows())));
}
uint seeing_rows(uint last_key) {
    int rows = int(query_rows());
    if (on(LENGTHS)) rows = clamp(x_rows_seeing, 0, rows);
    if (on(WINDOW) && !on(PREFIX)) rows = clamp(int(last_key) - BASE_SHIFT + x_left + 1, 0, rows);
    return uint(rows);
}

#ifdef FUNCTIONS
// What a block mask says of a tile, which touches two blocks at most along each axis: TILE_EMPTY, TILE_FULL or TILE_PARTIAL.
// The last for all other tiles, and without a block mask. Also sets function_sees_all.
#ifdef WORDS_IN_SHARED
shared uint held_blocks[6];
#define BLOCK_PARAMETER(name) held_blocks[name - BLOCK_MAP]
void hold_block_parameters() {
    if (gl_LocalInvocationIndex < 6u) held_blocks[gl_LocalInvocationIndex] = parameter(BLOCK_MAP + gl_LocalInvocationIndex);
}
#else
#define BLOCK_PARAMETER(name) parameter(name)
#endif
uint block_class(uint first_row, uint last_row, uint first_key, uint last_key) {
    uint rows = BLOCK_PARAMETER(BLOCK_Q), keys = BLOCK_PARAMETER(BLOCK_KV), found = TILE_PARTIAL;
    function_sees_all = false;
    if (!on(MASK_FUNCTION) || rows == 0u) return found;
    uvec2 low = uvec2(x_first_row + first_row, x_first_key + first_key) / uvec2(rows, keys);
    uvec2 high = uvec2(x_first_row + min(last_row, query_rows() - 1u), x_first_key + min(last_key, key_rows() - 1u));
    high /= uvec2(rows, keys);
    if (any(greaterThan(high, low + 1u))) return found;
    uint at = x_batch * BLOCK_PARAMETER(BLOCK_BATCH) + x_head * BLOCK_PARAMETER(BLOCK_HEAD);
    uint most = 0u, least = 2u;
    [[unroll]] for (uint n = 0u; n < 4u; ++n) {
        uint place = at + (n < 2u ? low.x : high.x) * BLOCK_PARAMETER(BLOCK_ROW) + (n % 2u == 0u ? low.y : high.y);
        uint own = extra_data[BLOCK_PARAMETER(BLOCK_MAP) + (place >> 2)] >> ((place & 3u) * 8u) & 0xffu;
        most = max(most, own);
        least = min(least, own);
    }
    if (most == TILE_EMPTY) found = TILE_EMPTY;
    if (least == TILE_FULL) found = TILE_FULL;
    function_sees_all = found == TILE_FULL;
    return found;
}
#endif

// Of the pair that `pair` saw last: the weight P, and what soft-cap multiplies the derivative by.
float pair_weight, cap_derivative;

// Turns raw = q . k and dp = g . v of a row and a key into the weight and dS, both as their factors in the products:
// raw becomes m P, dp becomes dS score_mod', and `pulled` is dS itself, the gradient of what is added to the score. `stat` is
// the row's lse, delta and rest. `some_hidden`: not every pair of this tile may attend; the pair may then lie outside the
// arrays. What is hidden gives zeros, whatever raw, dp and stat are. `like`: attention/extras.glsl.
float pair(
    uint batch, uint head, uint row, uint key, uint like, bool some_hidden, vec3 stat, inout float raw, inout float dp
) {
    bool allowed = true;
    cap_derivative = 1.0;
    if (some_hidden) allowed = row < QUERIES && key < KEY_COUNT && mask_mod(row, key);
    float score = raw * pc.scale;
    float derivative = 1.0;
#ifdef FUNCTIONS
    if (on(SCORE_FUNCTION) && allowed) {
        vec2 made = function_score(score, row, key);
        allowed = floatBitsToUint(made.x) != 0xff800000u;
        score = made.x < MASK_FLOOR / LOG2_E ? MASK_FLOOR / LOG2_E : made.x;  // finite in base 2; NaN stays
        derivative = made.y;
    }
#endif
    if (HAS_SCORE_MOD && allowed) {
        if (on(SOFT_CAP)) {
            float t = whole_tanh(score * LOG2_E / x_cap);
            cap_derivative = 1.0 - t * t;
            derivative *= cap_derivative;
        }
        score = score_mod(score * LOG2_E, row, key);
        allowed = !(score <= NEVER);
        score /= LOG2_E;
    }
    if (MASK != 0 && allowed) {
        uint index = pc.mask_offset + batch * pc.mask_batch + head * pc.mask_head + row * pc.mask_row + key * pc.mask_key;
        if (MASK == MASK_BOOLEAN) {
            allowed = (mask_data[index >> 2] >> ((index & 3u) * 8u) & 0xffu) != 0u;
        } else {
            float bias = uintBitsToFloat(mask_data[index]);
            allowed = !(bias < MASK_FLOOR);
            score += bias;
        }
    }
    // Subtracted in natural units, where the score and lse are about equal and the difference is nearly exact.
    float weight = exp2((score - stat.x) * LOG2_E - stat.z);
    pair_weight = allowed ? weight : 0.0;
    float share = on(DROPOUT) && allowed ? dropout_factor(row, key, like) : 1.0;
    float pulled = allowed ? weight * ((share == 0.0 ? 0.0 : share * dp) - stat.y) : 0.0;
    raw = allowed ? weight * share : 0.0;
    dp = allowed ? pulled * derivative : 0.0;
    return pulled;
}

#endif
