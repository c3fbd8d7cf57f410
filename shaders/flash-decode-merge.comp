#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: attention's output and log-sum-exp from the results of flash-decode.comp over parts of the keys:
//     with M the largest maximum, o = sum_s exp2(maximum_s - M) part_s / sum_s exp2(maximum_s - M) total_s.
// Shapes and layouts: parts (rows, splits, VALUE_DIM) float32, statistics (rows, splits, 2) float32 with maximum and
//     total, rows = B * H * queries in that order; o (B, H, queries, VALUE_DIM), lse (B, H, queries).
// Bindings: 0 parts, 1 statistics, 2 o, 3 lse.
// Specialization constants: 0 VALUE_DIM, a multiple of 4; 1 LSE: write it.
// Push constants: below, in elements of the array they belong to; the last axis of o is contiguous, lse all of it.
// Workgroup (x, y, z) owns query x of head y of batch z. An invocation sums four columns over every so many splits.
// Accumulation: float32.
// Preconditions: at most MOST_SPLITS splits; offsets and strides of o, and VALUE_DIM, are multiples of 4.

#define ALIGN 4
#include "elements.glsl"

layout(local_size_x = THREADS) in;

layout(constant_id = 0) const int VALUE_DIM = 64;
layout(constant_id = 1) const int LSE = 0;

layout(push_constant, std430) uniform Push {
    uint statistics_offset;
    uint o_offset, o_batch, o_head, o_row;
    uint splits;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Parts { vec4 parts[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Statistics { float statistics[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Output { IO_VECTOR o_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer LogSumExp { float lse_data[]; };

const float LN_2 = 0.69314718055994530942;
const float LOWEST = -3.2e38;  // the maximum of a part with nothing to attend to
const uint COLUMNS = uint(VALUE_DIM / 4);
const uint SHARES = uint(THREADS) / COLUMNS;

shared float factors[MOST_SPLITS];
shared vec4 sums[THREADS];

// The largest of, or the sum over, the invocations' values, for all of them.
float largest(float value) {
    uint me = gl_LocalInvocationIndex;
    sums[me].x = value;
    barrier();
    for (uint half_ = uint(THREADS) / 2u; half_ > 0u; half_ /= 2u) {
        if (me < half_) sums[me].x = max(sums[me].x, sums[me + half_].x);
        barrier();
    }
    float result = sums[0].x;
    barrier();
    return result;
}
float sum_of(float value) {
    uint me = gl_LocalInvocationIndex;
    sums[me].x = value;
    barrier();
    for (uint half_ = uint(THREADS) / 2u; half_ > 0u; half_ /= 2u) {
        if (me < half_) sums[me].x += sums[me + half_].x;
        barrier();
    }
    float result = sums[0].x;
    barrier();
    return result;
}

// Four of an invocation's splits at a time, so that four loads are under way together.
vec4 taken[4];
void take(uint row, uint column, uint first) {
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint s = min(first + i * SHARES, pc.splits - 1u);
        taken[i] = parts[(row * pc.splits + s) * COLUMNS + column];
    }
}

void main() {
    uint me = gl_LocalInvocationIndex;
    uint batch = gl_WorkGroupID.z, head = gl_WorkGroupID.y, query = gl_WorkGroupID.x;
    uint row = (batch * gl_NumWorkGroups.y + head) * gl_NumWorkGroups.x + query;
    uint first = pc.statistics_offset + row * pc.splits * 2u;
    uint column = me % COLUMNS;
    uint share = me / COLUMNS;
    take(row, column, share);  // before the statistics, which are as far away

    float mine = LOWEST;
    for (uint s = me; s < pc.splits; s += uint(THREADS)) mine = max(mine, statistics[first + 2u * s]);
    float top = largest(mine);
    float part = 0.0;
    for (uint s = me; s < pc.splits; s += uint(THREADS)) {
        float factor = exp2(statistics[first + 2u * s] - top);
        factors[s] = factor;
        part += factor * statistics[first + 2u * s + 1u];
    }
    float total = sum_of(part);  // its barriers also make the factors visible

    vec4 value = vec4(0.0);
    for (uint s = share; s < pc.splits && share < SHARES; s += 4u * SHARES) {
        if (s != share) take(row, column, s);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            if (s + i * SHARES < pc.splits) value += factors[s + i * SHARES] * taken[i];
        }
    }
    sums[me] = value;
    barrier();
    if (me < COLUMNS) {
        for (uint i = 1u; i < SHARES; i++) value += sums[me + i * COLUMNS];
        value = total == 0.0 ? vec4(0.0) : value / total;
        uint element = pc.o_offset + batch * pc.o_batch + head * pc.o_head + query * pc.o_row;
        o_data[element / 4u + column] = IO_STORE4(value);
    }
    if (LSE == 1 && me == 0u) lse_data[row] = total == 0.0 ? minus_infinity() : (top + log2(total)) * LN_2;
}
