#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: running sums or products of the rows of an array.
// Shapes and layouts: x has rows over three axes and elements of a row along one, of any strides; y is rows by elements,
//     contiguous, float32 or int64. With `before` a row of y has one element more, its first the sum of nothing. With
//     `carried` so has the only row, its first the sum of what came before, which another dispatch wrote.
// Bindings: 0 x, 1 y.
// Specialization constants: OPERATION (SUM or PRODUCT), TYPE_X, KIND.
// Push constants: see the block; offsets and strides in elements, y_offset in words.
// Workgroup: a row (x and y together count them, STRIPE along x), in turns of 4 * THREADS elements. Invocation: four
//     neighbouring elements a turn.
// Accumulation: as reduce.comp; every sum is of the numbers as they come, with what rounding lost beside it.
// Preconditions: fewer than 2^31 elements.
// Defines: THREADS, STRIPE.

const uint EACH = 4u, HALVES = 0u;  // (words.glsl)

#include "arrays/states.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, rows_1, rows_2, x_offset, row_0, row_1, row_2, extent, step, y_offset, before, carried;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y_data[]; };

READER(x, x_data, TYPE_X)

shared uvec4 states[THREADS];

void put(uint place, uvec4 found) {
    uvec2 result = number_of(found);
    if (KIND == FLOATING) {
        y_data[pc.y_offset + place] = result.x;
    } else {
        y_data[pc.y_offset + 2u * place] = result.x;
        y_data[pc.y_offset + 2u * place + 1u] = result.y;
    }
}

void main() {
    uint row = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x, id = gl_LocalInvocationIndex;
    if (row >= pc.rows) return;
    uint last = row % pc.rows_2, mid = row / pc.rows_2 % pc.rows_1, first = row / pc.rows_2 / pc.rows_1;
    uint base = pc.x_offset + first * pc.row_0 + mid * pc.row_1 + last * pc.row_2;
    uint to = row * (pc.extent + pc.before) + pc.before + pc.carried;
    uvec4 carried = nothing_found();
    if (pc.carried == 1u) carried.x = y_data[pc.y_offset];
    if (pc.carried == 1u && KIND == LONG) carried.y = y_data[pc.y_offset + 1u];
    if (pc.before == 1u && id == 0u) put(to - 1u, carried);
    for (uint begin = 0u; begin < pc.extent; begin += 4u * uint(THREADS)) {
        uint at = begin + 4u * id;
        uvec4 own[4], sum = nothing_found();
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            if (at + k < pc.extent) sum = combined(sum, found_in(x_raw(base + (at + k) * pc.step), 0u));
            own[k] = sum;
        }
        states[id] = sum;
        for (uint reach = 1u; reach < uint(THREADS); reach *= 2u) {
            barrier();
            uvec4 left = id >= reach ? states[id - reach] : nothing_found();
            barrier();
            sum = combined(left, sum);
            states[id] = sum;
        }
        barrier();
        uvec4 left = combined(carried, id > 0u ? states[id - 1u] : nothing_found());
        carried = combined(carried, states[THREADS - 1]);
        barrier();
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            if (at + k < pc.extent) put(to + at + k, combined(left, own[k]));
        }
    }
}
