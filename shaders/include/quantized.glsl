// Numbers of few bits, in the order of quantization/packing.py: a number is `scale * level`, or `scale * level + minimum`.
// Levels are whole numbers, or those of a table; their bits lie in words along the row, the first number's lowest. A unit
// is 32 numbers, with scales of their own for its halves.
// Specialization constants  20 LOW, 21 HIGH: lower and upper bits of a number that lie together; 22 OFFSET: what is
//     subtracted from whole numbers (where HIGH is 0 they are two's complements already); 23 TABLE; 24 SCALES;
//     25 GROUP: units that share a scale, where scales are those of groups
// The including shader defines SCALES_WORD(i), word i of the array of scales, and may define HALF_VALUE(bits), the number of
// a float16's bits.

#ifndef GRILLY_QUANTIZED_GLSL
#define GRILLY_QUANTIZED_GLSL

#include "float16.glsl"

// constants: scales
const uint SCALES_HALVES = 0u;          // 16 bits a unit: a float16
const uint SCALES_HALVES_MINIMA = 1u;   // 32 bits: a float16, and one for the minimum
const uint SCALES_BYTES = 2u;           // two int8 that a float16 of 256 numbers multiplies
const uint SCALES_BYTES_MINIMA = 3u;    // a byte and one for the minimum, a float16 of 256 numbers for either
const uint SCALES_NIBBLES_MINIMA = 4u;  // the same with two pairs of 4 bits
const uint SCALES_E8M0 = 5u;            // two exponents
const uint SCALES_E4M3 = 6u;            // two floats of 8 bits, without signs
const uint SCALES_FLOATS = 7u;          // 32 bits a group: a float32
const uint SCALES_HALVES_ZEROS = 8u;    // 32 bits a group: a float16, and above it the level that stands for 0
const uint SCALES_BFLOATS_ZEROS = 9u;   // the same with a bfloat16

// constants: tables
const uint TABLE_NONE = 0u, TABLE_NON_LINEAR = 1u, TABLE_FP4 = 2u, TABLE_NF4 = 3u, TABLE_E4M3 = 4u;

layout(constant_id = 20) const uint LOW = 4u;
layout(constant_id = 21) const uint HIGH = 0u;
layout(constant_id = 22) const uint OFFSET = 0u;
layout(constant_id = 23) const uint TABLE = TABLE_NONE;
layout(constant_id = 24) const uint SCALES = SCALES_HALVES;
layout(constant_id = 25) const uint GROUP = 1u;

#ifndef HALF_VALUE
#define HALF_VALUE(bits) float16_value(bits)
#endif

const uint UNIT = 32u;
const bool HAS_ZEROS = SCALES == SCALES_HALVES_ZEROS || SCALES == SCALES_BFLOATS_ZEROS;
const bool HAS_MINIMA =
    HAS_ZEROS || SCALES == SCALES_HALVES_MINIMA || SCALES == SCALES_BYTES_MINIMA || SCALES == SCALES_NIBBLES_MINIMA;
// Whether the halves of a unit have one scale.
const bool ONE_SCALE = HAS_ZEROS || SCALES == SCALES_FLOATS || SCALES == SCALES_HALVES || SCALES == SCALES_HALVES_MINIMA
    || SCALES == SCALES_BYTES_MINIMA;
// The numbers of the tables, four to a word: those of IQ4_NL; E2M1, doubled.
const uvec4 NUMBERS = TABLE == TABLE_FP4 ? uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu)
                                         : uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);

int of_table(uint place) {
    uint word = place < 8u ? (place < 4u ? NUMBERS.x : NUMBERS.y) : (place < 12u ? NUMBERS.z : NUMBERS.w);
    return int(word << (24u - 8u * (place & 3u))) >> 24;
}

// NormalFloat's numbers (Dettmers et al. 2023, arXiv:2305.14314): a tree of choices, as an array would lie in memory.
float of_nf4(uint place) {
    const bool a = (place & 1u) != 0u, b = (place & 2u) != 0u, c = (place & 4u) != 0u;
    const float p = b ? (a ? -0.39491748809814453 : -0.5250730514526367) : (a ? -0.6961928009986877 : -1.0);
    const float q = b ? (a ? 0.0 : -0.09105003625154495) : (a ? -0.18477343022823334 : -0.28444138169288635);
    const float r = b ? (a ? 0.33791524171829224 : 0.24611230194568634) : (a ? 0.16093020141124725 : 0.07958029955625534);
    const float s = b ? (a ? 1.0 : 0.7229568362236023) : (a ? 0.5626170039176941 : 0.44070982933044434);
    return place < 8u ? (c ? q : p) : (c ? s : r);
}

// E4M3 of OCP's 8-bit floating point.
float of_e4m3(uint bits) {
    const uint size = bits & 127u;
    const uint found = size < 8u ? floatBitsToUint(float(size) * 0.001953125) : (size << 20) + 0x3c000000u;
    return uintBitsToFloat((bits & 128u) << 24 | found);
}

// The level whose lower bits begin at bit low_at of a word, and its upper ones at bit high_at of another.
float level(uint low, uint low_at, uint high, uint high_at) {
    if (OFFSET != 0u && HIGH == 0u) return float(int(low << (32u - LOW - low_at)) >> (32u - LOW));
    uint bits = low >> low_at & (1u << LOW) - 1u;
    if (HIGH != 0u) bits |= (high >> high_at & (1u << HIGH) - 1u) << LOW;
    if (TABLE == TABLE_NF4) return of_nf4(bits);
    if (TABLE == TABLE_E4M3) return of_e4m3(bits);
    if (TABLE != TABLE_NONE) return float(of_table(bits));
    return float(int(bits) - int(OFFSET));
}

vec2 halves_of(uint word) { return vec2(HALF_VALUE(word & 0xffffu), HALF_VALUE(word >> 16)); }
float half_of(uint word, uint place) { return HALF_VALUE(place % 2u == 0u ? word & 0xffffu : word >> 16); }
float signed_byte(uint word) { return float(int(word << 24) >> 24); }
// A power of two, half of E8M0's, as the table has doubles. The two least would be denormal, and are 0.
float power_of(uint exponent) { return uintBitsToFloat(max(exponent, 1u) - 1u << 23); }

// The words that hold the scales of a unit, that of a block of 256 first; `row` is the row's first word, of a row of
// `units` units.
uvec2 scale_words_of(uint row, uint unit, uint units) {
    if (HAS_ZEROS || SCALES == SCALES_FLOATS) return uvec2(0u, SCALES_WORD(row + unit / GROUP));
    if (SCALES == SCALES_HALVES) return uvec2(0u, SCALES_WORD(row + unit / 2u));
    if (SCALES == SCALES_HALVES_MINIMA) return uvec2(0u, SCALES_WORD(row + unit));
    const uint blocks = units / 8u, block = unit / 8u;
    const uint before = SCALES == SCALES_BYTES ? (blocks + 1u) / 2u : HAS_MINIMA ? blocks : 0u;
    const uint own = SCALES_WORD(row + before + unit / 2u);
    if (SCALES == SCALES_E8M0 || SCALES == SCALES_E4M3) return uvec2(0u, own);
    return uvec2(SCALES_WORD(row + (SCALES == SCALES_BYTES ? block / 2u : block)), own);
}

// Scales of the halves of a unit, and their minima, in these words.
vec4 scales_in(uvec2 words, uint unit) {
    if (HAS_ZEROS || SCALES == SCALES_FLOATS) {
        if (SCALES == SCALES_FLOATS) return vec4(vec2(uintBitsToFloat(words.y)), 0.0, 0.0);
        const float scale = SCALES == SCALES_HALVES_ZEROS ? HALF_VALUE(words.y & 0xffffu) : uintBitsToFloat(words.y << 16);
        return vec2(scale, -scale * float(words.y >> 16)).xxyy;
    }
    if (SCALES == SCALES_HALVES) return vec4(vec2(half_of(words.y, unit)), 0.0, 0.0);
    if (SCALES == SCALES_HALVES_MINIMA) return halves_of(words.y).xxyy;
    const uint own = unit % 2u == 0u ? words.y & 0xffffu : words.y >> 16;
    if (SCALES == SCALES_E8M0) return vec4(power_of(own & 255u), power_of(own >> 8), 0.0, 0.0);
    // The bits of the exponent and of the fraction are those of a float16 of another bias; numbers are halved.
    if (SCALES == SCALES_E4M3) return vec4(128.0 * halves_of((own & 255u) << 7 | (own >> 8) << 23), 0.0, 0.0);
    if (SCALES == SCALES_BYTES) {
        const float d = half_of(words.x, unit / 8u);
        return vec4(d * signed_byte(own), d * signed_byte(own >> 8), 0.0, 0.0);
    }
    const vec2 both = halves_of(words.x);
    if (SCALES == SCALES_BYTES_MINIMA) return vec2(both.x * float(own & 255u), -both.y * float(own >> 8)).xxyy;
    return vec4(both.xx, -both.yy) * vec4(uvec4(own, own >> 8, own >> 4, own >> 12) & 15u);
}

vec4 scales_of(uint row, uint unit, uint units) { return scales_in(scale_words_of(row, unit, units), unit); }

#endif
