#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: running sums or products of the rows of an array.
// Shapes and layouts: x has rows over three axes and elements of a row along one, of any strides; y is rows by elements,
//     contiguous, float32 or int64, or with RUNS of TYPE_Y. With `before` a row of y has one element more, its first the sum of
//     nothing. With `carried` so has the only row, its first the sum of what came before, which another dispatch wrote.
// Bindings: 0 x, 1 y.
// Specialization constants: OPERATION (SUM or PRODUCT), TYPE_X, KIND; EACH, elements of an invocation's turn, 4 or 8; HALVES
//     (words.glsl); RUNS, 1 where floating elements of rows of x and y lie without gaps, all begin at multiples of EACH, and
//     rows are multiples of EACH; TYPE_Y, then a floating type, of 16 bits only with EACH 8.
// Push constants: see the block; offsets and strides in elements, y_offset without RUNS in words.
// Workgroup: a row (x and y together count them, STRIPE along x), in turns of EACH * THREADS elements. Invocation: EACH
//     neighbouring elements a turn.
// Accumulation: as reduce.comp; every sum is of the numbers as they come, with what rounding lost beside it, but that of up to
//     eight 16-bit floats of an invocation, which are added in float32.
// Preconditions: fewer than 2^31 elements; with RUNS neither `before` nor `carried`.
// Defines: THREADS, STRIPE, HOLES: with expressions before and behind (arrays/scan-holes.glsl), in the same order.

layout(constant_id = 3) const uint EACH = 4u;
layout(constant_id = 4) const uint HALVES = 0u;
layout(constant_id = 6) const uint TYPE_Y = 8u;
#ifndef HOLES
layout(constant_id = 5) const uint RUNS = 0u;
#endif

#include "arrays/states.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, rows_1, rows_2, x_offset, row_0, row_1, row_2, extent, stride, y_offset, before, carried;
#ifdef HOLES
    uint r_offset, r_0, r_1, r_2, r_stride;
    uint p_offset, p_0, p_1, p_2, p_stride;
    uint n_0, n_1, n_2, n_3;
#endif
} pc;

#ifdef HOLES
#include "arrays/scan-holes.glsl"
#else
layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y_data[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Quads { uvec4 y_quads[]; };

READER(x, x_data, width_of(TYPE_X))
#endif

shared uvec4 states[2 * THREADS];

#ifndef HOLES
void put(uint place, uvec4 found) {
    uvec2 result = number_of(found);
    if (KIND == FLOATING) {
        y_data[pc.y_offset + place] = result.x;
    } else {
        y_data[pc.y_offset + 2u * place] = result.x;
        y_data[pc.y_offset + 2u * place + 1u] = result.y;
    }
}

// The EACH numbers from `place` on, that go to y together: what was found left of them with the sums of their own.
void put_run(uint place, uvec4 left, uvec4 own[8]) {
    uint words[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        words[k] = k < EACH ? element(TYPE_Y, FLOATING, number_of(combined(left, own[k]))).x : 0u;
    }
    if (TYPE_Y >= FLOAT16) {
        uvec4 pairs;
        [[unroll]] for (uint k = 0u; k < 4u; k++) pairs[k] = words[2u * k] | words[2u * k + 1u] << 16;
        y_quads[place >> 3] = pairs;
    } else {
        y_quads[place >> 2] = uvec4(words[0], words[1], words[2], words[3]);
        if (EACH == 8u) y_quads[(place >> 2) + 1u] = uvec4(words[4], words[5], words[6], words[7]);
    }
}
#endif

// The sum with one element more.
uvec4 with_element(uvec4 sum, uvec2 raw) {
    uvec4 next = found_in(raw, 0u);
    if (!is_float_sum() || TYPE_X < FLOAT16) return combined(sum, next);
    return uvec4(floatBitsToUint(of_bits(sum.x) + of_bits(next.x)), 0u, 0u, 0u);
}

void main() {
    uint row = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x, id = gl_LocalInvocationIndex;
    if (row >= pc.rows) return;
    uint last = row % pc.rows_2, mid = row / pc.rows_2 % pc.rows_1, first = row / pc.rows_2 / pc.rows_1;
    uint base = pc.x_offset + first * pc.row_0 + mid * pc.row_1 + last * pc.row_2;
    uint to = row * (pc.extent + pc.before) + pc.before + pc.carried;
    uvec4 carried = nothing_found();
#ifdef HOLES
    const Row read = Row(base, ROW_OF(r), ROW_OF(p));
#else
    if (pc.carried == 1u) carried.x = y_data[pc.y_offset];
    if (pc.carried == 1u && KIND == LONG) carried.y = y_data[pc.y_offset + 1u];
    if (pc.before == 1u && id == 0u) put(to - 1u, carried);
#endif
    uint side = 0u;  // which half of the shared memory is written next; the other one may still be read
    for (uint begin = 0u; begin < pc.extent; begin += EACH * uint(THREADS)) {
        uint at = begin + EACH * id;
        uvec2 raw[8];
        [[unroll]] for (uint k = 0u; k < 8u; k++) raw[k] = uvec2(0u);
#ifdef HOLES
        if (at < pc.extent) elements_before(read, at, raw);
#else
        if (RUNS == 1u) {
            if (at < pc.extent) x_run(base + at, base + pc.extent, raw);
        } else {
            [[unroll]] for (uint k = 0u; k < 8u; k++) {
                if (k < EACH && at + k < pc.extent) raw[k] = x_raw(base + (at + k) * pc.stride);
            }
        }
#endif
        uvec4 own[8], sum = nothing_found();
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            if (k < EACH && at + k < pc.extent) sum = with_element(sum, raw[k]);
            own[k] = sum;
        }
        for (uint reach = 1u; reach < uint(THREADS); reach *= 4u) {
            states[side + id] = sum;
            barrier();
            [[unroll]] for (uint k = 1u; k < 4u; k++) {
                if (id >= k * reach) sum = combined(states[side + id - k * reach], sum);
            }
            side = uint(THREADS) - side;
        }
        states[side + id] = sum;
        barrier();
        uvec4 left = combined(carried, id > 0u ? states[side + id - 1u] : nothing_found());
        carried = combined(carried, states[side + uint(THREADS) - 1u]);
        side = uint(THREADS) - side;
#ifdef HOLES
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            raw[k] = k < EACH ? element(TYPE_Y, KIND, number_of(combined(left, own[k]))) : uvec2(0u);
        }
        if (at < pc.extent) put_behind(read, at, pc.y_offset + to, raw);
#else
        if (RUNS == 1u) {
            if (at < pc.extent) put_run(pc.y_offset + to + at, left, own);
        } else {
            [[unroll]] for (uint k = 0u; k < 8u; k++) {
                if (k < EACH && at + k < pc.extent) put(to + at + k, combined(left, own[k]));
            }
        }
#endif
    }
}
