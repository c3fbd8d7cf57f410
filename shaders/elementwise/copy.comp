#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: a strided copy, with conversion between float32, float16 and bfloat16 where the two sides differ.
// Shapes and layouts: four axes of any strides on both sides.
// Bindings: 0 source, 1 destination.
// Specialization constants: none.
// Push constants: see the block; offsets and strides in elements.
// Workgroup: THREADS runs of RUN elements along the last axis (x and y together count the workgroups, STRIPE of them
//     along x). Invocation: one run.
// Accumulation: none. To float16 rounds to nearest, ties to even, where the device does; to bfloat16 always. Elements of
//     one type are moved as bits.
// Preconditions: fewer than 2^32 runs.
// Defines: FROM_BITS and TO_BITS (32, 16 or 8; equal, or 32 and 16), BFLOAT16 (default 0; 1: the source is bfloat16 and
//     the destination is not, 2: the reverse), THREADS, RUN, STRIPE.

#if FROM_BITS == 16 || TO_BITS == 16
#extension GL_EXT_shader_16bit_storage : require
#elif FROM_BITS == 8
#extension GL_EXT_shader_8bit_storage : require
#endif
#include "elements.glsl"
#ifndef BFLOAT16
#define BFLOAT16 0
#endif

#if FROM_BITS == TO_BITS && BFLOAT16 == 0
#define CONVERT(value) value
#if FROM_BITS == 32
#define FROM uint
#elif FROM_BITS == 16
#define FROM uint16_t
#else
#define FROM uint8_t
#endif
#define TO FROM
#else

#if FROM_BITS == 32
#define FROM float
#elif BFLOAT16 == 1
#define FROM uint16_t
#define READ(value) uintBitsToFloat(uint(value) << 16)
#else
#define FROM float16_t
#endif
#ifndef READ
#define READ(value) float(value)
#endif
#if TO_BITS == 32
#define TO float
#elif BFLOAT16 == 2
#define TO uint16_t
#define WRITE(value) uint16_t(bfloat16_word(value))
#else
#define TO float16_t
#endif
#ifndef WRITE
#define WRITE(value) TO(value)
#endif
#define CONVERT(value) WRITE(READ(value))
#endif

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint from_offset, from_0, from_1, from_2, from_3;
    uint to_offset, to_0, to_1, to_2, to_3;
    uint extent_0, extent_1, extent_2, extent_3;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Source { FROM source_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Destination { TO destination_data[]; };

void main() {
    uint runs = (pc.extent_3 + uint(RUN) - 1u) / uint(RUN);
    uint index = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    uint i3 = index % runs * uint(RUN);
    index /= runs;
    uint i2 = index % pc.extent_2;
    index /= pc.extent_2;
    uint i1 = index % pc.extent_1;
    uint i0 = index / pc.extent_1;
    if (i0 >= pc.extent_0) return;
    uint from = pc.from_offset + i0 * pc.from_0 + i1 * pc.from_1 + i2 * pc.from_2 + i3 * pc.from_3;
    uint to = pc.to_offset + i0 * pc.to_0 + i1 * pc.to_1 + i2 * pc.to_2 + i3 * pc.to_3;
    [[unroll]] for (uint i = 0u; i < uint(RUN); i++) {
        if (i3 + i < pc.extent_3) destination_data[to + i * pc.to_3] = CONVERT(source_data[from + i * pc.from_3]);
    }
}
