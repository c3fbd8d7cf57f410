// Extremes of 16-bit floats and their places without a conversion: by their bits, as whole numbers. Of rows many at once, two
// to a word; of columns, where each of the two is another one's, a comparison each. For the includers of reduced.glsl.

const uint SIXTEEN_BIT_INFINITY = TYPE_X == FLOAT16 ? 0x7c00u : 0x7f80u;

// Extremes of many 16-bit floats without a look at each: of the bits of both halves of words the largest as whole numbers
// with a sign and without one, and the smallest without one.
struct Bounds {
    int most;
    uint most_bits, least_bits;
};

Bounds within(Bounds known, uvec4 words) {
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        // The upper half decides; what lies below it is cut off at the end.
        uint upper = words[k], lower = words[k] << 16;
        known.most = max(known.most, max(int(upper), int(lower)));
        known.most_bits = max(known.most_bits, max(upper, lower));
        known.least_bits = min(known.least_bits, min(upper, lower));
    }
    return known;
}

const Bounds NO_BOUNDS = Bounds(int(0x80000000u), 0u, 0xffffffffu);

// The extreme that is wanted of what has such bounds, as its 16 bits; a NaN where there is one.
uint extreme_of(Bounds known) {
    int most = known.most >> 16;
    uint most_bits = known.most_bits >> 16, least_bits = known.least_bits >> 16;
    if (most > int(SIXTEEN_BIT_INFINITY)) return uint(most);
    if (most_bits > (SIXTEEN_BIT_INFINITY | 0x8000u)) return most_bits;
    // Without sign, negative numbers lie above the others, the larger ones lower.
    if (wants_less()) return most_bits >= 0x8000u ? most_bits : least_bits;
    return most >= 0 ? uint(most) : least_bits;
}

// The place of the first of four runs' numbers that is this extreme, `step` from run to run; NaNs are equal, and zeros.
uint first_of(uvec4 words[4], uint extreme, uint at, uint step) {
    bool nan = (extreme & 0x7fffu) > SIXTEEN_BIT_INFINITY;
    uint both = extreme | extreme << 16, kept = (extreme & 0x7fffu) == 0u ? 0x7fff7fffu : 0xffffffffu;
    uint place = 0u;
    [[unroll]] for (int n = 3; n >= 0; n--) {
        [[unroll]] for (int k = 3; k >= 0; k--) {
            uint apart = (words[n][k] ^ both) & kept, here = at + uint(n) * step + 2u * uint(k);
            bool upper = apart < 0x10000u, lower = (apart & 0xffffu) == 0u;
            if (nan) {
                upper = (words[n][k] >> 16 & 0x7fffu) > SIXTEEN_BIT_INFINITY;
                lower = (words[n][k] & 0x7fffu) > SIXTEEN_BIT_INFINITY;
            }
            if (upper) place = here + 1u;
            if (lower) place = here;
        }
    }
    return place;
}

// One number as such a rank in the upper half of a word: 0 for the infinity that never wins, NaNs all the same and the last.
const uint FIRST_RANK = 0x7fff0000u - (SIXTEEN_BIT_INFINITY << 16);
const uint NAN_RANK = (SIXTEEN_BIT_INFINITY << 16 | 0x80000000u) + 0x10000u - FIRST_RANK;

// `bits` are the upper half of a word, with nothing below them.
uint sixteen_bit_rank(uint bits) {
    if (FINDS_PLACES && bits == 0x80000000u) bits = 0u;  // zeros are equal
    uint sign = uint(int(bits) >> 31), order = bits ^ ((wants_less() ? ~sign : sign) & 0x7fff0000u);
    // NaNs that lie below all numbers come out above them
    return min(order + ((wants_less() ? 0u : 0x80000000u) - FIRST_RANK), NAN_RANK);
}

// The 16 bits of a number with this rank.
uint bits_of_rank(uint rank) {
    if (rank == NAN_RANK) return SIXTEEN_BIT_INFINITY | 1u;
    rank += FIRST_RANK;
    if (wants_less()) rank ^= 0xffff0000u;
    return (rank ^ (rank >= 0x80000000u ? 0x80000000u : 0xffff0000u)) >> 16;
}
