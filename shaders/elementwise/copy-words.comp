#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: a strided copy with an array of 16-bit elements on a side, on devices without 16-bit storage: those
//     arrays are read and written as 32-bit words, two elements each.
// Shapes and layouts: source, four axes of any strides; destination, as many elements in C order without gaps.
// Bindings: 0 source, 1 destination.
// Specialization constants: none.
// Push constants: see the block; offsets and strides in elements. The destination's offset is even where it has 16 bits.
// Workgroup: THREADS runs of 2 elements (x and y together count the workgroups, STRIPE of them along x). Invocation: one
//     run. Where the number of elements is odd, what follows the last one in its word becomes zero.
// Accumulation: none. To 16 bits rounds to nearest, ties to even.
// Preconditions: fewer than 2^32 elements.
// Defines: FROM and TO (32 float32, 16 float16, 15 bfloat16), THREADS, STRIPE.

#include "elements.glsl"
#include "float16.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint from_offset, from_0, from_1, from_2, from_3;
    uint to_offset, to_0, to_1, to_2, to_3;
    uint extent_0, extent_1, extent_2, extent_3;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Source { uint source_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Destination { uint destination_data[]; };

// The element's own bits where both sides have one type, else its value as float32's bits.
uint element(uint index) {
#if FROM == 32
    uint bits = source_data[index];
#else
    uint bits = source_data[index >> 1] >> (index & 1u) * 16u & 0xffffu;
#endif
#if FROM == TO || FROM == 32
    return bits;
#elif FROM == 16
    return floatBitsToUint(float16_value(bits));
#else
    return bits << 16;
#endif
}

uint narrowed(uint bits) {
#if FROM == TO || TO == 32
    return bits;
#elif TO == 16
    return float16_word(uintBitsToFloat(bits));
#else
    return bfloat16_word(uintBitsToFloat(bits));
#endif
}

void main() {
    uint first = 2u * ((gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex);
    uint count = pc.extent_0 * pc.extent_1 * pc.extent_2 * pc.extent_3;
    if (first >= count) return;
    uint both[2];
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        uint index = min(first + i, count - 1u);
        uint i3 = index % pc.extent_3;
        index /= pc.extent_3;
        uint i2 = index % pc.extent_2;
        index /= pc.extent_2;
        uint at = index / pc.extent_1 * pc.from_0 + index % pc.extent_1 * pc.from_1 + i2 * pc.from_2 + i3 * pc.from_3;
        both[i] = first + i < count ? element(pc.from_offset + at) : 0u;
    }
#if TO == 32
    destination_data[pc.to_offset + first] = both[0];
    if (first + 1u < count) destination_data[pc.to_offset + first + 1u] = both[1];
#else
    destination_data[(pc.to_offset + first) >> 1] = narrowed(both[0]) | narrowed(both[1]) << 16;
#endif
}
