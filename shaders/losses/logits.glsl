// What the kernels of cross entropy share: types, and the exponential of numbers that are not above 0.
// EACH: neighbouring elements that are read at once, 4 or 8 (words.glsl).

#ifndef GRILLY_LOGITS_GLSL
#define GRILLY_LOGITS_GLSL

layout(constant_id = 5) const uint HALVES = 0u;
layout(constant_id = 6) const uint EACH = 4u;

#include "arrays/words.glsl"
#include "arrays/floats.glsl"

layout(constant_id = 0) const uint TYPE_X = 8u;
layout(constant_id = 1) const uint TYPE_T = 7u;
layout(constant_id = 2) const uint WEIGHTED = 0u;

// exp(x) for x <= 0; 0 where that is below 2^-126, and anything for NaN. Of logits of 16 bits within 2 |x| + 3 units, as Vulkan
// has it of exp2: parts of a sum of at least 1 then err by 3 units of 1 at most.
float share_of(float x) {
    if (TYPE_X != FLOAT32) return x < -87.0 ? 0.0 : exp2(x * 1.44269504);
    int n;
    float r = exponential_rest(max(x, -87.0), n);
    float found = (1.0 + exponential_less_one(r)) * of_bits(uint(n + 127) << 23);
    return x < -87.0 ? 0.0 : found;
}

#endif
