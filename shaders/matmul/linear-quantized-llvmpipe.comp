#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: matmul/linear-quantized.comp's layer for Mesa's CPU driver (docs/benchmarks/lavapipe.md): all arrays
//     that are read are texels, and nothing is exchanged.
// Shapes, layouts, bindings and push constants as there; words of 16 bytes are texels.
// Specialization constants: as there; COLUMNS is a multiple of 8, BLOCKS 1.
// Workgroup (x, y) owns COLUMNS columns from x * COLUMNS, ROWS rows from y * ROWS. Invocation: every 8th of these columns.
// Accumulation: float32: 16 numbers without their scale, then in the order of the depth. Minima are multiplied by the sums
//     of x.
// Preconditions: subgroups of 8, one a workgroup; offsets and strides of x are multiples of 8.

#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int ROWS = 1;
layout(constant_id = 2) const int COLUMNS = 8;
layout(constant_id = 3) const int BLOCKS = 1;
layout(constant_id = 12) const int GATED = 0;
layout(local_size_x = 8) in;

layout(push_constant, std430) uniform Push {
    uint a_offset, a_row, low_offset, low_row, high_offset, high_row, scales_offset, scales_row;
    uint c_offset, c_row, bias_offset, residual_offset, residual_row;
    uint rows, cols, depth;
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
} pc;

layout(set = 0, binding = 0) uniform usamplerBuffer a_data;
layout(set = 0, binding = 1) uniform usamplerBuffer low_data;
layout(set = 0, binding = 2) uniform usamplerBuffer high_data;
layout(set = 0, binding = 3) uniform usamplerBuffer scales_data;
layout(set = 0, binding = 4, std430) restrict writeonly buffer C { IO_SCALAR c_data[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
layout(set = 0, binding = 6, std430) restrict readonly buffer Residual { IO_SCALAR residual_data[]; };

uint word_of(uvec4 texel, uint place) {
    const uvec2 both = (place & 2u) != 0u ? texel.zw : texel.xy;
    return (place & 1u) != 0u ? both.y : both.x;
}
#define SCALES_WORD(i) word_of(texelFetch(scales_data, int((i) >> 2)), i)
#if !defined(DTYPE_bfloat16)  // whose binaries have no float16
#define HALF_VALUE(bits) unpackHalf2x16(bits).x  // the driver's is right, and keeps small numbers
#endif
#define FINISH_BINDING 7
#include "epilogue.glsl"
#include "quantized.glsl"
#include "texels.glsl"

const int PAIRED = GATED == 1 ? 2 : 1;  // rows of W for a column of y
const int WIDE = COLUMNS / 8 * PAIRED;

void main() {
    const uint lane = gl_LocalInvocationIndex;
    const uint units = pc.depth / UNIT;
    const uint row_first = gl_WorkGroupID.y * uint(ROWS);
    const uint col_first = gl_WorkGroupID.x * uint(COLUMNS) + lane;
    // Rows past the end are computed from the last one and not stored; so are columns.
    uint a_at[ROWS], low_at[WIDE], high_at[WIDE], scales_at[WIDE];
    [[unroll]] for (int r = 0; r < ROWS; r++) a_at[r] = pc.a_offset + min(row_first + uint(r), pc.rows - 1u) * pc.a_row;
    [[unroll]] for (int c = 0; c < WIDE; c++) {
        const uint row = min(col_first + uint(c / PAIRED * 8), pc.cols - 1u) + uint(c % PAIRED) * pc.cols;
        low_at[c] = pc.low_offset + row * pc.low_row;
        high_at[c] = pc.high_offset + row * pc.high_row;
        scales_at[c] = pc.scales_offset + row * pc.scales_row;
    }
    float sum[ROWS * WIDE];
    [[unroll]] for (int i = 0; i < ROWS * WIDE; i++) sum[i] = 0.0;
    uint unit = 0u;  // a loop that tests at its end copies nothing
    do {
        float x[ROWS * 32], of_x[ROWS * 2];
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            [[unroll]] for (int quad = 0; quad < 8; quad++) {
                const uint at = a_at[r] + unit * UNIT + uint(4 * quad);
                const vec4 four = four_of(texelFetch(a_data, TEXEL(at)), uint(4 * quad));
                [[unroll]] for (int e = 0; e < 4; e++) x[r * 32 + 4 * quad + e] = four[e];
                const float all = (four.x + four.y) + (four.z + four.w);
                of_x[r * 2 + quad / 4] = quad % 4 == 0 ? all : of_x[r * 2 + quad / 4] + all;
            }
        }
        [[unroll]] for (int c = 0; c < WIDE; c++) {
            uint low[8], high[2];
            if (LOW == 2u) {
                const uvec4 words = texelFetch(low_data, int(low_at[c] + unit / 2u));
                low[0] = unit % 2u == 0u ? words.x : words.z;
                low[1] = unit % 2u == 0u ? words.y : words.w;
            } else {
                [[unroll]] for (int i = 0; i < int(LOW) / 4; i++) {
                    const uvec4 words = texelFetch(low_data, int(low_at[c] + unit * (LOW / 4u) + uint(i)));
                    [[unroll]] for (int w = 0; w < 4; w++) low[4 * i + w] = words[w];
                }
            }
            [[unroll]] for (int i = 0; i < 2; i++) {
                high[i] = 0u;
                const uint at = high_at[c] + unit * HIGH + uint(i);
                if (i < int(HIGH)) high[i] = word_of(texelFetch(high_data, int(at >> 2)), at);
            }
            const vec4 scales = scales_of(scales_at[c], unit, units);
            float part[ROWS];
            [[unroll]] for (int quad = 0; quad < 8; quad++) {
                float w[4];
                [[unroll]] for (int e = 0; e < 4; e++) {
                    const int i = 4 * quad + e, low_bit = i * int(LOW), high_bit = i * int(HIGH);
                    w[e] = level(low[low_bit / 32], uint(low_bit % 32), high[high_bit / 32], uint(high_bit % 32));
                }
                [[unroll]] for (int r = 0; r < ROWS; r++) {
                    const int at = r * 32 + 4 * quad;
                    const float four = (x[at] * w[0] + x[at + 1] * w[1]) + (x[at + 2] * w[2] + x[at + 3] * w[3]);
                    part[r] = quad % 4 == 0 && !(ONE_SCALE && quad == 4) ? four : part[r] + four;
                    if (quad == 3 && !ONE_SCALE) sum[r * WIDE + c] += scales.x * part[r];
                    if (quad == 7) sum[r * WIDE + c] += scales.y * part[r];
                    if (quad == 7 && HAS_MINIMA) {
                        sum[r * WIDE + c] += ONE_SCALE ? scales.z * (of_x[r * 2] + of_x[r * 2 + 1])
                            : scales.z * of_x[r * 2] + scales.w * of_x[r * 2 + 1];
                    }
                }
            }
        }
        unit++;
    } while (unit < units);

    [[unroll]] for (int r = 0; r < ROWS; r++) {
        const uint row = row_first + uint(r);
        [[unroll]] for (int c = 0; c < WIDE; c += PAIRED) {
            const uint col = col_first + uint(c / PAIRED * 8);
            if (row < pc.rows && col < pc.cols) {
                float total[PAIRED];
                [[unroll]] for (int p = 0; p < PAIRED; p++) {
                    total[p] = sum[r * WIDE + c + p];
                    if (HAS_BIAS == 1) total[p] += IO_LOAD(bias_data[pc.bias_offset + uint(p) * pc.cols + col]);
                }
                float value = activation(total[0]);
                if (GATED == 1) value *= total[PAIRED - 1];
                if (HAS_RESIDUAL == 1) value += IO_LOAD(residual_data[pc.residual_offset + row * pc.residual_row + col]);
                const uint at = pc.c_offset + row * pc.c_row + col;
                c_data[at] = IO_STORE(behind(value, at - pc.c_offset, col));
            }
        }
    }
}
