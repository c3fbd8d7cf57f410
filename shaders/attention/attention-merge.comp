#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: attention over two sets of keys from the attention over each, by what their rows weigh. A set's weight
//     is the sum of the exponentials of its scores: exp(part_lse) of the part, and weight.y * exp(weight.x) of what was
//     added up before. With a and b for these,
//         sum = (a sum + b part) / (a + b),    weight = a + b, its x the largest part_lse so far.
//     Two numbers, because the roundings of a log-sum-exp would add up over many parts.
// Shapes and layouts: part and sum (B, heads, queries, columns) with contiguous columns, part_lse (B, heads, queries) with
//     contiguous queries, weight (B, heads, queries, 2) with contiguous queries; all but part are float32.
// Bindings: 0 part, 1 part_lse, 2 sum, 3 weight.
// Specialization constants: none.
// Push constants: see the block; offsets and strides in elements, of weight in pairs.
// Workgroup (x, y): rows (y * STRIPE + x) * ROWS ... of all batches and heads. Invocation: every THREADSth element of them.
// Accumulation: float32.
// Preconditions: none. A part_lse or weight.x of minus infinity says that its side holds nothing, whatever bits are there.

#include "elements.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint part_offset, part_batch, part_head, part_row;
    uint part_lse_offset, part_lse_batch, part_lse_head;
    uint sum_offset, sum_batch, sum_head, sum_row;
    uint weight_offset, weight_batch, weight_head;
    uint heads, queries, rows, columns;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Part { IO_SCALAR part_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer PartLse { float part_lse[]; };
layout(set = 0, binding = 2, std430) restrict buffer Sum { float sum_data[]; };
layout(set = 0, binding = 3, std430) restrict buffer Weight { vec2 weight[]; };

shared vec2 factors[ROWS];  // of sum and of part
shared uvec2 places[ROWS];  // where the rows of part and sum begin

void main() {
    uint me = gl_LocalInvocationIndex;
    uint first = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(ROWS);
    if (first >= pc.rows) return;
    uint count = min(uint(ROWS), pc.rows - first);
    if (me < count) {
        uint row = first + me;
        uint query = row % pc.queries, head = row / pc.queries % pc.heads, batch = row / pc.queries / pc.heads;
        uint place = pc.weight_offset + batch * pc.weight_batch + head * pc.weight_head + query;
        vec2 before = weight[place];
        float arriving = part_lse[pc.part_lse_offset + batch * pc.part_lse_batch + head * pc.part_lse_head + query];
        vec2 factor = vec2(before.x == minus_infinity() ? 0.0 : 1.0, 0.0);
        if (arriving != minus_infinity()) {
            float top = max(before.x, arriving);
            float old = before.x == minus_infinity() ? 0.0 : before.y * exp(before.x - top);
            float new = exp(arriving - top);
            factor = vec2(old, new) / (old + new);
            weight[place] = vec2(top, old + new);
        }
        factors[me] = factor;
        places[me] = uvec2(pc.part_offset + batch * pc.part_batch + head * pc.part_head + query * pc.part_row,
                           pc.sum_offset + batch * pc.sum_batch + head * pc.sum_head + query * pc.sum_row);
    }
    barrier();
    for (uint i = me; i < count * pc.columns; i += uint(THREADS)) {
        uint row = i / pc.columns, column = i % pc.columns;
        vec2 factor = factors[row];
        // NaN is not 0, so a factor of NaN reaches the result.
        float old = factor.x == 0.0 ? 0.0 : factor.x * sum_data[places[row].y + column];
        float new = factor.y == 0.0 ? 0.0 : factor.y * IO_LOAD(part_data[places[row].x + column]);
        sum_data[places[row].y + column] = old + new;
    }
}
