// What stands before and behind a norm of rows in the same dispatch: two holes, which expressions fill.
//
// An element of a row is what the hole "before" makes of an element of x, r and p each, and what is written is what the
// hole "after" makes of the norm's result and these elements: bits, of any type of at most 32 of them. Of what is written
// they are as many as of the kernel's type.
// BITS_X, BITS_R, BITS_P: of an element. FORM_X, FORM_R, FORM_P: ABSENT; RUNS, where elements of a row are read in fours;
// BROADCAST, where a row has one element; STRIDED. AFTER: 0 where nothing stands behind.
// Push constants: p_offset to p_stride; words of both holes in w_groups, w_each, w_div and n_3.

layout(constant_id = 15) const uint BITS_X = 32u;
layout(constant_id = 16) const uint BITS_R = 32u;
layout(constant_id = 17) const uint BITS_P = 32u;
layout(constant_id = 18) const uint FORM_X = 2u;
layout(constant_id = 19) const uint FORM_R = 0u;
layout(constant_id = 20) const uint FORM_P = 0u;
layout(constant_id = 21) const uint AFTER = 0u;

// constants: forms
const uint ABSENT = 0u, STRIDED = 2u, RUNS = 3u, BROADCAST = 4u;

#if defined(DTYPE_float32)
#define RAW uint
#define RAW_FOUR uvec4
#define PACKED(BITS) (BITS)
#else
#define RAW uint16_t
#define RAW_FOUR uvec2
#define PACKED(BITS) ((BITS).xz | (BITS).yw << 16)
#endif
layout(set = 0, binding = 4, std430) writeonly buffer YBits { RAW y_bits[]; };
layout(set = 0, binding = 4, std430) writeonly buffer YBitsFours { RAW_FOUR y_bits_fours[]; };

uint p_row;

// 0, of which compilers know nothing: what is rounded to float16, in holes, before or behind them, is kept rounded by it
// (expressions/body.py).
uint function_zero() { return pc.cols >> 31; }

uvec2 hole_before(const in uvec2 x, const in uvec2 r, const in uvec2 p, const in uvec4 n) {
    return x + r + p + n.xy + n.zw + function_zero();
}
uvec2 hole_after(const in uvec2 y, const in uvec2 x, const in uvec2 r, const in uvec2 p, const in uvec4 n) {
    return y + x + r + p + n.xy + n.zw + function_zero();
}

// NAME_at(i) is an element, NAME_four(block, i) those of a four.
#define ROW_READER(NAME, BITS, FORM) \
    uint NAME##_at(uint i) { \
        uint at = BITS == 32u ? i : BITS == 16u ? i >> 1 : i >> 2; \
        uint bits = NAME##_data[at >> 2][at & 3u]; \
        if (BITS == 32u) return bits; \
        return BITS == 16u ? bits >> (i & 1u) * 16u & 0xffffu : bits >> (i & 3u) * 8u & 0xffu; \
    } \
    uvec4 NAME##_four(uint block, uint i) { \
        if (FORM == ABSENT) return uvec4(0u); \
        if (FORM == BROADCAST) return uvec4(NAME##_at(NAME##_row)); \
        if (FORM == RUNS) { \
            uint at = NAME##_row + bounded(place(block, i, 0u), 4u); \
            if (BITS == 32u) return NAME##_data[at >> 2]; \
            if (BITS == 16u) { \
                uvec4 both = NAME##_data[at >> 3]; \
                uvec2 pairs = (at & 4u) != 0u ? both.zw : both.xy; \
                return uvec4(pairs.x & 0xffffu, pairs.x >> 16, pairs.y & 0xffffu, pairs.y >> 16); \
            } \
            uint bits = NAME##_data[at >> 4][at >> 2 & 3u]; \
            return uvec4(bits & 0xffu, bits >> 8 & 0xffu, bits >> 16 & 0xffu, bits >> 24); \
        } \
        uvec4 found; \
        [[unroll]] for (uint k = 0u; k < 4u; k++) { \
            uint at = QUADS == 1u ? bounded(place(block, i, 0u), 4u) + k : bounded(place(block, i, k), 1u); \
            found[k] = NAME##_at(NAME##_row + at * pc.NAME##_stride); \
        } \
        return found; \
    }
ROW_READER(x, BITS_X, FORM_X)
ROW_READER(r, BITS_R, FORM_R)
ROW_READER(p, BITS_P, FORM_P)

uvec4 words() { return uvec4(pc.w_groups, pc.w_each, pc.w_div, pc.n_3); }

float float_of_bits(uint bits) {
#if defined(DTYPE_float16)
    return unpackHalf2x16(bits).x;
#elif defined(DTYPE_bfloat16)
    return uintBitsToFloat(bits << 16);
#else
    return uintBitsToFloat(bits);
#endif
}

uint bits_of_float(float x) {
#if defined(DTYPE_float16)
    return HALVES == 1u ? packHalf2x16(vec2(x, 0.0)) : float16_word(x);
#elif defined(DTYPE_bfloat16)
    return bfloat16_word(x);
#else
    return floatBitsToUint(x);
#endif
}

float before_one(uint x, uint r, uint p) {
    return float_of_bits(hole_before(uvec2(x, 0u), uvec2(r, 0u), uvec2(p, 0u), words()).x | function_zero());
}

// The four `i` of a block, as the norm is given them.
vec4 before(uint block, uint i) {
    uvec4 x = x_four(block, i), r = r_four(block, i), p = p_four(block, i);
    vec4 found;
    [[unroll]] for (uint k = 0u; k < 4u; k++) found[k] = before_one(x[k], r[k], p[k]);
    return found;
}

// The row's first element, as the norm is given it.
float first_before() {
    return before_one(x_at(x_row), FORM_R == ABSENT ? 0u : r_at(r_row), FORM_P == ABSENT ? 0u : p_at(p_row));
}

// Write what becomes of the norm's results of a four.
void write_after(uint block, uint i, vec4 y) {
    uvec4 x = x_four(block, i), r = r_four(block, i), p = p_four(block, i), bits;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        bits[k] = hole_after(uvec2(bits_of_float(y[k]) | function_zero(), 0u), uvec2(x[k], 0u), uvec2(r[k], 0u), uvec2(p[k], 0u), words()).x;
    }
    if (QUADS == 1u) {
        uint at = place(block, i, 0u);
        if (WHOLE == 1u || at < pc.cols) y_bits_fours[(y_row + at) >> 2] = PACKED(bits);
    } else {
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            uint at = place(block, i, k);
            if (at < pc.cols) y_bits[y_row + at * pc.y_stride] = RAW(bits[k]);
        }
    }
}
