#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: o and lse of attention whose keys were shared out: with L the log-sum-exps of the shares,
//     o = sum_s exp(L_s - max L) part_s / sum_s exp(L_s - max L), zeros and minus infinity where no share has a key.
// Shapes and layouts: part (shares, B, H, queries, VALUE_DIM) and part_lse (shares, B, H, queries) contiguous float32; o
//     (B, H, queries, VALUE_DIM) with rows of contiguous columns; lse (B, H, queries) contiguous.
// Bindings: 0 part, 1 part_lse, 2 o, 3 lse.
// Specialization constants: LSE, 1: lse is wanted.
// Push constants: see the block; offsets and strides in elements, width is VALUE_DIM / 4.
// Workgroup: THREADS words of four columns; the grid walks on from there until all are done. Invocation: one word a step.
// Accumulates in float32, share by share in their order.
// Preconditions: VALUE_DIM, o's offset and its strides are multiples of 4.

#define ALIGN 4
#include "elements.glsl"

layout(constant_id = 0) const int LSE = 0;
layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint o_offset, o_batch, o_head, o_row;
    uint lse_offset;
    uint rows, heads, queries, width, shares;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Parts { vec4 part_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer PartSums { float part_lse_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { IO_VECTOR o_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer LogSumExp { float lse_data[]; };

void main() {
    uint step = gl_NumWorkGroups.x * uint(THREADS), count = pc.rows * pc.width;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += step) {
        uint row = i / pc.width, column = i % pc.width;
        float top = minus_infinity(), total = 0.0;
        vec4 sum = vec4(0.0);
        for (uint s = 0u; s < pc.shares; s++) {
            // A share without keys has a log-sum-exp below MASK_FLOOR. NaN is not below it, and stays.
            float its = part_lse_data[s * pc.rows + row];
            if (its < MASK_FLOOR) continue;
            float peak = total == 0.0 ? its : max(top, its);
            float keep = total == 0.0 ? 0.0 : exp(top - peak), add = exp(its - peak);
            sum = sum * keep + part_data[(s * pc.rows + row) * pc.width + column] * add;
            total = total * keep + add;
            top = peak;
        }
        uint batch = row / pc.queries / pc.heads, head = row / pc.queries % pc.heads, query = row % pc.queries;
        uint place = pc.o_offset + batch * pc.o_batch + head * pc.o_head + query * pc.o_row;
        o_data[place / 4u + column] = IO_STORE4(total == 0.0 ? vec4(0.0) : sum / total);
        if (LSE == 1 && column == 0u) lse_data[pc.lse_offset + row] = total == 0.0 ? minus_infinity() : top + log(total);
    }
}
