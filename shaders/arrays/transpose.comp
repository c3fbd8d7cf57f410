#version 450
// What it computes: a copy in C order of an array whose neighbours in memory are not neighbours along the last axis.
// Shapes and layouts: x has columns along the last axis, rows along another, in which it has no gaps, and two more axes;
//     y has the same axes, and no gaps along the columns.
// Bindings: 0 x, 1 y.
// Specialization constants: BITS of an element, 32 or 16.
// Push constants: see the block; offsets and strides in 32-bit words.
// Workgroup: a tile of 32 words by as many elements, of one place of the other axes (z). Invocation: a word of every
//     eighth column, then of every eighth row.
// Accumulation: none.
// Preconditions: rows, columns, offsets and strides are whole words.

layout(constant_id = 0) const uint BITS = 32u;

layout(local_size_x = 32, local_size_y = 8) in;

layout(push_constant, std430) uniform Push {
    uint rows, columns, inner, x_offset, x_outer, x_inner, x_column, y_offset, y_outer, y_inner, y_row;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer X { uint x_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Y { uint y_data[]; };

const uint EACH = 32u / BITS, TILE = 32u * EACH;

shared uint tile[64 * 33];  // a word more a column, so that neighbours along a row lie in other banks

void main() {
    uint outer = gl_WorkGroupID.z / pc.inner, inner = gl_WorkGroupID.z % pc.inner;
    uint column = gl_WorkGroupID.x * TILE, row = gl_WorkGroupID.y * TILE, near = gl_LocalInvocationID.x;
    uint from = pc.x_offset + outer * pc.x_outer + inner * pc.x_inner + row / EACH + near;
    for (uint c = gl_LocalInvocationID.y; c < TILE; c += 8u) {
        if (column + c < pc.columns && row + near * EACH < pc.rows) {
            tile[c * 33u + near] = x_data[from + (column + c) * pc.x_column];
        }
    }
    barrier();
    uint to = pc.y_offset + outer * pc.y_outer + inner * pc.y_inner + column / EACH + near;
    for (uint r = gl_LocalInvocationID.y; r < TILE; r += 8u) {
        if (row + r >= pc.rows || column + near * EACH >= pc.columns) continue;
        uint word;
        if (EACH == 1u) {
            word = tile[near * 33u + r];
        } else {
            uint first = tile[2u * near * 33u + r / 2u], second = tile[(2u * near + 1u) * 33u + r / 2u];
            word = (r & 1u) == 0u ? first & 0xffffu | second << 16 : first >> 16 | second & 0xffff0000u;
        }
        y_data[to + (row + r) * pc.y_row] = word;
    }
}
