// score-mod.glsl for NVIDIA's order, in which an invocation has pairs of neighbouring columns: what is added is read a pair at a
// time, before the products of the chunk that it is added to (with ADDED_LATE after them, which takes fewer registers).
// distance.glsl and cap.glsl do the rest. Modified scores are not base 2 here: what is added needs no factor then, and the
// exponentials have theirs anyway.

#include "score-mod-one.glsl"

layout(set = 0, binding = 3, std430) readonly buffer MaskPairs { uvec2 mask_pairs[]; };
layout(set = 0, binding = 7, std430) readonly buffer BiasPairs { uvec2 bias_pairs[]; };
layout(set = 0, binding = 7, std430) readonly buffer BiasWords { uint bias_words[]; };
layout(set = 0, binding = 3, std430) readonly buffer MaskFours { uvec4 mask_fours[]; };
layout(set = 0, binding = 7, std430) readonly buffer BiasFours { uvec4 bias_fours[]; };

#define MODIFIED_FACTOR LOG2_E
// Halves in pairs take few registers: those of the next chunk are under way while this one's weights are made. Under a causal
// mask that was slower (docs/benchmarks/features.md).
#define ADDED_AHEAD (on(BIAS) && on(BIAS_HALVES) && (FEATURES & (BIAS_PAIRS | ADDED_FOURS)) != 0 && !on(ADDED_LATE) && MASK != MASK_ADDED && CAUSAL == 0)
#define FETCH_ADDED(first_key) \
    if ((masked || MODIFIED) && ADDS && !on(ADDED_LATE) && !ADDED_AHEAD) { \
        fetch_bias(first_key); \
        fetch_mask_numbers(first_key); \
    }
#define FETCH_AHEAD(first_key) { if (ADDED_AHEAD) fetch_halves(first_key); }
// Batches that have the same numbers added stand beside each other, so that these are read from memory once.
#define SHARE_ADDED \
    if ((on(BIAS) && parameter(BIAS_BATCH) == 0u) || (MASK == MASK_ADDED && pc.mask_batch == 0u)) { \
        uint place = batch * gl_NumWorkGroups.y + head; \
        head = place / gl_NumWorkGroups.z; \
        batch = place % gl_NumWorkGroups.z; \
    }

// The pairs of a chunk that an invocation has: pair n has elements 2 (n % 4) and the next of fragment n / 4.
#define PAIRS (RF * KF * 4)
#define PAIR_ROW(n) min(MY_ROW + (n) / (KF * 4) * MATRIX_M + PLACE_ROW(2u * ((n) % 4u)), QUERIES - 1u)
#define PAIR_KEY(n) (first_key + (n) / 4u % KF * MATRIX_N + PLACE_COLUMN(2u * ((n) % 4u)))

uvec2 held_bias[PAIRS];  // with BIAS_HALVES in pairs: both in the first word
uvec2 held_mask[PAIRS];

// The place of the first of a pair, and of the second. Keys past the end have the last one's.
#define FIRST_PLACE(base, row_stride, n) (base + PAIR_ROW(n) * (row_stride) + min(PAIR_KEY(n), (end - 1u) & ~1u))
// With ADDED_FOURS, of the first of four that pairs n and n + 1 are.
#define FOUR_PLACE(base, row_stride, n) (base + PAIR_ROW(n) * (row_stride) + min(PAIR_KEY(n), (end - 1u) & ~3u))
#define EACH_PLACE(base, row_stride, key_stride, n, c) (base + PAIR_ROW(n) * (row_stride) + min(PAIR_KEY(n) + c, end - 1u) * (key_stride))

uint bias_half(uint at) { return bias_words[at >> 1] >> (16u * (at & 1u)) & 0xffffu; }

// Have what is added to a chunk under way.
void fetch_halves(uint first_key) {
    uint row_stride = parameter(BIAS_ROW);
    if (on(ADDED_FOURS)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; n += 2u) {
            uvec2 four = bias_pairs[FOUR_PLACE(x_bias, row_stride, n) >> 2];
            held_bias[n].x = four.x;
            held_bias[n + 1u].x = four.y;
        }
    } else {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) held_bias[n].x = bias_words[FIRST_PLACE(x_bias, row_stride, n) >> 1];
    }
}
void fetch_bias(uint first_key) {
    uint row_stride = parameter(BIAS_ROW), key_stride = parameter(BIAS_KEY);
    const bool singly = (FEATURES & (BIAS_PAIRS | ADDED_FOURS)) == 0;
    if (on(BIAS) && !singly && on(BIAS_HALVES)) fetch_halves(first_key);
    if (on(BIAS) && on(ADDED_FOURS) && !on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; n += 2u) {
            uvec4 four = bias_fours[FOUR_PLACE(x_bias, row_stride, n) >> 2];
            held_bias[n] = four.xy;
            held_bias[n + 1u] = four.zw;
        }
    }
    if (on(BIAS) && on(BIAS_PAIRS) && !on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) held_bias[n] = bias_pairs[FIRST_PLACE(x_bias, row_stride, n) >> 1];
    }
    if (on(BIAS) && singly && on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) {
            held_bias[n].x = bias_half(EACH_PLACE(x_bias, row_stride, key_stride, n, 0u));
            held_bias[n].x |= bias_half(EACH_PLACE(x_bias, row_stride, key_stride, n, 1u)) << 16;
        }
    }
    if (on(BIAS) && singly && !on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) {
            held_bias[n].x = bias_words[EACH_PLACE(x_bias, row_stride, key_stride, n, 0u)];
            held_bias[n].y = bias_words[EACH_PLACE(x_bias, row_stride, key_stride, n, 1u)];
        }
    }
}
void fetch_mask_numbers(uint first_key) {
    uint mask_base = mask_index(batch, head, 0u);
    if (MASK == MASK_ADDED && on(MASK_PAIRS)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) held_mask[n] = mask_pairs[FIRST_PLACE(mask_base, pc.mask_row, n) >> 1];
    }
    if (MASK == MASK_ADDED && on(ADDED_FOURS)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; n += 2u) {
            uvec4 four = mask_fours[FOUR_PLACE(mask_base, pc.mask_row, n) >> 2];
            held_mask[n] = four.xy;
            held_mask[n + 1u] = four.zw;
        }
    }
    if (MASK == MASK_ADDED && (FEATURES & (MASK_PAIRS | ADDED_FOURS)) == 0) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) {
            held_mask[n].x = mask_data[EACH_PLACE(mask_base, pc.mask_row, pc.mask_key, n, 0u)];
            held_mask[n].y = mask_data[EACH_PLACE(mask_base, pc.mask_row, pc.mask_key, n, 1u)];
        }
    }
}

// Below it a sum could reach minus infinity once it is base 2.
#define LEAST_ADDED (MASK_FLOOR / LOG2_E)
#ifdef DTYPE_float16
// Halves are far from that.
#define FLOORED(bias, least) mix(max(bias, least), bias, on(BIAS_HALVES))
#else
#define FLOORED(bias, least) max(bias, least)
#endif

// Multiplies scores by a factor and adds a bias. Minus infinity masks the key, whatever its score; the lowest finite number
// does not, and NaN stays. No conditions in loops: see score-mod.glsl.
void add_bias(float factor) {
    float never = minus_infinity(), more[PAIRS * 2], least = LEAST_ADDED;
    if (!on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS * 2; ++n) more[n] = uintBitsToFloat(held_bias[n / 2u][n % 2u]);
    } else {
#ifdef DTYPE_float16
        [[unroll]] for (uint n = 0u; n < PAIRS * 2; ++n) more[n] = unpackHalf2x16(held_bias[n / 2u].x)[n % 2u];
#else
        [[unroll]] for (uint n = 0u; n < PAIRS * 2; n += 2u) {
            more[n] = uintBitsToFloat(held_bias[n / 2u].x << 16);
            more[n + 1u] = uintBitsToFloat(held_bias[n / 2u].x & 0xffff0000u);
        }
#endif
    }
    EACH_SCORE {
        float bias = more[(i * KF + f) * ELEMENTS + e];
        float modified = fma(s_frag[i][f][e], factor, FLOORED(bias, least));
        s_frag[i][f][e] = mix(bias, modified, bias > never);
    }
}

// The same of an additive mask, whose numbers below MASK_FLOOR hide keys: MODIFIED_FACTOR makes minus infinity of each, and NaN of
// NaN. Not a selection of `least`, which NVIDIA's driver makes a maximum, and that is not NaN.
void add_mask(float factor) {
    float least = LEAST_ADDED;
    EACH_SCORE {
        uint n = (i * KF + f) * ELEMENTS + e;
        float bias = uintBitsToFloat(held_mask[n / 2u][n % 2u]);
        float modified = fma(s_frag[i][f][e], factor, max(bias, least));
        s_frag[i][f][e] = mix(bias, modified, bias >= MASK_FLOOR);
    }
}

#include "distance.glsl"
#include "cap.glsl"

#define BEGIN_LEANING begin_leaning();
#define LEAN(first_key, clear) lean(clear ? lean_side(first_key) : 0);
#define MULTIPLY_SCORES(first_key, chunk, masked) \
    if (leans() && on(ALIBI) && !masked) lean_scores(first_key + chunk); \
    else begin_scores(); \
    add_scores(chunk);

void apply_score_mod(uint first_key) {
    float factor = SCORE_SCALE / LOG2_E;  // that scores are still to be multiplied by
    if (on(SOFT_CAP)) {
        cap_scores(factor);
        factor = 1.0;
    }
    if (DEPENDS_ON_DISTANCE) {
        add_by_distance(first_key, factor);
        factor = 1.0;
    }
    if (on(BIAS)) {
        if (on(ADDED_LATE)) fetch_bias(first_key);
        add_bias(factor);
        factor = 1.0;
    }
    if (MASK == MASK_ADDED) {
        if (on(ADDED_LATE)) fetch_mask_numbers(first_key);
        add_mask(factor);
    }
}
