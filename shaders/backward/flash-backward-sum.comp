#version 450

// result[p, e] = the sum of parts[p PARTS + n, e] over n < PARTS: partial sums added up, in a fixed order.
//
// parts (rows, elements), result (ceil(rows / PARTS), elements), float32, contiguous. An invocation owns one number.

layout(local_size_x = 64) in;

layout(constant_id = 0) const int PARTS = 256;

layout(push_constant, std430) uniform Push { uint rows, elements; } pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Parts { float parts_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Result { float result_data[]; };

void main() {
    uint at = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 64u + gl_LocalInvocationIndex;
    uint p = at / pc.elements, e = at % pc.elements;
    if (p * PARTS >= pc.rows) return;
    float sum = 0.0;
    uint end = min((p + 1u) * PARTS, pc.rows);
    for (uint n = p * PARTS; n < end; ++n) sum += parts_data[n * pc.elements + e];
    result_data[at] = sum;
}
