// What reductions and scans have found so far, as four words that two of may be combined, in order:
//   SUM of FLOATING  a float32 and what its roundings lost     SUM, PRODUCT of LONG  an int64
//   PRODUCT of FLOATING  a float32                             ANY, ALL  0 or 1
//   MAXIMUM, MINIMUM  64 bits without sign in whose order the larger number (for MINIMUM the smaller) wins, NaN always;
//                     FIRST_MAXIMUM, FIRST_MINIMUM  the same, z its place
//   MOMENTS of FLOATING  floats: how many, their mean as its distance from a pivot, the sum of their squared differences from
//                     the mean, the pivot (Chan, Golub and LeVeque 1979, updating formulae for sample variances)
//   SQUARES of FLOATING  as SUM of FLOATING, of squares; z the range
// Ranges of MOMENTS and SQUARES (as of J. L. Blue 1978, A portable Fortran program to find the Euclidean norm of a vector):
// in LARGE numbers are divided by SCALE, and their squares twice, so that sums of squares do not exceed float32; in SMALL
// they are multiplied, so that no square that counts lies below it. All rows are looked at in ORDINARY, and those that do
// not fit it once more, in a turn of their range: what a turn finds is combined as if there were no ranges. States of parts
// of rows, in memory, have ranges of their own. Those of MOMENTS say them by how many elements they have, times COUNTS in
// LARGE, divided by COUNTS in SMALL; their pivot stays as it is.

#include "arrays/words.glsl"
#include "arrays/floats.glsl"

layout(constant_id = 0) const uint OPERATION = 0u;
layout(constant_id = 1) const uint TYPE_X = 8u;
layout(constant_id = 2) const uint KIND = 0u;  // FLOATING or LONG

// constants: reductions
const uint SUM = 0u, PRODUCT = 1u, MAXIMUM = 2u, MINIMUM = 3u, ANY = 4u, ALL = 5u;
const uint FIRST_MAXIMUM = 6u, FIRST_MINIMUM = 7u, MOMENTS = 8u, SQUARES = 9u;
const uint STATES = 11u;  // a TYPE_X: what another dispatch has found

#define FINDS_PLACES (OPERATION == FIRST_MAXIMUM || OPERATION == FIRST_MINIMUM)

const int LARGE = 1, ORDINARY = 0, SMALL = -1;
#include "square-range.glsl"
const float INVERSE_SCALE = 1.0 / SCALE, COUNTS = 18446744073709551616.0;  // 2^64
int range = ORDINARY;  // of this turn
float scale = 1.0;     // of numbers in it
// Below it a mean's distance from the pivot may be of squares that are below float32's range.
const float SMALL_MEAN = 2.0 / 4294967296.0;

#define HAS_RANGES (OPERATION == MOMENTS || OPERATION == SQUARES)

bool may_leave_range() {  // squares of other types' elements stay in float32's
    if (!HAS_RANGES) return false;
    return TYPE_X == FLOAT32 || TYPE_X == BFLOAT16 || TYPE_X == STATES;
}

bool is_float_sum() {
    if (KIND != FLOATING) return false;
    return OPERATION == SUM || OPERATION == SQUARES;
}

bool gives_float() {  // else an int64
    if (KIND != FLOATING) return false;
    return OPERATION < ANY || HAS_RANGES;
}

uvec4 nothing_found() {
    if (OPERATION == PRODUCT) return uvec4(KIND == FLOATING ? floatBitsToUint(1.0) : 1u, 0u, 0u, 0u);
    if (OPERATION == MOMENTS) return uvec4(0u);
    if (OPERATION == SQUARES) return uvec4(0u);
    return uvec4(OPERATION == ALL ? 1u : 0u, 0u, 0xffffffffu, 0u);
}

bool wants_extremes() {  // of floats
    return KIND == FLOATING && (OPERATION == MAXIMUM || OPERATION == MINIMUM || FINDS_PLACES);
}

bool wants_less() { return OPERATION == MINIMUM || OPERATION == FIRST_MINIMUM; }

// A number of KIND as MAXIMUM and the like compare it, and back.
uvec2 rank_of(uvec2 x) {
    if (KIND == LONG) {
        x.y ^= 0x80000000u;
        return wants_less() ? ~x : x;
    }
    uint bits = x.x, size = bits & 0x7fffffffu;
    if (FINDS_PLACES) bits = mix(bits, 0u, size == 0u);  // zeros are equal
    uint rank = bits ^ (uint(int(bits) >> 31) | 0x80000000u);
    return uvec2(0u, mix(wants_less() ? ~rank : rank, 0xffffffffu, size > 0x7f800000u));
}

uvec2 of_rank(uvec2 rank) {
    if (KIND == LONG) {
        if (wants_less()) rank = ~rank;
        return rank ^ uvec2(0u, 0x80000000u);
    }
    uint own = wants_less() ? ~rank.y : rank.y;
    return uvec2(rank.y == 0xffffffffu ? NAN : own ^ mix(0xffffffffu, 0x80000000u, own >= 0x80000000u), 0u);
}

// Two states of MOMENTS.
uvec4 joined(uvec4 a, uvec4 b) {
    vec4 x = uintBitsToFloat(a), y = uintBitsToFloat(b);
    float many = x.x + y.x, share = y.x / max(many, 1.0), apart = y.y - x.y + (y.w - x.w);
    vec4 both = vec4(many, x.y + apart * share, x.z + y.z + apart * apart * (x.x * share), x.w);
    return b.x == 0u ? a : a.x == 0u ? b : floatBitsToUint(both);
}

// Two sums.
uvec4 added(uvec4 a, uvec4 b) {
    float high, low;
    split_sum(of_bits(a.x), of_bits(b.x), high, low);
    low += of_bits(a.y) + of_bits(b.y);
    return uvec4(floatBitsToUint(high), floatBitsToUint(low), 0u, 0u);
}

// The sum of squares of a state.
float squares_of(uvec4 state) { return of_bits(OPERATION == SQUARES ? state.x : state.z); }

// The range in which a row, or a part of it, is to be looked at, after it was in ORDINARY.
int range_for(uvec4 found) {
    if (!may_leave_range() || OPERATION == MOMENTS && found.x == 0u) return ORDINARY;
    float squares = squares_of(found);
    if (size_of(squares) >= INFINITY) return LARGE;
    return squares < SMALL_SQUARES && (OPERATION == SQUARES || magnitude(of_bits(found.y)) < SMALL_MEAN) ? SMALL : ORDINARY;
}

// What was found in this turn's range, as a state that says so.
uvec4 with_range(uvec4 found) {
    if (!may_leave_range()) return found;
    if (OPERATION == SQUARES) {
        found.z = uint(range);
        return found;
    }
    found.x = floatBitsToUint(of_bits(found.x) * (range == LARGE ? COUNTS : range == SMALL ? 1.0 / COUNTS : 1.0));
    return found;
}

// A state of any range in this turn's, where it may be infinite, or nothing.
uvec4 in_this_range(uvec4 state) {
    if (!may_leave_range()) return state;
    precise vec4 x = uintBitsToFloat(state);  // one factor after the other: the factors' product is no float32
    int own = x.x >= COUNTS ? LARGE : x.x < 1.0 ? SMALL : ORDINARY;
    if (OPERATION == SQUARES) own = int(state.z);
    const int more = own - range;
    const float factor = more == 0 ? 1.0 : more > 0 ? SCALE : more == -1 ? INVERSE_SCALE : 0.0;
    if (OPERATION == SQUARES) {
        x.xy *= factor;
        x.xy *= factor;
        return uvec4(floatBitsToUint(x.xy), 0u, 0u);
    }
    x.x *= own == LARGE ? 1.0 / COUNTS : own == SMALL ? COUNTS : 1.0;
    x.y *= factor;
    x.z *= factor;
    x.z *= factor;
    x.w *= scale;
    return floatBitsToUint(x);
}

// A number in this turn's range. Rounded at once: compilers may multiply differences and squares after they were made.
float in_turn(float x) {
    precise float scaled = x * scale;
    return may_leave_range() ? scaled : x;
}

// Up to eight floats, of this turn's range, as MOMENTS.
uvec4 moments_of(float x[8], uint many, float pivot) {
    const float from = in_turn(pivot);
    float sum = 0.0, squares = 0.0;
    // Differences are rounded at once, or a compiler may multiply those that have become infinite.
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        precise float apart = x[k] - from;
        if (k < many) sum += apart;
    }
    float mean = sum / float(max(many, 1u));
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        precise float apart = x[k] - from;
        apart -= mean;
        if (k < many) squares += apart * apart;
    }
    return floatBitsToUint(vec4(many, mean, squares, pivot));
}

uvec4 combined(uvec4 a, uvec4 b) {
    if (OPERATION == MOMENTS) return joined(a, b);
    if (OPERATION == SQUARES) return added(a, b);
    if (OPERATION == SUM) return KIND == LONG ? uvec4(add64(a.xy, b.xy), 0u, 0u) : added(a, b);
    if (OPERATION == PRODUCT) {
        if (KIND == LONG) return uvec4(multiply64(a.xy, b.xy), 0u, 0u);
        return uvec4(floatBitsToUint(of_bits(a.x) * of_bits(b.x)), 0u, 0u, 0u);
    }
    if (OPERATION == ANY) return a | b;
    if (OPERATION == ALL) return a & b;
    if (KIND == FLOATING && (OPERATION == MAXIMUM || OPERATION == MINIMUM)) return uvec4(0u, max(a.y, b.y), 0u, 0u);
    bool wins = KIND == FLOATING ? a.y < b.y : below64(a.xy, b.xy), same = KIND == FLOATING ? a.y == b.y : a.xy == b.xy;
    return wins || same && b.z < a.z ? b : a;
}

// The same with one element that comes later in its row: of equal numbers the first stays.
uvec4 with_next(uvec4 before, uvec4 next) {
    if (KIND == FLOATING && FINDS_PLACES) {
        return before.y < next.y ? next : before;  // no float has the rank of nothing, 0
    }
    return combined(before, next);
}

// One element, `place` its index, as what was found.
uvec4 found_in(uvec2 raw, uint place) {
    uvec2 x = number(KIND, TYPE_X, raw);
    if (OPERATION == ANY || OPERATION == ALL) {
        bool is = KIND == FLOATING ? (x.x & 0x7fffffffu) != 0u : !zero64(x);
        return uvec4(uint(is), 0u, 0u, 0u);
    }
    if (OPERATION == SQUARES) {
        float own = in_turn(of_bits(x.x));
        return uvec4(floatBitsToUint(own * own), 0u, 0u, 0u);
    }
    if (OPERATION == SUM || OPERATION == PRODUCT) return uvec4(x.x, KIND == LONG ? x.y : 0u, 0u, 0u);
    return uvec4(rank_of(x), place, 0u);
}

// The number at the end: the rounded sum, or an int64.
uvec2 number_of(uvec4 found) {
    if (FINDS_PLACES) return uvec2(found.z, 0u);
    if (is_float_sum()) {
        float high = of_bits(found.x);
        return uvec2(size_of(high) >= INFINITY ? found.x : floatBitsToUint(high + of_bits(found.y)), 0u);
    }
    if (OPERATION == MAXIMUM || OPERATION == MINIMUM) return of_rank(found.xy);
    if (OPERATION == MOMENTS) return uvec2(found.z, 0u);
    return found.xy;
}
