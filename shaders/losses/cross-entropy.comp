#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: for each row of logits x and its target t, with p = softmax(x) and w the weights of the classes
//     (1 where there are none):
//     (1 - smoothing) w[t] (-log p[t]) + smoothing / classes * sum of w[c] (-log p[c]),
//     and what the mean over rows and the gradient need.
// Shapes and layouts: x (batch, classes, inner), any strides; row r is place r % inner of batch r / inner. target (rows),
//     weight (classes), contiguous. y five arrays of `all_rows` float32: the loss; w[t], 0 where the row is ignored; the
//     maximum m; 1 / the sum of exp(x - m); the sum of w.
// Bindings: 0 x, 1 target, 2 weight, 3 y.
// Specialization constants: TYPE_X, of x and weight, TYPE_T (words.glsl); WEIGHTED, SMOOTHED; LANES, a power of two that
//     divides THREADS; HALVES (words.glsl); EACH (logits.glsl); RUNS, where classes are neighbours and are read EACH at once.
// Push constants: see the block; offsets and strides in elements. The dispatch has `rows` rows of x, which are those from
//     first_row on of target and y. `ignored` is the target of rows that do not count.
// Workgroup: THREADS / LANES rows (x and y together count the workgroups, STRIPE of them along x). LANES invocations share
//     a row: each takes every LANES-th class, or run of EACH classes, in one walk.
// Accumulation: float32, compensated; exponentials and logarithms of arrays/floats.glsl. The loss is (m - x[t]) +
//     log(sum), so large logits cancel before they are rounded.
// Preconditions: a target that is neither a class nor `ignored` makes NaN. With LANES 1 there is no barrier.

#include "losses/logits.glsl"

layout(constant_id = 3) const uint SMOOTHED = 0u;
layout(constant_id = 4) const uint LANES = 128u;
layout(constant_id = 7) const uint RUNS = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, all_rows, first_row, inner, classes;
    uint x_offset, x_batch, x_class, x_inner;
    uint target_offset, weight_offset, y_offset;
    uint ignored_low, ignored_high;
    float smoothing;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Target { uvec4 target_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { uvec4 weight_data[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { float y_data[]; };

READER(x, x_data, width_of(TYPE_X))
READER(target, target_data, width_of(TYPE_T))
READER(weight, weight_data, width_of(TYPE_X))

const uint UNROLL = 8u;                                 // classes of an invocation in a trip
const uint TAKEN = RUNS == 1u ? UNROLL / EACH : UNROLL;  // or runs of them
const float LEAST = -3.40282347e38;

shared float tops[THREADS];
shared float sums[THREADS];
shared float spreads[THREADS];
shared float weights[THREADS];

float x_at(uint i) { return uintBitsToFloat(natural(TYPE_X, x_raw(i)).x); }
float weight_at(uint i) {
    return WEIGHTED == 1u ? uintBitsToFloat(natural(TYPE_X, weight_raw(pc.weight_offset + i)).x) : 1.0;
}

void main() {
    uint me = gl_LocalInvocationIndex, lane = me % LANES;
    uint row = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * (uint(THREADS) / LANES) + me / LANES;
    bool inside = row < pc.rows;
    uint first = pc.x_offset + row / pc.inner * pc.x_batch + row % pc.inner * pc.x_inner;
    uint classes = inside ? pc.classes : 0u;
    // A row's runs are those that hold any of its elements.
    uint before = RUNS == 1u ? first % EACH : 0u;
    uint parts = RUNS == 1u ? (before + classes + EACH - 1u) / EACH : classes;

    float top = LEAST;
    precise float sum = 0.0;
    precise float lost = 0.0;    // what rounding added too much to the sum
    precise float spread = 0.0;  // the sum of w (x - top), for smoothing
    precise float weight = 0.0;  // the sum of w
    uint largest = 0u;           // of the bits of sizes, which tells NaN
    for (uint begin = lane; begin < parts; begin += TAKEN * LANES) {
        float x[UNROLL];
        uint number[UNROLL];  // of the class; beyond the last where there is none
        float higher = top;
        if (RUNS == 1u) {
            [[unroll]] for (uint n = 0u; n < UNROLL / 4u; n++) {
                if (n < TAKEN) {
                    uint at = begin + n * LANES;
                    uvec2 raw[8];
                    if (at < parts) x_run(first - before + at * EACH, first + classes, raw);
                    [[unroll]] for (uint k = 0u; k < EACH; k++) {
                        number[n * EACH + k] = at < parts ? at * EACH + k - before : classes;
                        x[n * EACH + k] = uintBitsToFloat(natural(TYPE_X, raw[k]).x);
                    }
                }
            }
        } else {
            [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
                number[i] = begin + i * LANES;
                if (number[i] < classes) x[i] = x_at(first + number[i] * pc.x_class);
            }
        }
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
            if (number[i] >= classes) x[i] = of_bits(SIGN | INFINITY);
            largest = max(largest, size_of(x[i]));
            higher = max(higher, x[i]);
        }
        if (SMOOTHED == 1u) {
            spread += (top - higher) * weight;
            float own = 0.0, its = 0.0;
            [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
                if (number[i] < classes) {
                    float w = weight_at(number[i]);
                    own += w * (x[i] - higher);
                    its += w;
                }
            }
            spread += own;
            weight += its;
        }
        float shrink = share_of(top - higher);
        top = higher;
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) x[i] = share_of(x[i] - top);
        float some = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
        precise float rest = some - lost * shrink;
        precise float old = sum * shrink;
        sum = old + rest;
        lost = (sum - old) - rest;
    }
    if (largest > INFINITY || top == of_bits(INFINITY)) sum = of_bits(NAN);
    if (LANES > 1u) {
        tops[me] = top;
        sums[me] = sum;
        spreads[me] = spread;
        weights[me] = weight;
        for (uint step = LANES / 2u; step > 0u; step /= 2u) {
            barrier();
            if (lane < step) {
                float other = tops[me + step], higher = max(top, other);
                sum = sum * share_of(top - higher) + sums[me + step] * share_of(other - higher);
                if (SMOOTHED == 1u) {
                    spread = (spread + (top - higher) * weight)
                        + (spreads[me + step] + (other - higher) * weights[me + step]);
                    weight += weights[me + step];
                    spreads[me] = spread;
                    weights[me] = weight;
                }
                top = higher;
                tops[me] = top;
                sums[me] = sum;
            }
        }
    }
    if (lane != 0u || !inside) return;
    uint at = pc.first_row + row;
    uvec2 target = natural(TYPE_T, target_raw(pc.target_offset + at));
    float loss = 0.0, own = 0.0;
    if (target != uvec2(pc.ignored_low, pc.ignored_high)) {
        loss = own = of_bits(NAN);
        if (target.y == 0u && target.x < pc.classes) {
            float level = logarithm(sum);
            own = weight_at(target.x);
            loss = own * ((top - x_at(first + target.x * pc.x_class)) + level);
            if (SMOOTHED == 1u) {
                float even = (weight * level - spread) / float(pc.classes);
                loss = (1.0 - pc.smoothing) * loss + pc.smoothing * even;
            }
        }
    }
    uint y = pc.y_offset + at;
    y_data[y] = loss;
    y_data[y + pc.all_rows] = own;
    y_data[y + 2u * pc.all_rows] = top;
    y_data[y + 3u * pc.all_rows] = 1.0 / sum;
    y_data[y + 4u * pc.all_rows] = weight;
}
