// Elementary functions of float32 whose errors are bounded on every device: Vulkan leaves division, roots, powers,
// logarithms and trigonometric functions loose, lets compilers fuse products with sums, and lets them assume that
// there is no NaN. What is used of the device here: sums, differences and products, which it rounds right, and
// quotients and roots only as estimates that are corrected. Bounds are in docs/arrays.md. Devices may take
// numbers below 2^-126 for zero.

#ifndef GRILLY_FLOATS_GLSL
#define GRILLY_FLOATS_GLSL

// FUSED: the device's fma rounds once.

// "precise" where a value may not depend on what its function stands among (expressions.comp).
#ifndef EXACT
#define EXACT
#endif

const uint SIGN = 0x80000000u, INFINITY = 0x7f800000u, NAN = 0x7fc00000u;
const float LN2_HIGH = 0.693145751953125, LN2_LOW = 1.42860682028623e-6;  // the first has 15 bits

float of_bits(uint bits) { return uintBitsToFloat(bits); }
uint bits_of(float x) { return floatBitsToUint(x); }
uint size_of(float x) { return bits_of(x) & 0x7fffffffu; }  // the bits of its magnitude
bool is_nan(float x) { return size_of(x) > INFINITY; }
bool is_infinite(float x) { return size_of(x) == INFINITY; }
bool is_minus(float x) { return bits_of(x) >= SIGN; }
bool is_zero(float x) { return size_of(x) == 0u; }
float with_sign(float x, uint sign) { return of_bits(size_of(x) | sign & SIGN); }
float magnitude(float x) { return of_bits(size_of(x)); }

// Integers in the order of the numbers; both zeros are 0.
int order_of(float x) { return is_minus(x) ? -int(size_of(x)) : int(bits_of(x)); }
bool is_less(float x, float y) { return !is_nan(x) && !is_nan(y) && order_of(x) < order_of(y); }
bool is_equal(float x, float y) { return !is_nan(x) && !is_nan(y) && order_of(x) == order_of(y); }

// 24 digits and the power of two they are multiplied with, of a number that is neither zero nor infinite (of these some).
uint digits_of(float x, out int power) {
    uint size = size_of(x);
    power = int(size >> 23) - 150;
    if (power > -150) return size & 0x7fffffu | 0x800000u;
    int shift = 23 - findMSB(size | 1u);
    power = -149 - shift;
    return size << shift;
}

// The number nearest to digits * 2^power with 24 or 25 bits of digits (fewer where power is -149), ties to even. rest: something is left below.
float rounded(uint sign, uint digits, int power, bool rest) {
    int shift = digits >= 0x1000000u ? 1 : 0;
    shift = max(shift, -149 - power);  // below 2^-126 there are fewer digits
    if (shift > 25) return of_bits(sign);
    if (shift > 0) {
        uint half_unit = 1u << (shift - 1), lost = digits & ((1u << shift) - 1u);
        digits >>= shift;
        if (lost > half_unit || lost == half_unit && (rest || (digits & 1u) == 1u)) digits++;
        power += shift;
    }
    if (digits == 0u) return of_bits(sign);
    int raised = digits < 0x800000u ? 0 : power + 149;
    if (raised >= 254) return of_bits(sign | INFINITY);
    return of_bits(sign | ((uint(raised) << 23) + digits));
}

// x * 2^n for n from -300 to 300, rounded once.
float scaled(float x, int n) {
    if (is_zero(x) || size_of(x) >= INFINITY) return x;
    int power;
    uint digits = digits_of(x, power);
    return rounded(bits_of(x) & SIGN, digits, power + n, false);
}

// -- numbers of twice the precision: a sum of two

void split_product(float a, float b, out float high, out float low) {
#ifdef FUSED
    precise float whole_product = a * b;
    precise float left = fma(a, b, -whole_product);
    high = whole_product;
    low = left;
#else
    float a1 = of_bits(bits_of(a) & 0xfffff000u), b1 = of_bits(bits_of(b) & 0xfffff000u);
    precise float a2 = a - a1;
    precise float b2 = b - b1;
    precise float product = a * b;
    precise float rest = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2;
    high = product;
    low = rest;
#endif
}

void split_sum(float a, float b, out float high, out float low) {
    precise float sum = a + b;
    precise float other = sum - a;
    precise float rest = (a - (sum - other)) + (b - other);
    high = sum;
    low = rest;
}

// The distance from a number above 2^-100 to the next one, upwards or downwards.
float unit_of(float x, bool down) { return of_bits((bits_of(x) - uint(down) & INFINITY) - 0x0b800000u); }

// The number above 0 beside x, downwards or upwards.
float beside(float x, bool down) { return of_bits(down ? bits_of(x) - 1u : bits_of(x) + 1u); }

// x * 2^n for x from 2^-30 to 2^30 and n from -250 to 250, rounded once.
float times_power(float x, int n) {
    int part = n >> 1;
    precise float half_way = x * of_bits(uint(part + 127) << 23);
    precise float found = half_way * of_bits(uint(n - part + 127) << 23);
    return found;
}

// x / y, correctly rounded: of the digits the device's estimate, corrected by what is left over, then by one unit at most.
float divided_by_digits(float x, float y) {
    int above, below;
    float a = float(digits_of(x, above)), b = float(digits_of(y, below)), found = a / b, high, low;
    split_product(found, b, high, low);
    precise float rest = (a - high) - low;
    found += rest / b;
    split_product(found, b, high, low);
    precise float missing = (a - high) - low;
    bool down = missing < 0.0;
    if (2.0 * magnitude(missing) > b * unit_of(found, down)) found = beside(found, down);
    found = times_power(found, clamp(above - below, -250, 250));
    bool is_none = is_nan(x) || is_nan(y) || is_zero(x) && is_zero(y) || is_infinite(x) && is_infinite(y);
    if (is_infinite(x) || is_zero(y)) found = of_bits(INFINITY);
    if (is_infinite(y) || is_zero(x)) found = 0.0;
    return is_none ? of_bits(NAN) : with_sign(found, bits_of(x) ^ bits_of(y));
}

// x / y, correctly rounded.
float divided(float x, float y) {
#ifdef FUSED
    // Away from the ends of the range what is left over is exact, and the last correction rounds right (Markstein 1990).
    int above = int(size_of(x) >> 23), below = int(size_of(y) >> 23);
    bool near = (above > 26 && above < 255 || is_zero(x)) && below > 1 && below < 253;
    if (near && (is_zero(x) || abs(above - below + 10) < 110)) {
        precise float inverse = 1.0 / y;
        precise float missing = fma(-y, inverse, 1.0);
        inverse = fma(inverse, missing, inverse);
        precise float found = x * inverse;
        precise float rest = fma(-y, found, x);
        found = fma(rest, inverse, found);
        rest = fma(-y, found, x);
        found = fma(rest, inverse, found);
        return with_sign(found, bits_of(x) ^ bits_of(y));
    }
#endif
    return divided_by_digits(x, y);
}

// The square root, correctly rounded, in the same way.
float root_by_digits(float x) {
    int power;
    uint digits = digits_of(x, power);
    bool odd = (power & 1) != 0;
    float a = float(odd ? digits << 1 : digits), found = sqrt(a), high, low;
    split_product(found, found, high, low);
    precise float rest = (a - high) - low;
    found += rest / (2.0 * found);
    split_product(found, found, high, low);
    precise float missing = (a - high) - low;
    bool down = missing < 0.0;
    float unit = found * unit_of(found, down);
    if (down ? -missing >= unit : missing > unit) found = beside(found, down);
    found = times_power(found, (power - int(odd)) / 2);
    if (is_nan(x) || is_zero(x) || bits_of(x) == INFINITY) found = x;
    return is_minus(x) && !is_nan(x) && !is_zero(x) ? of_bits(NAN) : found;
}

float root(float x) {
#ifdef FUSED
    if (is_zero(x)) return x;
    if (is_minus(x)) return of_bits(NAN);
    if (bits_of(x) - 0x0d000000u < 0x72800000u) {
        precise float inverse = inversesqrt(x);
        precise float found = x * inverse;
        precise float half_inverse = 0.5 * inverse;
        precise float rest = fma(-found, found, x);
        found = fma(rest, half_inverse, found);
        return found;
    }
#endif
    return root_by_digits(x);
}

// Whole numbers; NaN, infinities and the sign of zero stay.
const uint FLOORED = 0u, RAISED = 1u, CUT = 2u, NEAREST = 3u;
float whole(float x, uint way) {
    uint size = size_of(x), sign = bits_of(x) & SIGN;
    if (size >= 0x4b000000u) return x;
    uint part = uint(magnitude(x));  // below 2^23
    float rest = magnitude(x) - float(part);
    bool some = size != 0u && (rest > 0.0 || part == 0u);
    if (way == NEAREST) {
        if (rest > 0.5 || rest == 0.5 && (part & 1u) == 1u) part++;
    } else if (some && (way == FLOORED && sign != 0u || way == RAISED && sign == 0u)) {
        part++;
    }
    return with_sign(float(part), sign);
}

// x - y * n for the whole n nearest to 0 that leaves less than |y|; x's sign. Exact.
float left_over(float x, float y) {
    if (is_nan(x) || is_nan(y) || is_infinite(x) || is_zero(y)) return of_bits(NAN);
    if (is_infinite(y) || size_of(x) < size_of(y)) return x;
    uint sign = bits_of(x) & SIGN;
    int above, below;
    uint a = digits_of(x, above), b = digits_of(y, below);
    a %= b;
    for (int left = above - below; left > 0 && a != 0u; left -= 8) {
        uint step = uint(min(left, 8));
        a = (a << step) % b;
    }
    if (a == 0u) return of_bits(sign);
    int up = min(23 - findMSB(a), below + 149);
    return rounded(sign, a << max(up, 0), below - max(up, 0), false);
}

// floor(x / y), as Python has it, and what is left, of y's sign.
float floor_divided(float x, float y, out float rest) {
    rest = left_over(x, y);
    if (is_zero(y) || is_nan(rest)) return divided(x, y);
    float found = divided(is_zero(rest) ? x : x - rest, y);
    if (is_zero(rest)) {
        rest = of_bits(bits_of(y) & SIGN);
    } else if (is_minus(rest) != is_minus(y)) {
        rest += y;
        found -= 1.0;
    }
    if (is_zero(found)) return with_sign(found, bits_of(x) ^ bits_of(y));
    float below = whole(found, FLOORED);
    return found - below > 0.5 ? below + 1.0 : below;
}

// -- exponentials and logarithms

// exp(r) - 1 for |r| <= 0.3466: a series.
float exponential_less_one(float r) {
    EXACT float tail = r * (1.0 / 720.0 + r * (1.0 / 5040.0 + r * (1.0 / 40320.0)));
    tail = r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + tail)));
    EXACT float found = r + r * r * (0.5 + tail);
    return found;
}

// x less the nearest multiple of log(2), and which that is, for x up to 1000.
float exponential_rest(float x, out int n) {
    precise float shifted = x * 1.44269504 + 12582912.0;  // whose last digit is 1
    precise float nearest = shifted - 12582912.0;
    n = int(nearest);
    precise float rest = (x - nearest * LN2_HIGH) - nearest * LN2_LOW;
    return rest;
}

float exponential(float x) {
    int n;
    float r = exponential_rest(clamp(x, -104.0, 89.0), n);
    EXACT float sum = 1.0 + exponential_less_one(r);
    float found = times_power(sum, n);
    return is_nan(x) ? x : found;
}

// The same for results of 16 bits: within 260 units of float32, as Vulkan has it of exp2.
float exponential_for_16_bits(float x) {
    EXACT float power = clamp(x, -104.0, 89.0) * 1.44269504;
    float found = exp2(power);
    return is_nan(x) ? x : x > 88.8 ? of_bits(INFINITY) : found;
}

float exponential_minus_one(float x) {  // expm1
    int n;
    float r = exponential_rest(clamp(x, -18.0, 89.0), n), part = exponential_less_one(r);
    float power = of_bits(uint(min(n, 40) + 127) << 23);
    EXACT float found = n > 40 ? times_power(1.0 + part, n) : (power - 1.0) + power * part;
    if (x < -18.0) found = -1.0;
    if (x > 88.8) found = of_bits(INFINITY);
    return is_nan(x) || size_of(x) < 0x33000000u ? x : found;
}

// log(1 + f) less f, for 1 + f from sqrt(1/2) to sqrt(2); half is f * f / 2. By s = f / (2 + f).
float logarithm_tail(float f, out float half_square) {
    EXACT float s = f / (2.0 + f), z = s * s, half_of_it = 0.5 * f * f;
    half_square = half_of_it;
    EXACT float series = z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0 + z * (2.0 / 11.0)))));
    EXACT float tail = s * (half_of_it + series);
    return tail;
}

// x = (1 + f) 2^n with 1 + f from sqrt(1/2) to sqrt(2), for finite x above 0.
float logarithm_parts(float x, out int n) {
    int power;
    uint digits = digits_of(x, power);
    n = power + 23;
    uint bits = digits & 0x7fffffu | 0x3f800000u;
    if (bits > 0x3fb504f3u) {
        bits -= 0x800000u;
        n++;
    }
    return of_bits(bits) - 1.0;
}

// What log gives without calculation, or else a finite number above 0.
bool logarithm_known(float x, out float known) {
    known = x;
    if (is_nan(x)) return true;
    if (is_zero(x)) { known = of_bits(INFINITY | SIGN); return true; }
    if (is_minus(x)) { known = of_bits(NAN); return true; }
    return is_infinite(x);
}

float logarithm_of_sum(float f, int n, float more) {  // log of (1 + f) 2^n, more added
    float half_square, tail = logarithm_tail(f, half_square);
    float power = float(n);
    precise float small = tail + (power * LN2_LOW + more);
    precise float found = power * LN2_HIGH + (f - (half_square - small));
    return found;
}

float logarithm(float x) {
    float known;
    if (logarithm_known(x, known)) return known;
    int n;
    float f = logarithm_parts(x, n);
    return logarithm_of_sum(f, n, 0.0);
}

float logarithm_one_plus(float x) {  // log1p
    if (is_nan(x) || size_of(x) < 0x33000000u || bits_of(x) == INFINITY) return x;
    if (order_of(x) <= order_of(-1.0)) return of_bits(is_equal(x, -1.0) ? INFINITY | SIGN : NAN);
    if (x > -0.29 && x < 0.41) return logarithm_of_sum(x, 0, 0.0);
    precise float sum = 1.0 + x;
    precise float lost = magnitude(x) < 1.0 ? x - (sum - 1.0) : 1.0 - (sum - x);
    int n;
    float f = logarithm_parts(sum, n);
    return logarithm_of_sum(f, n, lost / sum);
}

// log(x) / log(base): octave_high and _low are log(2) / log(base); one_high has few digits.
float logarithm_to(float x, float octave_high, float octave_low, float one_high, float one_low) {
    float known;
    if (logarithm_known(x, known)) return known;
    int n;
    float f = logarithm_parts(x, n), half_square, tail = logarithm_tail(f, half_square), power = float(n);
    precise float rough = f - half_square;
    float high = of_bits(bits_of(rough) & 0xfffff000u);
    precise float low = ((f - high) - half_square) + tail;
    precise float small = (low + high) * one_low + power * octave_low + low * one_high;
    precise float large = high * one_high;
    precise float octaves = power * octave_high;
    precise float sum = octaves + large;
    precise float lost = magnitude(octaves) > magnitude(large) ? large - (sum - octaves) : octaves - (sum - large);
    precise float found = sum + (lost + small);
    return found;
}

float logarithm2(float x) { return logarithm_to(x, 1.0, 0.0, 1.4423828125, 3.12228388963387e-4); }
float logarithm10(float x) {
    return logarithm_to(x, 0.301025390625, 4.605038981195e-6, 0.4342041015625, 9.038034075176e-5);
}

// -- powers

// x^y for finite x above 0 and finite y: 2^(y log2(x)), the logarithm in twice the precision.
float power_of(float x, float y) {
    int n;
    float f = logarithm_parts(x, n);
    // s = f / (2 + f) and what its rounding lost
    float below, below_low, s, s_low, product, product_low;
    split_sum(2.0, f, below, below_low);
    s = f / below;
    split_product(s, below, product, product_low);
    precise float missing = ((f - product) - product_low) - s * below_low;
    s_low = missing / below;
    float sum, sum_low;
    split_sum(s, s_low, sum, sum_low);
    // log2(1 + f) = 2 / log(2) (s + s^3 / 3 + ...)
    float z = sum * sum;
    float tail = z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * (1.0 / 11.0))));
    float cube, cube_low, third, third_low;
    split_product(sum, sum, cube, cube_low);
    cube_low += 2.0 * sum * sum_low;
    split_product(cube, 0.333333343, third, third_low);
    third_low += cube_low * 0.333333343 - cube * 9.93410776e-9;
    // sum * (1 + third + z * tail)
    float factor, factor_low;
    split_sum(1.0, third, factor, factor_low);
    factor_low += third_low + z * tail;
    float large, large_low;
    split_product(sum, factor, large, large_low);
    large_low += sum * factor_low + sum_low * factor;
    float log2_high, log2_low;
    split_product(large, 2.88539004, log2_high, log2_low);
    log2_low += large_low * 2.88539004 + large * 3.85192598e-8;
    float high, low;
    split_sum(float(n), log2_high, high, low);
    low += log2_low;
    float estimate = y * high;
    if (!(magnitude(estimate) < 200.0)) return of_bits(is_minus(estimate) ? 0u : INFINITY);
    float z_high, z_low;
    split_product(y, high, z_high, z_low);
    z_low += y * low;
    precise float shifted = z_high + 12582912.0;  // whose last digit is 1
    precise float nearest = shifted - 12582912.0;
    precise float rest = (z_high - nearest) + z_low;
    return times_power(1.0 + exponential_less_one(rest * 0.693147181), int(nearest));
}

float raised_to(float x, float y) {  // pow, with the values that C's standard gives at the edges
    if (is_zero(y) || bits_of(x) == 0x3f800000u) return 1.0;
    if (is_nan(x) || is_nan(y)) return of_bits(NAN);
    float size = magnitude(x);
    bool is_whole = size_of(y) >= 0x4b000000u || is_equal(whole(y, CUT), y);
    bool odd = is_whole && size_of(y) < 0x4b800000u && (uint(magnitude(y)) & 1u) == 1u;
    uint sign = is_minus(x) && odd ? SIGN : 0u;
    if (is_infinite(y)) {
        if (is_equal(size, 1.0)) return 1.0;
        return of_bits(is_less(1.0, size) != is_minus(y) ? INFINITY : 0u);
    }
    if (is_zero(x)) return of_bits(sign | (is_minus(y) ? INFINITY : 0u));
    if (is_infinite(x)) return of_bits(sign | (is_minus(y) ? 0u : INFINITY));
    if (is_minus(x) && !is_whole) return of_bits(NAN);
    if (bits_of(y) == 0x3f800000u) return x;
    if (is_equal(size, 1.0)) return with_sign(1.0, sign);
    return with_sign(power_of(size, y), sign);
}

// -- hyperbolic functions

// Mesa 26's llvmpipe lost values where this, asin, atan and asinh had several returns, and this where its sign was set by
// bits; Mesa 22's those of asinh where its was.
float hyperbolic_sine(float x) {
    float size = magnitude(x), half_way = exponential(0.5 * size), grown = exponential_minus_one(min(size, 88.0));
    float found = 0.5 * (grown + grown / (grown + 1.0));
    precise float large = (0.5 * half_way) * half_way;  // the square may be too large
    if (size > 88.0) found = large;
    found = is_minus(x) ? -found : found;
    return size_of(x) < 0x39000000u || size_of(x) >= INFINITY ? x : found;
}

float hyperbolic_cosine(float x) {
    if (is_nan(x)) return x;
    float size = magnitude(x);
    if (size > 88.0) {
        float half_way = exponential(0.5 * size);
        precise float large = (0.5 * half_way) * half_way;
        return large;
    }
    float grown = exponential(size);
    return 0.5 * grown + 0.5 / grown;
}

float hyperbolic_tangent(float x) {
    if (is_nan(x) || size_of(x) < 0x39000000u) return x;
    float size = magnitude(x);
    if (size > 10.0) return with_sign(1.0, bits_of(x));
    float grown = exponential_minus_one(2.0 * size);
    return with_sign(divided(grown, grown + 2.0), bits_of(x));
}

float area_sine(float x) {  // asinh
    float size = magnitude(x), small = min(size, 4096.0), square = small * small;
    float found = logarithm_one_plus(small + square / (1.0 + root(square + 1.0)));
    if (size > 4096.0) found = logarithm(size) + 0.693147181;
    found = is_minus(x) ? -found : found;
    return size_of(x) < 0x39000000u || size_of(x) >= INFINITY ? x : found;
}

float area_cosine(float x) {  // acosh
    if (is_nan(x) || is_less(x, 1.0)) return of_bits(NAN);
    if (is_infinite(x)) return x;
    if (x > 4096.0) return logarithm(x) + 0.693147181;
    float over = x - 1.0;
    return logarithm_one_plus(over + root(2.0 * over + over * over));
}

float area_tangent(float x) {  // atanh
    if (is_nan(x) || size_of(x) < 0x39000000u) return x;
    float size = magnitude(x);
    if (is_less(1.0, size)) return of_bits(NAN);
    if (is_equal(size, 1.0)) return with_sign(of_bits(INFINITY), bits_of(x));
    return with_sign(0.5 * logarithm_one_plus(divided(2.0 * size, 1.0 - size)), bits_of(x));
}

// -- trigonometric functions

// The digits of 2 / pi after 32 zeros.
const uint TWO_OVER_PI[8] = uint[8](
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu
);

// x less the nearest multiple of pi / 2, and that multiple modulo 4.
float quarter_rest(float x, out uint quarter) {
    float size = magnitude(x);
    float found;
    if (size < 800.0) {
        float nearest = whole(size * 0.636619772, NEAREST);
        // pi / 2 in parts of which the first two have 13 and 14 bits, so that products with up to 9 are exact
        precise float first = size - nearest * 1.570556640625;
        precise float second = first - nearest * 2.3968517780303955e-4;
        precise float third = second - nearest * 9.92093518e-10;
        found = third;
        quarter = uint(nearest);
    } else {
        int power;
        uint digits = digits_of(size, power);
        uint at = uint(power + 30), shift = at & 31u;
        at >>= 5;
        uint w[3];
        for (uint i = 0u; i < 3u; i++) {
            uint next = at + i + 1u < 8u ? TWO_OVER_PI[at + i + 1u] : 0u;
            w[i] = shift == 0u ? TWO_OVER_PI[at + i] : TWO_OVER_PI[at + i] << shift | next >> (32u - shift);
        }
        // the product modulo 2^96: two bits of quarters, the rest a fraction of one
        uint high, low, mid, carry;
        umulExtended(digits, w[2], carry, low);
        umulExtended(digits, w[1], high, mid);
        uint p1 = mid + carry;
        uint p0 = digits * w[0] + high + uint(p1 < mid);
        quarter = p0 >> 30;
        uvec2 fraction = uvec2(p1 << 2 | low >> 30, p0 << 2 | p1 >> 30);
        bool above = fraction.y >= SIGN;
        if (above) {
            quarter++;
            fraction = negative64(fraction);
        }
        if (zero64(fraction)) {
            found = 0.0;
        } else {
            uint zeros = uint(63 - (fraction.y != 0u ? 32 + findMSB(fraction.y) : findMSB(fraction.x)));
            uvec2 top = left64(fraction, zeros);
            found = scaled(float(top.y >> 8) * 1.57079633, -24 - int(zeros));
            if (above) found = -found;
        }
    }
    if (is_minus(x)) {
        quarter = 0u - quarter;
        found = -found;
    }
    return found;
}

float sine_series(float r) {
    float z = r * r;
    float tail = 1.0 / 120.0 + z * (-1.0 / 5040.0 + z * (1.0 / 362880.0));
    return r + r * z * (-1.0 / 6.0 + z * tail);
}

float cosine_series(float r) {
    float z = r * r;
    float tail = 1.0 / 24.0 + z * (-1.0 / 720.0 + z * (1.0 / 40320.0 + z * (-1.0 / 3628800.0)));
    return 1.0 - (0.5 * z - z * z * tail);
}

float sine(float x) {
    if (size_of(x) >= INFINITY) return of_bits(NAN);
    if (size_of(x) < 0x39000000u) return x;
    uint quarter;
    float r = quarter_rest(x, quarter);
    float found = (quarter & 1u) == 0u ? sine_series(r) : cosine_series(r);
    return (quarter & 2u) == 0u ? found : -found;
}

float cosine(float x) {
    if (size_of(x) >= INFINITY) return of_bits(NAN);
    uint quarter;
    float r = quarter_rest(x, quarter);
    float found = (quarter & 1u) == 0u ? cosine_series(r) : sine_series(r);
    return ((quarter + 1u) & 2u) == 0u ? found : -found;
}

float tangent(float x) {
    if (size_of(x) >= INFINITY) return of_bits(NAN);
    if (size_of(x) < 0x39000000u) return x;
    uint quarter;
    float r = quarter_rest(x, quarter);
    float over = sine_series(r), under = cosine_series(r);
    return (quarter & 1u) == 0u ? divided(over, under) : divided(-under, over);
}

// asin(t) less t, for t up to 1/2; the polynomial was fitted.
float arcsine_tail(float t, float z) {
    return t * z * (0.166666597 + z * (0.0750051066 + z * (0.0445157215 + z * (0.0318176039
        + z * (0.0144026447 + z * 0.0375651419)))));
}

float arcsine(float x) {
    float size = magnitude(x);
    float z = 0.5 * (1.0 - size), t = root(max(z, 0.0));
    float found = 1.57079633 - (2.0 * (t + arcsine_tail(t, z)) + 4.37113883e-8);
    if (size <= 0.5) found = size + arcsine_tail(size, size * size);
    if (size_of(x) < 0x39000000u) found = x;
    return is_nan(x) || is_less(1.0, size) ? of_bits(NAN) : with_sign(found, bits_of(x));
}

float arccosine(float x) {
    float size = magnitude(x);
    if (is_nan(x) || is_less(1.0, size)) return of_bits(NAN);
    if (size <= 0.5) return 1.57079633 - (x + (arcsine_tail(x, x * x) + 4.37113883e-8));
    float z = 0.5 * (1.0 - size), t = root(z), angle = 2.0 * (t + arcsine_tail(t, z));
    return is_minus(x) ? 3.14159274 - (angle + 8.74227766e-8) : angle;
}

// atan of a number from 0 to 1; the polynomial was fitted up to tan(pi / 8).
float arctangent_part(float t) {
    bool upper = t > 0.414213562;
    float u = divided(upper ? t - 1.0 : t, upper ? t + 1.0 : 1.0), z = u * u;
    float found = u + u * z * (-0.333333313 + z * (0.199999049 + z * (-0.142820418 + z * (0.110450864
        + z * (-0.084783651 + z * 0.0474818833)))));
    return upper ? 0.785398163 + found : found;
}

float arctangent(float x) {
    float size = magnitude(x);
    bool steep = size > 1.0;
    float part = arctangent_part(divided(steep ? 1.0 : size, steep ? size : 1.0));
    float found = steep ? 1.57079633 - (part + 4.37113883e-8) : part;
    return is_nan(x) || size_of(x) < 0x39000000u ? x : with_sign(found, bits_of(x));
}

float arctangent2(float y, float x) {  // the angle of the point (x, y)
    if (is_nan(x) || is_nan(y)) return of_bits(NAN);
    float found;
    if (is_zero(y)) {
        found = is_minus(x) ? 3.14159274 : 0.0;
    } else if (is_infinite(x)) {
        found = is_infinite(y) ? (is_minus(x) ? 2.35619449 : 0.785398163) : is_minus(x) ? 3.14159274 : 0.0;
    } else if (is_infinite(y) || is_zero(x)) {
        found = 1.57079633;
    } else {
        float across = magnitude(x), up = magnitude(y);
        bool steep = size_of(up) > size_of(across);
        float angle = arctangent_part(steep ? divided(across, up) : divided(up, across));
        if (steep) angle = is_minus(x) ? 1.57079633 + (angle - 4.37113883e-8) : 1.57079633 - (angle + 4.37113883e-8);
        else if (is_minus(x)) angle = 3.14159274 - (angle + 8.74227766e-8);
        found = angle;
    }
    return with_sign(found, bits_of(y));
}

// -- others

float error_function(float x) {
    if (is_nan(x)) return x;
    float size = magnitude(x);
    if (size >= 4.0) return with_sign(1.0, bits_of(x));
    EXACT float found;
    if (size < 1.0) {  // a fitted polynomial of x * x; 2 / sqrt(pi) is 1.12837917
        EXACT float z = x * x;
        found = x + x * (0.128379226 + z * (-0.376126379 + z * (0.112837821 + z * (-0.0268654004
            + z * (0.00522094546 + z * (-0.000848282769 + z * (0.000112569396 + z * -9.64149331e-6)))))));
        return found;
    }
    // log(1 - erf(x)), fitted
    found = 0.000204362383 + size * (-1.1296612 + size * (-0.633039594 + size * (-0.108639032
        + size * (0.0253735837 + size * (-0.00428239629 + size * (0.000463792036 + size * (-2.53154685e-5
        + size * 2.51373137e-7)))))));
    return with_sign(exponential_minus_one(found), bits_of(x));
}

float hypotenuse(float x, float y) {
    if (is_infinite(x) || is_infinite(y)) return of_bits(INFINITY);
    if (is_nan(x) || is_nan(y)) return of_bits(NAN);
    float a = of_bits(max(size_of(x), size_of(y))), b = of_bits(min(size_of(x), size_of(y)));
    if (is_zero(b)) return a;
    int shift = 126 - int(size_of(a) >> 23);
    a = scaled(a, shift);
    b = scaled(b, shift);
    float square, lost, other, other_lost, sum, sum_lost;
    split_product(a, a, square, lost);
    split_product(b, b, other, other_lost);
    split_sum(square, other, sum, sum_lost);
    float rough = root(sum);
    float exact, exact_lost;
    split_product(rough, rough, exact, exact_lost);
    precise float missing = (((sum - exact) - exact_lost) + sum_lost) + (lost + other_lost);
    return scaled(rough + missing / (2.0 * rough), -shift);
}

float logarithm_of_exponentials(float x, float y) {  // log(exp(x) + exp(y))
    if (is_nan(x) || is_nan(y)) return of_bits(NAN);
    float a = is_less(x, y) ? y : x, b = is_less(x, y) ? x : y;
    if (is_infinite(a) || is_infinite(b)) return a;
    return a + logarithm_one_plus(exponential(b - a));
}

float next_to(float x, float y) {  // the number beside x on the way to y
    if (is_nan(x) || is_nan(y)) return of_bits(NAN);
    if (is_equal(x, y)) return y;
    if (is_zero(x)) return of_bits(1u | bits_of(y) & SIGN);
    return of_bits(is_less(x, y) != is_minus(x) ? bits_of(x) + 1u : bits_of(x) - 1u);
}

#endif
