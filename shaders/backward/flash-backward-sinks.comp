#version 450

// The gradient of attention sinks: -sum over batches and rows of exp(sink - lse) delta.
//
// stats (B, H, queries, 4) float32, contiguous: lse, delta and rest (backward/flash-backward.glsl). sinks (H,), result (parts, H),
// to be added up, float32. Workgroup (x, y) owns head x of part y of the rows of all batches. Accumulates in float32.

layout(local_size_x = 128) in;

layout(push_constant, std430) uniform Push { uint sinks_offset, batches, heads, queries; } pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Stats { vec4 stats_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Sinks { float sinks_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { float result_data[]; };

shared float share[128];

void main() {
    uint lane = gl_LocalInvocationIndex, head = gl_WorkGroupID.x;
    float sink = sinks_data[pc.sinks_offset + head];
    uint all = pc.batches * pc.queries;
    uint each = (all + gl_NumWorkGroups.y - 1u) / gl_NumWorkGroups.y, begin = gl_WorkGroupID.y * each;
    float sum = 0.0;
    for (uint n = begin + lane; n < min(begin + each, all); n += 128u) {
        vec4 stat = stats_data[(n / pc.queries * pc.heads + head) * pc.queries + n % pc.queries];
        // A row that does not exist has no sink either.
        if (stat.x < 3.0e38) sum -= exp2((sink - stat.x) * 1.44269504088896340736 - stat.z) * stat.y;
    }
    share[lane] = sum;
    barrier();
    if (lane != 0u) return;
    sum = 0.0;
    for (uint n = 0u; n < 128u; ++n) sum += share[n];
    result_data[gl_WorkGroupID.y * pc.heads + head] = sum;
}
