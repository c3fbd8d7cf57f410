#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: dropout on stored attention weights: out = weight * scale where the generator's number is below the
//     threshold, and 0 elsewhere. The number for row i, key j, head h, batch b has 16 bits: byte j % 4 of word j / 4 % 4 of
//     Philox4x32-10 with the counter (j / 16, i, h + H * b, offset), and below it that byte of the next word, so that
//     every kernel that drops weights drops the same ones.
// Shapes and layouts: weights and out (B, H, Sq, Sk) float32. The last axis is contiguous, other strides are arguments.
// Bindings: 0 weights, 1 out, 2 seed.
// Specialization constants: SEED, the number of words that lie in memory: 0, or 2, the seed's halves, or 3, the offset too;
//     the others are push constants.
// Push constants: see the block; offsets and strides in elements; first_row, first_head and first_batch say where
//     the dispatch begins in the whole call, which has call_heads heads.
// Workgroup: 256 keys of ROWS rows of one head (z = head + heads * batch). Invocation: four keys of each row.
// Accumulation: none; one float32 multiplication.
// Preconditions: none.

#include "elements.glsl"
#include "kept.glsl"

layout(constant_id = 0) const uint SEED = 0u;

layout(local_size_x = 64) in;

layout(push_constant, std430) uniform Push {
    uint w_offset, w_batch, w_head, w_row;
    uint o_offset, o_batch, o_head, o_row;
    uint queries, keys, heads;
    uint first_row, first_head, first_batch, call_heads;
    uint seed_offset, seed_low, seed_high, counter_offset, threshold;
    float scale;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Weights { float weights_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Result { float out_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Seed { uint seed_data[]; };

void main() {
    uint key = gl_GlobalInvocationID.x * 4u;
    uint head = gl_WorkGroupID.z % pc.heads;
    uint batch = gl_WorkGroupID.z / pc.heads;
    if (key >= pc.keys) return;
    uvec2 seed = uvec2(pc.seed_low, pc.seed_high);
    if (SEED > 0u) seed = uvec2(seed_data[pc.seed_offset], seed_data[pc.seed_offset + 1u]);
    uint offset = SEED > 2u ? seed_data[pc.seed_offset + 2u] : pc.counter_offset;
    uint lane = pc.first_head + head + pc.call_heads * (pc.first_batch + batch);
    for (uint r = 0u; r < uint(ROWS); r++) {
        uint row = gl_WorkGroupID.y * uint(ROWS) + r;
        if (row >= pc.queries) break;
        uvec4 words = philox(uvec4(key >> 4, pc.first_row + row, lane, offset), seed);
        uint from = pc.w_offset + batch * pc.w_batch + head * pc.w_head + row * pc.w_row + key;
        uint to = pc.o_offset + batch * pc.o_batch + head * pc.o_head + row * pc.o_row + key;
        uint kept = kept_four(words[key >> 2 & 3u], words[(key >> 2) + 1u & 3u], pc.threshold);
        for (uint j = 0u; j < min(4u, pc.keys - key); j++) {
            out_data[to + j] = (kept >> j & 1u) != 0u ? weights_data[from + j] * pc.scale : 0.0;
        }
    }
}
