#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

// The gradient of a T5 table from dS summed along diagonals: each diagonal goes to the bucket of its distance.
//
// diagonals (B, H, queries + keys - 1) float32 of flash-backward-bias.comp; table (parts, buckets, H) float32, to be added up.
// Push constants and the words read of binding 6: backward/flash-backward.glsl; out_batch and out_head are B and H.
// Workgroup (x, y, z) owns the entry of part z, bucket x and head y; its invocations share that part of the diagonals of all
// batches, in their order: drivers that count trips allow no loop over all.
// Accumulates in float32. Preconditions: the call has a T5 table.

#define THREADS 64
#include "flash-backward.glsl"

layout(local_size_x = THREADS) in;

layout(set = 0, binding = 9, std430) restrict readonly buffer Diagonals { float diagonals_data[]; };
layout(set = 0, binding = 10, std430) restrict writeonly buffer Table { float table_data[]; };

shared float share[THREADS];

void main() {
    uint lane = gl_LocalInvocationIndex, bucket = gl_WorkGroupID.x, head = gl_WorkGroupID.y;
    uint count = pc.queries + pc.keys - 1u, all = pc.out_batch * count;
    uint each = (all + gl_NumWorkGroups.z - 1u) / gl_NumWorkGroups.z, begin = gl_WorkGroupID.z * each;
    float sum = 0.0;
    for (uint n = begin + lane; n < min(begin + each, all); n += THREADS) {
        uint batch = n / count, at = n % count;
        begin_extras(batch, head);
        int distance = int(at) - int(pc.queries) + 1 - BASE_SHIFT;
        int reach = int(parameter(T5_REACH));
        if (extra_data[parameter(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)] == bucket) {
            sum += diagonals_data[(batch * pc.out_head + head) * count + at];
        }
    }
    share[lane] = sum;
    barrier();
    if (lane != 0u) return;
    sum = 0.0;
    for (uint n = 0u; n < THREADS; ++n) sum += share[n];
    table_data[(gl_WorkGroupID.z * gl_NumWorkGroups.x + bucket) * pc.out_head + head] = sum;
}
