// 64-bit integers as two words, (low, high), two's complement: devices without 64-bit arithmetic have them too.

#ifndef GRILLY_INTEGERS_GLSL
#define GRILLY_INTEGERS_GLSL

uvec2 wide(uint x) { return uvec2(x, uint(int(x) >> 31)); }  // of a signed word

uvec2 add64(uvec2 a, uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + uint(low < a.x));
}

uvec2 negative64(uvec2 a) { return add64(~a, uvec2(1u, 0u)); }

uvec2 subtract64(uvec2 a, uvec2 b) { return uvec2(a.x - b.x, a.y - b.y - uint(a.x < b.x)); }

uvec2 multiply64(uvec2 a, uvec2 b) {
    uint high, low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}

bool below64(uvec2 a, uvec2 b) { return a.y == b.y ? a.x < b.x : a.y < b.y; }  // of numbers without sign

bool less64(uvec2 a, uvec2 b) { return a.y == b.y ? a.x < b.x : int(a.y) < int(b.y); }

bool zero64(uvec2 a) { return (a.x | a.y) == 0u; }

bool minus64(uvec2 a) { return int(a.y) < 0; }

uvec2 left64(uvec2 a, uint n) {
    if (n >= 64u) return uvec2(0u);
    if (n >= 32u) return uvec2(0u, a.x << (n - 32u));
    return n == 0u ? a : uvec2(a.x << n, a.y << n | a.x >> (32u - n));
}

uvec2 right64(uvec2 a, uint n) {  // with the sign
    uint sign = uint(int(a.y) >> 31);
    if (n >= 64u) return uvec2(sign);
    if (n >= 32u) return uvec2(uint(int(a.y) >> (n - 32u)), sign);
    return n == 0u ? a : uvec2(a.x >> n | a.y << (32u - n), uint(int(a.y) >> n));
}

// Quotient of numbers without sign; b is not 0.
uvec2 quotient64(uvec2 a, uvec2 b, out uvec2 rest) {
    if ((a.y | b.y) == 0u) {
        rest = uvec2(a.x % b.x, 0u);
        return uvec2(a.x / b.x, 0u);
    }
    uvec2 found = uvec2(0u);
    rest = uvec2(0u);
    for (int bit = 63; bit >= 0; bit--) {
        uint top = rest.y >> 31;  // the remainder may need a bit more for a moment
        rest = left64(rest, 1u);
        rest.x |= (bit >= 32 ? a.y >> (bit - 32) : a.x >> bit) & 1u;
        if (top == 1u || !below64(rest, b)) {
            rest = subtract64(rest, b);
            if (bit >= 32) found.y |= 1u << (bit - 32); else found.x |= 1u << bit;
        }
    }
    return found;
}

// The largest integer not above a / b; 0 for b = 0. rest is a - b times that, of b's sign.
uvec2 floor_divide64(uvec2 a, uvec2 b, out uvec2 rest) {
    rest = uvec2(0u);
    if (zero64(b)) return uvec2(0u);
    bool below = minus64(a) != minus64(b);
    uvec2 found = quotient64(minus64(a) ? negative64(a) : a, minus64(b) ? negative64(b) : b, rest);
    if (minus64(a)) rest = negative64(rest);
    if (below) found = negative64(found);
    if (below && !zero64(rest)) {
        found = subtract64(found, uvec2(1u, 0u));
        rest = add64(rest, b);
    }
    return found;
}

uvec2 power64(uvec2 a, uvec2 b) {  // 0 for negative b, unless a is 1 or -1
    bool odd = (b.x & 1u) == 1u;
    if (a == uvec2(1u, 0u)) return a;
    if (a == uvec2(0xffffffffu)) return odd ? a : uvec2(1u, 0u);
    if (minus64(b)) return uvec2(0u);
    uvec2 found = uvec2(1u, 0u);
    for (int bit = 0; bit < 64 && !zero64(b); bit++) {
        if ((b.x & 1u) == 1u) found = multiply64(found, a);
        a = multiply64(a, a);
        b = uvec2(b.x >> 1 | b.y << 31, b.y >> 1);
    }
    return found;
}

// The float32 nearest to an integer, ties to even, as bits.
uint float_bits64(uvec2 a) {
    uint sign = a.y & 0x80000000u;
    if (sign != 0u) a = negative64(a);
    if (zero64(a)) return 0u;
    int top = a.y != 0u ? 32 + findMSB(a.y) : findMSB(a.x);
    if (top < 24) return sign | floatBitsToUint(float(a.x));
    uint shift = uint(top - 23);
    uvec2 half_less = left64(uvec2(1u, 0u), shift - 1u);
    uvec2 kept = shift >= 32u ? uvec2(a.y >> (shift - 32u), 0u) : uvec2(a.x >> shift | a.y << (32u - shift), 0u);
    uvec2 rest = subtract64(a, left64(kept, shift));
    uint digits = kept.x;
    if (below64(half_less, rest) || rest == half_less && (digits & 1u) == 1u) digits++;
    return sign | (uint(top + 126) << 23) + digits;  // a carry out of the digits is one more in the exponent
}

// The integer part of a float32 of these bits; the nearest there is for infinities and what is too large, 0 for NaN.
uvec2 integer_of_bits(uint bits) {
    uint size = bits & 0x7fffffffu;
    bool minus = size != bits;
    if (size > 0x7f800000u) return uvec2(0u);
    int power = int(size >> 23) - 150;
    if (power >= 40) return minus ? uvec2(0u, 0x80000000u) : uvec2(0xffffffffu, 0x7fffffffu);
    uint digits = size & 0x7fffffu | 0x800000u;
    uvec2 found = power >= 0 ? left64(uvec2(digits, 0u), uint(power)) : uvec2(power > -24 ? digits >> -power : 0u, 0u);
    return minus ? negative64(found) : found;
}

#endif
