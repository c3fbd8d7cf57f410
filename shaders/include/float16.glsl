// float16 by its bits. By integers, because devices may round packHalf2x16 as they like and flush small numbers in
// unpackHalf2x16.

#ifndef GRILLY_FLOAT16_GLSL
#define GRILLY_FLOAT16_GLSL

float float16_value(uint word) {
    uint sign = (word & 0x8000u) << 16;
    uint rest = word & 0x7fffu;
    if (rest < 0x0400u) return uintBitsToFloat(sign | floatBitsToUint(float(rest) * 5.9604644775390625e-8));
    return uintBitsToFloat(sign | (rest < 0x7c00u ? (rest << 13) + 0x38000000u : rest << 13 | 0x7f800000u));
}

// The float16 nearest to a float32 of these bits, ties to even.
uint float16_of_bits(uint bits) {
    uint sign = bits >> 16 & 0x8000u;
    uint size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u;
    if (size >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more
    if (size >= 0x38800000u) {
        uint scaled = size - 0x38000000u;
        return sign | (scaled + 0xfffu + (scaled >> 13 & 1u)) >> 13;
    }
    if (size <= 0x33000000u) return sign;  // at most half of the smallest number
    uint shift = 126u - (size >> 23);
    uint digits = size & 0x7fffffu | 0x800000u;
    return sign | (digits + (1u << (shift - 1u)) - 1u + (digits >> shift & 1u)) >> shift;
}

uint float16_word(float x) { return float16_of_bits(floatBitsToUint(x)); }

#endif
