#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: T5's relative position bias, out = scores + table[bucket(j - i - offset)][head] (Raffel et al. 2020,
//     arXiv:1910.10683, section 2.1). Per direction, the first half of the buckets hold one distance each; the others are
//     logarithmically wider, and the last holds all that is farther.
// Shapes and layouts: scores and out (B, H, Sq, Sk) float32, last axis contiguous; table (buckets, H) float32, its last
//     axis contiguous; starts (buckets of a direction - exact) int32: the least distance in each of the wider buckets.
//     The logarithm gives the bucket but for the rounding of the device's log2; starts settle which side of a boundary a
//     distance is on, so that every device agrees with the float32 formula the model was trained with.
// Bindings: 0 scores, 1 table, 2 starts, 3 out.
// Specialization constants: 0 BIDIRECTIONAL (1: keys after the query have buckets of their own, the upper half).
// Push constants: see the block; offsets and strides in elements; buckets are those of one direction; growth is
//     (buckets - exact) / log2(max_distance / exact).
// Workgroup: 64 keys of ROWS rows of one head (z = head + heads * batch). Invocation: one key of each row.
// Accumulation: one float32 addition.
// Preconditions: buckets >= 2, exact = buckets / 2 >= 1.

#include "elements.glsl"

layout(local_size_x = 64) in;

layout(constant_id = 0) const int BIDIRECTIONAL = 1;

layout(push_constant, std430) uniform Push {
    uint s_offset, s_batch, s_head, s_row;
    uint o_offset, o_batch, o_head, o_row;
    uint table_offset, table_row, starts_offset;
    uint queries, keys, heads;
    int offset, buckets, exact;
    float growth;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Scores { float scores_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Table { float table_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Starts { int starts_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Result { float out_data[]; };

int start_of(int bucket) { return starts_data[pc.starts_offset + uint(bucket - pc.exact)]; }

int bucket_of(int relative) {
    int first = BIDIRECTIONAL == 1 && relative > 0 ? pc.buckets : 0;
    int distance = BIDIRECTIONAL == 1 ? abs(relative) : max(-relative, 0);
    if (distance < pc.exact) return first + distance;
    int last = pc.buckets - 1;
    float steps = log2(float(distance) / float(pc.exact)) * pc.growth;
    int bucket = clamp(pc.exact + int(min(steps, float(pc.buckets))), pc.exact, last);
    if (distance < start_of(bucket)) {
        bucket = max(bucket - 1, pc.exact);
    } else if (bucket < last && distance >= start_of(bucket + 1)) {
        bucket++;
    }
    return first + bucket;
}

void main() {
    uint key = gl_GlobalInvocationID.x;
    uint head = gl_WorkGroupID.z % pc.heads;
    uint batch = gl_WorkGroupID.z / pc.heads;
    if (key >= pc.keys) return;
    [[unroll]] for (uint r = 0u; r < uint(ROWS); r++) {
        uint row = gl_WorkGroupID.y * uint(ROWS) + r;
        if (row >= pc.queries) continue;
        int bucket = bucket_of(int(key) - int(row) - pc.offset);
        float score = scores_data[pc.s_offset + batch * pc.s_batch + head * pc.s_head + row * pc.s_row + key];
        out_data[pc.o_offset + batch * pc.o_batch + head * pc.o_head + row * pc.o_row + key] =
            score + table_data[pc.table_offset + uint(bucket) * pc.table_row + head];
    }
}
