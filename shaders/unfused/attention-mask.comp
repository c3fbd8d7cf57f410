#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: masked scores, the second of the unfused path's steps: out = scores where a query may attend, plus
//     the mask where that is additive, and minus infinity elsewhere.
// Shapes and layouts: scores and out (B, H, Sq, Sk) float32, mask broadcast to them. The last axis of scores and out is
//     contiguous, all other strides are arguments.
// Bindings: 0 scores, 1 mask (words; bytes are cut out of them for MASK 1), 2 out.
// Specialization constants: 0 MASK (0 none, 1 boolean bytes, 2 additive float32), 1 CAUSAL (query i sees key j when
//     j <= i + shift).
// Push constants: see the block; offsets and strides in elements of the array they belong to.
// Workgroup: 64 keys of ROWS rows of one head (z = head + heads * batch). Invocation: one key of each row.
// Accumulation: none; one float32 addition.
// Preconditions: the mask's binding spans whole words. An additive value below -3.0e38 means "never attend".

#include "elements.glsl"

layout(local_size_x = 64) in;

layout(constant_id = 0) const int MASK = 0;
layout(constant_id = 1) const int CAUSAL = 0;

layout(push_constant, std430) uniform Push {
    uint s_offset, s_batch, s_head, s_row;
    uint mask_offset, mask_batch, mask_head, mask_row, mask_key;
    uint o_offset, o_batch, o_head, o_row;
    uint queries, keys, heads;
    int shift;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Scores { float scores_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Mask { uint mask_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { float out_data[]; };

void main() {
    uint key = gl_GlobalInvocationID.x;
    uint head = gl_WorkGroupID.z % pc.heads;
    uint batch = gl_WorkGroupID.z / pc.heads;
    if (key >= pc.keys) return;
    [[unroll]] for (uint r = 0u; r < uint(ROWS); r++) {
        uint row = gl_WorkGroupID.y * uint(ROWS) + r;
        if (row >= pc.queries) continue;
        float score = scores_data[pc.s_offset + batch * pc.s_batch + head * pc.s_head + row * pc.s_row + key];
        uint place = pc.mask_offset + batch * pc.mask_batch + head * pc.mask_head + row * pc.mask_row + key * pc.mask_key;
        bool seen = CAUSAL == 0 || int(key) <= int(row) + pc.shift;
        if (MASK == MASK_BOOLEAN) seen = seen && ((mask_data[place >> 2] >> ((place & 3u) * 8u)) & 0xffu) != 0u;
        if (MASK == MASK_ADDED) {
            float bias = uintBitsToFloat(mask_data[place]);
            seen = seen && !(bias < MASK_FLOOR);
            score += bias;
        }
        out_data[pc.o_offset + batch * pc.o_batch + head * pc.o_head + row * pc.o_row + key] =
            seen ? score : minus_infinity();
    }
}
