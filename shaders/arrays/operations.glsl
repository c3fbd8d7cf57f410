// The operations of map.comp and chain.comp on numbers of a kind (words.glsl). Operation and kind are known when a
// pipeline is made. A binary has the elementary functions (FUNCTIONS 1), the activations (2) or the others (0): a driver
// reads all of it for every pipeline. That of chains (3) has the others, and of the functions some that models have;
// there are no 64-bit integers in it. A chain has the bits of single operations, so nothing that it has is contracted:
// EXACT is "precise" where floats.glsl is included.

// facts: operations
const uint COPY = 0u, WHERE = 1u, CLIP = 2u, GATHER = 3u;
const uint ADD = 4u, SUBTRACT = 5u, MULTIPLY = 6u, DIVIDE = 7u, FLOOR_DIVIDE = 8u, REMAINDER = 9u, POW = 10u;
const uint MAXIMUM = 11u, MINIMUM = 12u, NEGATIVE = 13u, ABS = 14u, SIGN_OF = 15u, SQUARE = 16u, RECIPROCAL = 17u;
const uint AND = 18u, OR = 19u, XOR = 20u, INVERT = 21u, LEFT_SHIFT = 22u, RIGHT_SHIFT = 23u;
const uint EQUAL = 24u, NOT_EQUAL = 25u, LESS = 26u, LESS_EQUAL = 27u, GREATER = 28u, GREATER_EQUAL = 29u;
const uint LOGICAL_AND = 30u, LOGICAL_OR = 31u, LOGICAL_XOR = 32u, LOGICAL_NOT = 33u;
const uint ISNAN = 34u, ISINF = 35u, ISFINITE = 36u, SIGNBIT = 37u;
const uint FLOOR = 38u, CEIL = 39u, TRUNC = 40u, ROUND = 41u;
const uint SQRT = 42u, EXP = 43u, EXPM1 = 44u, LOG = 45u, LOG1P = 46u, LOG2 = 47u, LOG10 = 48u;
const uint SIN = 49u, COS = 50u, TAN = 51u, ASIN = 52u, ACOS = 53u, ATAN = 54u, ATAN2 = 55u;
const uint SINH = 56u, COSH = 57u, TANH = 58u, ASINH = 59u, ACOSH = 60u, ATANH = 61u;
const uint ERF = 62u, HYPOT = 63u, LOGADDEXP = 64u, COPYSIGN = 65u, NEXTAFTER = 66u;
const uint RELU = 67u, SIGMOID = 68u, SILU = 69u, QUICK_GELU = 70u, GELU_TANH = 71u, GELU = 72u;
const uint RELU_SLOPE = 73u, SIGMOID_SLOPE = 74u, SILU_SLOPE = 75u, QUICK_GELU_SLOPE = 76u, GELU_TANH_SLOPE = 77u;
const uint GELU_SLOPE = 78u, TANH_SLOPE = 79u;

uvec2 truth(bool is) { return uvec2(uint(is), 0u); }

bool true_of(uint kind, uvec2 x) {
    return kind == FLOATING ? (x.x & 0x7fffffffu) != 0u : kind == LONG ? !zero64(x) : x.x != 0u;
}

bool nan_of(uint kind, uvec2 x) { return kind == FLOATING && is_nan(of_bits(x.x)); }

bool less_of(uint kind, uvec2 x, uvec2 y) {
    if (kind == FLOATING) return is_less(of_bits(x.x), of_bits(y.x));
    return kind == LONG ? less64(x, y) : int(x.x) < int(y.x);
}

bool equal_of(uint kind, uvec2 x, uvec2 y) {
    if (kind == FLOATING) return is_equal(of_bits(x.x), of_bits(y.x));
    return kind == LONG ? x == y : x.x == y.x;
}

#if FUNCTIONS == 2

#include "activations.glsl"

// An activation or its slope, times y and plus z, or times y and z, where these are there. DIGITS: of the result.
float activation(uint operation, uint digits, float x, bool has_y, float y, bool has_z, float z) {
    float factor = has_y ? y : 1.0;
    if (operation >= RELU_SLOPE) {
        if (has_z) factor *= z;
        // What relu does not let through may be infinite or NaN.
        if (operation == RELU_SLOPE) return is_above_zero(x) || is_nan(x) ? factor : 0.0;
        return activation_slope(operation - RELU_SLOPE + ACTIVATION_RELU, x, digits < 24u) * factor;
    }
    float found = activated(operation - RELU + ACTIVATION_RELU, x, digits);
    if (has_y) found *= factor;
    if (has_z) found += z;
    return found;
}

#endif

#if FUNCTIONS == 1 || FUNCTIONS == 3

float elementary(uint operation, uint digits, float x, float y) {
    switch (operation) {
    case SQRT: return root(x);
    case EXP: return digits < 24u ? exponential_for_16_bits(x) : exponential(x);
    case LOG: return logarithm(x);
    case TANH: return hyperbolic_tangent(x);
    case ERF: return error_function(x);
#if FUNCTIONS == 3
    case RELU: return int(bits_of(x)) > 0 || is_nan(x) ? x : 0.0;
#else
    case POW: return raised_to(x, y);
    case EXPM1: return exponential_minus_one(x);
    case LOG1P: return logarithm_one_plus(x);
    case LOG2: return logarithm2(x);
    case LOG10: return logarithm10(x);
    case SIN: return sine(x);
    case COS: return cosine(x);
    case TAN: return tangent(x);
    case ASIN: return arcsine(x);
    case ACOS: return arccosine(x);
    case ATAN: return arctangent(x);
    case ATAN2: return arctangent2(x, y);
    case SINH: return hyperbolic_sine(x);
    case COSH: return hyperbolic_cosine(x);
    case ASINH: return area_sine(x);
    case ACOSH: return area_cosine(x);
    case ATANH: return area_tangent(x);
    case HYPOT: return hypotenuse(x, y);
    case LOGADDEXP: return logarithm_of_exponentials(x, y);
#endif
    }
    return x;
}

#endif

#if FUNCTIONS == 0 || FUNCTIONS == 3

float floated(uint operation, float x, float y) {
    float rest = 0.0;
    precise float found;
    switch (operation) {
    case ADD: found = x + y; return found;
    case SUBTRACT: found = x - y; return found;
    case MULTIPLY: found = x * y; return found;
    case DIVIDE: return divided(x, y);
    case NEGATIVE: return of_bits(bits_of(x) ^ SIGN);
    case ABS: return magnitude(x);
    case SIGN_OF: return is_nan(x) ? x : is_zero(x) ? 0.0 : with_sign(1.0, bits_of(x));
    case SQUARE: found = x * x; return found;
    case RECIPROCAL: return divided(1.0, x);
    case FLOOR: return whole(x, FLOORED);
    case CEIL: return whole(x, RAISED);
    case TRUNC: return whole(x, CUT);
    case ROUND: return whole(x, NEAREST);
    case COPYSIGN: return with_sign(x, bits_of(y));
#if FUNCTIONS == 0
    case FLOOR_DIVIDE: return floor_divided(x, y, rest);
    case REMAINDER: floor_divided(x, y, rest); return rest;
    case NEXTAFTER: return next_to(x, y);
#endif
    }
    return x;
}

uvec2 short_integer(uint operation, int x, int y) {
    switch (operation) {
    case ADD: return uvec2(x + y, 0u);
    case SUBTRACT: return uvec2(x - y, 0u);
    case MULTIPLY: case SQUARE: return uvec2(x * (operation == SQUARE ? x : y), 0u);
    case NEGATIVE: return uvec2(-x, 0u);
    case ABS: return uvec2(x < 0 ? -x : x, 0u);
    case SIGN_OF: return uvec2(x < 0 ? -1 : int(x > 0), 0u);
    case AND: return uvec2(x & y, 0u);
    case OR: return uvec2(x | y, 0u);
    case XOR: return uvec2(x ^ y, 0u);
    case INVERT: return uvec2(~x, 0u);
    case LEFT_SHIFT: return uvec2(uint(y) > 31u ? 0 : x << y, 0u);
    case RIGHT_SHIFT: return uvec2(x >> min(uint(y), 31u), 0u);
    }
    return uvec2(x, 0u);
}

#if FUNCTIONS == 0
uvec2 long_integer(uint operation, uvec2 x, uvec2 y) {
    uvec2 rest;
    uint places = y.y != 0u ? 64u : y.x;
    switch (operation) {
    case ADD: return add64(x, y);
    case SUBTRACT: return subtract64(x, y);
    case MULTIPLY: return multiply64(x, y);
    case SQUARE: return multiply64(x, x);
    case FLOOR_DIVIDE: return floor_divide64(x, y, rest);
    case REMAINDER: floor_divide64(x, y, rest); return rest;
    case NEGATIVE: return negative64(x);
    case ABS: return minus64(x) ? negative64(x) : x;
    case SIGN_OF: return minus64(x) ? uvec2(0xffffffffu) : truth(!zero64(x));
    case AND: return x & y;
    case OR: return x | y;
    case XOR: return x ^ y;
    case INVERT: return ~x;
    case LEFT_SHIFT: return left64(x, places);
    case RIGHT_SHIFT: return right64(x, places);
    }
    return x;
}
#endif

uvec2 arithmetic(uint operation, uint kind, uvec2 x, uvec2 y, uvec2 z) {
    switch (operation) {
    case WHERE: return zero64(x) ? z : y;
    case MAXIMUM: return nan_of(kind, x) || !nan_of(kind, y) && less_of(kind, y, x) ? x : y;
    case MINIMUM: return nan_of(kind, x) || !nan_of(kind, y) && less_of(kind, x, y) ? x : y;
    case CLIP:
        if (nan_of(kind, x)) return x;
        if (nan_of(kind, y) || less_of(kind, x, y)) x = y;
        return nan_of(kind, z) || less_of(kind, z, x) ? z : x;
    case EQUAL: return truth(equal_of(kind, x, y));
    case NOT_EQUAL: return truth(!equal_of(kind, x, y));
    case LESS: return truth(less_of(kind, x, y));
    case LESS_EQUAL: return truth(less_of(kind, x, y) || equal_of(kind, x, y));
    case GREATER: return truth(less_of(kind, y, x));
    case GREATER_EQUAL: return truth(less_of(kind, y, x) || equal_of(kind, x, y));
    case LOGICAL_AND: return truth(true_of(kind, x) && true_of(kind, y));
    case LOGICAL_OR: return truth(true_of(kind, x) || true_of(kind, y));
    case LOGICAL_XOR: return truth(true_of(kind, x) != true_of(kind, y));
    case LOGICAL_NOT: return truth(!true_of(kind, x));
    case ISNAN: return truth(nan_of(kind, x));
    case ISINF: return truth(kind == FLOATING && is_infinite(of_bits(x.x)));
    case ISFINITE: return truth(kind != FLOATING || size_of(of_bits(x.x)) < INFINITY);
    case SIGNBIT: return truth(kind == FLOATING ? x.x >= SIGN : kind == LONG ? minus64(x) : int(x.x) < 0);
    }
    if (kind == FLOATING) return uvec2(floatBitsToUint(floated(operation, of_bits(x.x), of_bits(y.x))), 0u);
#if FUNCTIONS == 0
    if (kind == LONG) return long_integer(operation, x, y);
#endif
    return short_integer(operation, int(x.x), int(y.x));
}

#endif

// The operation on numbers of a kind, of which y and z may not be there; DIGITS: of the result. Comparisons and tests give
// an integer that is 0 or 1.
uvec2 operated(uint operation, uint kind, uint digits, uvec2 x, bool has_y, uvec2 y, bool has_z, uvec2 z) {
#if FUNCTIONS == 2
    float found = activation(operation, digits, of_bits(x.x), has_y, of_bits(y.x), has_z, of_bits(z.x));
    return uvec2(floatBitsToUint(found), 0u);
#endif
#if FUNCTIONS == 1 || FUNCTIONS == 3
    if (FUNCTIONS == 1 || operation >= SQRT && operation != COPYSIGN) {
#if FUNCTIONS == 1
        if (kind != FLOATING) return power64(x, y);
#endif
        return uvec2(floatBitsToUint(elementary(operation, digits, of_bits(x.x), of_bits(y.x))), 0u);
    }
#endif
#if FUNCTIONS == 0 || FUNCTIONS == 3
    return arithmetic(operation, kind, x, y, z);
#endif
}
