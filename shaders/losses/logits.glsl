// What the kernels of cross entropy share: types, and the exponential of numbers that are not above 0.

#ifndef GRILLY_LOGITS_GLSL
#define GRILLY_LOGITS_GLSL

const uint EACH = 4u;  // (words.glsl)
layout(constant_id = 5) const uint HALVES = 0u;

#include "arrays/words.glsl"
#include "arrays/floats.glsl"

layout(constant_id = 0) const uint TYPE_X = 8u;
layout(constant_id = 1) const uint TYPE_T = 7u;
layout(constant_id = 2) const uint WEIGHTED = 0u;

// exp(x) for x <= 0; 0 where that is below 2^-126. NaN stays NaN.
float share_of(float x) {
    if (is_nan(x)) return x;
    int n;
    float r = exponential_rest(max(x, -87.0), n);
    float found = (1.0 + exponential_less_one(r)) * of_bits(uint(n + 127) << 23);
    return x < -87.0 ? 0.0 : found;
}

#endif
