// What the two kernels of reductions share: rows and columns differ in who reads what, not in what is found.

layout(constant_id = 3) const uint EACH = 4u;
layout(constant_id = 4) const uint HALVES = 0u;

#include "arrays/states.glsl"

layout(constant_id = 5) const uint RUNS = 0u;
layout(constant_id = 6) const uint LAST = 1u;
layout(constant_id = 7) const uint AXES = 2u;
layout(constant_id = 9) const uint TYPE_Y = 8u;
layout(constant_id = 10) const uint ROOT = 0u;
// 1: workgroups leave what they find of their part of rows in `parts`, and the last one of those rows makes the number.
layout(constant_id = 11) const uint TOGETHER = 0u;

layout(push_constant, std430) uniform Push {
    uint rows, inner_rows, x_offset, row_0, row_1;
    uint extent, first, part_length, parts, inner_length, stride_0, stride_1;  // first: the number of x's first element in its row
    uint y_offset;
    float divisor;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y_data[]; };
layout(set = 0, binding = 2, std430) coherent restrict buffer Parts { uvec4 parts[]; };
layout(set = 0, binding = 3, std430) coherent restrict buffer Arrived { uint arrived[]; };

// Which turns some rows want, of their elements and of their parts: 1 that of LARGE, 2 that of SMALL.
shared uint wanted[2];

void want_nothing(uint id) {
    if (may_leave_range() && id < 2u) wanted[id] = 0u;
}

void begin_turn(int of) {
    range = of;
    scale = of == LARGE ? INVERSE_SCALE : of == SMALL ? SCALE : 1.0;
}

uint turns_of(int range) { return range == LARGE ? 1u : range == SMALL ? 2u : 0u; }

// Whether there is another turn, of what a row wants that is its invocation's `alone`, or else of what any row of the
// workgroup does; all invocations know it then, and have read what they share. The loop that this ends is the code of all
// turns: processors jump backwards alone, and would run that of another one every time.
bool begin_another(uint turns, uint of, bool alone) {
    if (!may_leave_range()) return false;
    if (!alone) {
        if (turns != 0u) atomicOr(wanted[of], turns);
        barrier();
        turns = wanted[of];
    }
    if (range == ORDINARY && (turns & 1u) != 0u) {
        begin_turn(LARGE);
        return true;
    }
    if (range == SMALL || (turns & 2u) == 0u) return false;
    begin_turn(SMALL);
    return true;
}

shared uint is_last;
#define REACH gl_ScopeDevice
#include "last-of-team.glsl"
#include "arrays/stores.glsl"

const uint NO_PART = 0xffffffffu;

// What the parts of a row from `part` on have found, each `apart` parts after the one before, `step` from part to part.
uvec4 found_together(uint row_at, uint part, uint apart, uint step) {
    uvec4 whole = nothing_found();
    for (; part < pc.parts; part += 4u * apart) {
        uvec4 some[4];
        [[unroll]] for (uint k = 0u; k < 4u; k++) some[k] = parts[row_at + min(part + k * apart, pc.parts - 1u) * step];
        [[unroll]] for (uint k = 0u; k < 4u; k++) if (part + k * apart < pc.parts) whole = combined(whole, in_this_range(some[k]));
    }
    return whole;
}

READER(x, x_data, width_of(TYPE_X))

// Where the elements of a row begin, and where in it one of them lies.
uint base_of(uint row) { return pc.x_offset + row / pc.inner_rows * pc.row_0 + row % pc.inner_rows * pc.row_1; }
uint place_of(uint at) {
    if (AXES == 1u) return at * pc.stride_1;
    return at / pc.inner_length * pc.stride_0 + at % pc.inner_length * pc.stride_1;
}

// What a row's numbers are counted from, for MOMENTS: its first, so that what is far from zero loses no digits.
float pivot_of(uint base) {
    if (OPERATION != MOMENTS || TYPE_X == STATES || pc.extent == 0u) return 0.0;
    return of_bits(number(KIND, TYPE_X, x_raw(base)).x);
}

// Sums of a few floats are rounded as they come; the sums of these are not.
bool adds_floats() { return is_float_sum() && TYPE_X != STATES; }
uvec4 with_sum(uvec4 before, float sum) { return added(before, uvec4(floatBitsToUint(sum), 0u, 0u, 0u)); }

#define SIXTEEN_BIT_FLOATS (TYPE_X == FLOAT16 || TYPE_X == BFLOAT16)

// What half a word is, a 16-bit float.
float value_of(uint word, uint half_) {
    uint bits = bitfieldExtract(word, int(half_) * 16, 16);
    if (TYPE_X == FLOAT16) return HALVES == 1u ? unpackHalf2x16(bits).x : float16_value(bits);
    return uintBitsToFloat(bits << 16);
}

// ... and what is added up of it.
float term_of(uint word, uint half_) {
    float x = value_of(word, half_);
    if (OPERATION != SQUARES) return x;
    x = in_turn(x);
    return x * x;
}

PUTTER(y, y_data)

// What was found of a part of a row, or of the whole, goes to the memory: a state, or a number.
void put_found(uint row, uint part, uvec4 found) {
    if (LAST == 0u) {
        found = with_range(found);
        uint to = pc.y_offset + 4u * (row * pc.parts + part);
        [[unroll]] for (uint k = 0u; k < 4u; k++) y_data[to + k] = found[k];
        return;
    }
    uvec2 result = number_of(found);
    if (gives_float() && pc.divisor >= 0.0) result.x = floatBitsToUint(divided(of_bits(result.x), pc.divisor));
    if (ROOT == 1u) result.x = floatBitsToUint(root(of_bits(result.x)));
    if (may_leave_range()) {
        const float back = range == LARGE ? SCALE : range == SMALL ? INVERSE_SCALE : 1.0;
        precise float x = of_bits(result.x) * back;
        if (ROOT == 0u) x *= back;
        result.x = floatBitsToUint(x);
    }
    result = element(TYPE_Y, gives_float() ? FLOATING : LONG, result);
    y_put(pc.y_offset + row, width_of(TYPE_Y), result);
}

// What was found of a row in this turn, if it is the row's, or the first one, which says what the row's is; it is then
// written over. But what the first turn found is right where numbers of SMALL differences become too large: they are equal.
void settle(uint row, uint part, uint part_at, uvec4 found, inout int own) {
    if (range == ORDINARY) own = range_for(found);
    else if (range != own || range == SMALL && size_of(squares_of(found)) >= INFINITY) return;
    if (part_at != NO_PART) parts[part_at] = with_range(found);
    else put_found(row, part, found);
}
