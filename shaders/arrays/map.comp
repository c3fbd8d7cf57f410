#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y = f(a, b, c, d), element by element, where f is what fills the hole "value"; copies and gathers too.
// Shapes and layouts: y is new and contiguous, or has the layout of an operand that it replaces. An operand lies flat as
//     y does, or has strides over y's axes (at most four; with DEEP a alone, over eight). Of operands with strides, EACH
//     neighbouring elements of y may belong to neighbours (RUNS), or to one and the same (BROADCAST).
// Bindings: 0 a, 1 b, 2 c, 3 d, 4 y.
// Specialization constants: BITS_A to BITS_D, BITS_Y, of an element; FORM_A to FORM_D: ABSENT, FLAT, STRIDED, RUNS,
//     BROADCAST; INDEX: 0, or of a gather 1 more than the type of b's elements; AXES, how many of the axes have more than
//     one element where an operand has strides; DEEP; EACH, elements of a run: 4 (for 64 bits always), or 8; WHOLE, with
//     TEXELS 1 where count is a multiple of EACH.
// Push constants: see the block; offsets and strides in elements; `count` elements are made. n_0 to n_5: the words of the
//     hole. With DEEP the extents of the outer four axes are b_0 to b_3, and a's strides over them c_0 to c_3. Of a gather
//     n_4 is the stride of the axis that b counts and n_5 its extent.
// Workgroup: THREADS runs of EACH elements (x and y together count the workgroups, STRIPE of them along x).
//     Invocation: one.
// Accumulation: as the expression says.
// Defines: THREADS, STRIPE, TEXELS (arrays/words.glsl).
// Preconditions: fewer than 2^31 elements. y_offset is a multiple of EACH, and so is where a run of a FLAT or RUNS operand
//     begins unless its elements have 8 bits. With RUNS and BROADCAST operands the last axis is a multiple of EACH. Words of
//     y that hold an element are written whole. An operand that shares memory with y lies exactly as y does.

layout(constant_id = 0) const uint BITS_A = 32u;
layout(constant_id = 1) const uint BITS_B = 32u;
layout(constant_id = 2) const uint BITS_C = 32u;
layout(constant_id = 3) const uint BITS_D = 32u;
layout(constant_id = 4) const uint BITS_Y = 32u;
layout(constant_id = 5) const uint FORM_A = 0u;
layout(constant_id = 6) const uint FORM_B = 0u;
layout(constant_id = 7) const uint FORM_C = 0u;
layout(constant_id = 8) const uint FORM_D = 0u;
layout(constant_id = 9) const uint INDEX = 0u;
layout(constant_id = 10) const uint AXES = 4u;
layout(constant_id = 11) const uint DEEP = 0u;
layout(constant_id = 12) const uint EACH = 4u;
layout(constant_id = 13) const uint WHOLE = 0u;

const uint HALVES = 0u;  // nothing here asks for numbers of 16 bits
#include "arrays/words.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, y_offset, a_offset, b_offset, c_offset, d_offset;
    uint e_0, e_1, e_2, e_3;
    uint a_0, a_1, a_2, a_3;
    uint b_0, b_1, b_2, b_3;
    uint c_0, c_1, c_2, c_3;
    uint d_0, d_1, d_2, d_3;
    uint n_0, n_1, n_2, n_3, n_4, n_5;
} pc;

READ_ONLY(0, A, a_data)
READ_ONLY(1, B, b_data)
READ_ONLY(2, C, c_data)
READ_ONLY(3, D, d_data)
layout(set = 0, binding = 4, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(a, a_data, BITS_A)
READER(b, b_data, BITS_B)
READER(c, c_data, BITS_C)
READER(d, d_data, BITS_D)
WRITER(y, y_data, BITS_Y)

#include "arrays/places.glsl"

// 0, of which compilers know nothing: what holes round to float16 is kept rounded by it (expressions/body.py).
uint function_zero() { return pc.count >> 31; }

// The bits of an element of y, of those of the operands' elements and of words.
uvec2 hole_value(const in uvec2 a, const in uvec2 b, const in uvec2 c, const in uvec2 d, const in uvec4 n, const in uvec4 m) {
    return a + b + c + d + n.xy + n.zw + m.xy + m.zw + function_zero();
}

uint deep_offset(uint index) {
    uint at = index % pc.e_3 * pc.a_3;
    index /= pc.e_3;
    at += index % pc.e_2 * pc.a_2;
    index /= pc.e_2;
    at += index % pc.e_1 * pc.a_1;
    index /= pc.e_1;
    at += index % pc.e_0 * pc.a_0;
    index /= pc.e_0;
    at += index % pc.b_3 * pc.c_3;
    index /= pc.b_3;
    at += index % pc.b_2 * pc.c_2;
    index /= pc.b_2;
    at += index % pc.b_1 * pc.c_1;
    index /= pc.b_1;
    return at + index * pc.c_0;
}

// Of a gather: where the element of a lies that the index asks for, counted from the end where it is negative. What is
// out of bounds gives the element at the end that is nearest.
uint gathered(uvec2 raw) {
    uvec2 index = natural(INDEX - 1u, raw);
    if (minus64(index)) index = add64(index, uvec2(pc.n_5, 0u));
    if (minus64(index)) index = uvec2(0u);
    return (index.y != 0u ? pc.n_5 - 1u : min(index.x, pc.n_5 - 1u)) * pc.n_4;
}

// A run that is there, without a condition for each word.
void y_whole(uint i, uvec2 y[8]) {
    if (BITS_Y == 32u && EACH == 4u) y_data[i >> 2] = uvec4(y[0].x, y[1].x, y[2].x, y[3].x);
    else if (BITS_Y == 16u && EACH == 8u) {
        y_data[i >> 3] = uvec4(y[0].x | y[1].x << 16, y[2].x | y[3].x << 16, y[4].x | y[5].x << 16, y[6].x | y[7].x << 16);
    } else y_run(i, i + EACH, y);
}

#define READ_RUN(NAME, FORM) \
    if (FORM == FLAT) NAME##_run(pc.NAME##_offset + i, pc.NAME##_offset + pc.count, NAME); \
    if (FORM == RUNS) NAME##_run(PLACE_OF(NAME, at), PLACE_OF(NAME, at) + EACH, NAME); \
    if (FORM == BROADCAST) NAME[0] = NAME##_raw(PLACE_OF(NAME, at));

void main() {
    uint group = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    uint i = EACH * (group * uint(THREADS) + gl_LocalInvocationIndex);
    if (i >= pc.count) return;
    uvec2 a[8], b[8], c[8], d[8], y[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++) a[k] = b[k] = c[k] = d[k] = y[k] = uvec2(0u);
    uvec4 at = uvec4(0u);
    const bool strides = has_strides(FORM_A) || has_strides(FORM_B) || has_strides(FORM_C) || has_strides(FORM_D);
    if (strides && DEEP == 0u) at = coordinates(i);
    READ_RUN(b, FORM_B)
    READ_RUN(c, FORM_C)
    READ_RUN(d, FORM_D)
    if (INDEX != 0u && FORM_A == RUNS) {
        uint place = PLACE_OF(a, at) + gathered(b[0]);
        a_run(place, place + EACH, a);
    } else {
        READ_RUN(a, FORM_A)
    }
    if (FORM_A == STRIDED || FORM_B == STRIDED || FORM_C == STRIDED || FORM_D == STRIDED) {
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            if (k < EACH && i + k < pc.count) {
                if (FORM_B == STRIDED) b[k] = b_raw(PLACE_OF(b, at));
                if (FORM_C == STRIDED) c[k] = c_raw(PLACE_OF(c, at));
                if (FORM_D == STRIDED) d[k] = d_raw(PLACE_OF(d, at));
                if (FORM_A == STRIDED) {
                    uint place = DEEP == 1u ? pc.a_offset + deep_offset(i + k) : PLACE_OF(a, at);
                    if (INDEX != 0u) place += gathered(b[k]);
                    a[k] = a_raw(place);
                }
            }
            if (DEEP == 0u) advance(at);
        }
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (k < EACH) {
            y[k] = hole_value(FORM_A == BROADCAST ? a[0] : a[k], FORM_B == BROADCAST ? b[0] : b[k],
                FORM_C == BROADCAST ? c[0] : c[k], FORM_D == BROADCAST ? d[0] : d[k],
                uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3), uvec4(pc.n_4, pc.n_5, 0u, 0u));
        }
    }
    if (ONE_WAY && WHOLE == 1u) y_whole(pc.y_offset + i, y);
    else y_run(pc.y_offset + i, pc.y_offset + pc.count, y);
}
