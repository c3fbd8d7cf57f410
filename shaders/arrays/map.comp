#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y = f(a, b, c), element by element, for the operations of arrays/operations.glsl.
// Shapes and layouts: y is new and contiguous, or has the layout of an operand that it replaces. An operand lies flat as
//     y does, or has strides over y's axes (at most four; with DEEP a alone, over eight), or is a number.
// Bindings: 0 a, 1 b, 2 c, 3 y.
// Specialization constants: OPERATION; TYPE_A, TYPE_B, TYPE_C, TYPE_Y, the elements' types; KIND, in which numbers it is
//     computed; RESULT, which numbers come out; FORM_A, FORM_B, FORM_C: ABSENT, FLAT, STRIDED, NUMBER; AXES, how many of
//     the axes have more than one element where an operand is STRIDED; DEEP.
// Push constants: see the block; offsets and strides in elements; `count` elements are made. With DEEP the extents of the
//     outer four axes are b_0 to b_3, and a's strides over them c_0 to c_3. A GATHER has in c_0 the stride of the axis
//     that b counts and in c_1 its extent. Of NUMBER operands the words are given, of the KIND.
// Workgroup: THREADS * QUADS quads of four elements (x and y together count the workgroups, STRIPE of them along x).
//     Invocation: QUADS of them, THREADS apart.
// Accumulation: float32 for floating types, rounded to nearest, ties to even; integers wrap.
// Defines: FUNCTIONS (operations.glsl), THREADS, QUADS, STRIPE.
// Preconditions: fewer than 2^31 elements. y_offset is a multiple of 4, and so is the offset of a FLAT operand unless its
//     elements have 8 bits. Words of y that hold an element are written whole.

// facts: forms
const uint ABSENT = 0u, FLAT = 1u, STRIDED = 2u, NUMBER = 3u;

layout(constant_id = 4) const uint TYPE_Y = 0u;
layout(constant_id = 7) const uint FORM_A = 0u;
layout(constant_id = 8) const uint FORM_B = 0u;
layout(constant_id = 9) const uint FORM_C = 0u;

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

const bool ANY_STRIDED = FORM_A == STRIDED || FORM_B == STRIDED || FORM_C == STRIDED;

uvec4 coordinates(uint index) {
    uvec4 at = uvec4(0u);
    if (AXES > 1u) { at.w = index % pc.e_3; index /= pc.e_3; } else { at.w = index; return at; }
    if (AXES > 2u) { at.z = index % pc.e_2; index /= pc.e_2; } else { at.z = index; return at; }
    if (AXES > 3u) { at.y = index % pc.e_1; at.x = index / pc.e_1; } else { at.y = index; }
    return at;
}

void advance(inout uvec4 at) {
    at.w++;
    if (AXES > 1u && at.w == pc.e_3) {
        at.w = 0u;
        at.z++;
        if (AXES > 2u && at.z == pc.e_2) {
            at.z = 0u;
            at.y++;
            if (AXES > 3u && at.y == pc.e_1) { at.y = 0u; at.x++; }
        }
    }
}

uint along(uvec4 at, uint s0, uint s1, uint s2, uint s3) { return at.x * s0 + at.y * s1 + at.z * s2 + at.w * s3; }

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
    for (uint q = 0u; q < uint(QUADS); q++) {
        uint i = 4u * ((group * uint(QUADS) + q) * uint(THREADS) + gl_LocalInvocationIndex);
        if (i >= pc.count) return;
        uvec2 a[4], b[4], c[4], y[4];
        [[unroll]] for (uint k = 0u; k < 4u; k++) a[k] = b[k] = c[k] = uvec2(0u);
        bool four = i + 4u <= pc.count;
        if (FORM_A == FLAT && four) a_quad(pc.a_offset + i, a);
        if (FORM_B == FLAT && four) b_quad(pc.b_offset + i, b);
        if (FORM_C == FLAT && four) c_quad(pc.c_offset + i, c);
        uvec4 at = uvec4(0u);
        if (ANY_STRIDED && DEEP == 0u) at = coordinates(i);
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            if (four || i + k < pc.count) {
                if (FORM_B == STRIDED) b[k] = b_raw(pc.b_offset + along(at, pc.b_0, pc.b_1, pc.b_2, pc.b_3));
                if (FORM_B == FLAT && !four) b[k] = b_raw(pc.b_offset + i + k);
                if (FORM_A == STRIDED) {
                    uint place = pc.a_offset;
                    if (DEEP == 1u) place += deep_offset(i + k);
                    else place += along(at, pc.a_0, pc.a_1, pc.a_2, pc.a_3);
                    if (OPERATION == GATHER) place += gathered(b[k]);
                    a[k] = a_raw(place);
                }
                if (FORM_A == FLAT && !four) a[k] = a_raw(pc.a_offset + i + k);
                if (FORM_C == STRIDED) c[k] = c_raw(pc.c_offset + along(at, pc.c_0, pc.c_1, pc.c_2, pc.c_3));
                if (FORM_C == FLAT && !four) c[k] = c_raw(pc.c_offset + i + k);
            }
            if (ANY_STRIDED && DEEP == 0u) advance(at);
        }
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            if ((OPERATION == COPY || OPERATION == GATHER) && TYPE_A == TYPE_Y && FORM_A != NUMBER) {
                y[k] = a[k];  // as bits
                continue;
            }
            uvec2 first = FORM_A == NUMBER ? uvec2(pc.a_low, pc.a_high)
                : OPERATION == WHERE ? natural(TYPE_A, a[k]) : number(KIND, TYPE_A, a[k]);
            uvec2 second = FORM_B == NUMBER ? uvec2(pc.b_low, pc.b_high)
                : FORM_B == ABSENT || OPERATION == GATHER ? uvec2(0u) : number(KIND, TYPE_B, b[k]);
            uvec2 third = FORM_C == NUMBER ? uvec2(pc.c_low, pc.c_high)
                : FORM_C == ABSENT ? uvec2(0u) : number(KIND, TYPE_C, c[k]);
            y[k] = element(TYPE_Y, RESULT, operated(first, second, third));
        }
        y_quad(pc.y_offset + i, pc.y_offset + pc.count, y);
    }
}
