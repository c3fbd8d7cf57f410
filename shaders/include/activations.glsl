// Activation functions of float32 and their derivatives, for elementwise operations and for what products do at their end.
// Sums and products round right on every device; a quotient is off by 2.5 units in the last place at most (Vulkan's
// bound), and nothing else of a device is used, but for 16-bit results its exp2. DIGITS: of the result, 24, or 11 and 8 of
// float16 and bfloat16. Those are off by less than 2^-15 of themselves and are to be rounded; docs/layers.md has the bounds
// of float32's. Polynomials were fitted. Results below 2^-119 may be zero, of float16 those below 2^-27.

#ifndef GRILLY_ACTIVATIONS_GLSL
#define GRILLY_ACTIVATIONS_GLSL

// constants: activations
const uint ACTIVATION_NONE = 0u, ACTIVATION_RELU = 1u, ACTIVATION_SIGMOID = 2u, ACTIVATION_SILU = 3u;
const uint ACTIVATION_QUICK_GELU = 4u, ACTIVATION_GELU_TANH = 5u, ACTIVATION_GELU = 6u;

const uint ACTIVATION_TANH = 7u;  // its derivative only

// e^-(w + low) for w from 0 on and a low below 0.1, which narrow results have none of; 0 where that is below 2^-126.
float decayed(float w, float low, bool narrow) {
    if (narrow) return exp2(w * -1.44269504);  // off by 3 + 2 * 127 units at most, less than 2^-16
    w = min(w, 88.0);
    uint halvings = uint((w + low) * 1.44269504 + 0.5);
    float n = float(halvings);
    precise float r = ((n * 0.693145752 - w) + n * 1.42860683e-6) - low;  // the first constant has 15 bits
    float series = 0.49999994 + r * (0.166665182 + r * (0.0416684151 + r * (0.00836900156 + r * 0.00138140097)));
    return (1.0 + (r + r * r * series)) * uintBitsToFloat((127u - halvings) << 23);
}

// a without its lower 12 bits, so that its product with another such number is exact.
float upper_half(float a) { return uintBitsToFloat(floatBitsToUint(a) & 0xfffff000u); }

// The normal distribution beyond a, for a from 0 to 14; density: e^(-a^2 / 2).
float beyond(float a, bool narrow, out float density) {
    if (narrow) {
        density = decayed(0.5 * a * a, 0.0, narrow);
    } else {
        float upper = upper_half(a);
        density = decayed(0.5 * upper * upper, 0.5 * (a - upper) * (a + upper), narrow);
    }
    float t = 1.0 / (1.0 + 0.3 * a);
    float series = narrow
        ? 0.120074227 + t * (0.113741972 + t * (0.144196227 + t * (-0.016947804 + t * (0.216036841
            + t * -0.0770973563))))
        : 0.119686633 + t * (0.119572841 + t * (0.110227339 + t * (0.0784255117 + t * (0.0960580036
            + t * (-0.0792476311 + t * (0.191582009 + t * (-0.228067726 + t * (0.112375855
            + t * -0.0206128415))))))));
    return density * (t * series);
}

// The share of x that an activation lets through, x from -100 to 100: 1 / (1 + e^-v), or the normal distribution up to x.
// derivative: the share's own by v, or the density.
float share(uint kind, float x, bool narrow, out float derivative) {
    float a = abs(x);
    if (kind == ACTIVATION_GELU) {
        float over = beyond(min(a, 14.0), narrow, derivative);
        derivative *= 0.398942280;
        return x < 0.0 ? over : 1.0 - over;
    }
    float w = a, low = 0.0;
    if (kind == ACTIVATION_TANH) w = 2.0 * a;
    if (kind == ACTIVATION_GELU_TANH) w = a * (1.59576912 + 0.0713548163 * (a * a));
    if (kind == ACTIVATION_QUICK_GELU) {
        if (narrow) {
            w = 1.702 * a;
        } else {
            a = min(a, 52.0);
            float upper = upper_half(a);
            w = upper * 1.70166016;  // 12 bits
            low = (a - upper) * 1.702 + upper * 3.39843750e-4;
        }
    }
    float e = decayed(w, low, narrow);
    float whole = 1.0 / (1.0 + e);
    derivative = e * whole * whole;
    return x < 0.0 ? e * whole : whole;
}

// The share that a logistic activation lets through, for 16-bit results and x from -100 on: 1 / (1 + 2^-v).
float narrow_share(uint kind, float x) {
    float v = x * 1.44269504;
    if (kind == ACTIVATION_QUICK_GELU) v = x * 2.45546696;
    if (kind == ACTIVATION_GELU_TANH) v = x * (2.30220819 + 0.102943240 * (x * x));
    return 1.0 / (1.0 + exp2(-v));
}

// GELU to 11 digits: max(x, 0) - a P(-a), a = |x|, where the logarithm of the normal distribution P is a polynomial. It was
// fitted up to 6, where a P(-a) is below half of float16's smallest number, and goes down beyond.
float gelu_of_11_digits(float x) {
    float a = min(abs(x), 100.0);
    float power = -0.999995291 + a * (-1.15125108 + a * (-0.458464384 + a * (-0.0539600700 + a * (0.00850789063
        + a * (-0.000930524780 + a * (6.15982863e-05 + a * -1.83481097e-06))))));
    return max(x, 0.0) - a * exp2(power);
}

bool is_no_number(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
bool is_above_zero(float x) { return floatBitsToInt(x) > 0; }  // also numbers that a device takes for zero; and some NaN

// An activation's value; at infinities its limit, and NaN of NaN.
float activated(uint kind, float x, uint digits) {
    if (kind == ACTIVATION_NONE) return x;
    const bool narrow = digits < 24u;
    float found;
    if (kind == ACTIVATION_RELU) {
        found = is_above_zero(x) ? x : 0.0;
    } else if (kind == ACTIVATION_GELU && digits == 11u) {
        found = gelu_of_11_digits(x);
    } else if (kind != ACTIVATION_GELU && narrow) {
        float near = max(x, -100.0);
        found = narrow_share(kind, near);
        if (kind != ACTIVATION_SIGMOID) found *= near;
    } else {
        float derivative, part = share(kind, clamp(x, -100.0, 100.0), narrow, derivative);
        found = kind == ACTIVATION_SIGMOID ? part : max(x, -100.0) * part;
    }
    return is_no_number(x) ? x : found;  // at the end: a branch costs more than what it leaves out
}

// An activation's derivative.
float activation_derivative(uint kind, float x, bool narrow) {
    float near = clamp(x, -100.0, 100.0), found;
    if (kind == ACTIVATION_RELU) {
        found = is_above_zero(x) ? 1.0 : 0.0;
    } else {
        float derivative, part = share(kind, near, narrow, derivative);
        if (kind == ACTIVATION_QUICK_GELU) derivative *= 1.702;
        if (kind == ACTIVATION_GELU_TANH) derivative *= 1.59576912 + 0.214064449 * (near * near);
        found = kind == ACTIVATION_SIGMOID ? derivative : kind == ACTIVATION_TANH ? 4.0 * derivative : part + near * derivative;
    }
    return is_no_number(x) ? x : found;
}

#endif
