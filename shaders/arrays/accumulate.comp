#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y = x with elements added to, or put into extremes, at places that an index names along an axis: y[...,
//     index, ...] = x[..., index, ...] + all terms that go there. In any order the result is the same to the bit: integers
//     wrap, and floats are added as 64-bit integers in units of a power of two that follows from the largest term of a place.
// Shapes and layouts: terms have four axes of any strides, and so has the index; x and y are COUNT contiguous elements.
// Bindings: 0 x, 1 index, 2 terms, 3 state (a word for each element of x and, for ADD, then two for each), 4 y, of 32 bits an
//     element, or 64; with HOLES 5 r.
// Specialization constants: TYPE_X, TYPE, of terms, INDEX (words.glsl); REDUCTION; STAGE: NOTHING, all of the state is 0; SCALES,
//     the largest exponents of floats that are added; TERMS, all terms; or RESULT.
// Push constants: see the block; offsets and strides in elements. a_0 to a_3 are those of terms in x, where step is that of
//     the axis that the index counts and extent its places; one term has less than a `share`-th bit of the 62 that sums have.
// Workgroup: THREADS terms or elements of x (x and y together count the workgroups, STRIPE of them along x). Invocation: one.
// Accumulation: a sum errs by less than terms / 2^(62 - share) of its largest term, before it is rounded once and added to x.
//     NaN and infinities are as in any sum.
// Preconditions: fewer than 2^31 terms. Indices out of bounds add nothing. Extremes have 32 bits at most.
// Defines: THREADS, STRIPE; HOLES: a term is what the hole "element" makes of elements of terms and r, of BITS_X and BITS_R (0
//     where there is no r), and of the words n_0 to n_3. Both stages SCALES and TERMS compute it.

const uint EACH = 4u, HALVES = 0u;  // (words.glsl)

#include "arrays/words.glsl"

layout(constant_id = 0) const uint TYPE_X = 8u;
layout(constant_id = 1) const uint TYPE = 8u;
layout(constant_id = 2) const uint INDEX = 7u;
layout(constant_id = 3) const uint REDUCTION = 0u;
layout(constant_id = 4) const uint STAGE = 0u;

// constants: accumulation
const uint ADD = 0u, MAX = 1u, MIN = 2u;
const uint SCALES = 0u, TERMS = 1u, RESULT = 2u, NOTHING = 3u, CLEARED = 8u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, size, x_offset, index_offset, terms_offset, stride, extent, share;
    uint e_1, e_2, e_3;
    uint i_0, i_1, i_2, i_3;
    uint t_0, t_1, t_2, t_3;
    uint a_0, a_1, a_2, a_3;
#ifdef HOLES
    uint r_offset, r_0, r_1, r_2, r_3;
    uint n_0, n_1, n_2, n_3;
#endif
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Index { uvec4 index_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer Terms { uvec4 terms_data[]; };
layout(set = 0, binding = 3, std430) buffer State { uint state_data[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Y { uint y_data[]; };

READER(x, x_data, width_of(TYPE_X))
READER(index, index_data, width_of(INDEX))
#ifdef HOLES
#define HOLE_BINDING 5
#include "arrays/element-hole.glsl"
READER(terms, terms_data, BITS_X)
#else
READER(terms, terms_data, width_of(TYPE))
#endif

const bool FLOATS = TYPE >= FLOAT32;
const uint NOT_FINITE = 255u, PLUS = 1u, MINUS = 2u, NAN = 4u;

uint exponent_of(uint bits) { return max(bits >> 23 & 0xffu, 1u); }

// A number's place in the order of all, as an unsigned one; NaN is the last.
uint key_of(uint bits) {
    uint key;
    if (FLOATS) {
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
        key = (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
    } else {
        key = TYPE == UINT32 ? bits : bits ^ 0x80000000u;
    }
    return REDUCTION == MIN ? ~key : key;
}

uint of_key(uint key) {
    if (FLOATS && key == 0xffffffffu) return 0x7fc00000u;
    if (REDUCTION == MIN) key = ~key;
    if (FLOATS) return (key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key;
    return TYPE == UINT32 ? key : key ^ 0x80000000u;
}

// In two factors, as a float may not hold the power.
float scaled(float value, int power) {
    int half_ = power / 2;
    precise float found = value * uintBitsToFloat(uint(half_ + 127) << 23);
    return found * uintBitsToFloat(uint(power - half_ + 127) << 23);
}

// A float in units in which one of the largest exponent has its last digit at 2^(38 - share).
uvec2 in_units(uint bits, uint top) {
    uint digits = bits & 0x7fffffu;
    if ((bits & 0x7f800000u) != 0u) digits |= 0x800000u;
    int shift = int(38u - pc.share) - int(top - exponent_of(bits));
    uvec2 found;
    if (shift >= 0) found = left64(uvec2(digits, 0u), uint(shift));
    else found = shift < -25 ? uvec2(0u) : uvec2((digits >> uint(-shift - 1)) + 1u >> 1, 0u);
    return (bits & 0x80000000u) != 0u ? negative64(found) : found;
}

// Where the sum of an element lies, its lower word first: together, as a cache has both then.
uint sum_of(uint at) { return pc.size + 2u * at; }

void add_to(uint at, uvec2 value) {
    uint before = atomicAdd(state_data[sum_of(at)], value.x);
    uint high = value.y + uint(before + value.x < before);
    if (high != 0u) atomicAdd(state_data[sum_of(at) + 1u], high);
}

void collect(uint at) {
    uvec4 i;
    i.w = at % pc.e_3;
    at /= pc.e_3;
    i.z = at % pc.e_2;
    at /= pc.e_2;
    i.y = at % pc.e_1;
    i.x = at / pc.e_1;
    uvec2 place = natural(INDEX, index_raw(pc.index_offset + i.x * pc.i_0 + i.y * pc.i_1 + i.z * pc.i_2 + i.w * pc.i_3));
    if (minus64(place)) place = add64(place, uvec2(pc.extent, 0u));
    if (place.y != 0u || place.x >= pc.extent) return;
    uint to = i.x * pc.a_0 + i.y * pc.a_1 + i.z * pc.a_2 + i.w * pc.a_3 + place.x * pc.stride;
    uvec2 raw = terms_raw(pc.terms_offset + i.x * pc.t_0 + i.y * pc.t_1 + i.z * pc.t_2 + i.w * pc.t_3);
#ifdef HOLES
    raw = hole_element(raw, r_element(i), uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3)) | function_zero();
#endif
    uvec2 value = natural(TYPE, raw);
    if (REDUCTION != ADD) {
        atomicMax(state_data[to], key_of(value.x));
    } else if (!FLOATS) {
        add_to(to, value);
    } else if (STAGE == SCALES) {
        if ((value.x & 0x7fffffffu) != 0u) atomicMax(state_data[to], exponent_of(value.x));
    } else if ((value.x & 0x7fffffffu) != 0u) {
        uint top = state_data[to];
        if (top == NOT_FINITE) {
            uint size = value.x & 0x7fffffffu;
            if (size >= 0x7f800000u) {
                atomicOr(state_data[sum_of(to)], size > 0x7f800000u ? NAN : value.x != size ? MINUS : PLUS);
            }
        } else {
            add_to(to, in_units(value.x, top));
        }
    }
}

void main() {
    uint at = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    if (at >= pc.count) return;
    if (STAGE == NOTHING) {  // `size` words of the state
        [[unroll]] for (uint k = 0u; k < CLEARED; k++) {
            if (at + k * pc.count < pc.size) state_data[at + k * pc.count] = 0u;
        }
        return;
    }
    if (STAGE != RESULT) {
        collect(at);
        return;
    }
    uvec2 x = natural(TYPE_X, x_raw(pc.x_offset + at));
    uint top = state_data[at];
    if (REDUCTION != ADD) {
        if (top != 0u) x.x = of_key(max(key_of(x.x), top));
    } else if (!FLOATS) {
        x = add64(x, uvec2(state_data[sum_of(at)], state_data[sum_of(at) + 1u]));
    } else if (top != 0u) {
        uvec2 sum = uvec2(state_data[sum_of(at)], state_data[sum_of(at) + 1u]);
        float found;
        if (top != NOT_FINITE) {
            found = scaled(uintBitsToFloat(float_bits64(sum)), int(top + pc.share) - (150 + 38));
        } else {
            found = uintBitsToFloat(sum.x == PLUS ? 0x7f800000u : sum.x == MINUS ? 0xff800000u : 0x7fc00000u);
        }
        x.x = floatBitsToUint(uintBitsToFloat(x.x) + found);
    }
    if (TYPE_X == INT64) {
        y_data[2u * at] = x.x;
        y_data[2u * at + 1u] = x.y;
    } else {
        y_data[at] = x.x;
    }
}
