#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the windows of a convolution as a matrix: y[r, k] = x[n, c, i * stride_h - padding_h + a * dilation_h,
//     j * stride_w - padding_w + b * dilation_w], 0 outside of x, with r the place (n, i, j) of the output and k = (c, a, b).
// Shapes and layouts: x (batch, channels, height, width), any strides; y (rows, columns) contiguous, or its transpose.
// Bindings: 0 x, 1 y.
// Specialization constants: TYPE (words.glsl); TRANSPOSED: y is (columns, rows).
// Push constants: see the block; offsets and strides in elements. Rows are those from first_row on.
// Workgroup: THREADS quads (x and y together count the workgroups, STRIPE of them along x). Invocation: one quad.
// Accumulation: none; elements are moved as bits.
// Preconditions: fewer than 2^31 elements; y_offset is a multiple of 4. Words of y that hold an element are written whole.

const uint HALVES = 0u;  // (words.glsl)

#include "convolution/window.glsl"

layout(constant_id = 1) const uint TRANSPOSED = 0u;

layout(push_constant, std430) uniform Push {
    uint count, rows, columns, first_row;
    uint out_h, out_w, kernel_h, kernel_w, height, width;
    uint stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
    uint x_offset, x_batch, x_channel, x_h, x_w, y_offset;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(x, x_data, width_of(TYPE))
WRITER(y, y_data, width_of(TYPE))

void main() {
    uint i = 4u * ((gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex);
    if (i >= pc.count) return;
    uint inner = TRANSPOSED == 1u ? pc.rows : pc.columns;
    uint outer = i / inner;
    uint row = TRANSPOSED == 1u ? i % inner : outer, column = TRANSPOSED == 1u ? outer : i % inner;
    // the place in the output, and that in the window
    uint at = pc.first_row + row;
    uvec3 o = uvec3(at / pc.out_w / pc.out_h, at / pc.out_w % pc.out_h, at % pc.out_w);
    uvec3 k = uvec3(column / pc.kernel_w / pc.kernel_h, column / pc.kernel_w % pc.kernel_h, column % pc.kernel_w);
    uvec2 raw[8];
    [[unroll]] for (uint n = 0u; n < 4u; n++) {
        raw[n] = uvec2(0u);
        // below 0 wraps to what is beyond any extent
        uint h = o.y * pc.stride_h + k.y * pc.dilation_h - pc.padding_h;
        uint w = o.z * pc.stride_w + k.z * pc.dilation_w - pc.padding_w;
        if (i + n < pc.count && h < pc.height && w < pc.width) {
            raw[n] = x_raw(pc.x_offset + o.x * pc.x_batch + k.x * pc.x_channel + h * pc.x_h + w * pc.x_w);
        }
        bool whole_row = true, whole_column = true;  // which of the two places goes on
        if (TRANSPOSED == 1u) {
            whole_column = ++row == pc.rows;
            if (whole_column) {
                row = 0u;
                o = uvec3(pc.first_row / pc.out_w / pc.out_h, pc.first_row / pc.out_w % pc.out_h, pc.first_row % pc.out_w);
                whole_row = false;
            }
        } else {
            whole_row = ++column == pc.columns;
            if (whole_row) {
                column = 0u;
                k = uvec3(0u);
                whole_column = false;
            }
        }
        if (whole_row && ++o.z == pc.out_w) {
            o.z = 0u;
            if (++o.y == pc.out_h) { o.y = 0u; o.x++; }
        }
        if (whole_column && ++k.z == pc.kernel_w) {
            k.z = 0u;
            if (++k.y == pc.kernel_h) { k.y = 0u; k.x++; }
        }
    }
    y_run(pc.y_offset + i, pc.y_offset + pc.count, raw);
}
