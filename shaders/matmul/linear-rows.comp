#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// What it computes: a linear layer of few rows, y = activation(scale * x W^T + b) + residual; GATED, W's rows are those
//     of a gate and then as many others: y = activation(gate) * other + residual. NORM, x stands for
//     x / sqrt(mean(x^2) + norm_eps) * (g + norm_added), not rounded; the division comes after the sums. W is read once
//     and nothing else weighs, so the kernel is made to keep many loads under way.
// Shapes and layouts: x (B, H, M, K), W (N, K), b (N), g (K), y and residual (B, H, M, N), GATED W (2 N, K), b (2 N); push
//     constants as in matmul/matmul.glsl. x, W and g are read in words of 16 bytes.
// Specialization constants: HAS_BIAS, those of matmul/epilogue.glsl, GATED (COLUMNS is then even), NORM, and
//     ROWS     rows of x of a workgroup             COLUMNS  rows of W of a subgroup
//     UNROLL   words of each that an invocation loads before it uses the first
//     DEEP     subgroups that share their rows of W and divide the depth
//     SUBGROUP the subgroup size                    THREADS  invocations of a workgroup
// Workgroup (x, y, z) owns COLUMNS * THREADS / (SUBGROUP * DEEP) columns (GATED half as many) of y from x, ROWS rows from y % row blocks, head
//     y / row blocks, batch z.
// Invocation: every SUBGROUP * DEEP-th word of its rows, so that neighbours read neighbouring words.
// Accumulation: float32, words first, then the invocation's words, then invocations and subgroups. Rows of x whose squares
//     are beyond float32's range once more, by one invocation for each result.
// Preconditions: SUBGROUP * DEEP divides THREADS; ROWS <= SUBGROUP; offsets, strides and K are multiples of 8 (float32: 4),
//     but those of y and b, and N.

#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int ROWS = 1;
layout(constant_id = 2) const int COLUMNS = 1;
layout(constant_id = 3) const int UNROLL = 1;
layout(constant_id = 4) const int DEEP = 1;
layout(constant_id = 5) const int SUBGROUP = 8;
layout(local_size_x_id = 6) in;
layout(constant_id = 12) const int GATED = 0;
layout(constant_id = 13) const int NORM = 0;

// Words: 16 bytes.
#define WORD uvec4
const int WORD_BYTES = 16;
#if defined(DTYPE_float32)
const int WIDE = WORD_BYTES / 4;  // elements of a word
#else
const int WIDE = WORD_BYTES / 2;
#endif
const int QUADS = WIDE / 4;
const int SUBGROUPS = int(gl_WorkGroupSize.x) / SUBGROUP;
const int BLOCK = COLUMNS * (SUBGROUPS / DEEP);
const int VALUES = ROWS * COLUMNS;
const int PAIRED = GATED == 1 ? 2 : 1;  // rows of W for a column of y
const int OWN = BLOCK / PAIRED;

#define NORMALISED
#include "linear-push.glsl"

layout(set = 0, binding = 0, std430) restrict readonly buffer Left { WORD a_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Right { WORD b_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { IO_SCALAR c_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Residual { IO_SCALAR residual_data[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Norm { WORD norm_data[]; };
#define FINISH_BINDING 6
#include "epilogue.glsl"

shared float sums[SUBGROUPS * VALUES];
shared float squares[SUBGROUPS * ROWS];  // of x

#include "fours.glsl"

#if !defined(DTYPE_float16)
#include "norm-range.glsl"

// A row of x, normalised, times a row of W, where `squares`, the sum of the row's, is beyond float32's range or may have lost
// squares below it: from x times a power of two. `a` and `b` are the rows' first words.
float scaled_product(uint a, uint b, float squares) {
    const float scale = POWER_FOR(squares);
    const uint words = pc.depth / uint(WIDE);
    float all = 0.0, total = 0.0;
    for (uint first = 0u; first < words; first += 32u) {
        vec4 square = vec4(0.0), sum = vec4(0.0);
        for (uint word = first; word < min(first + 32u, words); word++) {
            WORD x = a_data[a + word], w = b_data[b + word], g = norm_data[pc.norm_offset / uint(WIDE) + word];
            [[unroll]] for (int i = 0; i < QUADS; i++) {
                precise vec4 own = quad(x, i) * scale;
                square += own * own;
                sum += own * (quad(g, i) + pc.norm_added) * quad(w, i);
            }
        }
        all += dot(square, vec4(1.0));
        total += dot(sum, vec4(1.0));
    }
    SCALED_EPSILON(added, pc.norm_eps, scale)
    return total * (pc.scale / sqrt(all / float(pc.depth) + added));
}
#endif

void main() {
    const uint wide = uint(WIDE);
    const uint row_blocks = (pc.rows + uint(ROWS) - 1u) / uint(ROWS);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z;
    const uint row_first = gl_WorkGroupID.y % row_blocks * uint(ROWS);
    const uint col_first = gl_WorkGroupID.x * uint(OWN);
    const uint own_col = col_first + gl_SubgroupID / uint(DEEP) * uint(COLUMNS / PAIRED);
    const uint own_word = gl_SubgroupID % uint(DEEP) * uint(SUBGROUP) + gl_SubgroupInvocationID;
    const uint words = pc.depth / wide;
    const uint norm_first = pc.norm_offset / wide;
    // Rows past the end are computed from the last one and not stored.
    const uint a_first = (pc.a_offset + batch * pc.a_batch + head * pc.a_head) / wide;
    const uint b_first = (pc.b_offset + batch * pc.b_batch + head / pc.group * pc.b_head) / wide;
    uint a_at[ROWS];
    uint b_at[COLUMNS];
    [[unroll]] for (int r = 0; r < ROWS; r++) a_at[r] = a_first + min(row_first + uint(r), pc.rows - 1u) * (pc.a_row / wide);
    [[unroll]] for (int c = 0; c < COLUMNS; c++) {
        const uint row = min(own_col + uint(c / PAIRED), pc.cols - 1u) + uint(c % PAIRED) * pc.cols;
        b_at[c] = b_first + row * (pc.b_row / wide);
    }

    float sum[VALUES];
    [[unroll]] for (int i = 0; i < VALUES; i++) sum[i] = 0.0;
    float square[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) square[r] = 0.0;
    const uint stride = uint(SUBGROUP * DEEP);
    const uint step = stride * uint(UNROLL);
    WORD loaded[UNROLL * COLUMNS];

#define MULTIPLY(u, word) { \
    vec4 w[COLUMNS * QUADS]; \
    [[unroll]] for (int c = 0; c < COLUMNS; c++) { \
        [[unroll]] for (int i = 0; i < QUADS; i++) w[c * QUADS + i] = quad(loaded[(u) * COLUMNS + c], i); \
    } \
    vec4 g[QUADS]; \
    if (NORM == 1) { \
        WORD factors = norm_data[norm_first + (word)]; \
        [[unroll]] for (int i = 0; i < QUADS; i++) g[i] = quad(factors, i) + pc.norm_added; \
    } \
    [[unroll]] for (int r = 0; r < ROWS; r++) { \
        WORD held = a_data[a_at[r] + (word)]; \
        vec4 x[QUADS]; \
        [[unroll]] for (int i = 0; i < QUADS; i++) { \
            x[i] = quad(held, i); \
            if (NORM == 1) { \
                square[r] += dot(x[i], x[i]); \
                x[i] *= g[i]; \
            } \
        } \
        [[unroll]] for (int c = 0; c < COLUMNS; c++) { \
            float part = x[0].x * w[c * QUADS].x; \
            [[unroll]] for (int e = 1; e < WIDE; e++) part = fma(x[e / 4][e % 4], w[c * QUADS + e / 4][e % 4], part); \
            sum[r * COLUMNS + c] += part; \
        } \
    } \
}

    uint first = 0u;
    for (; first + step <= words; first += step) {
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            [[unroll]] for (int c = 0; c < COLUMNS; c++) {
                loaded[u * COLUMNS + c] = b_data[b_at[c] + first + uint(u) * stride + own_word];
            }
        }
        [[unroll]] for (int u = 0; u < UNROLL; u++) MULTIPLY(u, first + uint(u) * stride + own_word)
    }
    if (first < words) {
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            [[unroll]] for (int c = 0; c < COLUMNS; c++) {
                loaded[u * COLUMNS + c] = b_data[b_at[c] + min(first + uint(u) * stride + own_word, words - 1u)];
            }
        }
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            if (first + uint(u) * stride + own_word < words) MULTIPLY(u, first + uint(u) * stride + own_word)
        }
    }

    [[unroll]] for (int i = 0; i < VALUES; i++) {
        float total = subgroupAdd(sum[i]);
        if (gl_SubgroupInvocationID == uint(i % SUBGROUP)) sums[gl_SubgroupID * uint(VALUES) + uint(i)] = total;
    }
    if (NORM == 1) {
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            float total = subgroupAdd(square[r]);
            if (gl_SubgroupInvocationID == uint(r)) squares[gl_SubgroupID * uint(ROWS) + uint(r)] = total;
        }
    }
    barrier();
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const uint residual_first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;
    for (uint i = gl_LocalInvocationIndex; i < uint(ROWS * OWN); i += gl_WorkGroupSize.x) {
        const uint row = row_first + i / uint(OWN);
        const uint col = col_first + i % uint(OWN);
        if (row < pc.rows && col < pc.cols) {
            // The place of W's row in the workgroup; its neighbour's sum is the next one.
            const uint own = i % uint(OWN) * uint(PAIRED);
            uint at = own / uint(COLUMNS) * uint(DEEP * VALUES) + i / uint(OWN) * uint(COLUMNS) + own % uint(COLUMNS);
            float scale = pc.scale, all = 0.0;
            if (NORM == 1) {
                for (uint d = 0u; d < uint(DEEP); d++) all += squares[d * uint(ROWS) + i / uint(OWN)];
                scale /= sqrt(all / float(pc.depth) + pc.norm_eps);
            }
            float value = 0.0;
            for (uint d = 0u; d < uint(DEEP); d++) value += sums[at + d * uint(VALUES)];
            value *= scale;
#if !defined(DTYPE_float16)
            const bool is_beyond = NORM == 1 && IS_BEYOND(all);
            const uint own_a = a_first + row * (pc.a_row / wide), own_b = b_first + col * (pc.b_row / wide);
            if (is_beyond) value = scaled_product(own_a, own_b, all);
#endif
            if (HAS_BIAS == 1) value += IO_LOAD(bias_data[pc.bias_offset + col]);
            value = activation(value);
            if (GATED == 1) {
                float other = 0.0;
                for (uint d = 0u; d < uint(DEEP); d++) other += sums[at + 1u + d * uint(VALUES)];
                other *= scale;
#if !defined(DTYPE_float16)
                if (is_beyond) other = scaled_product(own_a, own_b + pc.cols * (pc.b_row / wide), all);
#endif
                if (HAS_BIAS == 1) other += IO_LOAD(bias_data[pc.bias_offset + pc.cols + col]);
                value *= other;
            }
            if (HAS_RESIDUAL == 1) value += IO_LOAD(residual_data[residual_first + row * pc.residual_row + col]);
            const uint place = c_first + row * pc.c_row + col;
            c_data[place] = IO_STORE(behind(value, place - pc.c_offset, col));
        }
    }
}
