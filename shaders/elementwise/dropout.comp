#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y = x * scale where the generator's word is below the threshold, and 0 elsewhere. The word of element
//     i, counted in C order from the first of the whole array, is word i % 4 of Philox4x32-10 with the counter
//     (i / 4, 0, 0, offset), 64 bits for i / 4.
// Shapes and layouts: x and y are one row each, contiguous.
// Bindings: 0 x, 1 seed, 2 y.
// Specialization constants: TYPE, of x and y; SEED, the type of the seed's element where it lies in memory, 0 where it is
//     a push constant; HALVES (words.glsl); DRAWN, 1: in memory lie three words, the seed's halves and the offset.
// Push constants: see the block; offsets in elements. first_low and first_high are i / 4 of the dispatch's first element.
// Workgroup: THREADS quads (x and y together count the workgroups, STRIPE of them along x). Invocation: one quad.
// Accumulation: none; one float32 multiplication, rounded to the type, to nearest, ties to even.
// Preconditions: fewer than 2^31 elements. x_offset and y_offset are multiples of 4. Words of y that hold an element are
//     written whole.

const uint EACH = 4u;  // (words.glsl)
layout(constant_id = 2) const uint HALVES = 0u;

#include "arrays/words.glsl"
#include "philox.glsl"

layout(constant_id = 0) const uint TYPE = 8u;
layout(constant_id = 1) const uint SEED = 0u;
layout(constant_id = 3) const uint DRAWN = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, x_offset, y_offset, seed_offset;
    uint first_low, first_high;
    uint seed_low, seed_high, counter_offset, threshold;
    float scale;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Seed { uvec4 seed_data[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(x, x_data, width_of(TYPE))
READER(seed, seed_data, width_of(SEED))
WRITER(y, y_data, width_of(TYPE))

void main() {
    uint quad = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    uint i = 4u * quad;
    if (i >= pc.count) return;
    uvec2 key = SEED == 0u ? uvec2(pc.seed_low, pc.seed_high) : natural(SEED, seed_raw(pc.seed_offset));
    uint offset = pc.counter_offset;
    if (DRAWN != 0u) {
        key.y = seed_raw(pc.seed_offset + 1u).x;
        offset = seed_raw(pc.seed_offset + 2u).x;
    }
    uvec2 place = add64(uvec2(pc.first_low, pc.first_high), uvec2(quad, 0u));
    uvec4 words = philox(uvec4(place, 0u, offset), key);
    uvec2 x[8];
    x_run(pc.x_offset + i, pc.x_offset + pc.count, x);
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        float value = uintBitsToFloat(natural(TYPE, x[k]).x) * pc.scale;
        x[k] = element(TYPE, FLOATING, uvec2(words[k] < pc.threshold ? floatBitsToUint(value) : 0u, 0u));
    }
    y_run(pc.y_offset + i, pc.y_offset + pc.count, x);
}
