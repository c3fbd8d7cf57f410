#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the reverse of unfold.comp: y[n, c, h, w] = sum over the places (a, b) of the kernel of x[r, k], with
//     r the place (n, i, j) of the output whose window has (h, w) at (a, b), where there is one, and k = (c, a, b).
// Shapes and layouts: x (rows, columns), any strides; y (batch, channels, height, width) contiguous.
// Bindings: 0 x, 1 y.
// Specialization constants: TYPE, of x, TYPE_Y (words.glsl); QUADS, whether y_offset is a multiple of 4; HALVES
//     (words.glsl).
// Push constants: see the block; offsets and strides in elements.
// Workgroup: THREADS quads (x and y together count the workgroups, STRIPE of them along x). Invocation: one quad.
// Accumulation: float32, in the order of the kernel's places, rounded once.
// Preconditions: fewer than 2^31 elements. Without QUADS y is float32; with it, words of y that hold an element are
//     written whole.

layout(constant_id = 3) const uint HALVES = 0u;  // (words.glsl)

#include "convolution/window.glsl"

layout(constant_id = 1) const uint TYPE_Y = 8u;
layout(constant_id = 2) const uint QUADS = 1u;

layout(push_constant, std430) uniform Push {
    uint count, channels;
    uint out_h, out_w, kernel_h, kernel_w, height, width;
    uint stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
    uint x_offset, x_row, x_column, y_offset;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(x, x_data, width_of(TYPE))
WRITER(y, y_data, width_of(TYPE_Y))

float folded(uint index) {
    uint w = index % pc.width;
    index /= pc.width;
    uint h = index % pc.height;
    index /= pc.height;
    uint c = index % pc.channels, n = index / pc.channels;
    float sum = 0.0;
    for (uint a = 0u; a < pc.kernel_h; a++) {
        uint up = h + pc.padding_h - a * pc.dilation_h;  // below 0 wraps to what is beyond any extent
        uint i = up / pc.stride_h;
        if (up % pc.stride_h != 0u || i >= pc.out_h) continue;
        for (uint b = 0u; b < pc.kernel_w; b++) {
            uint left = w + pc.padding_w - b * pc.dilation_w;
            uint j = left / pc.stride_w;
            if (left % pc.stride_w != 0u || j >= pc.out_w) continue;
            uint row = (n * pc.out_h + i) * pc.out_w + j, column = (c * pc.kernel_h + a) * pc.kernel_w + b;
            sum += uintBitsToFloat(natural(TYPE, x_raw(pc.x_offset + row * pc.x_row + column * pc.x_column)).x);
        }
    }
    return sum;
}

void main() {
    uint i = 4u * ((gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex);
    if (i >= pc.count) return;
    uvec2 raw[8];
    for (uint k = 0u; k < 4u; k++) {
        float found = 0.0;
        if (i + k < pc.count) found = folded(i + k);
        raw[k] = element(TYPE_Y, FLOATING, uvec2(floatBitsToUint(found), 0u));
        if (QUADS == 0u && i + k < pc.count) {
            uint to = pc.y_offset + i + k;
            y_data[to >> 2][to & 3u] = raw[k].x;
        }
    }
    if (QUADS == 1u) y_run(pc.y_offset + i, pc.y_offset + pc.count, raw);
}
