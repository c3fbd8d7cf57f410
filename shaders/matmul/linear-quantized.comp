#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
// What it computes: y = activation(x W^T + b) + residual of few rows, W of a quantized type: the exact numbers of W, never
//     rounded. GATED: activation(x G^T + g) * (x U^T + u) + residual, where G is the first half of W's rows.
// Shapes and layouts: x (M, K), K a multiple of 32; W (N, K), GATED (2 N, K), in the order of quantized.glsl; b (N),
//     GATED (2 N); y and residual (M, N); last axes contiguous.
// Bindings: 0 a (x), 1 low, 2 high, 3 scales (W), 4 c (y), 5 bias, 6 residual; 7 r, 8 p (finish.glsl).
// Specialization constants: HAS_BIAS, GATED, those of epilogue.glsl and quantized.glsl, and
//     ROWS     rows of x of a workgroup
//     COLUMNS  columns of y that a workgroup computes at a time
//     BLOCKS   times that it does so
// Push constants: see the block. a, c, bias and residual count elements; low_offset and low_row words of 16 bytes,
//     those of high and scales 32 bits.
// Workgroup (x, y) owns COLUMNS * BLOCKS columns from x * COLUMNS * BLOCKS, ROWS rows from y * ROWS.
// Invocation: every THREADS-th unit of 32 elements of the depth, of all columns; at the end one column.
// Accumulation: float32: 16 numbers without their scale, then the invocation's, then invocations. Minima are multiplied by
//     the sums of x.
// Preconditions: COLUMNS <= THREADS; offsets and strides of x are multiples of 8.
// Defines: THREADS; SUBGROUPS, subgroups of THREADS; EIGHTS, eight numbers of x, of 16 bits, are read at once, and
//     unpackHalf2x16 is right and keeps small numbers.

#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int ROWS = 1;
layout(constant_id = 2) const int COLUMNS = 1;
layout(constant_id = 3) const int BLOCKS = 1;
layout(constant_id = 12) const int GATED = 0;
layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint a_offset, a_row, low_offset, low_row, high_offset, high_row, scales_offset, scales_row;
    uint c_offset, c_row, bias_offset, residual_offset, residual_row;
    uint rows, cols, depth;
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
} pc;

#ifdef EIGHTS
layout(set = 0, binding = 0, std430) restrict readonly buffer A { uvec4 a_data[]; };
#ifdef DTYPE_float16
#define TWO(word) unpackHalf2x16(word)
#define HALF_VALUE(bits) unpackHalf2x16(bits).x
#else
#define TWO(word) uintBitsToFloat(uvec2((word) << 16, (word) & 0xffff0000u))
#endif
#else
layout(set = 0, binding = 0, std430) restrict readonly buffer A { IO_VECTOR a_data[]; };
#endif
layout(set = 0, binding = 1, std430) restrict readonly buffer Low { uvec4 low_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer High { uint high_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Scales { uint scales_data[]; };
#define SCALES_WORD(i) scales_data[i]
layout(set = 0, binding = 4, std430) restrict writeonly buffer C { IO_SCALAR c_data[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
layout(set = 0, binding = 6, std430) restrict readonly buffer Residual { IO_SCALAR residual_data[]; };
#define FINISH_BINDING 7
#include "epilogue.glsl"
#include "quantized.glsl"


const int PAIRED = GATED == 1 ? 2 : 1;  // rows of W for a column of y
const int WIDE = COLUMNS * PAIRED;
const int LOW_COUNT = int(LOW), HIGH_COUNT = HIGH == 0u ? 1 : int(HIGH);  // words of a unit

#ifndef SUBGROUPS
shared float sums[MOST * THREADS];
#endif

void main() {
    const uint lane = gl_LocalInvocationIndex;
    const uint units = pc.depth / UNIT;
    const uint row_first = gl_WorkGroupID.y * uint(ROWS);
    // Rows past the end are computed from the last one and not stored; so are columns.
    uint a_at[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) a_at[r] = pc.a_offset + min(row_first + uint(r), pc.rows - 1u) * pc.a_row;
    uint block = 0u;  // loops that test at their end copy nothing on llvmpipe
    do {
        const uint col_first = (gl_WorkGroupID.x * uint(BLOCKS) + block) * uint(COLUMNS);
        float sum[ROWS * WIDE];
        [[unroll]] for (int i = 0; i < ROWS * WIDE; i++) sum[i] = 0.0;
        uint first = 0u;
        do {
            const bool there = first + lane < units;  // other invocations multiply the last unit by 0
            const uint unit = min(first + lane, units - 1u);
            uint low[WIDE * LOW_COUNT], high[WIDE * HIGH_COUNT];
            vec4 scales[WIDE];
            [[unroll]] for (int c = 0; c < WIDE; c++) {
                const uint row = min(col_first + uint(c / PAIRED), pc.cols - 1u) + uint(c % PAIRED) * pc.cols;
                const uint low_at = pc.low_offset + row * pc.low_row;
                if (LOW == 2u) {
                    const uvec4 words = low_data[low_at + unit / 2u];
                    low[c * LOW_COUNT] = unit % 2u == 0u ? words.x : words.z;
                    low[c * LOW_COUNT + 1] = unit % 2u == 0u ? words.y : words.w;
                } else {
                    [[unroll]] for (int i = 0; i < LOW_COUNT / 4; i++) {
                        const uvec4 words = low_data[low_at + unit * (LOW / 4u) + uint(i)];
                        [[unroll]] for (int w = 0; w < 4; w++) low[c * LOW_COUNT + 4 * i + w] = words[w];
                    }
                }
                [[unroll]] for (int i = 0; i < HIGH_COUNT; i++) {
                    high[c * HIGH_COUNT + i] = 0u;
                    if (HIGH != 0u) high[c * HIGH_COUNT + i] = high_data[pc.high_offset + row * pc.high_row + unit * HIGH + uint(i)];
                }
                scales[c] = scales_of(pc.scales_offset + row * pc.scales_row, unit, units);
            }
            float part[ROWS * WIDE], of_x[ROWS];
#ifdef EIGHTS
            uvec4 eight[ROWS];
#endif
            [[unroll]] for (int quad = 0; quad < 8; quad++) {
                vec4 x[ROWS];
                [[unroll]] for (int r = 0; r < ROWS; r++) {
#ifdef EIGHTS
                    if (quad % 2 == 0) eight[r] = a_data[(a_at[r] + unit * UNIT) / 8u + uint(quad / 2)];
                    x[r] = quad % 2 == 0 ? vec4(TWO(eight[r].x), TWO(eight[r].y)) : vec4(TWO(eight[r].z), TWO(eight[r].w));
#else
                    x[r] = IO_LOAD4(a_data[(a_at[r] + unit * UNIT) / 4u + uint(quad)]);
#endif
                    if (!there) x[r] = vec4(0.0);
                    if (HAS_MINIMA) {
                        const float four = (x[r].x + x[r].y) + (x[r].z + x[r].w);
                        of_x[r] = quad % 4 == 0 ? four : of_x[r] + four;
                    }
                }
                [[unroll]] for (int c = 0; c < WIDE; c++) {
                    vec4 w;
                    [[unroll]] for (int e = 0; e < 4; e++) {
                        const int low_at = (4 * quad + e) * LOW_COUNT, high_at = (4 * quad + e) * int(HIGH);
                        w[e] = level(low[c * LOW_COUNT + low_at / 32], uint(low_at % 32), high[c * HIGH_COUNT + high_at / 32],
                                     uint(high_at % 32));
                    }
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        const int at = r * WIDE + c;
                        if (quad % 4 == 0) part[at] = 0.0;
                        [[unroll]] for (int e = 0; e < 4; e++) part[at] += x[r][e] * w[e];
                        if (quad % 4 == 3) sum[at] += (quad == 3 ? scales[c].x : scales[c].y) * part[at];
                        if (quad % 4 == 3 && HAS_MINIMA) sum[at] += (quad == 3 ? scales[c].z : scales[c].w) * of_x[r];
                    }
                }
            }
            first += uint(THREADS);
        } while (first < units);

        float total[ROWS * PAIRED];
#ifdef SUBGROUPS
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            [[unroll]] for (int c = 0; c < WIDE; c++) {
                const float all = subgroupAdd(sum[r * WIDE + c]);
                const int at = r * PAIRED + c % PAIRED;
                total[at] = c < PAIRED || lane == uint(c / PAIRED) ? all : total[at];
            }
        }
#else
        barrier();  // before the sums of the last block are replaced
        [[unroll]] for (int i = 0; i < ROWS * WIDE; i++) sums[i * THREADS + int(lane)] = sum[i];
        for (uint step = uint(THREADS) / 2u; step > 0u; step /= 2u) {
            barrier();
            if (lane < step) {
                [[unroll]] for (int i = 0; i < ROWS * WIDE; i++) sums[i * THREADS + int(lane)] += sums[i * THREADS + int(lane + step)];
            }
        }
        barrier();
        const int own = min(int(lane), COLUMNS - 1);
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            [[unroll]] for (int p = 0; p < PAIRED; p++) total[r * PAIRED + p] = sums[(r * WIDE + own * PAIRED + p) * THREADS];
        }
#endif
        const uint col = col_first + lane;
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            const uint row = row_first + uint(r);
            if (lane < uint(COLUMNS) && row < pc.rows && col < pc.cols) {
                if (HAS_BIAS == 1) {
                    [[unroll]] for (int p = 0; p < PAIRED; p++) total[r * PAIRED + p] += IO_LOAD(bias_data[pc.bias_offset + uint(p) * pc.cols + col]);
                }
                float value = activation(total[r * PAIRED]);
                if (GATED == 1) value *= total[r * PAIRED + PAIRED - 1];
                if (HAS_RESIDUAL == 1) value += IO_LOAD(residual_data[pc.residual_offset + row * pc.residual_row + col]);
                const uint at = pc.c_offset + row * pc.c_row + col;
                c_data[at] = IO_STORE(behind(value, at - pc.c_offset, col));
            }
        }
        block++;
    } while (block < uint(BLOCKS));
}
