#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
// What it computes: sums, products, extremes and their places, any and all, sums of squares and of squared
//     differences from the mean (arrays/states.glsl) of the rows of an array.
// Shapes and layouts: x has rows over two axes and elements of a row over two, of any strides. y has one number a row,
//     or `parts` states of four words, which another dispatch takes as rows of `parts` elements.
// Bindings: 0 x, 1 y; with TOGETHER 2 parts, states (rows, parts), and 3 arrived, one for the workgroups of the same rows
//     (include/last-of-team.glsl).
// Specialization constants: OPERATION, TYPE_X, KIND; EACH, elements of a run, 4 or 8; HALVES (words.glsl); RUNS, 1 where
//     a row's elements lie without gaps and rows begin at multiples of EACH; LAST, 1 where y has numbers, of TYPE_Y;
//     AXES of a row's elements; LANES, invocations of one row, a power of two up to THREADS; ROOT, 1 for the number's root;
//     TOGETHER (arrays/reduced.glsl).
// Push constants: see the block; offsets and strides in elements; with LAST 0 y_offset is in words. A sum is divided by
//     `divisor`, unless that is negative.
// Workgroup: THREADS / LANES rows (x and z together count them, STRIPE along x), one part of each (y). Invocation: every
//     LANES-th run of a row's part, or element.
// Accumulation: float32 sums of EACH elements, or of four such runs, which are added up with what is lost in rounding;
//     then the invocations of a row by eights, then its parts. Variances: means and squared differences of EACH elements or
//     four runs, combined in the same order. Squares beyond float32's range are scaled (arrays/states.glsl). Integers wrap at 64 bits. The order depends on the shape alone.
// Preconditions: fewer than 2^31 elements; part_length is a multiple of EACH.
// Defines: THREADS, STRIPE.

#include "arrays/reduced.glsl"
#include "arrays/extremes.glsl"

layout(constant_id = 8) const uint LANES = 32u;

layout(local_size_x = THREADS) in;

const uint ROWS = uint(THREADS) / LANES;

shared uvec4 states[THREADS];

uvec4 found;

// What `many` elements from `at` on, EACH at most, add to what was found.
void take(uvec2 raw[8], uint base, uint at, uint many, uint step, float pivot) {
    float sum = 0.0, numbers[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        uint place = at + k * step;
        numbers[k] = 0.0;
        if (k < EACH && k < many) {
            if (TYPE_X == STATES) {
                found = combined(found, x_data[base + place]);
            } else if (OPERATION == MOMENTS) {
                numbers[k] = of_bits(number(KIND, TYPE_X, raw[k]).x);
            } else {
                uvec4 more = found_in(raw[k], pc.first + place);
                if (adds_floats()) sum += of_bits(more.x);
                else found = with_next(found, more);
            }
        }
    }
    if (adds_floats()) found = with_sum(found, sum);
    if (OPERATION == MOMENTS && TYPE_X != STATES) found = joined(found, moments_of(numbers, min(many, EACH), pivot));
}

// The sum of a run of 16-bit floats.
float sum_of(uvec4 words) {
    float sum = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; k++) sum += term_of(words[k >> 1], k & 1u);
    return sum;
}

// The first invocation of a row finds what all of them have found.
void combine_lanes(uint id, uint lane) {
    states[id] = found;
    for (uint reach = 1u; reach < LANES; reach *= 8u) {
        barrier();
        if (lane % (8u * reach) == 0u) {
            for (uint k = 1u; k < 8u && lane + k * reach < LANES; k++) found = combined(found, states[id + k * reach]);
            states[id] = found;
        }
    }
}

void main() {
    uint id = gl_LocalInvocationIndex, lane = id % LANES;
    uint row = (gl_WorkGroupID.z * uint(STRIPE) + gl_WorkGroupID.x) * ROWS + id / LANES;
    uint part = gl_WorkGroupID.y;
    found = nothing_found();
    if (row < pc.rows) {
        uint base = base_of(row);
        uint begin = part * pc.part_length, end = min(begin + pc.part_length, pc.extent);
        float pivot = pivot_of(base);
        uint step = RUNS == 1u ? 1u : LANES;
        uint at = begin + (RUNS == 1u ? EACH * lane : lane);
        const uint own = at;
        // Runs that end before the part does are read without a test between them, which would end one read before the next.
        if (RUNS == 1u) {
            const uint next = EACH * LANES;
            if (adds_floats() && SIXTEEN_BIT_FLOATS) {
                for (; at + 3u * next + EACH <= end; at += 4u * next) {
                    uvec4 words[4];
                    float sums[4];
                    [[unroll]] for (uint n = 0u; n < 4u; n++) words[n] = x_data[base + at + n * next >> 3];
                    [[unroll]] for (uint n = 0u; n < 4u; n++) sums[n] = sum_of(words[n]);
                    found = with_sum(found, sums[0] + sums[1] + (sums[2] + sums[3]));
                }
            }
            if (OPERATION == MOMENTS && SIXTEEN_BIT_FLOATS) {
                for (; at + 3u * next + EACH <= end; at += 4u * next) {
                    uvec4 words[4];
                    [[unroll]] for (uint n = 0u; n < 4u; n++) words[n] = x_data[base + at + n * next >> 3];
                    float sum = 0.0, squares = 0.0;
                    [[unroll]] for (uint k = 0u; k < 32u; k++) sum += value_of(words[k >> 3][k >> 1 & 3u], k & 1u) - pivot;
                    const float mean = sum / 32.0;
                    [[unroll]] for (uint k = 0u; k < 32u; k++) {
                        float apart = value_of(words[k >> 3][k >> 1 & 3u], k & 1u) - pivot - mean;
                        squares += apart * apart;
                    }
                    found = joined(found, floatBitsToUint(vec4(32.0, mean, squares, pivot)));
                }
            }
            if (wants_extremes() && SIXTEEN_BIT_FLOATS) {
                const uint begun = at;
                Bounds known = NO_BOUNDS;
                // Of places: the runs that hold the extreme so far, where the first of them lies, the extreme and its rank.
                uvec4 best[4];
                uint best_at = 0u, best_extreme = 0u, best_rank = 0u;
                for (; at + 3u * next + EACH <= end; at += 4u * next) {
                    uvec4 words[4];
                    [[unroll]] for (uint n = 0u; n < 4u; n++) words[n] = x_data[base + at + n * next >> 3];
                    if (FINDS_PLACES) known = NO_BOUNDS;
                    [[unroll]] for (uint n = 0u; n < 4u; n++) known = within(known, words[n]);
                    if (FINDS_PLACES) {
                        uint extreme = extreme_of(known), rank = found_in(uvec2(extreme, 0u), 0u).y;
                        if (best_rank < rank) {
                            [[unroll]] for (uint n = 0u; n < 4u; n++) best[n] = words[n];
                            best_at = at;
                            best_extreme = extreme;
                            best_rank = rank;
                        }
                    }
                }
                if (FINDS_PLACES && at > begun) {
                    found = uvec4(0u, best_rank, pc.first + first_of(best, best_extreme, best_at, next), 0u);
                }
                if (!FINDS_PLACES && at > begun) found = found_in(uvec2(extreme_of(known), 0u), 0u);
            }
            for (; at + next + EACH <= end; at += 2u * next) {
                uvec2 raw[2][8];
                [[unroll]] for (uint n = 0u; n < 2u; n++) x_run(base + at + n * next, base + at + n * next + EACH, raw[n]);
                [[unroll]] for (uint n = 0u; n < 2u; n++) take(raw[n], base, at + n * next, EACH, step, pivot);
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
            take(raw, base, at, (end - at + step - 1u) / step, step, pivot);
        }
        if (may_leave_range() && reads_elements()) {
            found = in_its_range(found, base, own, end, EACH, step, EACH * LANES);
        }
    }
    combine_lanes(id, lane);
    bool is_whole = true;
    if (TOGETHER == 1u) {
        if (lane == 0u && row < pc.rows) parts[row * pc.parts + part] = found;
        is_whole = last_of_team(gl_WorkGroupID.z * uint(STRIPE) + gl_WorkGroupID.x, pc.parts);
        if (is_whole) {
            if (row < pc.rows) found = found_together(row * pc.parts, lane, LANES, 1u);
            combine_lanes(id, lane);
        }
    }
    if (is_whole && lane == 0u && row < pc.rows) put_found(row, part, found);
}
