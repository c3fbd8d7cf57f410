#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: o and lse of attention whose keys were shared out: with L the log-sum-exps of the shares,
//     o = sum_s exp(L_s - max L) part_s / sum_s exp(L_s - max L), zeros and minus infinity where no split has a key.
// Shapes and layouts: part (splits, B, H, queries, M, VALUE_DIM) and part_lse (splits, B, H, queries, M) contiguous float32,
//     H heads of M packed heads each; o (B, H M, queries, VALUE_DIM) with rows of contiguous columns; lse (B, H M, queries)
//     contiguous.
// Bindings: 0 part, 1 part_lse, 2 o, 3 lse.
// Specialization constants: LSE, 1: lse is wanted; TEAMS: how many invocations have parts of the splits of a word, for the
//     sake of many splits of few rows. It divides THREADS.
// Push constants: see the block; offsets and strides in elements, width is VALUE_DIM / 4.
// Workgroup: THREADS / TEAMS words of four columns; the grid walks on from there until all are done. Invocation: each TEAMS-th
//     split of a word a step; the first team combines what the others found.
// Accumulates in float32, in an order that the numbers of splits and teams decide.
// Preconditions: VALUE_DIM, o's offset and its strides are multiples of 4.

#define ALIGN 4
#include "elements.glsl"

layout(constant_id = 0) const int LSE = 0;
layout(constant_id = 1) const uint TEAMS = 1u;
layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint o_offset, o_batch, o_head, o_row;
    uint lse_offset;
    uint rows, heads, queries, packed_heads, width, splits;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Parts { vec4 part_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer PartSums { float part_lse_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { IO_VECTOR o_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer LogSumExp { float lse_data[]; };

// Splits whose numbers are asked for before any is waited for.
#define AT_ONCE 8u

shared vec4 team_sum[THREADS];
shared vec2 team_weight[THREADS];  // the largest log-sum-exp and the sum of weights

// The weighted sum of what several splits hold. A split without keys has a log-sum-exp below MASK_FLOOR. NaN is not below it,
// and stays.
float top, total;
vec4 sum;
void add_part(float its, float weight, vec4 part) {
    if (its < MASK_FLOOR) return;
    float peak = total == 0.0 ? its : max(top, its);
    float keep = total == 0.0 ? 0.0 : exp(top - peak), add = exp(its - peak);
    sum = sum * keep + part * add;
    total = total * keep + weight * add;
    top = peak;
}
#define BEGIN_SUM \
    top = minus_infinity(); \
    total = 0.0; \
    sum = vec4(0.0);

void main() {
    const uint words = THREADS / TEAMS;
    uint own = gl_LocalInvocationIndex % words, team = gl_LocalInvocationIndex / words, count = pc.rows * pc.width;
    for (uint begin = gl_WorkGroupID.x * words; begin < count; begin += gl_NumWorkGroups.x * words) {
        uint i = min(begin + own, count - 1u), row = i / pc.width, column = i % pc.width;
        BEGIN_SUM
        for (uint first = team; first < pc.splits; first += TEAMS * AT_ONCE) {
            float its[AT_ONCE];
            vec4 part[AT_ONCE];
            [[unroll]] for (uint n = 0u; n < AT_ONCE; n++) {
                uint at = min(first + n * TEAMS, pc.splits - 1u) * pc.rows + row;
                its[n] = part_lse_data[at];
                part[n] = part_data[at * pc.width + column];
            }
            [[unroll]] for (uint n = 0u; n < AT_ONCE; n++) {
                if (first + n * TEAMS < pc.splits) add_part(its[n], 1.0, part[n]);
            }
        }
        if (TEAMS > 1u) {
            team_sum[gl_LocalInvocationIndex] = sum;
            team_weight[gl_LocalInvocationIndex] = vec2(top, total);
            barrier();
            BEGIN_SUM
            for (uint from = own; from < THREADS; from += words) {
                add_part(team_weight[from].x, team_weight[from].y, team_sum[from]);
            }
            barrier();  // all has been read
        }
        if (team > 0u || begin + own >= count) continue;
        uint query = row / pc.packed_heads % pc.queries, unit = row / pc.packed_heads / pc.queries;
        uint batch = unit / pc.heads, head = unit % pc.heads * pc.packed_heads + row % pc.packed_heads;
        uint place = pc.o_offset + batch * pc.o_batch + head * pc.o_head + query * pc.o_row;
        o_data[place / 4u + column] = IO_STORE4(total == 0.0 ? vec4(0.0) : sum / total);
        uint sums = pc.lse_offset + (batch * pc.heads * pc.packed_heads + head) * pc.queries;
        if (LSE == 1 && column == 0u) lse_data[sums + query] = total == 0.0 ? minus_infinity() : top + log(total);
    }
}
