#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// What it computes: matmul/linear-rows.comp's layer of one or two rows, for Mesa's CPU driver. A load of a storage
//     buffer is a loop over the lanes there; one of a texel buffer is a plain load of 16 bytes for each lane, and their
//     components are put in order by shuffles (docs/benchmarks/lavapipe.md). W is read from front to back, as that is how
//     a processor fetches ahead.
// Shapes and layouts: x (B, H, M, K), W (N, K), b (N), y and residual (B, H, M, N), GATED W (2 N, K), b (2 N); push
//     constants as in matmul/matmul.glsl. x and W are read in texels of 16 bytes.
// Specialization constants: HAS_BIAS, those of matmul/epilogue.glsl, GATED, NORM (as linear-rows.comp's, where TRIPS is 1), and
//     ROWS     rows of x of a workgroup      COLUMNS  columns of y of a workgroup, a multiple of 8
//     WORDS    words of a row of x and of W that an invocation takes in a trip, which is unrolled
//     TRIPS    trips over a row; where it is 1, x is loaded once and held, else it is loaded anew for every column
//     RAGGED   1: some words lie past the end of the row
// Workgroup (x, y, z) owns COLUMNS columns of y from x * COLUMNS, ROWS rows from y % row blocks * ROWS, head
//     y / row blocks, batch z.
// Invocation: every 8th word, of all columns; at the end every 8th column.
// Accumulation: float32, words first, then the invocation's words, then invocations.
// Preconditions: subgroups of 8, one a workgroup; offsets, strides and K are multiples of 8 (float32: 4), but those of y
//     and b, and N.

#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int ROWS = 1;
layout(constant_id = 2) const int COLUMNS = 8;
layout(constant_id = 3) const int WORDS = 1;
layout(constant_id = 4) const int RAGGED = 0;
layout(constant_id = 5) const int TRIPS = 1;
layout(constant_id = 12) const int GATED = 0;
layout(constant_id = 13) const int NORM = 0;
layout(local_size_x = 8) in;

const int SUBGROUP = 8;
#if defined(DTYPE_float32)
const int WIDE = 4;  // elements of a word
#else
const int WIDE = 8;
#endif
const int PAIRED = GATED == 1 ? 2 : 1;  // rows of W for a column of y

#define NORMALISED
#include "linear-push.glsl"

layout(set = 0, binding = 0) uniform usamplerBuffer a_data;
layout(set = 0, binding = 1) uniform usamplerBuffer b_data;
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { IO_SCALAR c_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Residual { IO_SCALAR residual_data[]; };
layout(set = 0, binding = 5) uniform usamplerBuffer norm_data;
#define FINISH_BINDING 6
#include "epilogue.glsl"

#if defined(DTYPE_float32)
#define SPREAD(to, at, word) { \
    vec4 whole = uintBitsToFloat(word); \
    [[unroll]] for (int e = 0; e < 4; e++) to[(at) + e] = whole[e]; \
}
#else
#if defined(DTYPE_float16)
#define HALVES(bits) unpackHalf2x16(bits)
#else
#define HALVES(bits) uintBitsToFloat(uvec2(bits << 16, bits & 0xffff0000u))
#endif
#define SPREAD(to, at, word) { \
    [[unroll]] for (int part = 0; part < 4; part++) { \
        vec2 pair = HALVES(word[part]); \
        to[(at) + 2 * part] = pair.x; \
        to[(at) + 2 * part + 1] = pair.y; \
    } \
}
#endif

// The sum of the squares of row r of x, times a power of two.
#define SQUARES(to, r, by) { \
    float own = 0.0; \
    [[unroll]] for (int i = 0; i < WORDS; i++) { \
        float part = 0.0; \
        [[unroll]] for (int e = 0; e < WIDE; e++) { \
            precise const float one = x[((r) * WORDS + i) * WIDE + e] * (by); \
            part += one * one; \
        } \
        own += RAGGED == 0 || uint(i * SUBGROUP) + lane < words ? part : 0.0; \
    } \
    to = subgroupAdd(own); \
}

// The rows of x that are held become x / sqrt(mean(x^2) + norm_eps) * (g + norm_added). Where the squares are beyond float32's
// range, or some below it may be lost, they are those of x times a power of two.
#include "norm-range.glsl"
#define NORMALIZE { \
    float factor[ROWS]; \
    [[unroll]] for (int r = 0; r < ROWS; r++) { \
        float all; \
        SQUARES(all, r, 1.0) \
        factor[r] = 1.0 / sqrt(all / float(pc.depth) + pc.norm_eps); \
        if (IS_BEYOND(all)) { \
            const float scale = POWER_FOR(all); \
            SQUARES(all, r, scale) \
            SCALED_EPSILON(added, pc.norm_eps, scale) \
            factor[r] = scale / sqrt(all / float(pc.depth) + added); \
        } \
    } \
    [[unroll]] for (int i = 0; i < WORDS; i++) { \
        const uvec4 word = texelFetch(norm_data, int(pc.norm_offset / uint(WIDE) + PLACE(0u, i))); \
        float g[WIDE]; \
        SPREAD(g, 0, word) \
        [[unroll]] for (int r = 0; r < ROWS; r++) { \
            [[unroll]] for (int e = 0; e < WIDE; e++) x[(r * WORDS + i) * WIDE + e] *= factor[r] * (g[e] + pc.norm_added); \
        } \
    } \
}

void main() {
    const uint row_blocks = (pc.rows + uint(ROWS) - 1u) / uint(ROWS);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z;
    const uint row_first = gl_WorkGroupID.y % row_blocks * uint(ROWS);
    const uint col_first = gl_WorkGroupID.x * uint(COLUMNS);
    const uint words = pc.depth / uint(WIDE);
    const uint lane = gl_SubgroupInvocationID;
    // Rows past the end are computed from the last one and not stored; so are columns.
    uint a_at[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        const uint row = min(row_first + uint(r), pc.rows - 1u);
        a_at[r] = (pc.a_offset + batch * pc.a_batch + head * pc.a_head + row * pc.a_row) / uint(WIDE);
    }
    const uint b_first = (pc.b_offset + batch * pc.b_batch + head / pc.group * pc.b_head) / uint(WIDE);
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const uint residual_first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;

    // Words past the end are the last one, and count as nothing.
#define PLACE(first, i) (RAGGED == 1 ? min((first) + uint((i) * SUBGROUP) + lane, words - 1u) : (first) + uint((i) * SUBGROUP) + lane)
    float x[ROWS * WORDS * WIDE];
    if (TRIPS == 1) {
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            [[unroll]] for (int i = 0; i < WORDS; i++) {
                uvec4 word = texelFetch(a_data, int(a_at[r] + PLACE(0u, i)));
                SPREAD(x, (r * WORDS + i) * WIDE, word)
            }
        }
        if (NORM == 1) NORMALIZE
    }
    uint block = 0u;  // loops that test at their end copy nothing there
    do {
        float total[ROWS * PAIRED];
        [[unroll]] for (int i = 0; i < ROWS * PAIRED; i++) total[i] = 0.0;
        const uint col = col_first + block + lane;
        uint own = 0u;
        do {
            [[unroll]] for (int p = 0; p < PAIRED; p++) {
                const uint row = min(col_first + block + own, pc.cols - 1u) + uint(p) * pc.cols;
                const uint b_at = b_first + row * (pc.b_row / uint(WIDE));
                float sum[ROWS];
                [[unroll]] for (int r = 0; r < ROWS; r++) sum[r] = 0.0;
                uint first = 0u;
                do {
                    [[unroll]] for (int i = 0; i < WORDS; i++) {
                        const uint place = PLACE(first, i);
                        uvec4 word = texelFetch(b_data, int(b_at + place));
                        float w[WIDE];
                        SPREAD(w, 0, word)
                        [[unroll]] for (int r = 0; r < ROWS; r++) {
                            float held[WIDE];
                            if (TRIPS == 1) {
                                [[unroll]] for (int e = 0; e < WIDE; e++) held[e] = x[(r * WORDS + i) * WIDE + e];
                            } else {
                                uvec4 other = texelFetch(a_data, int(a_at[r] + place));
                                SPREAD(held, 0, other)
                            }
                            float part = 0.0;
                            [[unroll]] for (int e = 0; e < WIDE; e += 4) {
                                float four = (held[e] * w[e] + held[e + 1] * w[e + 1]) + (held[e + 2] * w[e + 2] + held[e + 3] * w[e + 3]);
                                part = e == 0 ? four : part + four;
                            }
                            if (RAGGED == 1) part = first + uint(i * SUBGROUP) + lane < words ? part : 0.0;
                            sum[r] += part;
                        }
                    }
                    first += uint(WORDS * SUBGROUP);
                } while (TRIPS > 1 && first < words);
                [[unroll]] for (int r = 0; r < ROWS; r++) {
                    float all = subgroupAdd(sum[r]);
                    if (lane == own) total[r * PAIRED + p] = all;
                }
            }
            own++;
        } while (own < uint(SUBGROUP));
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            const uint row = row_first + uint(r);
            if (row < pc.rows && col < pc.cols) {
                [[unroll]] for (int p = 0; p < PAIRED; p++) {
                    total[r * PAIRED + p] *= pc.scale;
                    if (HAS_BIAS == 1) total[r * PAIRED + p] += IO_LOAD(bias_data[pc.bias_offset + uint(p) * pc.cols + col]);
                }
                float value = activation(total[r * PAIRED]);
                if (GATED == 1) value *= total[r * PAIRED + PAIRED - 1];
                if (HAS_RESIDUAL == 1) value += IO_LOAD(residual_data[residual_first + row * pc.residual_row + col]);
                const uint place = c_first + row * pc.c_row + col;
                c_data[place] = IO_STORE(behind(value, place - pc.c_offset, col));
            }
        }
        block += uint(SUBGROUP);
    } while (block < uint(COLUMNS));
}
