#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: softmax along the last axis, y = exp(x - max) / sum, the third of the unfused path's steps. A row of
//     nothing but minus infinity becomes zeros.
// Shapes and layouts: x and y (B, H, rows, cols), last axis contiguous, all other strides are arguments.
// Bindings: 0 x, 1 y.
// Specialization constants: none.
// Push constants: see the block; offsets and strides in elements.
// Workgroup: THREADS / LANES rows of one head (y head, z batch). LANES invocations share a row: each takes every LANES-th
//     element, walks them once for its maximum and sum (online) and, after these are merged, once to write.
// Accumulation: float32; exponentials to about one unit in the last place (exp_accurate).
// Preconditions: LANES is a power of two that divides THREADS. With LANES 1 there is no barrier.

#include "elements.glsl"
#include "exponential.glsl"

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint x_offset, x_batch, x_head, x_row;
    uint y_offset, y_batch, y_head, y_row;
    uint rows, cols;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Input { IO_SCALAR x_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Result { IO_SCALAR y_data[]; };

const uint UNROLL = 8u;

// exp(x - maximum) with exactly 0 for minus infinity, whatever the maximum. NaN stays NaN.
float weight(float x, float maximum) { return x < MASK_FLOOR ? 0.0 : exp_accurate(x - maximum); }

#if LANES > 1
shared float maxima[THREADS];
shared float sums[THREADS];
#endif

void main() {
    uint lane = gl_LocalInvocationIndex % uint(LANES);
    uint row = gl_WorkGroupID.x * uint(THREADS / LANES) + gl_LocalInvocationIndex / uint(LANES);
    bool inside = row < pc.rows;
    uint x_row = pc.x_offset + gl_WorkGroupID.z * pc.x_batch + gl_WorkGroupID.y * pc.x_head + row * pc.x_row;
    uint y_row = pc.y_offset + gl_WorkGroupID.z * pc.y_batch + gl_WorkGroupID.y * pc.y_head + row * pc.y_row;
    uint cols = inside ? pc.cols : 0u;

    float maximum = MASK_FLOOR;
    // Compensated (Kahan): one invocation may add a hundred thousand weights. `lost` is what rounding added too much.
    precise float sum = 0.0;
    precise float lost = 0.0;
    for (uint first = lane; first < cols; first += UNROLL * uint(LANES)) {
        float x[UNROLL];
        float top = maximum;
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
            uint col = first + i * uint(LANES);
            x[i] = minus_infinity();
            if (col < cols) x[i] = IO_LOAD(x_data[x_row + col]);
            top = max(top, x[i]);
        }
        float shrink = exp_accurate(maximum - top);
        maximum = top;
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) x[i] = weight(x[i], maximum);
        float some = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
        precise float rest = some - lost * shrink;
        precise float before = sum * shrink;
        sum = before + rest;
        lost = (sum - before) - rest;
    }
#if LANES > 1
    uint me = gl_LocalInvocationIndex;
    maxima[me] = maximum;
    sums[me] = sum;
    [[unroll]] for (uint step = uint(LANES) / 2u; step > 0u; step /= 2u) {
        barrier();
        if (lane < step) {
            float other = maxima[me + step];
            float top = max(maximum, other);
            sum = sum * exp_accurate(maximum - top) + sums[me + step] * exp_accurate(other - top);
            maximum = top;
            maxima[me] = maximum;
            sums[me] = sum;
        }
    }
    barrier();
    maximum = maxima[me - lane];
    sum = sums[me - lane];
#endif
    float total = sum == 0.0 ? 1.0 : sum;
    for (uint first = lane; first < cols; first += UNROLL * uint(LANES)) {
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
            uint col = first + i * uint(LANES);
            if (col < cols) y_data[y_row + col] = IO_STORE(weight(IO_LOAD(x_data[x_row + col]), maximum) / total);
        }
    }
}
