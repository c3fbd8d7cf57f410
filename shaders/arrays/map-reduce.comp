#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
// What it computes: sums, products, extremes, any and all (arrays/states.glsl) of rows whose elements are f(a, b, c), where f
//     is what fills the hole "element"; what fills the hole "result" makes y's element of what was found.
// Shapes and layouts: a, b and c have rows over two axes and elements of a row over two, of any strides. y has one element a
//     row.
// Bindings: 0 a, 1 b, 2 c, 3 y; with TOGETHER 4 parts, states (rows, parts), and 5 arrived, one for the workgroups of the
//     same rows (include/last-of-team.glsl).
// Specialization constants: OPERATION; TYPE_X, FLOAT32 or INT64, of what f gives, and KIND, FLOATING or LONG (states.glsl);
//     BITS_A to BITS_C, BITS_Y, of an element; ARRAYS, how many there are; OUTER and AXES, how many axes the rows and a
//     row's elements have; LANES, invocations of one row, a power of two up to THREADS; COLUMNS, 1 where rows are neighbours
//     in memory, and invocations with them; TOGETHER, 1 where the last workgroup of rows puts parts of them together; RUNS, 1
//     where an invocation has four neighbours at a time, as in reduce.comp, whose sums these then are.
// Push constants: see the block; offsets and strides in elements. n_0 to n_5: the words of the holes.
// Workgroup: THREADS / LANES rows (x and z together count them, STRIPE along x), one part of each (y). Invocation: every
//     LANES-th element, or run, of a row's part.
// Accumulation: float32 sums of four elements, which are added up with what is lost in rounding; then the invocations of a
//     row by eights, then its parts. Integers wrap at 64 bits. The order depends on the shape and the layout alone.
// Defines: THREADS, STRIPE.
// Preconditions: fewer than 2^31 elements in a row.

const uint EACH = 4u, HALVES = 0u;
#include "arrays/states.glsl"

layout(constant_id = 3) const uint BITS_A = 32u;
layout(constant_id = 4) const uint BITS_B = 32u;
layout(constant_id = 5) const uint BITS_C = 32u;
layout(constant_id = 6) const uint BITS_Y = 32u;
layout(constant_id = 7) const uint ARRAYS = 1u;
layout(constant_id = 8) const uint OUTER = 2u;
layout(constant_id = 9) const uint AXES = 2u;
layout(constant_id = 10) const uint LANES = 32u;
layout(constant_id = 11) const uint COLUMNS = 0u;
layout(constant_id = 12) const uint TOGETHER = 0u;
layout(constant_id = 13) const uint RUNS = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, inner_rows, extent, inner_length, part_length, parts, y_offset;
    uint a_offset, a_row_0, a_row_1, a_0, a_1;
    uint b_offset, b_row_0, b_row_1, b_0, b_1;
    uint c_offset, c_row_0, c_row_1, c_0, c_1;
    uint n_0, n_1, n_2, n_3, n_4, n_5;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer A { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec4 b_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { uvec4 c_data[]; };
layout(set = 0, binding = 3, std430) buffer Y { uint y_data[]; };
layout(set = 0, binding = 4, std430) coherent restrict buffer Parts { uvec4 parts[]; };
layout(set = 0, binding = 5, std430) coherent restrict buffer Arrived { uint arrived[]; };

READER(a, a_data, BITS_A)
READER(b, b_data, BITS_B)
READER(c, c_data, BITS_C)

shared uint is_last;
#define REACH gl_ScopeDevice
#include "last-of-team.glsl"
#include "arrays/stores.glsl"
PUTTER(y, y_data)

const uint ROWS = uint(THREADS) / LANES;

shared uvec4 states[THREADS];

uvec4 found;

// 0, of which compilers know nothing: what holes round to float16 is kept rounded by it (expressions/body.py).
uint function_zero() { return pc.extent >> 31; }

// An element that is reduced, a float32 or an int64, of the bits of the arrays' elements and of words.
uvec2 hole_element(const in uvec2 a, const in uvec2 b, const in uvec2 c, const in uvec4 n, const in uvec4 m) {
    return a + b + c + n.xy + n.zw + m.xy + m.zw + function_zero();
}

// The bits of an element of y, of what was found, a float32 or an int64, and the number of elements of a row, an int64.
uvec2 hole_result(const in uvec2 found, const in uvec2 count) { return found + count; }

uvec2 element_at(uvec3 row, uint at) {
    uint outer = 0u, inner = at;
    if (AXES == 2u) {
        outer = at / pc.inner_length;
        inner = at % pc.inner_length;
    }
    uvec2 a = a_raw(row.x + outer * pc.a_0 + inner * pc.a_1), b = uvec2(0u), c = uvec2(0u);
    if (ARRAYS > 1u) b = b_raw(row.y + outer * pc.b_0 + inner * pc.b_1);
    if (ARRAYS > 2u) c = c_raw(row.z + outer * pc.c_0 + inner * pc.c_1);
    return hole_element(a, b, c, uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3), uvec4(pc.n_4, pc.n_5, 0u, 0u));
}

// What an invocation finds in its part of a row.
void find(uint row, uint part, uint lane) {
    uint outer = 0u, inner = row;
    if (OUTER == 2u) {
        outer = row / pc.inner_rows;
        inner = row % pc.inner_rows;
    }
    const uvec3 base = uvec3(pc.a_offset, pc.b_offset, pc.c_offset) + outer * uvec3(pc.a_row_0, pc.b_row_0, pc.c_row_0)
        + inner * uvec3(pc.a_row_1, pc.b_row_1, pc.c_row_1);
    uint begin = part * pc.part_length, end = min(begin + pc.part_length, pc.extent);
    const uint step = RUNS == 1u ? 1u : LANES;
    for (uint at = begin + (RUNS == 1u ? 4u * lane : lane); at < end; at += 4u * LANES) {
        float sum = 0.0;
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            if (at + k * step < end) {
                uvec4 more = found_in(element_at(base, at + k * step), 0u);
                if (is_float_sum()) sum += of_bits(more.x);
                else found = combined(found, more);
            }
        }
        if (is_float_sum()) found = added(found, uvec4(floatBitsToUint(sum), 0u, 0u, 0u));
    }
}

uint place_of(uint own, uint lane) { return COLUMNS == 1u ? lane * ROWS + own : own * LANES + lane; }

// The first invocation of a row finds what all of them have found.
void combine_lanes(uint own, uint lane) {
    states[place_of(own, lane)] = found;
    for (uint reach = 1u; reach < LANES; reach *= 8u) {
        barrier();
        if (lane % (8u * reach) == 0u) {
            for (uint k = 1u; k < 8u && lane + k * reach < LANES; k++) {
                found = combined(found, states[place_of(own, lane + k * reach)]);
            }
            states[place_of(own, lane)] = found;
        }
    }
}

void put(uint row) { y_put(pc.y_offset + row, BITS_Y, hole_result(number_of(found), uvec2(pc.extent, 0u))); }

void main() {
    uint id = gl_LocalInvocationIndex;
    uint own = COLUMNS == 1u ? id % ROWS : id / LANES, lane = COLUMNS == 1u ? id / ROWS : id % LANES;
    uint team = gl_WorkGroupID.z * uint(STRIPE) + gl_WorkGroupID.x, row = team * ROWS + own, part = gl_WorkGroupID.y;
    const bool is_first = lane == 0u && row < pc.rows;
    found = nothing_found();
    if (row < pc.rows) find(row, part, lane);
    combine_lanes(own, lane);
    if (TOGETHER == 0u) {
        if (is_first) put(row);
        return;
    }
    if (is_first) parts[row * pc.parts + part] = found;
    if (last_of_team(team, pc.parts)) {
        found = nothing_found();
        if (row < pc.rows) {
            for (uint k = lane; k < pc.parts; k += LANES) found = combined(found, parts[row * pc.parts + k]);
        }
        combine_lanes(own, lane);
        if (is_first) put(row);
    }
}
