// Elements of every type in buffers of 32-bit words, so that no feature of the device is needed: how they are read and
// written, and the three kinds of numbers that arithmetic knows.

#ifndef GRILLY_WORDS_GLSL
#define GRILLY_WORDS_GLSL

#include "float16.glsl"
#include "arrays/integers.glsl"

// facts: elements
const uint BOOL = 0u, INT8 = 1u, UINT8 = 2u, INT16 = 3u, UINT16 = 4u, INT32 = 5u, UINT32 = 6u, INT64 = 7u;
const uint FLOAT32 = 8u, FLOAT16 = 9u, BFLOAT16 = 10u;

// A number is two words: float32's bits in the first (FLOATING), an int32 in the first (INTEGER), or an int64 (LONG).
// facts: kinds
const uint FLOATING = 0u, INTEGER = 1u, LONG = 2u;

uint width_of(uint type) {
    return type <= UINT8 ? 8u : type <= UINT16 || type >= FLOAT16 ? 16u : type == INT64 ? 64u : 32u;
}

// An element's bits as the int64 or the float32 that it is.
uvec2 natural(uint type, uvec2 raw) {
    uint x = raw.x;
    if (type == INT8) return wide(uint(bitfieldExtract(int(x), 0, 8)));
    if (type == INT16) return wide(uint(bitfieldExtract(int(x), 0, 16)));
    if (type == INT32) return wide(x);
    if (type == INT64) return raw;
    if (type == FLOAT16) return uvec2(floatBitsToUint(float16_value(x)), 0u);
    if (type == BFLOAT16) return uvec2(x << 16, 0u);
    if (type == BOOL) return uvec2(uint(x != 0u), 0u);
    return uvec2(x, 0u);
}

// ... as a number of a kind.
uvec2 number(uint kind, uint type, uvec2 raw) {
    uvec2 own = natural(type, raw);
    if (kind == FLOATING && type < FLOAT32) return uvec2(float_bits64(own), 0u);
    if (kind != FLOATING && type >= FLOAT32) return integer_of_bits(own.x);
    return own;
}

// The bits of an element with the value of a number; integers keep their lower bits.
uvec2 element(uint type, uint kind, uvec2 x) {
    if (type == BOOL) {
        return uvec2(kind == LONG ? uint(!zero64(x)) : kind == INTEGER ? uint(x.x != 0u)
            : uint((x.x & 0x7fffffffu) != 0u), 0u);
    }
    if (type >= FLOAT32) {
        uint bits = kind == FLOATING ? x.x : float_bits64(kind == LONG ? x : wide(x.x));
        if (type == FLOAT16) return uvec2(float16_of_bits(bits), 0u);
        if (type == BFLOAT16) {
            if ((bits & 0x7fffffffu) > 0x7f800000u) return uvec2(bits >> 16 | 0x40u, 0u);
            return uvec2((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, 0u);
        }
        return uvec2(bits, 0u);
    }
    uvec2 whole = kind == FLOATING ? integer_of_bits(x.x) : kind == LONG ? x : wide(x.x);
    uint bits = width_of(type);
    return bits == 64u ? whole : uvec2(bits == 32u ? whole.x : bitfieldExtract(whole.x, 0, int(bits)), 0u);
}

// Functions that read a buffer DATA of uvec4 as elements of a TYPE: NAME_raw(i) one of them, NAME_quad(i, raw) four of
// them. i is then a multiple of 4, but for elements of 8 bits.
#define READER(NAME, DATA, TYPE) \
    uint NAME##_word(uint w) { return DATA[w >> 2][w & 3u]; } \
    uvec2 NAME##_raw(uint i) { \
        uint bits = width_of(TYPE); \
        if (bits == 64u) return uvec2(NAME##_word(2u * i), NAME##_word(2u * i + 1u)); \
        if (bits == 32u) return uvec2(NAME##_word(i), 0u); \
        if (bits == 16u) return uvec2(NAME##_word(i >> 1) >> (i & 1u) * 16u & 0xffffu, 0u); \
        return uvec2(NAME##_word(i >> 2) >> (i & 3u) * 8u & 0xffu, 0u); \
    } \
    void NAME##_quad(uint i, out uvec2 raw[4]) { \
        uint bits = width_of(TYPE); \
        if (bits == 64u) { \
            uvec4 first = DATA[i >> 1], second = DATA[(i >> 1) + 1u]; \
            raw[0] = first.xy; raw[1] = first.zw; raw[2] = second.xy; raw[3] = second.zw; \
        } else if (bits == 32u) { \
            uvec4 all4 = DATA[i >> 2]; \
            raw[0] = uvec2(all4.x, 0u); raw[1] = uvec2(all4.y, 0u); \
            raw[2] = uvec2(all4.z, 0u); raw[3] = uvec2(all4.w, 0u); \
        } else if (bits == 16u) { \
            uint first = NAME##_word(i >> 1), second = NAME##_word((i >> 1) + 1u); \
            raw[0] = uvec2(first & 0xffffu, 0u); raw[1] = uvec2(first >> 16, 0u); \
            raw[2] = uvec2(second & 0xffffu, 0u); raw[3] = uvec2(second >> 16, 0u); \
        } else { \
            uint word = NAME##_word(i >> 2), shift = (i & 3u) * 8u; \
            if (shift != 0u) word = word >> shift | NAME##_word((i >> 2) + 1u) << (32u - shift); \
            raw[0] = uvec2(word & 0xffu, 0u); raw[1] = uvec2(word >> 8 & 0xffu, 0u); \
            raw[2] = uvec2(word >> 16 & 0xffu, 0u); raw[3] = uvec2(word >> 24, 0u); \
        } \
    }

// A procedure that writes elements i to i + 3 of a buffer DATA of uvec4, of which those from count on do not exist; of
// their words those that hold an element are written whole. i is a multiple of 4.
#define WRITER(NAME, DATA, TYPE) \
    void NAME##_word(uint w, uint x) { DATA[w >> 2][w & 3u] = x; } \
    void NAME##_quad(uint i, uint count, uvec2 raw[4]) { \
        uint bits = width_of(TYPE), left = count - i; \
        if (bits == 64u) { \
            if (left > 1u) DATA[i >> 1] = uvec4(raw[0], raw[1]); \
            else { NAME##_word(2u * i, raw[0].x); NAME##_word(2u * i + 1u, raw[0].y); } \
            if (left > 3u) DATA[(i >> 1) + 1u] = uvec4(raw[2], raw[3]); \
            else if (left > 2u) { NAME##_word(2u * i + 4u, raw[2].x); NAME##_word(2u * i + 5u, raw[2].y); } \
        } else if (bits == 32u) { \
            if (left > 3u) DATA[i >> 2] = uvec4(raw[0].x, raw[1].x, raw[2].x, raw[3].x); \
            else { \
                NAME##_word(i, raw[0].x); \
                if (left > 1u) NAME##_word(i + 1u, raw[1].x); \
                if (left > 2u) NAME##_word(i + 2u, raw[2].x); \
            } \
        } else if (bits == 16u) { \
            NAME##_word(i >> 1, raw[0].x | raw[1].x << 16); \
            if (left > 2u) NAME##_word((i >> 1) + 1u, raw[2].x | raw[3].x << 16); \
        } else { \
            NAME##_word(i >> 2, raw[0].x | raw[1].x << 8 | raw[2].x << 16 | raw[3].x << 24); \
        } \
    }

#endif
