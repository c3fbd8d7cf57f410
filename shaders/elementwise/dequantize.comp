#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y[t] = W[t], rows of a quantized table as floats; or with INDEXED y[t] = W[ids[t]].
// Shapes and layouts: W (rows, D), D a multiple of 32, in the order of quantized.glsl; ids (tokens) and y (tokens, D)
//     contiguous.
// Bindings: 0 ids, 1 low, 2 high, 3 scales, 4 y.
// Specialization constants: TYPE_IDS, TYPE_Y (arrays/words.glsl); INDEXED; those of quantized.glsl.
// Push constants: see the block. y_offset counts elements, low_offset, high_offset, scales_offset and the *_row words of
//     the arrays. The dispatch has rows first to first + rows - 1 of the `extent` that ids count, and writes what asks for
//     these; without ids it has all.
// Workgroup: THREADS times 8 elements of y (x and y together count the workgroups, STRIPE of them along x). Invocation: 8.
// Accumulation: float32. A number is rounded once, to the result's dtype.
// Preconditions: fewer than 2^31 elements of y; y begins at a multiple of 8 elements.

#include "elements.glsl"

const uint EACH = 4u, HALVES = 0u;  // (arrays/words.glsl)
#define SCALES_WORD(i) scales_data[i]
layout(set = 0, binding = 3, std430) restrict readonly buffer Scales { uint scales_data[]; };

#include "quantized.glsl"
#include "elementwise/embedding.glsl"

layout(constant_id = 1) const int INDEXED = 0;
layout(constant_id = 2) const uint TYPE_Y = FLOAT32;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, depth, ids_offset, low_offset, low_row, high_offset, high_row, scales_offset, scales_row, y_offset;
    uint extent, first, rows;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer Ids { uvec4 ids_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Low { uint low_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer High { uint high_data[]; };
layout(set = 0, binding = 4, std430) restrict writeonly buffer Y { uvec4 y_data[]; };

READER(ids, ids_data, width_of(TYPE_IDS))

void main() {
    uint eight = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    if (eight >= pc.count) return;
    uint eights = pc.depth / 8u, token = eight / eights, place = eight % eights;
    uint row = token;
    if (INDEXED == 1) {
        row = row_of(ids_raw(pc.ids_offset + token), pc.extent) - pc.first;
        if (row >= pc.rows) return;
    }
    uint low_at = 8u * LOW * place, high_at = 8u * HIGH * place;  // in bits
    uint low = pc.low_offset + row * pc.low_row + low_at / 32u;
    uint words[2];
    words[0] = low_data[low];
    words[1] = LOW == 8u ? low_data[low + 1u] : words[0];
    uint high = HIGH == 0u ? 0u : high_data[pc.high_offset + row * pc.high_row + high_at / 32u];
    vec4 all = scales_of(pc.scales_offset + row * pc.scales_row, place / 4u, pc.depth / UNIT);
    vec2 own = place % 4u < 2u ? all.xz : all.yw;
    float y[8];
    [[unroll]] for (uint e = 0u; e < 8u; e++) {
        y[e] = own.x * level(words[LOW == 8u ? e / 4u : 0u], (low_at + LOW * e) % 32u, high, (high_at + HIGH * e) % 32u);
        if (HAS_MINIMA) y[e] += own.y;
    }
    if (TYPE_Y == FLOAT32) {
        uint to = pc.y_offset / 4u + 2u * eight;
        y_data[to] = floatBitsToUint(vec4(y[0], y[1], y[2], y[3]));
        y_data[to + 1u] = floatBitsToUint(vec4(y[4], y[5], y[6], y[7]));
        return;
    }
    uvec4 word;
    [[unroll]] for (int i = 0; i < 4; i++) {
        if (TYPE_Y == FLOAT16) word[i] = float16_word(y[2 * i]) | float16_word(y[2 * i + 1]) << 16;
        else word[i] = bfloat16_word(y[2 * i]) | bfloat16_word(y[2 * i + 1]) << 16;
    }
    y_data[pc.y_offset / 8u + eight] = word;
}
