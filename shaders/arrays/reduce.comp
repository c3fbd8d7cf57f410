#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: sums, products, extremes and their places, any and all (arrays/states.glsl) of the rows of an array.
// Shapes and layouts: x has rows over two axes and elements of a row over two, of any strides. y has one number a row,
//     or `parts` states of four words, which another dispatch takes as rows of `parts` elements.
// Bindings: 0 x, 1 centre (float32, one a row; for SQUARES), 2 y.
// Specialization constants: OPERATION, TYPE_X, KIND; LANES, invocations of one row, a power of two up to THREADS; COLUMNS,
//     1 where neighbours in a workgroup have neighbouring rows, else the same row; QUADS, 1 where a row's elements lie
//     without gaps and rows begin at multiples of four; LAST, 1 where y has numbers: float32, or int64.
// Push constants: see the block; offsets and strides in elements, y_offset in words. A sum is divided by `divisor`, unless
//     that is negative.
// Workgroup: THREADS / LANES rows (x and z together count them, STRIPE along x), one part of each (y). Invocation: every
//     LANES-th element of a row's part, or quad.
// Accumulation: float32 sums of four elements, which are added up with what is lost in rounding; then the invocations of
//     a row in halves. Integers wrap at 64 bits. The order depends on the shape alone.
// Preconditions: fewer than 2^31 elements; part_length is a multiple of 4.
// Defines: THREADS, STRIPE.

#include "arrays/states.glsl"

layout(constant_id = 3) const uint LANES = 32u;
layout(constant_id = 4) const uint COLUMNS = 0u;
layout(constant_id = 5) const uint QUADS = 0u;
layout(constant_id = 6) const uint LAST = 1u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, inner_rows, x_offset, row_0, row_1;
    uint extent, part_length, parts, inner_length, step_0, step_1;
    uint centre_offset, y_offset;
    float divisor;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Centre { float centre_data[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint y_data[]; };

READER(x, x_data, TYPE_X)

const uint ROWS = uint(THREADS) / LANES;

shared uvec4 states[THREADS];

uvec4 four(uvec4 found[4]) { return combined(combined(found[0], found[1]), combined(found[2], found[3])); }

// A sum of four floats is rounded; the sums of these are not.
uvec4 with_four(uvec4 before, uvec4 found[4]) {
    if (is_float_sum() && TYPE_X != STATES) {
        float sum = (of_bits(found[0].x) + of_bits(found[1].x)) + (of_bits(found[2].x) + of_bits(found[3].x));
        return combined(before, uvec4(floatBitsToUint(sum), 0u, 0u, 0u));
    }
    return combined(before, four(found));
}

void main() {
    uint id = gl_LocalInvocationIndex;
    uint lane = COLUMNS == 1u ? id / ROWS : id % LANES, own = COLUMNS == 1u ? id % ROWS : id / LANES;
    uint row = (gl_WorkGroupID.z * uint(STRIPE) + gl_WorkGroupID.x) * ROWS + own;
    uint part = gl_WorkGroupID.y;
    uvec4 found = nothing_found();
    if (row < pc.rows) {
        uint base = pc.x_offset + row / pc.inner_rows * pc.row_0 + row % pc.inner_rows * pc.row_1;
        uint begin = part * pc.part_length, end = min(begin + pc.part_length, pc.extent);
        float centre = OPERATION == SQUARES && TYPE_X != STATES ? centre_data[pc.centre_offset + row] : 0.0;
        for (uint at = begin + (QUADS == 1u ? 4u * lane : lane); at < end; at += 4u * LANES) {
            uvec4 more[4];
            if (QUADS == 1u && at + 4u <= end) {
                uvec2 raw[4];
                x_quad(base + at, raw);
                [[unroll]] for (uint k = 0u; k < 4u; k++) more[k] = found_in(raw[k], at + k, centre);
            } else {
                [[unroll]] for (uint k = 0u; k < 4u; k++) {
                    uint place = at + k * (QUADS == 1u ? 1u : LANES);
                    more[k] = nothing_found();
                    if (place < end) {
                        if (TYPE_X == STATES) {
                            more[k] = x_data[base + place];
                        } else {
                            uint to = base + place / pc.inner_length * pc.step_0 + place % pc.inner_length * pc.step_1;
                            more[k] = found_in(x_raw(to), place, centre);
                        }
                    }
                }
            }
            found = with_four(found, more);
        }
    }
    const uint next = COLUMNS == 1u ? ROWS : 1u;
    states[id] = found;
    for (uint half_lanes = LANES / 2u; half_lanes > 0u; half_lanes /= 2u) {
        barrier();
        if (lane < half_lanes) {
            found = combined(found, states[id + half_lanes * next]);
            states[id] = found;
        }
    }
    if (lane != 0u || row >= pc.rows) return;
    if (LAST == 0u) {
        uint to = pc.y_offset + 4u * (row * pc.parts + part);
        [[unroll]] for (uint k = 0u; k < 4u; k++) y_data[to + k] = found[k];
        return;
    }
    uvec2 result = number_of(found);
    if (gives_float()) {
        if (pc.divisor >= 0.0) result.x = floatBitsToUint(divided(of_bits(result.x), pc.divisor));
        y_data[pc.y_offset + row] = result.x;
    } else {
        y_data[pc.y_offset + 2u * row] = result.x;
        y_data[pc.y_offset + 2u * row + 1u] = result.y;
    }
}
