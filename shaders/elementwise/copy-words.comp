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

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint from_offset, from_0, from_1, from_2, from_3;
    uint to_offset, to_0, to_1, to_2, to_3;
    uint extent_0, extent_1, extent_2, extent_3;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Source { uint source_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Destination { uint destination_data[]; };

// By integers, because devices may round packHalf2x16 as they like and flush small numbers in unpackHalf2x16.
float float16_value(uint word) {
    uint sign = (word & 0x8000u) << 16;
    uint rest = word & 0x7fffu;
    if (rest < 0x0400u) return uintBitsToFloat(sign | floatBitsToUint(float(rest) * 5.9604644775390625e-8));
    return uintBitsToFloat(sign | (rest < 0x7c00u ? (rest << 13) + 0x38000000u : rest << 13 | 0x7f800000u));
}

uint float16_word(float x) {
    uint bits = floatBitsToUint(x);
    uint sign = bits >> 16 & 0x8000u;
    uint size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u;
    if (size >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more
    if (size >= 0x38800000u) {
        uint scaled = size - 0x38000000u;
        return sign | (scaled + 0xfffu + (scaled >> 13 & 1u)) >> 13;
    }
    if (size <= 0x33000000u) return sign;  // at most half of the smallest number
    uint shift = 126u - (size >> 23);
    uint digits = size & 0x7fffffu | 0x800000u;
    return sign | (digits + (1u << (shift - 1u)) - 1u + (digits >> shift & 1u)) >> shift;
}

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
