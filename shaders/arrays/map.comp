#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y = f(a, b, c), element by element, for the operations of arrays/operations.glsl.
// Shapes and layouts: y is new and contiguous, or has the layout of an operand that it replaces. An operand lies flat as
//     y does, or has strides over y's axes (at most four; with DEEP a alone, over eight), or is a number. Of operands with
//     strides, EACH neighbouring elements of y may belong to neighbours (RUNS), or to one and the same (REPEATED).
// Bindings: 0 a, 1 b, 2 c, 3 y.
// Specialization constants: OPERATION; TYPE_A, TYPE_B, TYPE_C, TYPE_Y, the elements' types; KIND, in which numbers it is
//     computed; RESULT, which numbers come out; FORM_A, FORM_B, FORM_C: ABSENT, FLAT, STRIDED, NUMBER, RUNS, REPEATED;
//     AXES, how many of the axes have more than one element where an operand has strides; DEEP; EACH, elements of a run:
//     4 (for 64 bits always), or 8; HALVES (words.glsl).
// Push constants: see the block; offsets and strides in elements; `count` elements are made. With DEEP the extents of the
//     outer four axes are b_0 to b_3, and a's strides over them c_0 to c_3. A GATHER has in c_0 the stride of the axis
//     that b counts and in c_1 its extent. Of NUMBER operands the words are given, of the KIND.
// Workgroup: THREADS runs of EACH elements (x and y together count the workgroups, STRIPE of them along x).
//     Invocation: one.
// Accumulation: float32 for floating types, rounded to nearest, ties to even; integers wrap.
// Defines: FUNCTIONS (operations.glsl), THREADS, STRIPE.
// Preconditions: fewer than 2^31 elements. y_offset is a multiple of EACH, and so is where a run of a FLAT or RUNS operand
//     begins unless its elements have 8 bits. With RUNS and REPEATED operands the last axis is a multiple of EACH. Words of
//     y that hold an element are written whole.

layout(constant_id = 0) const uint OPERATION = 0u;
layout(constant_id = 4) const uint TYPE_Y = 0u;
layout(constant_id = 5) const uint KIND = 0u;
layout(constant_id = 7) const uint FORM_A = 0u;
layout(constant_id = 8) const uint FORM_B = 0u;
layout(constant_id = 9) const uint FORM_C = 0u;
layout(constant_id = 12) const uint EACH = 4u;
layout(constant_id = 13) const uint HALVES = 0u;

#define EXACT precise
#include "arrays/words.glsl"
#include "arrays/floats.glsl"
#include "arrays/operations.glsl"

layout(constant_id = 1) const uint TYPE_A = 0u;
layout(constant_id = 2) const uint TYPE_B = 0u;
layout(constant_id = 3) const uint TYPE_C = 0u;
layout(constant_id = 6) const uint RESULT = 0u;
layout(constant_id = 10) const uint AXES = 4u;
layout(constant_id = 11) const uint DEEP = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, y_offset, a_offset, b_offset, c_offset;
    uint e_0, e_1, e_2, e_3;
    uint a_0, a_1, a_2, a_3;
    uint b_0, b_1, b_2, b_3;
    uint c_0, c_1, c_2, c_3;
    uint a_low, a_high, b_low, b_high, c_low, c_high;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer A { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec4 b_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { uvec4 c_data[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(a, a_data, TYPE_A)
READER(b, b_data, TYPE_B)
READER(c, c_data, TYPE_C)
WRITER(y, y_data, TYPE_Y)

#include "arrays/places.glsl"

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
    uvec2 index = natural(TYPE_B, raw);
    if (minus64(index)) index = add64(index, uvec2(pc.c_1, 0u));
    if (minus64(index)) index = uvec2(0u);
    return (index.y != 0u ? pc.c_1 - 1u : min(index.x, pc.c_1 - 1u)) * pc.c_0;
}

void main() {
    uint group = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    uint i = EACH * (group * uint(THREADS) + gl_LocalInvocationIndex);
    if (i >= pc.count) return;
    uvec2 a[8], b[8], c[8], y[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++) a[k] = b[k] = c[k] = y[k] = uvec2(0u);
    uvec4 at = uvec4(0u);
    if ((has_strides(FORM_A) || has_strides(FORM_B) || has_strides(FORM_C)) && DEEP == 0u) at = coordinates(i);
    if (FORM_B == FLAT) b_run(pc.b_offset + i, pc.b_offset + pc.count, b);
    if (FORM_B == RUNS) b_run(PLACE_OF(b, at), PLACE_OF(b, at) + EACH, b);
    if (FORM_B == REPEATED) b[0] = b_raw(PLACE_OF(b, at));
    if (FORM_C == FLAT) c_run(pc.c_offset + i, pc.c_offset + pc.count, c);
    if (FORM_C == RUNS) c_run(PLACE_OF(c, at), PLACE_OF(c, at) + EACH, c);
    if (FORM_C == REPEATED) c[0] = c_raw(PLACE_OF(c, at));
    if (FORM_A == FLAT) a_run(pc.a_offset + i, pc.a_offset + pc.count, a);
    if (FORM_A == RUNS) {
        uint place = PLACE_OF(a, at) + (OPERATION == GATHER ? gathered(b[0]) : 0u);
        a_run(place, place + EACH, a);
    }
    if (FORM_A == REPEATED) a[0] = a_raw(PLACE_OF(a, at));
    if (FORM_A == STRIDED || FORM_B == STRIDED || FORM_C == STRIDED) {
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            if (k < EACH && i + k < pc.count) {
                if (FORM_B == STRIDED) b[k] = b_raw(PLACE_OF(b, at));
                if (FORM_C == STRIDED) c[k] = c_raw(PLACE_OF(c, at));
                if (FORM_A == STRIDED) {
                    uint place = DEEP == 1u ? pc.a_offset + deep_offset(i + k) : PLACE_OF(a, at);
                    if (OPERATION == GATHER) place += gathered(b[k]);
                    a[k] = a_raw(place);
                }
            }
            if (DEEP == 0u) advance(at);
        }
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (k >= EACH) continue;
        uvec2 own = FORM_A == REPEATED ? a[0] : a[k];
        if ((OPERATION == COPY || OPERATION == GATHER) && TYPE_A == TYPE_Y && FORM_A != NUMBER) {
            y[k] = own;  // as bits
            continue;
        }
        uvec2 first = FORM_A == NUMBER ? uvec2(pc.a_low, pc.a_high)
            : OPERATION == WHERE ? natural(TYPE_A, own) : number(KIND, TYPE_A, own);
        uvec2 second = FORM_B == NUMBER ? uvec2(pc.b_low, pc.b_high)
            : FORM_B == ABSENT || OPERATION == GATHER ? uvec2(0u)
            : number(KIND, TYPE_B, FORM_B == REPEATED ? b[0] : b[k]);
        uvec2 third = FORM_C == NUMBER ? uvec2(pc.c_low, pc.c_high)
            : FORM_C == ABSENT ? uvec2(0u) : number(KIND, TYPE_C, FORM_C == REPEATED ? c[0] : c[k]);
        y[k] = element(TYPE_Y, RESULT, operated(OPERATION, KIND, digits_of(TYPE_Y), first,
            FORM_B != ABSENT, second, FORM_C != ABSENT, third));
    }
    y_run(pc.y_offset + i, pc.y_offset + pc.count, y);
}
