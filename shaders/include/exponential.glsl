// Exponentials and logarithms within about a unit in the last place, in few instructions. Vulkan lets the built-in exp err
// by |x| units, and log by 2^-21 near 1. (arrays/floats.glsl has those that keep every digit and denormal numbers.)

#ifndef GRILLY_EXPONENTIAL_GLSL
#define GRILLY_EXPONENTIAL_GLSL

#include "elements.glsl"

// Above 88.0 exp(88.0); below -87 zero, which is less than any normal number. NaN and plus infinity stay.
// x = n ln 2 + r, where n times ln 2's first part (few bits) is exact; exp(r) by its Taylor series up to r^7
// (r^8 / 8! < 6e-9).
float exp_accurate(float x) {
    float bounded = clamp(x, -87.0, 88.0);
    float n = round(bounded * 1.44269504);
    float r = fma(n, -0.693359375, bounded);
    r = fma(n, 2.12194440e-4, r);
    float p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    float value = p * uintBitsToFloat(uint(int(n) + 127) << 23);
    return x < -87.0 ? 0.0 : non_finite(x) ? x : value;
}

// log(x) for finite x of at least 2^-126. x = 2^n (1 + f) with 1 + f from sqrt(1/2) to sqrt(2), and log(1 + f) is a series
// of s = f / (2 + f).
float log_accurate(float x) {
    int n = int(floatBitsToUint(x) >> 23) - 127;
    uint digits = floatBitsToUint(x) & 0x7fffffu | 0x3f800000u;
    if (digits > 0x3fb504f3u) {
        digits -= 0x800000u;
        n++;
    }
    float f = uintBitsToFloat(digits) - 1.0;
    float s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f;
    float series = z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0 + z * (2.0 / 11.0)))));
    precise float small = s * (half_square + series) - 2.12194440e-4 * float(n);
    precise float found = float(n) * 0.693359375 + (f - (half_square - small));
    return found;
}

#endif
