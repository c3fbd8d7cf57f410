#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: what cache-step does, for caches in blocks of 32 numbers with one scale: new keys and values quantized to
//     where they belong in it, and queries to an array of their own, keys and queries with rotary embedding by tables on the
//     way (Su et al. 2021, arXiv:2104.09864). Levels are rounded as by llama.cpp's q8_0 and q4_0: of 8 bits, d is the largest
//     magnitude / 127 and a level the whole number nearest to x / d, halves away from zero; of 4 bits, d is the number of
//     the largest magnitude / -8, and a level x / d + 8.5 without its fraction, at most 15, less 8.
// Shapes and layouts: k (B, KEY_HEADS, rows, WIDTH), v (B, KEY_HEADS, rows, VALUE_WIDTH), q (B, HEADS, rows, WIDTH); rotated
//     like q. Last axes contiguous, all other strides are arguments. k_cache and v_cache uint32: (samples_all, capacity,
//     words) with the levels of all heads of a key, as two's complements, the first number's lowest; then (samples_all,
//     capacity, words) with their float16 scales, two a word.
//     cosines and sines float32 (positions, PAIRS). parameters: uint32, of which samples + 4 b + 3 is the number of keys of
//     sample b with the new rows counted.
// Bindings: 0 k, 1 v, 2 q, 3 parameters, 4 cosines, 5 sines, 6 k_cache, 7 v_cache, 8 rotated.
// Specialization constants: ROTARY (rotary.glsl), 0 for none; LENGTHS (1: sample b's first new key is at its number of keys
//     less `fresh`, 0: at `start`); ADVANCE, 0: all queries of a sample are rotated as the first; WIDTH, VALUE_WIDTH; PAIRS;
//     KEY_HEADS; HEADS, 0 for no q; BITS of a level, 8 or 4.
// Push constants: see the block; offsets and strides in elements of the array they belong to.
// Workgroup (x, y, z): 8 THREADS neighbouring numbers of all heads of row y of sample z; x counts workgroups of k, then those
//     of v, then those of q. Invocation: eight numbers.
// Accumulation: float32.
// Preconditions: WIDTH and VALUE_WIDTH are multiples of 32, 2 * PAIRS <= WIDTH; all keys fit in the cache; the tables have a
//     row for every position. Of a block with NaN or infinities the scale is NaN.

#include "elements.glsl"
#include "float16.glsl"
#include "arrays/integers.glsl"
#include "arrays/floats.glsl"
#include "rotary.glsl"

layout(local_size_x = THREADS) in;

layout(constant_id = 0) const int ROTARY = 0;
layout(constant_id = 1) const int LENGTHS = 0;
layout(constant_id = 2) const uint ADVANCE = 1u;
layout(constant_id = 3) const uint WIDTH = 64u;
layout(constant_id = 4) const uint VALUE_WIDTH = 64u;
layout(constant_id = 5) const uint PAIRS = 0u;
layout(constant_id = 6) const uint KEY_HEADS = 1u;
layout(constant_id = 7) const uint HEADS = 0u;
layout(constant_id = 8) const uint BITS = 8u;

const uint EACH = 8u;  // numbers of an invocation
const uint OWN = EACH * uint(THREADS);
const uint K_GROUPS = (KEY_HEADS * WIDTH + OWN - 1u) / OWN, V_GROUPS = (KEY_HEADS * VALUE_WIDTH + OWN - 1u) / OWN;

layout(push_constant, std430) uniform Push {
    uint k_offset, k_batch, k_head, k_row;
    uint v_offset, v_batch, v_head, v_row;
    uint q_offset, q_batch, q_head, q_row;
    uint k_cache_offset, v_cache_offset;
    uint rotated_offset, rotated_batch, rotated_head, rotated_row;
    uint cos_offset, cos_row, sin_offset, sin_row;
    uint samples;
    uint start, fresh;  // where the first of all new keys goes, and how many there are
    uint first_row, first_sample, samples_all, capacity;  // of the dispatch; and of the cache
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Keys { IO_SCALAR k[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Values { IO_SCALAR v[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Queries { IO_SCALAR q[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Parameters { uint parameters[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Cosines { float cosines[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Sines { float sines[]; };
layout(set = 0, binding = 6, std430) restrict writeonly buffer KeyCache { uint k_cache[]; };
layout(set = 0, binding = 7, std430) restrict writeonly buffer ValueCache { uint v_cache[]; };
layout(set = 0, binding = 8, std430) restrict writeonly buffer Rotated { IO_SCALAR rotated[]; };

shared uint largest[THREADS];  // bits of each invocation's number of the largest magnitude
shared uint scales[THREADS];   // float16

const uint MAGNITUDE = 0x7fffffffu;

float x[EACH];
uint levels[2];

// Eight numbers of X, elements `first` to `first + 7` of a head that begins at `from`, rotated by the angles of `position`.
#define LOAD_TURNED(X, from, first, position) \
    [[unroll]] for (uint e = 0u; e < EACH; e++) { \
        uint d = first + e; \
        x[e] = IO_LOAD(X[from + d]); \
        if (ROTARY != 0 && d < 2u * PAIRS) { \
            uint pair = ROTARY == ROTARY_INTERLEAVED ? d / 2u : d % PAIRS; \
            bool second = ROTARY == ROTARY_INTERLEAVED ? d % 2u == 1u : d >= PAIRS; \
            uint other = ROTARY == ROTARY_INTERLEAVED ? d ^ 1u : second ? d - PAIRS : d + PAIRS; \
            float partner = IO_LOAD(X[from + other]); \
            float c = cosines[pc.cos_offset + (position) * pc.cos_row + pair]; \
            float s = sines[pc.sin_offset + (position) * pc.sin_row + pair]; \
            x[e] = x[e] * c + (second ? partner : -partner) * s; \
        } \
    }

// Of two numbers' bits those of the larger magnitude, the first where they are equal. NaN and infinities are the largest.
uint larger(uint a, uint b) { return (b & MAGNITUDE) > (a & MAGNITUDE) ? b : a; }

// The levels of x; `here`: whether there are any. Returns where scales of two blocks are to be written by this invocation.
bool quantize(bool here) {
    uint me = gl_LocalInvocationIndex, most = 0u;
    [[unroll]] for (uint e = 0u; e < EACH; e++) most = larger(most, here ? floatBitsToUint(x[e]) : 0u);
    largest[me] = most;
    barrier();
    uint block = me & ~3u;
    most = largest[block];
    [[unroll]] for (uint i = 1u; i < 4u; i++) most = larger(most, largest[block + i]);
    const bool finite = (most & MAGNITUDE) < 0x7f800000u;
    const float extreme = uintBitsToFloat(most);
    // Correctly rounded, as levels halfway between two whole numbers are frequent.
    const float d = BITS == 8u ? divided(abs(extreme), 127.0) : extreme * -0.125;
    const float inverse = d == 0.0 || !finite ? 0.0 : divided(1.0, d);
    levels[0] = levels[1] = 0u;
    [[unroll]] for (uint e = 0u; e < EACH; e++) {
        precise const float scaled = finite ? x[e] * inverse : 0.0;
        int level;
        if (BITS == 8u) {
            const float size = abs(scaled), whole = floor(size);
            const int rounded = min(int(whole) + int(size - whole >= 0.5), 127);
            level = scaled < 0.0 ? -rounded : rounded;
        } else {
            precise const float place = scaled + 8.5;
            level = int(clamp(place, 0.0, 15.0)) - 8;
        }
        levels[BITS == 8u ? e / 4u : 0u] |= (uint(level) & (1u << BITS) - 1u) << (BITS * e & 31u);
    }
    scales[me] = finite ? float16_word(d) : 0x7e00u;
    barrier();
    return here && me % 8u == 0u;
}

// What quantize() found, to where element `element` of a key's `width` numbers is in X.
#define STORE(X, offset, key, element, width) { \
    const bool scales_too = quantize(here); \
    const uint level_row = width * BITS / 32u, scale_row = (width / 32u + 1u) / 2u; \
    const uint row_of_all = batch * pc.capacity + key; \
    if (here) { \
        const uint at = offset + row_of_all * level_row + element * BITS / 32u; \
        X[at] = levels[0]; \
        if (BITS == 8u) X[at + 1u] = levels[1]; \
    } \
    if (scales_too) { \
        const uint at = offset + pc.samples_all * pc.capacity * level_row + row_of_all * scale_row + element / 64u; \
        const uint second = element + 32u < width ? scales[gl_LocalInvocationIndex + 4u] << 16 : 0u; \
        X[at] = scales[gl_LocalInvocationIndex] | second; \
    } \
}

void main() {
    const uint row = gl_WorkGroupID.y, own = gl_WorkGroupID.z, batch = pc.first_sample + own;
    const bool of_q = gl_WorkGroupID.x >= K_GROUPS + V_GROUPS, of_v = !of_q && gl_WorkGroupID.x >= K_GROUPS;
    const uint group = gl_WorkGroupID.x - (of_q ? K_GROUPS + V_GROUPS : of_v ? K_GROUPS : 0u);
    const uint element = EACH * (group * uint(THREADS) + gl_LocalInvocationIndex);
    const uint head_width = of_v ? VALUE_WIDTH : WIDTH;
    const uint width = (of_q ? HEADS : KEY_HEADS) * head_width;
    const uint head = element / head_width, first = element % head_width;
    const bool here = element < width;
    const uint first_key = LENGTHS == 1 ? parameters[pc.samples + 4u * batch + 3u] - pc.fresh : pc.start;
    const uint key = first_key + pc.first_row + row;
    if (of_q) {
        if (!here) return;
        const uint from = pc.q_offset + own * pc.q_batch + head * pc.q_head + row * pc.q_row;
        const uint to = pc.rotated_offset + own * pc.rotated_batch + head * pc.rotated_head + row * pc.rotated_row;
        LOAD_TURNED(q, from, first, first_key + (pc.first_row + row) * ADVANCE)
        [[unroll]] for (uint e = 0u; e < EACH; e++) rotated[to + first + e] = IO_STORE(x[e]);
    } else if (of_v) {
        const uint from = pc.v_offset + own * pc.v_batch + head * pc.v_head + row * pc.v_row;
        if (here) {
            [[unroll]] for (uint e = 0u; e < EACH; e++) x[e] = IO_LOAD(v[from + first + e]);
        }
        STORE(v_cache, pc.v_cache_offset, key, element, width)
    } else {
        const uint from = pc.k_offset + own * pc.k_batch + head * pc.k_head + row * pc.k_row;
        if (here) {
            LOAD_TURNED(k, from, first, key)
        }
        STORE(k_cache, pc.k_cache_offset, key, element, width)
    }
}
