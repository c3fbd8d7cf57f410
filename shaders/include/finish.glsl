// What stands behind a product or a convolution in the same dispatch: a hole, which an expression fills.
//
// In place of a result's bits those are stored that the hole "finish" makes of them, and of an element each of r and p: as
// many. FORM_R, FORM_P: ABSENT; FLAT, laid out as the result; RUNS, with an element for each column; ALONE, one element.
// BITS_R, BITS_P: of an element, 32 or fewer.
// Push constants: r_offset and p_offset, in elements; words of the expression, n_0 to n_3.
// The including shader defines FINISH_BINDING, that of r, after which p's comes, and FINISH_SMALL, a word of its push constants
// that is below 2^31.

#ifndef GRILLY_FINISH_GLSL
#define GRILLY_FINISH_GLSL

layout(constant_id = 30) const uint FINISHED = 0u;
layout(constant_id = 31) const uint FORM_R = 0u;
layout(constant_id = 32) const uint FORM_P = 0u;
layout(constant_id = 33) const uint BITS_R = 32u;
layout(constant_id = 34) const uint BITS_P = 32u;

// constants: forms
const uint ABSENT = 0u, FLAT = 1u, RUNS = 3u, ALONE = 5u;

layout(set = 0, binding = FINISH_BINDING, std430) readonly buffer FinishR { uint r_data[]; };
layout(set = 0, binding = FINISH_BINDING + 1, std430) readonly buffer FinishP { uint p_data[]; };
layout(set = 0, binding = FINISH_BINDING, std430) readonly buffer FinishRPairs { uvec2 r_pairs[]; };
layout(set = 0, binding = FINISH_BINDING + 1, std430) readonly buffer FinishPPairs { uvec2 p_pairs[]; };

// 0, of which compilers know nothing: what is rounded to float16, in holes or before them, is kept rounded by it
// (expressions/body.py).
uint function_zero() { return pc.FINISH_SMALL >> 31; }

uvec2 hole_finish(const in uvec2 y, const in uvec2 r, const in uvec2 p, const in uvec4 n) {
    return y + r + p + n.xy + n.zw + function_zero();
}

#define FINISH_READER(NAME, BITS, FORM) \
    uint NAME##_bits(uint place, uint col) { \
        if (FORM == ABSENT) return 0u; \
        uint i = pc.NAME##_offset + (FORM == FLAT ? place : FORM == RUNS ? col : 0u); \
        uint bits = NAME##_data[BITS == 32u ? i : BITS == 16u ? i >> 1 : i >> 2]; \
        if (BITS == 32u) return bits; \
        return BITS == 16u ? bits >> (i & 1u) * 16u & 0xffffu : bits >> (i & 3u) * 8u & 0xffu; \
    } \
    uvec4 NAME##_four(uint place, uint col) { \
        uint i = pc.NAME##_offset + (FORM == FLAT ? place : col); \
        if (BITS >= 16u && (FORM == FLAT || FORM == RUNS) && (i & 3u) == 0u) { \
            const uvec2 pair = NAME##_pairs[BITS == 32u ? i >> 1 : i >> 2]; \
            if (BITS == 32u) return uvec4(pair, NAME##_pairs[(i >> 1) + 1u]); \
            return uvec4(pair.x & 0xffffu, pair.x >> 16, pair.y & 0xffffu, pair.y >> 16); \
        } \
        uvec4 found; \
        [[unroll]] for (uint e = 0u; e < 4u; e++) found[e] = NAME##_bits(place + e, col + e); \
        return found; \
    }
FINISH_READER(r, BITS_R, FORM_R)
FINISH_READER(p, BITS_P, FORM_P)

// The bits that are stored for a result of bits y, which compilers lose sight of here, beside elements of r and p.
uint filled(uint y, uint r, uint p) {
    const uvec4 n = uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3);
    return hole_finish(uvec2(y | function_zero(), 0u), uvec2(r, 0u), uvec2(p, 0u), n).x;
}

// ... of a result at a place, counted from where the results begin, and in a column.
uint finished_bits(uint y, uint place, uint col) { return filled(y, r_bits(place, col), p_bits(place, col)); }

// ... of that and the three behind it, which are all there.
uvec4 finished_four(uvec4 y, uint place, uint col) {
    const uvec4 r = r_four(place, col), p = p_four(place, col);
    uvec4 found;
    [[unroll]] for (uint e = 0u; e < 4u; e++) found[e] = filled(y[e], r[e], p[e]);
    return found;
}

#if defined(MATRIX_ELEMENTS) && !defined(DTYPE_float32)
// The same of 16-bit elements of a kernel on matrix units.
float16_t behind(float16_t y, uint place, uint col) {
    if (FINISHED == 0u) return y;
    return unpackFloat2x16(finished_bits(packFloat2x16(f16vec2(y, 0.0)), place, col)).x;
}
f16vec4 behind(f16vec4 y, uint place, uint col) {
    const uvec2 pairs = uvec2(packFloat2x16(y.xy), packFloat2x16(y.zw));
    const uvec4 four = finished_four(uvec4(pairs.x & 0xffffu, pairs.x >> 16, pairs.y & 0xffffu, pairs.y >> 16), place, col);
    return f16vec4(unpackFloat2x16(four.x | four.y << 16), unpackFloat2x16(four.z | four.w << 16));
}
#endif

#endif
