// exp(x) within about a unit in the last place; the built-in may err by |x| units. Above 88.0 exp(88.0); below -87 zero, which
// is less than any normal number. NaN stays, and so do infinities that are no zero.

#ifndef GRILLY_EXPONENTIAL_GLSL
#define GRILLY_EXPONENTIAL_GLSL

#include "elements.glsl"

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

#endif
