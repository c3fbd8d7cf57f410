#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: sums, products, extremes and their places, any and all (arrays/states.glsl) of the rows of an array.
// Shapes and layouts: x has rows over two axes and elements of a row over two, of any strides. y has one number a row,
//     or `parts` states of four words, which another dispatch takes as rows of `parts` elements.
// Bindings: 0 x, 1 centre (float32, one a row; for SQUARES), 2 y.
// Specialization constants: OPERATION, TYPE_X, KIND; EACH, elements of a run, 4 or 8; HALVES (words.glsl); RUNS, 1 where
//     a row's elements lie without gaps and rows begin at multiples of EACH; LAST, 1 where y has numbers, of TYPE_Y;
//     AXES of a row's elements; LANES, invocations of one row, a power of two up to THREADS; ROOT, 1 for the number's root.
// Push constants: see the block; offsets and strides in elements; with LAST 0 y_offset is in words. A sum is divided by `divisor`, unless
//     that is negative.
// Workgroup: THREADS / LANES rows (x and z together count them, STRIPE along x), one part of each (y). Invocation: every
//     LANES-th run of a row's part, or element.
// Accumulation: float32 sums of EACH elements, or of four such runs, which are added up with what is lost in rounding;
//     then the invocations of a row by eights. Integers wrap at 64 bits. The order depends on the shape alone.
// Preconditions: fewer than 2^31 elements; part_length is a multiple of EACH.
// Defines: THREADS, STRIPE.

#include "arrays/reduced.glsl"

layout(constant_id = 8) const uint LANES = 32u;

layout(local_size_x = THREADS) in;

const uint ROWS = uint(THREADS) / LANES;

shared uvec4 states[THREADS];

uvec4 found;

// What `many` elements from `at` on, EACH at most, add to what was found.
void take(uvec2 raw[8], uint base, uint at, uint many, uint step, float centre) {
    float sum = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        uint place = at + k * step;
        if (k < EACH && k < many) {
            if (TYPE_X == STATES) {
                found = combined(found, x_data[base + place]);
            } else {
                uvec4 more = found_in(raw[k], pc.first + place, centre);
                if (adds_floats()) sum += of_bits(more.x);
                else found = with_next(found, more);
            }
        }
    }
    if (adds_floats()) found = with_sum(found, sum);
}

// The sum of a run of 16-bit floats.
float sum_of(uvec4 words, float centre) {
    float sum = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        uint bits = bitfieldExtract(words[k >> 1], int(k & 1u) * 16, 16);
        float x = uintBitsToFloat(bits << 16);
        if (TYPE_X == FLOAT16) x = HALVES == 1u ? unpackHalf2x16(bits).x : float16_value(bits);
        sum += OPERATION == SQUARES ? (x - centre) * (x - centre) : x;
    }
    return sum;
}

void main() {
    uint id = gl_LocalInvocationIndex, lane = id % LANES;
    uint row = (gl_WorkGroupID.z * uint(STRIPE) + gl_WorkGroupID.x) * ROWS + id / LANES;
    uint part = gl_WorkGroupID.y;
    found = nothing_found();
    if (row < pc.rows) {
        uint base = base_of(row);
        uint begin = part * pc.part_length, end = min(begin + pc.part_length, pc.extent);
        float centre = centre_of(row);
        uint step = RUNS == 1u ? 1u : LANES;
        uint at = begin + (RUNS == 1u ? EACH * lane : lane);
        // Runs that end before the part does are read without a test between them, which would end one read before the next.
        if (RUNS == 1u) {
            const uint next = EACH * LANES;
            if (adds_floats() && (TYPE_X == FLOAT16 || TYPE_X == BFLOAT16)) {
                for (; at + 3u * next + EACH <= end; at += 4u * next) {
                    uvec4 words[4];
                    float sums[4];
                    [[unroll]] for (uint n = 0u; n < 4u; n++) words[n] = x_data[base + at + n * next >> 3];
                    [[unroll]] for (uint n = 0u; n < 4u; n++) sums[n] = sum_of(words[n], centre);
                    found = with_sum(found, sums[0] + sums[1] + (sums[2] + sums[3]));
                }
            }
            for (; at + next + EACH <= end; at += 2u * next) {
                uvec2 raw[2][8];
                [[unroll]] for (uint n = 0u; n < 2u; n++) x_run(base + at + n * next, base + at + n * next + EACH, raw[n]);
                [[unroll]] for (uint n = 0u; n < 2u; n++) take(raw[n], base, at + n * next, EACH, step, centre);
            }
        }
        for (; at < end; at += EACH * LANES) {
            uvec2 raw[8];
            if (RUNS == 1u) {
                x_run(base + at, base + end, raw);
            } else {
                [[unroll]] for (uint k = 0u; k < 8u; k++) {
                    raw[k] = uvec2(0u);
                    if (TYPE_X != STATES && k < EACH && at + k * step < end) raw[k] = x_raw(base + place_of(at + k * step));
                }
            }
            take(raw, base, at, (end - at + step - 1u) / step, step, centre);
        }
    }
    states[id] = found;
    for (uint reach = 1u; reach < LANES; reach *= 8u) {
        barrier();
        if (lane % (8u * reach) == 0u) {
            for (uint k = 1u; k < 8u && lane + k * reach < LANES; k++) found = combined(found, states[id + k * reach]);
            states[id] = found;
        }
    }
    if (lane == 0u && row < pc.rows) put_found(row, part, found);
}
