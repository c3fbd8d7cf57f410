#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: random numbers, the same on every device: UNIFORM ones, NORMAL ones by G. E. P. Box and M. E. Muller
//     ("A note on the generation of random normal deviates", 1958), and INTEGERS.
// Shapes and layouts: y is COUNT contiguous elements.
// Bindings: 0 y, 1 seed.
// Specialization constants: DRAW, which of the three; TYPE_Y, the elements' type (words.glsl); SEED, the type of the seed's
//     element where it lies in memory, 0 where it is a push constant; DRAWN, 1: in memory lie three words, the seed's halves
//     and the offset.
// Push constants: see the block; y_offset in elements, a multiple of 4. `first` fours come before these. UNIFORM: a + b u
//     for u from 0 on and below 1; NORMAL: a + b z; both float32. INTEGERS: a, an int64, and more, below b_low.
// Workgroup: THREADS fours (x and y together count the workgroups, STRIPE of them along x). Invocation: one.
// Random words: Philox with the counter (four, 0, 2^32 - 1, offset) gives four elements; of INTEGERS two, so that twice
//     the number of the four, and that and one, are the counter's first word. Dropout's counters have a head's number as
//     the third word.
// Defines: THREADS, STRIPE.

const uint EACH = 4u, HALVES = 0u;  // (words.glsl)

#include "arrays/words.glsl"
#include "arrays/floats.glsl"
#include "philox.glsl"

layout(constant_id = 0) const uint DRAW = 0u;
layout(constant_id = 1) const uint TYPE_Y = 8u;
layout(constant_id = 2) const uint SEED = 0u;
layout(constant_id = 3) const uint DRAWN = 0u;

// constants: draws
const uint UNIFORM = 0u, NORMAL = 1u, INTEGERS = 2u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, first, y_offset, seed_low, seed_high, offset, a_low, a_high, b_low, seed_offset;
} pc;

layout(set = 0, binding = 0, std430) writeonly buffer Y { uvec4 y_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Seed { uvec4 seed_data[]; };

WRITER(y, y_data, width_of(TYPE_Y))
READER(seed, seed_data, width_of(SEED))

float from_0_to_1(uint word) { return float(word >> 8) * 5.9604644775390625e-8; }

// Two normal numbers of two words: a length, and an angle of which the word is a fraction of a turn.
vec2 normal_pair(uint length_word, uint angle_word) {
    float size = root(-2.0 * logarithm(float((length_word >> 8) + 1u) * 5.9604644775390625e-8));
    uint quarter = (angle_word + 0x20000000u) >> 30;
    float angle = float(int((angle_word & 0xffffff00u) - (quarter << 30))) * 1.46291807926715968e-9;  // 2 pi / 2^32
    float across = cosine_series(angle), up = sine_series(angle);
    vec2 found = (quarter & 1u) == 0u ? vec2(across, up) : vec2(-up, across);
    return (quarter & 2u) == 0u ? size * found : -size * found;
}

// A word of 64 random bits times a range, of which the upper 64 of 96 bits are kept.
uint below(uint range, uint upper, uint lower) {
    uint high, low, more, rest;
    umulExtended(upper, range, high, low);
    umulExtended(lower, range, more, rest);
    return high + uint(low + more < low);
}

void main() {
    uint group = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    uint four = group * uint(THREADS) + gl_LocalInvocationIndex, i = 4u * four;
    if (i >= pc.count) return;
    four += pc.first;
    uvec2 key = SEED == 0u ? uvec2(pc.seed_low, pc.seed_high) : natural(SEED, seed_raw(pc.seed_offset)), y[8];
    uint offset = pc.offset;
    if (DRAWN != 0u) {
        key.y = seed_raw(pc.seed_offset + 1u).x;
        offset = seed_raw(pc.seed_offset + 2u).x;
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) y[k] = uvec2(0u);
    if (DRAW == INTEGERS) {
        [[unroll]] for (uint half_of = 0u; half_of < 2u; half_of++) {
            uvec4 words = philox(uvec4(2u * four + half_of, 0u, 0xffffffffu, offset), key);
            uvec2 least = uvec2(pc.a_low, pc.a_high);
            uvec2 one = add64(least, uvec2(below(pc.b_low, words.x, words.y), 0u));
            uvec2 two = add64(least, uvec2(below(pc.b_low, words.z, words.w), 0u));
            y[2u * half_of] = element(TYPE_Y, LONG, one);
            y[2u * half_of + 1u] = element(TYPE_Y, LONG, two);
        }
    } else {
        uvec4 words = philox(uvec4(four, 0u, 0xffffffffu, offset), key);
        vec4 drawn;
        if (DRAW == UNIFORM) {
            [[unroll]] for (uint k = 0u; k < 4u; k++) drawn[k] = from_0_to_1(words[k]);
        } else {
            drawn = vec4(normal_pair(words.x, words.y), normal_pair(words.z, words.w));
        }
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            precise float scaled_by = drawn[k] * of_bits(pc.b_low);
            precise float found = of_bits(pc.a_low) + scaled_by;
            y[k] = element(TYPE_Y, FLOATING, uvec2(bits_of(found), 0u));
        }
    }
    y_run(pc.y_offset + i, pc.y_offset + pc.count, y);
}
