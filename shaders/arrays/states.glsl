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
// they are multiplied, so that no square that counts lies below it. States of MOMENTS say their range by how many
// elements they have, times COUNTS in LARGE, divided by COUNTS in SMALL; their pivot stays as it is.

#include "arrays/words.glsl"
#include "arrays/floats.glsl"

layout(constant_id = 0) const uint OPERATION = 0u;
layout(constant_id = 1) const uint TYPE_X = 8u;
layout(constant_id = 2) const uint KIND = 0u;  // FLOATING or LONG

// facts: reductions
const uint SUM = 0u, PRODUCT = 1u, MAXIMUM = 2u, MINIMUM = 3u, ANY = 4u, ALL = 5u;
const uint FIRST_MAXIMUM = 6u, FIRST_MINIMUM = 7u, MOMENTS = 8u, SQUARES = 9u;
const uint STATES = 11u;  // a TYPE_X: what another dispatch has found

#define FINDS_PLACES (OPERATION == FIRST_MAXIMUM || OPERATION == FIRST_MINIMUM)

const int LARGE = 1, ORDINARY = 0, SMALL = -1;
const float SCALE = 19342813113834066795298816.0, INVERSE_SCALE = 1.0 / SCALE, COUNTS = 18446744073709551616.0;  // 2^84, 2^64
const int SCALE_POWER = 84;
// Below these a sum of squares, and a mean's distance from the pivot, may be of squares that are below float32's range.
const float SMALL_SQUARES = 1.0 / COUNTS, SMALL_MEAN = 2.0 / 4294967296.0;

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
    if (OPERATION == SQUARES) {
        if (may_leave_range()) return uvec4(0u, 0u, uint(SMALL), 0u);
        return uvec4(0u);
    }
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

// Two states of MOMENTS of one range; between their pivots is `between`.
uvec4 joined(uvec4 a, uvec4 b, float between) {
    vec4 x = uintBitsToFloat(a), y = uintBitsToFloat(b);
    float many = x.x + y.x, share = y.x / max(many, 1.0), apart = y.y - x.y + between;
    vec4 both = vec4(many, x.y + apart * share, x.z + y.z + apart * apart * (x.x * share), x.w);
    return b.x == 0u ? a : a.x == 0u ? b : floatBitsToUint(both);
}
uvec4 joined(uvec4 a, uvec4 b) { return joined(a, b, of_bits(b.w) - of_bits(a.w)); }

// Two sums, of SQUARES in one range.
uvec4 added(uvec4 a, uvec4 b) {
    float high, low;
    split_sum(of_bits(a.x), of_bits(b.x), high, low);
    low += of_bits(a.y) + of_bits(b.y);
    return uvec4(floatBitsToUint(high), floatBitsToUint(low), OPERATION == SQUARES ? a.z : 0u, 0u);
}

int range_of(uvec4 state) {
    if (OPERATION == SQUARES) return int(state.z);
    return of_bits(state.x) >= COUNTS ? LARGE : of_bits(state.x) < 1.0 ? SMALL : ORDINARY;
}

// The sum of squares of a state is finite.
bool is_within(uvec4 state) { return size_of(of_bits(OPERATION == SQUARES ? state.x : state.z)) < INFINITY; }

// A state in its range or one of larger numbers, without the range in its count.
uvec4 as_in_range(uvec4 state, int range) {
    int own = range_of(state);
    precise vec4 x = uintBitsToFloat(state);  // one factor after the other: the factors' product is no float32
    if (OPERATION == MOMENTS) x.x *= own == LARGE ? 1.0 / COUNTS : own == SMALL ? COUNTS : 1.0;
    for (; own < range; own++) {
        if (OPERATION == MOMENTS) x.y *= INVERSE_SCALE;
        for (uint twice = 0u; twice < 2u; twice++) {
            if (OPERATION == MOMENTS) x.z *= INVERSE_SCALE;
            else x.xy *= INVERSE_SCALE;
        }
    }
    state = floatBitsToUint(x);
    if (OPERATION == SQUARES) state.z = uint(range);
    return state;
}

uvec4 with_range(uvec4 state, int range) {
    if (OPERATION == SQUARES) state.z = uint(range);
    else state.x = floatBitsToUint(of_bits(state.x) * (range == LARGE ? COUNTS : range == SMALL ? 1.0 / COUNTS : 1.0));
    return state;
}

uvec4 combined_in(int range, uvec4 a, uvec4 b) {
    uvec4 x = as_in_range(a, range), y = as_in_range(b, range);
    if (OPERATION == SQUARES) return added(x, y);
    float before = range == LARGE ? INVERSE_SCALE : 1.0, after = range == SMALL ? SCALE : 1.0;
    return joined(x, y, (of_bits(b.w) * before - of_bits(a.w) * before) * after);
}

// Two states of any ranges, in the first one from theirs on that holds the sum of squares.
uvec4 combined_ranges(uvec4 a, uvec4 b) {
    if (OPERATION == MOMENTS && (a.x == 0u || b.x == 0u)) return b.x == 0u ? a : b;
    int range = max(range_of(a), range_of(b));
    uvec4 both = combined_in(range, a, b);
    for (uint more = 0u; more < 2u; more++) {
        if (range < LARGE && !is_within(both)) both = combined_in(++range, a, b);
    }
    return with_range(both, range);
}

// Up to eight floats as MOMENTS.
uvec4 moments_of(float x[8], uint many, float pivot) {
    float sum = 0.0, squares = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; k++) if (k < many) sum += x[k] - pivot;
    float mean = sum / float(max(many, 1u));
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        float apart = x[k] - pivot - mean;
        if (k < many) squares += apart * apart;
    }
    return floatBitsToUint(vec4(many, mean, squares, pivot));
}

uvec4 combined(uvec4 a, uvec4 b) {
    if (HAS_RANGES) {
        bool ordinary = range_of(a) == ORDINARY && range_of(b) == ORDINARY;
        uvec4 both = OPERATION == SQUARES ? added(a, b) : joined(a, b);
        if (!may_leave_range()) return both;
        return ordinary && is_within(both) ? both : combined_ranges(a, b);
    }
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
    if (OPERATION == SQUARES) return uvec4(floatBitsToUint(of_bits(x.x) * of_bits(x.x)), 0u, 0u, 0u);
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
