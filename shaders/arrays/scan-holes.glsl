// What stands before and behind a scan in the same dispatch: two holes, which expressions fill.
//
// An element of a row is what the hole "before" makes of an element of x, r and p each: bits of TYPE_X. What is written is
// what the hole "behind" makes of the bits of a result, of TYPE_Y, and of these elements, which are read once more for it.
// BITS_X, BITS_R, BITS_P, BITS_Y: of an element. FORM_X, FORM_R, FORM_P: ABSENT; STRIDED; RUNS, where EACH elements along a row are
// neighbours, the first at a multiple of EACH. WHOLE: 1 where y's are written as such runs.
// Bindings: 2 r, 3 p. Push constants: as of x, r_0 to r_2 the strides of the rows' axes and r_stride that of a row's elements;
// y_offset in elements; `before` and `carried` are 0; n_0 to n_3, the words of both holes.

layout(constant_id = 7) const uint BITS_X = 32u;
layout(constant_id = 8) const uint BITS_R = 32u;
layout(constant_id = 9) const uint BITS_P = 32u;
layout(constant_id = 10) const uint BITS_Y = 32u;
layout(constant_id = 11) const uint FORM_X = 2u;
layout(constant_id = 12) const uint FORM_R = 0u;
layout(constant_id = 13) const uint FORM_P = 0u;
layout(constant_id = 14) const uint WHOLE = 0u;

// constants: forms
const uint ABSENT = 0u, STRIDED = 2u, RUNS = 3u;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) buffer Y { uvec4 y_data[]; };
layout(set = 0, binding = 1, std430) buffer YWords { uint y_words[]; };
layout(set = 0, binding = 2, std430) readonly buffer R { uvec4 r_data[]; };
layout(set = 0, binding = 3, std430) readonly buffer P { uvec4 p_data[]; };

#include "arrays/stores.glsl"
READER(x, x_data, BITS_X)
READER(r, r_data, BITS_R)
READER(p, p_data, BITS_P)
WRITER(y, y_data, BITS_Y)
PUTTER(y, y_words)

// 0, of which compilers know nothing: what is rounded to float16, in holes or behind them, is kept rounded by it
// (expressions/body.py).
uint function_zero() { return pc.extent >> 31; }

uvec2 hole_before(const in uvec2 x, const in uvec2 r, const in uvec2 p, const in uvec4 n) {
    return x + r + p + n.xy + n.zw + function_zero();
}
uvec2 hole_behind(const in uvec2 y, const in uvec2 x, const in uvec2 r, const in uvec2 p, const in uvec4 n) {
    return y + x + r + p + n.xy + n.zw + function_zero();
}

// Where a row's elements begin.
struct Row {
    uint x, r, p;
};
#define ROW_OF(NAME) (pc.NAME##_offset + first * pc.NAME##_0 + mid * pc.NAME##_1 + last * pc.NAME##_2)

// The EACH elements of a row from `at` on, of those that there are.
#define ROW_READER(NAME, FORM, STRIDE) \
    void NAME##_elements(uint row, uint at, out uvec2 raw[8]) { \
        [[unroll]] for (uint k = 0u; k < 8u; k++) raw[k] = uvec2(0u); \
        if (FORM == RUNS) { \
            NAME##_run(row + at, row + pc.extent, raw); \
        } else if (FORM == STRIDED) { \
            [[unroll]] for (uint k = 0u; k < 8u; k++) { \
                if (k < EACH && at + k < pc.extent) raw[k] = NAME##_raw(row + (at + k) * STRIDE); \
            } \
        } \
    }
ROW_READER(x, FORM_X, pc.stride)
ROW_READER(r, FORM_R, pc.r_stride)
ROW_READER(p, FORM_P, pc.p_stride)

uvec4 words() { return uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3); }

// What is scanned.
void elements_before(Row row, uint at, out uvec2 raw[8]) {
    uvec2 x[8], r[8], p[8];
    x_elements(row.x, at, x);
    r_elements(row.r, at, r);
    p_elements(row.p, at, p);
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        raw[k] = k < EACH ? hole_before(x[k], r[k], p[k], words()) | function_zero() : uvec2(0u);
    }
}

// Write what becomes of the results of these elements, in a row that begins at y's element `to`.
void put_behind(Row row, uint at, uint to, uvec2 found[8]) {
    uvec2 x[8], r[8], p[8];
    x_elements(row.x, at, x);
    r_elements(row.r, at, r);
    p_elements(row.p, at, p);
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (k < EACH) found[k] = hole_behind(found[k] | function_zero(), x[k], r[k], p[k], words());
    }
    if (WHOLE == 1u) {
        y_run(to + at, to + pc.extent, found);
        return;
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (k < EACH && at + k < pc.extent) y_put(to + at + k, BITS_Y, found[k]);
    }
}
