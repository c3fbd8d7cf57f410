// Elements of every type in buffers of 32-bit words, so that no feature of the device is needed: how they are read and
// written, and the three kinds of numbers that arithmetic knows.

#ifndef GRILLY_WORDS_GLSL
#define GRILLY_WORDS_GLSL

#include "float16.glsl"
#include "arrays/integers.glsl"

// HALVES, a constant of who includes this: 1 where the device's own conversions from and to float16 keep numbers below
// 2^-14, and round to nearest, ties to even.

// constants: elements
const uint BOOL = 0u, INT8 = 1u, UINT8 = 2u, INT16 = 3u, UINT16 = 4u, INT32 = 5u, UINT32 = 6u, INT64 = 7u;
const uint FLOAT32 = 8u, FLOAT16 = 9u, BFLOAT16 = 10u;

// A number is two words: float32's bits in the first (FLOATING), an int32 in the first (INTEGER), or an int64 (LONG).
// constants: kinds
const uint FLOATING = 0u, INTEGER = 1u, LONG = 2u;

// Binary digits of floating types.
uint digits_of(uint type) { return type == FLOAT16 ? 11u : type == BFLOAT16 ? 8u : 24u; }

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
    if (type == FLOAT16) return uvec2(floatBitsToUint(HALVES == 1u ? unpackHalf2x16(x).x : float16_value(x)), 0u);
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
        if (type == FLOAT16) {
            return uvec2(HALVES == 1u ? packHalf2x16(vec2(uintBitsToFloat(bits), 0.0)) : float16_of_bits(bits), 0u);
        }
        if (type == BFLOAT16) {
            bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
            return uvec2(mix(bits + 0x7fffu + (bits >> 16 & 1u), bits | 0x400000u, nan) >> 16, 0u);
        }
        return uvec2(bits, 0u);
    }
    uvec2 whole = kind == FLOATING ? integer_of_bits(x.x) : kind == LONG ? x : wide(x.x);
    uint bits = width_of(type);
    return bits == 64u ? whole : uvec2(bits == 32u ? whole.x : bitfieldExtract(whole.x, 0, int(bits)), 0u);
}

// TEXELS is for Mesa's CPU driver. It reads the texels of all lanes at once, but storage buffers lane by lane, and runs
// both ways of a branch. So arrays that are read are texel buffers, and runs have one way (ONE_WAY): what is read beyond
// the last element is not used.
#ifdef TEXELS
#define READ_ONLY(BINDING, BLOCK, DATA) layout(set = 0, binding = BINDING) uniform usamplerBuffer DATA;
#define FOUR(DATA, I) texelFetch(DATA, int(I))
const bool ONE_WAY = true;
#else
#define READ_ONLY(BINDING, BLOCK, DATA) layout(set = 0, binding = BINDING, std430) readonly buffer BLOCK { uvec4 DATA[]; };
#define FOUR(DATA, I) DATA[I]
const bool ONE_WAY = false;
#endif

// Functions that read a buffer DATA of uvec4 as elements of so many BITS: NAME_raw(i) one of them;
// NAME_run(i, end, raw) the EACH (4 or 8) from i on, of which those from `end` on do not exist. i is then a multiple of
// EACH, but for elements of 8 bits.
#define READER(NAME, DATA, BITS) \
    uint NAME##_word(uint w) { return FOUR(DATA, w >> 2)[w & 3u]; } \
    uvec2 NAME##_raw(uint i) { \
        uint bits = BITS; \
        if (bits == 64u) return uvec2(NAME##_word(2u * i), NAME##_word(2u * i + 1u)); \
        if (bits == 32u) return uvec2(NAME##_word(i), 0u); \
        if (bits == 16u) return uvec2(NAME##_word(i >> 1) >> (i & 1u) * 16u & 0xffffu, 0u); \
        return uvec2(NAME##_word(i >> 2) >> (i & 3u) * 8u & 0xffu, 0u); \
    } \
    void NAME##_run(uint i, uint end, out uvec2 raw[8]) { \
        const uint bits = BITS; \
        uint w[8], first = bits == 64u ? 2u * i : i / (32u / min(bits, 32u)); \
        [[unroll]] for (uint k = 0u; k < 8u; k++) w[k] = 0u; \
        if (ONE_WAY && bits > 8u) { \
            uvec4 four = FOUR(DATA, first >> 2); \
            if (EACH * bits < 128u && (first & 2u) != 0u) four.xy = four.zw; \
            w[0] = four.x; w[1] = four.y; w[2] = four.z; w[3] = four.w; \
            if (EACH * bits > 128u) { \
                four = FOUR(DATA, (first >> 2) + 1u); \
                w[4] = four.x; w[5] = four.y; w[6] = four.z; w[7] = four.w; \
            } \
        } else if (bits > 8u && EACH * bits >= 128u && i + EACH <= end) { \
            uvec4 four = FOUR(DATA, first >> 2); \
            w[0] = four.x; w[1] = four.y; w[2] = four.z; w[3] = four.w; \
            if (EACH * bits > 128u) { \
                four = FOUR(DATA, (first >> 2) + 1u); \
                w[4] = four.x; w[5] = four.y; w[6] = four.z; w[7] = four.w; \
            } \
        } else { \
            uint last = bits == 64u ? 2u * end - 1u : (end - 1u) / (32u / min(bits, 32u)); \
            [[unroll]] for (uint k = 0u; k < 8u; k++) { \
                if (k < EACH * bits / 32u + uint(bits == 8u) && first + k <= last) w[k] = NAME##_word(first + k); \
            } \
            if (bits == 8u && (i & 3u) != 0u) { \
                uint shift = (i & 3u) * 8u; \
                w[0] = w[0] >> shift | w[1] << (32u - shift); \
                w[1] = w[1] >> shift | w[2] << (32u - shift); \
            } \
        } \
        [[unroll]] for (uint k = 0u; k < 8u; k++) { \
            if (bits == 64u) raw[k] = k < 4u ? uvec2(w[2u * k & 7u], w[(2u * k & 7u) + 1u]) : uvec2(0u); \
            else if (bits == 32u) raw[k] = uvec2(w[k], 0u); \
            else if (bits == 16u) raw[k] = uvec2(bitfieldExtract(w[k >> 1], int(k & 1u) * 16, 16), 0u); \
            else raw[k] = uvec2(bitfieldExtract(w[k >> 2], int(k & 3u) * 8, 8), 0u); \
        } \
    }

// A procedure that writes elements i to i + EACH - 1 of a buffer DATA of uvec4, of which those from `end` on do not
// exist; of their words those that hold an element are written whole. i is a multiple of EACH.
#define WRITER(NAME, DATA, BITS) \
    void NAME##_run(uint i, uint end, uvec2 raw[8]) { \
        const uint bits = BITS; \
        uint w[8], first = bits == 64u ? 2u * i : i / (32u / min(bits, 32u)); \
        [[unroll]] for (uint k = 0u; k < 8u; k++) { \
            if (bits == 64u) w[k] = raw[k >> 1][k & 1u]; \
            else if (bits == 32u) w[k] = raw[k].x; \
            else if (bits == 16u) w[k] = raw[2u * k & 7u].x | raw[(2u * k & 7u) + 1u].x << 16; \
            else w[k] = raw[4u * k & 7u].x | raw[(4u * k & 7u) + 1u].x << 8 \
                | raw[(4u * k & 7u) + 2u].x << 16 | raw[(4u * k & 7u) + 3u].x << 24; \
        } \
        if (!ONE_WAY && EACH * bits >= 128u && i + EACH <= end) { \
            DATA[first >> 2] = uvec4(w[0], w[1], w[2], w[3]); \
            if (EACH * bits > 128u) DATA[(first >> 2) + 1u] = uvec4(w[4], w[5], w[6], w[7]); \
        } else { \
            uint last = bits == 64u ? 2u * end - 1u : (end - 1u) / (32u / min(bits, 32u)); \
            [[unroll]] for (uint k = 0u; k < 8u; k++) { \
                if (k < EACH * bits / 32u && first + k <= last) DATA[(first + k) >> 2][(first + k) & 3u] = w[k]; \
            } \
        } \
    }

#endif
