// float16 by its bits. By integers, because devices may round packHalf2x16 as they like and flush small numbers in
// unpackHalf2x16.

#ifndef GRILLY_FLOAT16_GLSL
#define GRILLY_FLOAT16_GLSL

float float16_value(uint word) {
    uint rest = word & 0x7fffu;
    uint small = floatBitsToUint(float(rest) * 5.9604644775390625e-8);
    uint large = (rest << 13) + mix(0x38000000u, 0x70000000u, rest >= 0x7c00u);
    return uintBitsToFloat((word & 0x8000u) << 16 | mix(large, small, rest < 0x0400u));
}

// The float16 nearest to a float32 of these bits, ties to even.
uint float16_of_bits(uint bits) {
    uint size = bits & 0x7fffffffu;
    // beside 1/2 the last digit of a float32 is 2^-24, as the smallest float16; the device's sum is rounded as it should
    precise float beside = uintBitsToFloat(size) + 0.5;
    uint small = floatBitsToUint(beside) - 0x3f000000u;
    uint large = min((size - 0x37fff001u + (size >> 13 & 1u)) >> 13, 0x7c00u);  // 65520 and more are infinite
    uint found = mix(mix(large, small, size < 0x38800000u), 0x7e00u, size > 0x7f800000u);
    return bits >> 16 & 0x8000u | found;
}

uint float16_word(float x) { return float16_of_bits(floatBitsToUint(x)); }

#endif
