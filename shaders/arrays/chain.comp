#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: several operations of arrays/operations.glsl in a row, element by element: y = f(a, b, c, d). Each is
//     rounded to its dtype, so that y has the bits that single operations (map.comp) give.
// Shapes and layouts: as map.comp has them: y contiguous, operands flat or with strides over at most four axes.
// Bindings: 0 a, 1 b, 2 c, 3 d, 4 y.
// Specialization constants: STEP_n, the n-th operation in bits 0 to 7, the kind of number that it computes with in 8 and 9,
//     that which comes out in 10 and 11, and the type of its result in 12 to 15. FROM_n, whence its operands come, five bits
//     each: 0 to 3 are a to d, from 4 on numbers, 10 is zero, from 12 on the results of steps, 31 is none; UNUSED where
//     there is no such step. TYPE_A to TYPE_D, TYPE_Y; FORM_A to FORM_D (arrays/places.glsl; no NUMBER); AXES; EACH, 4 or 8 elements of a run; HALVES (arrays/words.glsl).
// Push constants: see the block; offsets and strides in elements; `count` elements are made. n_0 to n_5: numbers, in the
//     kind of the step that takes them.
// Workgroup: THREADS runs of EACH elements (x and y together count the workgroups, STRIPE of them along x).
//     Invocation: one.
// Accumulation: float32, each step rounded to nearest, ties to even; integers of 32 bits wrap.
// Defines: STEPS, how many there may be: 4 or 12; FUNCTIONS, 3 (arrays/operations.glsl); THREADS, STRIPE.
// Preconditions: as map.comp; elements of at most 32 bits. An operand that shares memory with y lies exactly as y does.

const uint UNUSED = 0xffffffffu, NONE = 31u;
layout(constant_id = 0) const uint STEP_0 = 0u;
layout(constant_id = 1) const uint STEP_1 = 0u;
layout(constant_id = 2) const uint STEP_2 = 0u;
layout(constant_id = 3) const uint STEP_3 = 0u;
layout(constant_id = 4) const uint STEP_4 = 0u;
layout(constant_id = 5) const uint STEP_5 = 0u;
layout(constant_id = 6) const uint STEP_6 = 0u;
layout(constant_id = 7) const uint STEP_7 = 0u;
layout(constant_id = 8) const uint STEP_8 = 0u;
layout(constant_id = 9) const uint STEP_9 = 0u;
layout(constant_id = 10) const uint STEP_10 = 0u;
layout(constant_id = 11) const uint STEP_11 = 0u;
layout(constant_id = 12) const uint FROM_0 = UNUSED;
layout(constant_id = 13) const uint FROM_1 = UNUSED;
layout(constant_id = 14) const uint FROM_2 = UNUSED;
layout(constant_id = 15) const uint FROM_3 = UNUSED;
layout(constant_id = 16) const uint FROM_4 = UNUSED;
layout(constant_id = 17) const uint FROM_5 = UNUSED;
layout(constant_id = 18) const uint FROM_6 = UNUSED;
layout(constant_id = 19) const uint FROM_7 = UNUSED;
layout(constant_id = 20) const uint FROM_8 = UNUSED;
layout(constant_id = 21) const uint FROM_9 = UNUSED;
layout(constant_id = 22) const uint FROM_10 = UNUSED;
layout(constant_id = 23) const uint FROM_11 = UNUSED;
layout(constant_id = 24) const uint TYPE_A = 0u;
layout(constant_id = 25) const uint TYPE_B = 0u;
layout(constant_id = 26) const uint TYPE_C = 0u;
layout(constant_id = 27) const uint TYPE_D = 0u;
layout(constant_id = 28) const uint TYPE_Y = 0u;
layout(constant_id = 29) const uint FORM_A = 0u;
layout(constant_id = 30) const uint FORM_B = 0u;
layout(constant_id = 31) const uint FORM_C = 0u;
layout(constant_id = 32) const uint FORM_D = 0u;
layout(constant_id = 33) const uint AXES = 4u;
layout(constant_id = 34) const uint EACH = 4u;
layout(constant_id = 35) const uint HALVES = 0u;

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

layout(set = 0, binding = 0, std430) readonly buffer A { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec4 b_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { uvec4 c_data[]; };
layout(set = 0, binding = 3, std430) readonly buffer D { uvec4 d_data[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Y { uvec4 y_data[]; };

#define EXACT precise
#include "arrays/words.glsl"
#include "arrays/floats.glsl"
#include "arrays/operations.glsl"
#include "arrays/places.glsl"

READER(a, a_data, TYPE_A)
READER(b, b_data, TYPE_B)
READER(c, c_data, TYPE_C)
READER(d, d_data, TYPE_D)
WRITER(y, y_data, TYPE_Y)

// The bits of a narrower element as a float32 or an int32.
uint natural32(uint type, uint raw) { return natural(type, uvec2(raw, 0u)).x; }

// The number that a step's result is. By integers, as compilers may take a conversion to float16 and back for nothing.
uint rounded32(uint type, uint raw) {
    return type == FLOAT16 ? floatBitsToUint(float16_value(raw)) : natural32(type, raw);
}

// What a step has made so far: four steps a vector.
struct Made { uvec4 own, first, second, third; };

uint taken(uint from, Made made) {
    uint four = from >> 2;
    uvec4 found = mix(made.own, uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3), bvec4(four == 1u));
    found = mix(found, uvec4(pc.n_4, pc.n_5, 0u, 0u), bvec4(four == 2u));
    found = mix(found, made.first, bvec4(four == 3u));
    found = mix(found, made.second, bvec4(four == 4u));
    found = mix(found, made.third, bvec4(four == 5u));
    return found[from & 3u];
}

// The bits of a step's result.
uint stepped(uint step, uint from, Made made) {
    uint y = from >> 5 & 31u, z = from >> 10 & 31u, type = step >> 12 & 15u;
    uvec2 found = operated(step & 255u, step >> 8 & 3u, digits_of(type), uvec2(taken(from & 31u, made), 0u),
        y != NONE, uvec2(taken(y, made), 0u), z != NONE, uvec2(taken(z, made), 0u));
    return element(type, step >> 10 & 3u, found).x;
}

#define STEP(N, PLACE) \
    if (FROM_##N != UNUSED) { \
        last = stepped(STEP_##N, FROM_##N, made); \
        PLACE = rounded32(STEP_##N >> 12 & 15u, last); \
    }

void main() {
    uint group = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    uint i = EACH * (group * uint(THREADS) + gl_LocalInvocationIndex);
    if (i >= pc.count) return;
    uvec2 a[8], b[8], c[8], d[8], y[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++) a[k] = b[k] = c[k] = d[k] = y[k] = uvec2(0u);
    uvec4 at = uvec4(0u);
    if (has_strides(FORM_A) || has_strides(FORM_B) || has_strides(FORM_C) || has_strides(FORM_D)) at = coordinates(i);
    if (FORM_A == FLAT) a_run(pc.a_offset + i, pc.a_offset + pc.count, a);
    if (FORM_A == RUNS) a_run(PLACE_OF(a, at), PLACE_OF(a, at) + EACH, a);
    if (FORM_A == REPEATED) a[0] = a_raw(PLACE_OF(a, at));
    if (FORM_B == FLAT) b_run(pc.b_offset + i, pc.b_offset + pc.count, b);
    if (FORM_B == RUNS) b_run(PLACE_OF(b, at), PLACE_OF(b, at) + EACH, b);
    if (FORM_B == REPEATED) b[0] = b_raw(PLACE_OF(b, at));
    if (FORM_C == FLAT) c_run(pc.c_offset + i, pc.c_offset + pc.count, c);
    if (FORM_C == RUNS) c_run(PLACE_OF(c, at), PLACE_OF(c, at) + EACH, c);
    if (FORM_C == REPEATED) c[0] = c_raw(PLACE_OF(c, at));
    if (FORM_D == FLAT) d_run(pc.d_offset + i, pc.d_offset + pc.count, d);
    if (FORM_D == RUNS) d_run(PLACE_OF(d, at), PLACE_OF(d, at) + EACH, d);
    if (FORM_D == REPEATED) d[0] = d_raw(PLACE_OF(d, at));
    if (FORM_A == STRIDED || FORM_B == STRIDED || FORM_C == STRIDED || FORM_D == STRIDED) {
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            if (k < EACH && i + k < pc.count) {
                if (FORM_A == STRIDED) a[k] = a_raw(PLACE_OF(a, at));
                if (FORM_B == STRIDED) b[k] = b_raw(PLACE_OF(b, at));
                if (FORM_C == STRIDED) c[k] = c_raw(PLACE_OF(c, at));
                if (FORM_D == STRIDED) d[k] = d_raw(PLACE_OF(d, at));
            }
            advance(at);
        }
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (k >= EACH) continue;
        uint last = 0u;
        Made made;
        made.own.x = natural32(TYPE_A, FORM_A == REPEATED ? a[0].x : a[k].x);
        made.own.y = natural32(TYPE_B, FORM_B == REPEATED ? b[0].x : b[k].x);
        made.own.z = natural32(TYPE_C, FORM_C == REPEATED ? c[0].x : c[k].x);
        made.own.w = natural32(TYPE_D, FORM_D == REPEATED ? d[0].x : d[k].x);
        made.first = made.second = made.third = uvec4(0u);
        STEP(0, made.first.x)
        STEP(1, made.first.y)
        STEP(2, made.first.z)
        STEP(3, made.first.w)
#if STEPS > 4
        STEP(4, made.second.x)
        STEP(5, made.second.y)
        STEP(6, made.second.z)
        STEP(7, made.second.w)
        STEP(8, made.third.x)
        STEP(9, made.third.y)
        STEP(10, made.third.z)
        STEP(11, made.third.w)
#endif
        y[k] = uvec2(last, 0u);
    }
    y_run(pc.y_offset + i, pc.y_offset + pc.count, y);
}
