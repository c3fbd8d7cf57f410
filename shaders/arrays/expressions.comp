#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: nothing. Its functions are the library of which expressions are made (grilly/runtime/linking.py copies
//     what an expression calls); main() calls each, so that they are kept.
// Shapes and layouts: x has two words of input, y one of output.
// Bindings: 0 x, 1 y.
// Workgroup: 1. Invocation: one.
// Accumulation: float32; each function by itself (arrays/floats.glsl, activations.glsl).
// Functions: an int64 is a uvec2 (arrays/integers.glsl); NAME_narrow is for results of 16 bits.

#define EXACT precise
#include "float16.glsl"
#include "arrays/integers.glsl"
#include "arrays/floats.glsl"
#include "activations.glsl"

layout(local_size_x = 1) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uvec2 x_data[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uvec4 y_data[]; };

#define ONE(NAME, FOUND) float function_##NAME(const in float x) { return FOUND; }
#define TWO(NAME, FOUND) float function_##NAME(const in float x, const in float y) { return FOUND; }
#define TEST(NAME, FOUND) bool function_##NAME(const in float x, const in float y) { return FOUND; }
#define LONGS(NAME, FOUND) uvec2 function_##NAME(const in uvec2 x, const in uvec2 y) { return FOUND; }
#define FLOATS_1(DO) \
    DO(floor, whole(x, FLOORED)) DO(ceil, whole(x, RAISED)) DO(trunc, whole(x, CUT)) DO(round, whole(x, NEAREST)) \
    DO(sqrt, root(x)) DO(exp, exponential(x)) DO(exp_narrow, exponential_for_16_bits(x)) \
    DO(expm1, exponential_minus_one(x)) DO(log, logarithm(x)) DO(log1p, logarithm_one_plus(x)) \
    DO(log2, logarithm2(x)) DO(log10, logarithm10(x)) DO(sin, sine(x)) DO(cos, cosine(x)) DO(tan, tangent(x)) \
    DO(asin, arcsine(x)) DO(acos, arccosine(x)) DO(atan, arctangent(x)) DO(sinh, hyperbolic_sine(x)) \
    DO(cosh, hyperbolic_cosine(x)) DO(tanh, hyperbolic_tangent(x)) DO(asinh, area_sine(x)) DO(acosh, area_cosine(x)) \
    DO(atanh, area_tangent(x)) DO(erf, error_function(x)) DO(sign, sign_of(x)) \
    DO(sigmoid, activated(ACTIVATION_SIGMOID, x, 24u)) DO(sigmoid_narrow, activated(ACTIVATION_SIGMOID, x, 8u)) \
    DO(silu, activated(ACTIVATION_SILU, x, 24u)) DO(silu_narrow, activated(ACTIVATION_SILU, x, 8u)) \
    DO(quick_gelu, activated(ACTIVATION_QUICK_GELU, x, 24u)) \
    DO(quick_gelu_narrow, activated(ACTIVATION_QUICK_GELU, x, 8u)) \
    DO(gelu_tanh, activated(ACTIVATION_GELU_TANH, x, 24u)) \
    DO(gelu_tanh_narrow, activated(ACTIVATION_GELU_TANH, x, 8u)) \
    DO(gelu, activated(ACTIVATION_GELU, x, 24u)) DO(gelu_narrow, activated(ACTIVATION_GELU, x, 8u)) \
    DO(gelu_float16, activated(ACTIVATION_GELU, x, 11u)) \
    DO(sigmoid_derivative, activation_derivative(ACTIVATION_SIGMOID, x, false)) \
    DO(sigmoid_derivative_narrow, activation_derivative(ACTIVATION_SIGMOID, x, true)) \
    DO(silu_derivative, activation_derivative(ACTIVATION_SILU, x, false)) \
    DO(silu_derivative_narrow, activation_derivative(ACTIVATION_SILU, x, true)) \
    DO(quick_gelu_derivative, activation_derivative(ACTIVATION_QUICK_GELU, x, false)) \
    DO(quick_gelu_derivative_narrow, activation_derivative(ACTIVATION_QUICK_GELU, x, true)) \
    DO(gelu_tanh_derivative, activation_derivative(ACTIVATION_GELU_TANH, x, false)) \
    DO(gelu_tanh_derivative_narrow, activation_derivative(ACTIVATION_GELU_TANH, x, true)) \
    DO(gelu_derivative, activation_derivative(ACTIVATION_GELU, x, false)) \
    DO(gelu_derivative_narrow, activation_derivative(ACTIVATION_GELU, x, true)) \
    DO(tanh_derivative, activation_derivative(ACTIVATION_TANH, x, false)) \
    DO(tanh_derivative_narrow, activation_derivative(ACTIVATION_TANH, x, true))
#define FLOATS_2(DO) \
    DO(divide, divided(x, y)) DO(floor_divide, floored(x, y)) DO(remainder, left_of(x, y)) DO(pow, raised_to(x, y)) \
    DO(atan2, arctangent2(x, y)) DO(hypot, hypotenuse(x, y)) DO(logaddexp, logarithm_of_exponentials(x, y)) \
    DO(nextafter, next_to(x, y))
#define FLOATS_TEST(DO) DO(less, is_less(x, y)) DO(equal, is_equal(x, y))
#define LONGS_2(DO) \
    DO(long_add, add64(x, y)) DO(long_subtract, subtract64(x, y)) DO(long_multiply, multiply64(x, y)) \
    DO(long_floor_divide, floored_long(x, y)) DO(long_remainder, left_of_long(x, y)) DO(long_pow, power64(x, y)) \
    DO(long_left_shift, left64(x, places_of(y))) DO(long_right_shift, right64(x, places_of(y)))

float sign_of(float x) { return is_nan(x) ? x : is_zero(x) ? 0.0 : with_sign(1.0, bits_of(x)); }
float floored(float x, float y) { float rest; return floor_divided(x, y, rest); }
float left_of(float x, float y) { float rest; floor_divided(x, y, rest); return rest; }
uvec2 floored_long(uvec2 x, uvec2 y) { uvec2 rest; return floor_divide64(x, y, rest); }
uvec2 left_of_long(uvec2 x, uvec2 y) { uvec2 rest; floor_divide64(x, y, rest); return rest; }
uint places_of(uvec2 y) { return y.y != 0u ? 64u : y.x; }

FLOATS_1(ONE)
FLOATS_2(TWO)
FLOATS_TEST(TEST)
LONGS_2(LONGS)
bool function_long_less(const in uvec2 x, const in uvec2 y) { return less64(x, y); }
float function_float_of_long(const in uvec2 x) { return of_bits(float_bits64(x)); }
uvec2 function_long_of_float(const in float x) { return integer_of_bits(bits_of(x)); }
float function_float_of_half(const in uint bits) { return float16_value(bits); }
uint function_half_of_float(const in float x) { return float16_of_bits(bits_of(x)); }
uint function_bfloat16_of_float(const in float x) {
    const uint bits = bits_of(x);
    return mix(bits + 0x7fffu + (bits >> 16 & 1u), bits | 0x400000u, is_nan(x)) >> 16;
}

void main() {
    const uvec2 p = x_data[0], q = x_data[1];
    const float x = of_bits(p.x), y = of_bits(q.x);
    uvec4 found = uvec4(0u);
#define CALL_ONE(NAME, FOUND) found.x += bits_of(function_##NAME(x));
#define CALL_TWO(NAME, FOUND) found.x += bits_of(function_##NAME(x, y));
#define CALL_TEST(NAME, FOUND) found.y += uint(function_##NAME(x, y));
#define CALL_LONGS(NAME, FOUND) found.zw += function_##NAME(p, q);
    FLOATS_1(CALL_ONE)
    FLOATS_2(CALL_TWO)
    FLOATS_TEST(CALL_TEST)
    LONGS_2(CALL_LONGS)
    found.y += uint(function_long_less(p, q));
    found.x += bits_of(function_float_of_long(p));
    found.zw += function_long_of_float(x);
    found.x += bits_of(function_float_of_half(p.x)) + function_half_of_float(x) + function_bfloat16_of_float(x);
    y_data[0] = found;
}
