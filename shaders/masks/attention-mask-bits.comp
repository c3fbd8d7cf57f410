#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: a boolean mask with 32 keys to a word, key k in bit k % 32 of word k / 32: an eighth of the bytes, and a
//     row's keys of a tile at one load. Bits past the last key are 0.
// Shapes and layouts: the mask as in attention/attention.glsl; out uint (batches, heads, rows, ceil(keys / 32)) in C order,
//     from word pc.start on, of the batches, heads and rows in which the mask differs (1 where it is broadcast).
// Bindings: 0 mask, 1 out.
// Push constants: see the block; offset and strides in bytes.
// Workgroup: THREADS words (x) of every gl_NumWorkGroups.y-th row of one head (z = head + heads * batch). Invocation: one
//     word of each of these rows.
// Accumulation: none.
// Preconditions: the mask's binding spans whole words.

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint mask_offset, mask_batch, mask_head, mask_row, mask_key;
    uint rows, keys, heads, words, start;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer Mask { uint mask_data[]; };
layout(set = 0, binding = 0, std430) readonly buffer MaskFours { uvec4 mask_fours[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Bits { uint bits[]; };

#include "mask-words.glsl"

void main() {
    uint word = gl_GlobalInvocationID.x;
    if (word >= pc.words) return;
    uint head = gl_WorkGroupID.z % pc.heads, batch = gl_WorkGroupID.z / pc.heads;
    uint base = pc.mask_offset + batch * pc.mask_batch + head * pc.mask_head;
    uint count = min(pc.keys - 32u * word, 32u);
    [[dont_unroll]] for (uint row = gl_WorkGroupID.y; row < pc.rows; row += gl_NumWorkGroups.y) {
        uint at = base + row * pc.mask_row + 32u * word * pc.mask_key;
        bits[pc.start + (gl_WorkGroupID.z * pc.rows + row) * pc.words + word] = mask_word(at, count);
    }
}
