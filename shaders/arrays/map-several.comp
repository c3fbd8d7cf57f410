#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: up to four results, element by element, of up to eight arrays: what fills the hole "values" gives an
//     element of each result.
// Shapes and layouts: w, x, y and z have one shape; each is new and contiguous, or has the layout of an operand that it
//     replaces. Operands lie as in map.comp, but with strides s_0 to s_3 over four axes, or t_0 to t_3; or they are one
//     element (ALONE).
// Bindings: 0 a to 7 h, 8 w, 9 x, 10 y, 11 z.
// Specialization constants: BITS_A to BITS_H, BITS_W to BITS_Z, of an element; RESULTS, how many there are; FORM_A to
//     FORM_H: ABSENT, FLAT, STRIDED, RUNS, BROADCAST, ALONE; SECOND, whose bits 0 to 7 tell which of a to h have the
//     strides t_0 to t_3; AXES, how many of the axes have more than one element where an operand has strides; REPEATS, the
//     runs of an invocation: 1, or 2 where no operand has strides; WHOLE, with TEXELS 1 where count is a multiple of EACH
//     times REPEATS.
// Push constants: see the block; offsets and strides in elements; `count` elements of each result are made. n_0 to n_7: the
//     words of the hole.
// Workgroup: REPEATS times THREADS runs of EACH elements (x and y together count the workgroups, STRIPE of them along x).
//     Invocation: REPEATS runs, one of each THREADS; with TEXELS neighbours. Where a workgroup has all its elements, it reads
//     each array's runs without a branch before it computes: 4, 8 or 16 bytes at a time, all of them under way together.
// Accumulation: as the expressions say.
// Defines: THREADS, STRIPE, TEXELS (arrays/words.glsl).
// Preconditions: as of map.comp. Operands are read before results are written, so that a result may be any operand's.

layout(constant_id = 0) const uint BITS_A = 32u;
layout(constant_id = 1) const uint BITS_B = 32u;
layout(constant_id = 2) const uint BITS_C = 32u;
layout(constant_id = 3) const uint BITS_D = 32u;
layout(constant_id = 4) const uint BITS_E = 32u;
layout(constant_id = 5) const uint BITS_F = 32u;
layout(constant_id = 6) const uint BITS_G = 32u;
layout(constant_id = 7) const uint BITS_H = 32u;
layout(constant_id = 8) const uint BITS_W = 32u;
layout(constant_id = 9) const uint BITS_X = 32u;
layout(constant_id = 10) const uint BITS_Y = 32u;
layout(constant_id = 11) const uint BITS_Z = 32u;
layout(constant_id = 12) const uint FORM_A = 0u;
layout(constant_id = 13) const uint FORM_B = 0u;
layout(constant_id = 14) const uint FORM_C = 0u;
layout(constant_id = 15) const uint FORM_D = 0u;
layout(constant_id = 16) const uint FORM_E = 0u;
layout(constant_id = 17) const uint FORM_F = 0u;
layout(constant_id = 18) const uint FORM_G = 0u;
layout(constant_id = 19) const uint FORM_H = 0u;
layout(constant_id = 20) const uint RESULTS = 1u;
layout(constant_id = 21) const uint SECOND = 0u;
layout(constant_id = 22) const uint AXES = 4u;
layout(constant_id = 23) const uint REPEATS = 1u;
layout(constant_id = 24) const uint WHOLE = 0u;

const uint HALVES = 0u;  // nothing here asks for numbers of 16 bits
const uint EACH = 4u;
#include "arrays/words.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, a_offset, b_offset, c_offset, d_offset, e_offset, f_offset, g_offset, h_offset;
    uint w_offset, x_offset, y_offset, z_offset;
    uint e_1, e_2, e_3;
    uint s_0, s_1, s_2, s_3;
    uint t_0, t_1, t_2, t_3;
    uint n_0, n_1, n_2, n_3, n_4, n_5, n_6, n_7;
} pc;

READ_ONLY(0, A, a_data)
READ_ONLY(1, B, b_data)
READ_ONLY(2, C, c_data)
READ_ONLY(3, D, d_data)
READ_ONLY(4, E, e_data)
READ_ONLY(5, F, f_data)
READ_ONLY(6, G, g_data)
READ_ONLY(7, H, h_data)
layout(set = 0, binding = 8, std430) writeonly buffer W { uvec4 w_data[]; };
layout(set = 0, binding = 9, std430) writeonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 10, std430) writeonly buffer Y { uvec4 y_data[]; };
layout(set = 0, binding = 11, std430) writeonly buffer Z { uvec4 z_data[]; };

READER(a, a_data, BITS_A)
READER(b, b_data, BITS_B)
READER(c, c_data, BITS_C)
READER(d, d_data, BITS_D)
READER(e, e_data, BITS_E)
READER(f, f_data, BITS_F)
READER(g, g_data, BITS_G)
READER(h, h_data, BITS_H)

// Of operands NAME_whole reads a run, from i on, to raw[at] and what follows, and NAME_one an element. Of results NAME_whole
// writes a run, and NAME_tail the elements of one that come before `end`, in whole words. i is as of NAME_run in
// arrays/words.glsl. Memory is also seen as pairs of words, and as words, so that each access is one instruction.
#ifdef TEXELS
#define OPERAND(NAME, BINDING, BITS) \
    uvec2 NAME##_one(uint i) { return NAME##_raw(i); } \
    void NAME##_whole(uint i, uint at, inout uvec2 raw[8]) { \
        uvec2 own[8]; \
        NAME##_run(i, i + EACH, own); \
        [[unroll]] for (uint k = 0u; k < EACH; k++) raw[at + k] = own[k]; \
    }
#define RESULT(NAME, BINDING, BITS) \
    WRITER(NAME, NAME##_data, BITS) \
    void NAME##_tail(uint i, uint end, uint at, uvec2 raw[8]) { \
        uvec2 own[8]; \
        [[unroll]] for (uint k = 0u; k < 8u; k++) own[k] = raw[at + k & 7u]; \
        NAME##_run(i, end, own); \
    } \
    void NAME##_whole(uint i, uint at, uvec2 raw[8]) { \
        if (BITS == 32u) NAME##_data[i >> 2] = uvec4(raw[at].x, raw[at + 1u].x, raw[at + 2u].x, raw[at + 3u].x); \
        else NAME##_tail(i, i + EACH, at, raw); \
    }
#else
#define OPERAND(NAME, BINDING, BITS) \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Pairs { uvec2 NAME##_pairs[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words { uint NAME##_words[]; }; \
    uvec2 NAME##_one(uint i) { \
        if (BITS == 64u) return NAME##_pairs[i]; \
        if (BITS == 32u) return uvec2(NAME##_words[i], 0u); \
        if (BITS == 16u) return uvec2(bitfieldExtract(NAME##_words[i >> 1], int(i & 1u) * 16, 16), 0u); \
        return uvec2(bitfieldExtract(NAME##_words[i >> 2], int(i & 3u) * 8, 8), 0u); \
    } \
    void NAME##_whole(uint i, uint at, inout uvec2 raw[8]) { \
        if (BITS == 64u) { \
            uvec4 x = NAME##_data[i >> 1], y = NAME##_data[(i >> 1) + 1u]; \
            raw[at] = x.xy; raw[at + 1u] = x.zw; raw[at + 2u] = y.xy; raw[at + 3u] = y.zw; \
        } else if (BITS == 32u) { \
            uvec4 x = NAME##_data[i >> 2]; \
            raw[at].x = x.x; raw[at + 1u].x = x.y; raw[at + 2u].x = x.z; raw[at + 3u].x = x.w; \
        } else if (BITS == 16u) { \
            uvec2 x = NAME##_pairs[i >> 2]; \
            raw[at].x = x.x & 0xffffu; raw[at + 1u].x = x.x >> 16; \
            raw[at + 2u].x = x.y & 0xffffu; raw[at + 3u].x = x.y >> 16; \
        } else { \
            uvec2 own[8]; \
            NAME##_run(i, i + EACH, own); \
            raw[at] = own[0]; raw[at + 1u] = own[1]; raw[at + 2u] = own[2]; raw[at + 3u] = own[3]; \
        } \
    }
#define RESULT(NAME, BINDING, BITS) \
    layout(set = 0, binding = BINDING, std430) writeonly buffer NAME##_Pairs { uvec2 NAME##_pairs[]; }; \
    layout(set = 0, binding = BINDING, std430) writeonly buffer NAME##_Words { uint NAME##_words[]; }; \
    void NAME##_whole(uint i, uint at, uvec2 raw[8]) { \
        uvec2 p = raw[at], q = raw[at + 1u], r = raw[at + 2u], s = raw[at + 3u]; \
        if (BITS == 64u) { NAME##_data[i >> 1] = uvec4(p, q); NAME##_data[(i >> 1) + 1u] = uvec4(r, s); } \
        else if (BITS == 32u) NAME##_data[i >> 2] = uvec4(p.x, q.x, r.x, s.x); \
        else if (BITS == 16u) NAME##_pairs[i >> 2] = uvec2(p.x | q.x << 16, r.x | s.x << 16); \
        else NAME##_words[i >> 2] = p.x | q.x << 8 | r.x << 16 | s.x << 24; \
    } \
    void NAME##_tail(uint i, uint end, uint at, uvec2 raw[8]) { \
        [[unroll]] for (uint k = 0u; k < EACH; k++) { \
            uvec2 x = raw[at + k]; \
            if (BITS == 64u && i + k < end) NAME##_pairs[i + k] = x; \
            if (BITS == 32u && i + k < end) NAME##_words[i + k] = x.x; \
            if (BITS == 16u && (k & 1u) == 0u && i + k < end) NAME##_words[(i + k) >> 1] = x.x | raw[at + k + 1u].x << 16; \
        } \
        if (BITS == 8u && i < end) { \
            NAME##_words[i >> 2] = raw[at].x | raw[at + 1u].x << 8 | raw[at + 2u].x << 16 | raw[at + 3u].x << 24; \
        } \
    }
#endif

OPERAND(a, 0, BITS_A)
OPERAND(b, 1, BITS_B)
OPERAND(c, 2, BITS_C)
OPERAND(d, 3, BITS_D)
OPERAND(e, 4, BITS_E)
OPERAND(f, 5, BITS_F)
OPERAND(g, 6, BITS_G)
OPERAND(h, 7, BITS_H)
RESULT(w, 8, BITS_W)
RESULT(x, 9, BITS_X)
RESULT(y, 10, BITS_Y)
RESULT(z, 11, BITS_Z)

#include "arrays/places.glsl"

// 0, of which compilers know nothing: what holes round to float16 is kept rounded by it (expressions/body.py).
uint function_zero() { return pc.count >> 31; }

struct Values { uvec2 w, x, y, z; };

// The bits of an element of each result, of those of the operands' elements and of words.
Values hole_values(const in uvec2 a, const in uvec2 b, const in uvec2 c, const in uvec2 d, const in uvec2 e, const in uvec2 f,
    const in uvec2 g, const in uvec2 h, const in uvec4 n, const in uvec4 m) {
    uvec2 x = a + b + c + d + e + f + g + h + n.xy + n.zw + m.xy + m.zw + function_zero();
    return Values(x, x, x, x);
}

// Counted from the operand's first element.
uint place(uint number, uvec4 at) {
    if ((SECOND >> number & 1u) != 0u) return along(at, pc.t_0, pc.t_1, pc.t_2, pc.t_3);
    return along(at, pc.s_0, pc.s_1, pc.s_2, pc.s_3);
}

const uint CHUNK = EACH * uint(THREADS);
const uint STEP = ONE_WAY ? EACH : CHUNK;  // from an invocation's run to its next
#define EACH_RUN [[unroll]] for (uint k = 0u; k < REPEATS; k++)

#define READ_WHOLE(NAME, FORM) if (FORM == FLAT) EACH_RUN NAME##_whole(pc.NAME##_offset + i + k * STEP, EACH * k, NAME);

// What comes behind the last element is that element again.
#define READ_TAIL(NAME, FORM) \
    if (FORM == FLAT) { \
        EACH_RUN { \
            [[unroll]] for (uint n = 0u; n < EACH; n++) { \
                NAME[EACH * k + n] = NAME##_one(pc.NAME##_offset + min(i + k * STEP + n, pc.count - 1u)); \
            } \
        } \
    }

#define READ_FIRST(NAME, NUMBER, FORM) \
    if (FORM == RUNS) NAME##_whole(pc.NAME##_offset + place(NUMBER, at), 0u, NAME); \
    if (FORM == BROADCAST) NAME[0] = NAME##_one(pc.NAME##_offset + place(NUMBER, at)); \
    if (FORM == ALONE) NAME[0] = NAME##_one(pc.NAME##_offset);

#define READ_ELEMENT(NAME, NUMBER, FORM) \
    if (FORM == STRIDED) NAME[k] = NAME##_one(pc.NAME##_offset + place(NUMBER, at));

#define ELEMENT(NAME, FORM) (FORM == BROADCAST || FORM == ALONE ? NAME[0] : NAME[k])

#define WRITE_WHOLE(NAME, NUMBER) \
    if (RESULTS > NUMBER) EACH_RUN NAME##_whole(pc.NAME##_offset + i + k * STEP, EACH * k, NAME);

#define WRITE_TAIL(NAME, NUMBER) \
    if (RESULTS > NUMBER) { \
        EACH_RUN NAME##_tail(pc.NAME##_offset + i + k * STEP, pc.NAME##_offset + pc.count, EACH * k, NAME); \
    }

void main() {
    uint group = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    uint begin = REPEATS * CHUNK * group, i = begin + (ONE_WAY ? REPEATS * EACH : EACH) * gl_LocalInvocationIndex;
    if (i >= pc.count) return;
    bool whole = ONE_WAY ? WHOLE == 1u : begin + REPEATS * CHUNK <= pc.count;
    uvec2 a[8], b[8], c[8], d[8], e[8], f[8], g[8], h[8], w[8], x[8], y[8], z[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        a[k] = b[k] = c[k] = d[k] = e[k] = f[k] = g[k] = h[k] = w[k] = x[k] = y[k] = z[k] = uvec2(0u);
    }
    uvec4 at = uvec4(0u);
    const bool strides = has_strides(FORM_A) || has_strides(FORM_B) || has_strides(FORM_C) || has_strides(FORM_D)
        || has_strides(FORM_E) || has_strides(FORM_F) || has_strides(FORM_G) || has_strides(FORM_H);
    if (strides) at = coordinates(i);
    READ_FIRST(a, 0u, FORM_A)
    READ_FIRST(b, 1u, FORM_B)
    READ_FIRST(c, 2u, FORM_C)
    READ_FIRST(d, 3u, FORM_D)
    READ_FIRST(e, 4u, FORM_E)
    READ_FIRST(f, 5u, FORM_F)
    READ_FIRST(g, 6u, FORM_G)
    READ_FIRST(h, 7u, FORM_H)
    if (ONE_WAY || whole) {
        READ_WHOLE(a, FORM_A)
        READ_WHOLE(b, FORM_B)
        READ_WHOLE(c, FORM_C)
        READ_WHOLE(d, FORM_D)
        READ_WHOLE(e, FORM_E)
        READ_WHOLE(f, FORM_F)
        READ_WHOLE(g, FORM_G)
        READ_WHOLE(h, FORM_H)
    } else {
        READ_TAIL(a, FORM_A)
        READ_TAIL(b, FORM_B)
        READ_TAIL(c, FORM_C)
        READ_TAIL(d, FORM_D)
        READ_TAIL(e, FORM_E)
        READ_TAIL(f, FORM_F)
        READ_TAIL(g, FORM_G)
        READ_TAIL(h, FORM_H)
    }
    if (FORM_A == STRIDED || FORM_B == STRIDED || FORM_C == STRIDED || FORM_D == STRIDED || FORM_E == STRIDED
        || FORM_F == STRIDED || FORM_G == STRIDED || FORM_H == STRIDED) {
        [[unroll]] for (uint k = 0u; k < EACH; k++) {
            if (i + k < pc.count) {
                READ_ELEMENT(a, 0u, FORM_A)
                READ_ELEMENT(b, 1u, FORM_B)
                READ_ELEMENT(c, 2u, FORM_C)
                READ_ELEMENT(d, 3u, FORM_D)
                READ_ELEMENT(e, 4u, FORM_E)
                READ_ELEMENT(f, 5u, FORM_F)
                READ_ELEMENT(g, 6u, FORM_G)
                READ_ELEMENT(h, 7u, FORM_H)
            }
            advance(at);
        }
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (k < EACH * REPEATS) {
            Values found = hole_values(ELEMENT(a, FORM_A), ELEMENT(b, FORM_B), ELEMENT(c, FORM_C), ELEMENT(d, FORM_D),
                ELEMENT(e, FORM_E), ELEMENT(f, FORM_F), ELEMENT(g, FORM_G), ELEMENT(h, FORM_H),
                uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3), uvec4(pc.n_4, pc.n_5, pc.n_6, pc.n_7));
            w[k] = found.w;
            x[k] = found.x;
            y[k] = found.y;
            z[k] = found.z;
        }
    }
    if (whole) {
        WRITE_WHOLE(w, 0u)
        WRITE_WHOLE(x, 1u)
        WRITE_WHOLE(y, 2u)
        WRITE_WHOLE(z, 3u)
    } else {
        WRITE_TAIL(w, 0u)
        WRITE_TAIL(x, 1u)
        WRITE_TAIL(y, 2u)
        WRITE_TAIL(z, 3u)
    }
}
