#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: rotary position embedding (Su et al. 2021, arXiv:2104.09864): pair i of the first 2 * pairs elements
//     of each row turns by position * frequency[i] and is multiplied by factor; the rest of the row is copied.
// Shapes and layouts: x and y (B, H, rows, width), last axis contiguous, all other strides are arguments; positions
//     int32 (B, rows), strided; frequencies (pairs), each 64 bits: the fraction of a full turn per position, times 2^64,
//     low word first.
// Angles: position * frequency modulo 2^64 is exact integer arithmetic, and its upper 32 bits are the angle as a fraction
//     of a turn (2^-32 of a turn is 1.5e-9 radians), at any position up to 2^31. It is then reduced to an eighth of a turn
//     and given to polynomials, since GLSL's sin and cos promise nothing for large arguments and little for small ones.
// Bindings: 0 x, 1 frequencies, 2 positions, 3 y.
// Specialization constants: 0 INTERLEAVED (1: pairs are elements 2 i and 2 i + 1, as in GPT-J; 0: i and i + pairs, as in
//     LLaMA), 1 POSITIONS (1: read positions; 0: row r is at position offset + r).
// Push constants: see the block; offsets and strides in elements (frequencies: in pairs of words).
// Workgroup: 32 pairs (or elements of the rest) of ROWS rows of one head (z = head + heads * batch). Invocation: one.
// Accumulation: float32.
// Preconditions: 2 * pairs <= width; positions are not negative.

#include "elements.glsl"

layout(local_size_x = 32, local_size_y = ROWS) in;

layout(constant_id = 0) const int INTERLEAVED = 0;
layout(constant_id = 1) const int POSITIONS = 0;

layout(push_constant, std430) uniform Push {
    uint x_offset, x_batch, x_head, x_row;
    uint y_offset, y_batch, y_head, y_row;
    uint positions_offset, positions_batch, positions_row;
    uint frequencies_offset;
    uint offset, rows, pairs, width, heads;
    float factor;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Input { IO_SCALAR x_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Frequencies { uint frequencies_words[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Positions { uint positions_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Result { IO_SCALAR y_data[]; };

// Cosine and sine of an angle given as a fraction of a turn times 2^32.
vec2 cos_sin(uint turn) {
    // The nearest quarter, and the rest in -2^29 ... 2^29, in two parts that are exact as floats.
    uint quarter = (turn + 0x20000000u) >> 30;
    int rest = int(turn - (quarter << 30));
    int low = rest & 0xffff;
    // 2 pi / 2^32, in two parts: the product of the first (10 bits) with the upper part (14 bits) is exact.
    const float UNIT_HIGH = 1.4624674804508686e-09;
    const float UNIT_LOW = 4.505988139037742e-13;
    float high = float(rest - low);
    float tail = high * UNIT_LOW + float(low) * (UNIT_HIGH + UNIT_LOW);
    float a = high * UNIT_HIGH + tail;
    float a_low = (high * UNIT_HIGH - a) + tail;
    // Taylor series up to a^11 / 11! and a^10 / 10!; |a| <= pi / 4.
    float b = a * a;
    float s = -1.0 / 39916800.0;
    s = s * b + 1.0 / 362880.0;
    s = s * b - 1.0 / 5040.0;
    s = s * b + 1.0 / 120.0;
    s = s * b - 1.0 / 6.0;
    s = a + (a * b * s + a_low);
    float c = -1.0 / 3628800.0;
    c = c * b + 1.0 / 40320.0;
    c = c * b - 1.0 / 720.0;
    c = c * b + 1.0 / 24.0;
    c = 1.0 - (0.5 * b - (b * b * c - a * a_low));
    vec2 result = (quarter & 1u) == 0u ? vec2(c, s) : vec2(-s, c);
    return (quarter & 2u) == 0u ? result : -result;
}

void main() {
    uint item = gl_GlobalInvocationID.x;
    uint row = gl_GlobalInvocationID.y;
    uint head = gl_WorkGroupID.z % pc.heads;
    uint batch = gl_WorkGroupID.z / pc.heads;
    if (item >= pc.width - pc.pairs || row >= pc.rows) return;
    uint x_row = pc.x_offset + batch * pc.x_batch + head * pc.x_head + row * pc.x_row;
    uint y_row = pc.y_offset + batch * pc.y_batch + head * pc.y_head + row * pc.y_row;
    if (item >= pc.pairs) {
        y_data[y_row + item + pc.pairs] = x_data[x_row + item + pc.pairs];
        return;
    }
    uint position = pc.offset + row;
    if (POSITIONS == 1) {
        position = positions_data[pc.positions_offset + batch * pc.positions_batch + row * pc.positions_row];
    }
    uint word = 2u * (pc.frequencies_offset + item);
    uint high, low;
    umulExtended(position, frequencies_words[word], high, low);
    vec2 turn = pc.factor * cos_sin(position * frequencies_words[word + 1u] + high);
    uint first = INTERLEAVED == 1 ? 2u * item : item;
    uint second = INTERLEAVED == 1 ? first + 1u : item + pc.pairs;
    float a = IO_LOAD(x_data[x_row + first]);
    float b = IO_LOAD(x_data[x_row + second]);
    y_data[y_row + first] = IO_STORE(a * turn.x - b * turn.y);
    y_data[y_row + second] = IO_STORE(b * turn.x + a * turn.y);
}
