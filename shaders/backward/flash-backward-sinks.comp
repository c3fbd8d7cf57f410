#version 450

// The gradient of attention sinks: -sum over batches and rows of exp(sink - lse) delta.
//
// stats (B, H, queries, 4) float32, contiguous: lse, delta and rest (backward/flash-backward.glsl). sinks, result (H,) float32.
// Workgroup x owns head x. Accumulates in float32.

layout(local_size_x = 128) in;

layout(push_constant, std430) uniform Push { uint sinks_offset, batches, heads, queries; } pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Stats { vec4 stats_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Sinks { float sinks_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { float result_data[]; };

shared float share[128];

void main() {
    uint lane = gl_LocalInvocationIndex, head = gl_WorkGroupID.x;
    float sink = sinks_data[pc.sinks_offset + head];
    float sum = 0.0;
    for (uint n = lane; n < pc.batches * pc.queries; n += 128u) {
        vec4 stat = stats_data[(n / pc.queries * pc.heads + head) * pc.queries + n % pc.queries];
        // A row that does not exist has no sink either.
        if (stat.x < 3.0e38) sum -= exp2((sink - stat.x) * 1.44269504088896340736 - stat.z) * stat.y;
    }
    share[lane] = sum;
    barrier();
    if (lane != 0u) return;
    sum = 0.0;
    for (uint n = 0u; n < 128u; ++n) sum += share[n];
    result_data[head] = sum;
}
