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
    }
FINISH_READER(r, BITS_R, FORM_R)
FINISH_READER(p, BITS_P, FORM_P)

// The bits that are stored for a result of bits y at a place, counted from where the results begin, and in a column.
uint finished_bits(uint y, uint place, uint col) {
    uvec2 r = uvec2(r_bits(place, col), 0u), p = uvec2(p_bits(place, col), 0u);
    return hole_finish(uvec2(y | function_zero(), 0u), r, p, uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3)).x;
}

#if defined(MATRIX_ELEMENTS) && !defined(DTYPE_float32)
// The same of a 16-bit element of a kernel on matrix units.
float16_t behind(float16_t y, uint place, uint col) {
    if (FINISHED == 0u) return y;
    const uint bits = packFloat2x16(f16vec2(y, 0.0)) ^ function_zero();
    return unpackFloat2x16(finished_bits(bits, place, col)).x;
}
#endif

#endif
