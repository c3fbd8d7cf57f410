#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

// What the gradients of attention need of each row: stats[i] = (lse[i], delta[i], 0, 0), delta[i] = sum_d g[i,d] o[i,d],
// less the gradient of lse[i] where there is one: a score adds its weight times that to lse. The zeros are for the kernel that finds dq (backward/flash-backward.glsl).
// A row with nothing to attend to (lse of minus infinity) gets the largest lse, so that every weight becomes zero.
//
// g, o (B, H, queries, VALUE_DIM)   lse (B, H, queries) float32, with LSE_GRAD each one's gradient behind it   stats (B, H, queries, 4) float32
// Workgroup x owns ROWS rows of head y, batch z; eight invocations share a row, 4 columns each at a time.
// Accumulates in float32.

#include "elements.glsl"

#define ROWS 16
layout(local_size_x = ROWS * 8) in;

layout(constant_id = 1) const int VALUE_DIM = 64;
layout(constant_id = 2) const int LSE_GRAD = 0;

layout(push_constant, std430) uniform Push {
    uint g_offset, g_batch, g_head, g_row;
    uint o_offset, o_batch, o_head, o_row;
    uint lse_offset, lse_batch, lse_head, lse_row;
    uint stats_offset, stats_batch, stats_head;
    uint queries;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer OutputGradient { IO_SCALAR g_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Output { IO_SCALAR o_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer LogSumExp { float lse_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Stats { vec4 stats_data[]; };

shared float part[ROWS][9];

void main() {
    uint lane = gl_LocalInvocationIndex % 8u;
    uint mine = gl_LocalInvocationIndex / 8u;
    uint row = gl_WorkGroupID.x * ROWS + mine;
    uint at = min(row, pc.queries - 1u);
    uint g = pc.g_offset + gl_WorkGroupID.z * pc.g_batch + gl_WorkGroupID.y * pc.g_head + at * pc.g_row;
    uint o = pc.o_offset + gl_WorkGroupID.z * pc.o_batch + gl_WorkGroupID.y * pc.o_head + at * pc.o_row;
    float sum = 0.0;
    for (uint d = lane; d < VALUE_DIM; d += 8u) sum += IO_LOAD(g_data[g + d]) * IO_LOAD(o_data[o + d]);
    part[mine][lane] = sum;
    barrier();
    if (lane != 0u || row >= pc.queries) return;
    float total = 0.0;
    [[unroll]] for (uint n = 0u; n < 8u; ++n) total += part[mine][n];
    uint pair = pc.lse_offset + gl_WorkGroupID.z * pc.lse_batch + gl_WorkGroupID.y * pc.lse_head + row * pc.lse_row;
    float lse = lse_data[pair];
    if (LSE_GRAD == 1) total -= lse_data[pair + 1u];
    if (lse < MASK_FLOOR) lse = 3.4e38;
    stats_data[pc.stats_offset + gl_WorkGroupID.z * pc.stats_batch + gl_WorkGroupID.y * pc.stats_head + row] =
        vec4(lse, total, 0.0, 0.0);
}
