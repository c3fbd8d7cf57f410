#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// What it computes: a linear layer of few rows, y = activation(scale * x W^T + b) + residual, GATED as linear-rows.comp
//     says, on matrix units. As there, W is read once and memory decides.
// Shapes and layouts: x (B, H, M, K), W (N, K), b (N), y and residual (B, H, M, N), GATED W (2 N, K), b (2 N); push
//     constants as in matmul/matmul.glsl; what workgroups leave for each other: matmul/splits.glsl. Bindings 7 and 8: r and p
//     of finish.glsl.
// Specialization constants: HAS_BIAS, those of matmul/epilogue.glsl, GATED, and
//     DEEP    subgroups that share outputs and divide the depth   THREADS  invocations of a workgroup
//     SPLITS  workgroups that do
//     TRANSPOSED_C  y and residual are (B, H, N, M), b is (M); not with GATED
// Workgroup (x, y, z) owns ROWS rows of y, as linear-rows.comp has them, and COLUMNS (GATED half) for every DEEP subgroups; batch
//     z / SPLITS, split z % SPLITS of the depth.
// Invocation: how a subgroup holds a matrix is known (below), so x and W go from memory to the registers of factors, 16
//     bytes at a time and without shared memory. Which place of the depth a row of the factor stands for does not matter
//     as long as both factors agree, so an invocation keeps the eight that it loaded.
// Defines: ROWS, COLUMNS, multiples of MATRIX_M and MATRIX_N; UNROLL, chunks of the depth loaded before they are used;
//     ORDER 1 is NVIDIA's, 2 llvmpipe's.
// Accumulation: float32.
// Preconditions: SUBGROUP * DEEP divides THREADS, subgroups are full; offsets, strides and K are multiples of 8, but those
//     of y and b, and N.

#define MATRIX_ELEMENTS
#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int DEEP = 1;
layout(local_size_x_id = 2) in;
layout(constant_id = 3) const int SPLITS = 1;
layout(constant_id = 4) const int TRANSPOSED_C = 0;
layout(constant_id = 12) const int GATED = 0;

#if ORDER == 1
// Element e of lane L of a 16 x 8 sum is row L/4 + 8 (e/2), column 2 (L%4) + e%2; of a 16 x 8 B factor, row
// 2 (L%4) + e%2 + 8 (e/2), column L/4; a 16 x 16 A factor has two such sums' elements side by side, row by row. Two halves
// of eight rows of x or W make a matrix, and a chunk of 32 of the depth makes two.
#define SUBGROUP 32
#define MATRIX_M 16
#define MATRIX_N 16
#define MATRIX_K 16
#define SHARING 4  // lanes with words of the same row
#define HALVES 2
#define STEPS 2  // matrices of a chunk
#define HELD 4  // elements of a word that belong to one of them
#else
// A lane holds a column of sums and of A factors, and a row of B factors.
#define SUBGROUP 8
#define MATRIX_M 8
#define MATRIX_N 8
#define MATRIX_K 8
#define SHARING 1
#define HALVES 1
#define STEPS 1
#define HELD 8
#endif
#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

const int FRAGMENTS_M = ROWS / MATRIX_M;
const int FRAGMENTS_N = COLUMNS / MATRIX_N;
const int ROW_WORDS = ROWS / 8;
const int COLUMN_WORDS = COLUMNS / 8;
const int SUBGROUPS = int(gl_WorkGroupSize.x) / SUBGROUP;
const int BLOCK = COLUMNS * (SUBGROUPS / DEEP);
// GATED, eight rows of W of the gate and eight others take turns.
const int PAIRED = GATED == 1 ? 2 : 1;
const int OWN = BLOCK / PAIRED;

#include "linear-push.glsl"

layout(set = 0, binding = 0, std430) restrict readonly buffer Left { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Right { uvec4 b_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { float16_t c_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Bias { float16_t bias_data[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Residual { float16_t residual_data[]; };
#define FINISH_BINDING 7
#include "epilogue.glsl"
#include "splits.glsl"

shared float sums[SUBGROUPS * MATRIX_M * COLUMNS];

float16_t element(uvec4 word, int i) {
    f16vec2 pair = unpackFloat2x16(word[i / 2]);
    return (i & 1) == 0 ? pair.x : pair.y;
}

#if ORDER == 2
// NAME(...): what this lane has of eight rows, the elements at its own place of a word.
#define GRILLY_GATHER(NAME, DATA) \
    uvec4 NAME(uint first, uint stride, uint row, uint rows, uint word) { \
        uvec4 found = uvec4(0u); \
        [[unroll]] for (int e = 0; e < 8; e++) { \
            const uint pair = DATA[first + min(row + uint(e), rows - 1u) * stride + word][gl_SubgroupInvocationID / 2u]; \
            found[e / 2] |= (pair >> (16u * (gl_SubgroupInvocationID & 1u)) & 0xffffu) << (16 * (e & 1)); \
        } \
        return found; \
    }
GRILLY_GATHER(gather_a, a_data)
GRILLY_GATHER(gather_b, b_data)
#endif

// Conversions to bfloat16 may cut (NVIDIA's do), so they are of numbers that fit.
#if defined(DTYPE_bfloat16)
#define ROUNDED(x) uintBitsToFloat(bfloat16_word(x) << 16)
#else
#define ROUNDED(x) (x)
#endif

// other: the sum that a gate lets through.
void finish(uint row, uint col, uint at, uint residual_at, float value, float other) {
    if (row < pc.rows && col < pc.cols) {
        if (TRANSPOSED_C == 1) {
            const uint own = row;
            row = col;
            col = own;
        }
        value *= pc.scale;
        if (HAS_BIAS == 1) value += float(bias_data[pc.bias_offset + col]);
        value = activation(value);
        if (GATED == 1) {
            other *= pc.scale;
            if (HAS_BIAS == 1) other += float(bias_data[pc.bias_offset + pc.cols + col]);
            value *= other;
        }
        if (HAS_RESIDUAL == 1) value += float(residual_data[residual_at + row * pc.residual_row + col]);
        at += row * pc.c_row + col;
        c_data[at] = behind(float16_t(ROUNDED(value)), at - pc.c_offset, col);
    }
}

// The place of element n of a block in row-major order, TRANSPOSED_C column-major, so that invocations side by side store side
// by side.
uvec2 row_and_column(uint n, uint rows, uint columns) {
    return TRANSPOSED_C == 1 ? uvec2(n % rows, n / rows) : uvec2(n / columns, n % columns);
}

// Where in a workgroup's columns W's row for a column of y is; that of the other, eight further.
uint place(uint col) { return GATED == 1 ? col / 8u * 16u + col % 8u : col; }

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const uint row_blocks = (pc.rows + uint(ROWS) - 1u) / uint(ROWS);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z / uint(SPLITS);
    const uint split = gl_WorkGroupID.z % uint(SPLITS);
    const uint row_first = gl_WorkGroupID.y % row_blocks * uint(ROWS);
    const uint col_first = gl_WorkGroupID.x * uint(OWN);
    const uint own_col = col_first + gl_SubgroupID / uint(DEEP) * uint(COLUMNS / PAIRED);
    const uint own_chunk = gl_SubgroupID % uint(DEEP);
    // Rows past the end are computed from the last one and not stored.
    const uint a_first = (pc.a_offset + batch * pc.a_batch + head * pc.a_head) / 8u;
    const uint b_first = (pc.b_offset + batch * pc.b_batch + head / pc.group * pc.b_head) / 8u;
    const uint a_stride = pc.a_row / 8u;
    const uint b_stride = pc.b_row / 8u;
#if ORDER == 1
    uint a_at[ROW_WORDS];
    uint b_at[COLUMN_WORDS];
    [[unroll]] for (int r = 0; r < ROW_WORDS; r++) {
        a_at[r] = a_first + min(row_first + uint(8 * r) + lane / uint(SHARING), pc.rows - 1u) * a_stride;
    }
    [[unroll]] for (int c = 0; c < COLUMN_WORDS; c++) {
        const uint row = min(own_col + uint(8 * (c / PAIRED)) + lane / uint(SHARING), pc.cols - 1u);
        b_at[c] = b_first + (row + uint(c % PAIRED) * pc.cols) * b_stride;
    }
#define A_WORD(r, word) a_data[a_at[r] + (word)]
#define B_WORD(c, word) b_data[b_at[c] + (word)]
#else
#define A_WORD(r, word) gather_a(a_first, a_stride, row_first + uint(8 * (r)), pc.rows, word)
#define B_WORD(c, word) \
    gather_b(b_first + uint((c) % PAIRED) * pc.cols * b_stride, b_stride, own_col + uint(8 * ((c) / PAIRED)), pc.cols, word)
#endif

    // The split: an equal share of the chunks.
    const uint words = pc.depth / 8u;
    const uint chunks = (words + uint(SHARING) - 1u) / uint(SHARING);
    const uint share = (chunks + uint(SPLITS) - 1u) / uint(SPLITS);
    const uint end = min(split * share + share, chunks);
    const uint end_words = min(end * uint(SHARING), words);
    const uint whole = end_words / uint(SHARING);
    const uint step = uint(DEEP * UNROLL);

    SUMS sum[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) {
        [[unroll]] for (int j = 0; j < FRAGMENTS_N; j++) sum[i][j] = SUMS(0.0);
    }
    uvec4 b_words[UNROLL * COLUMN_WORDS];
    uvec4 a_words[UNROLL * ROW_WORDS];

#define WORD(first, u) (((first) + uint((u) * DEEP) + own_chunk) * uint(SHARING) + lane % uint(SHARING))
#define MULTIPLY { \
    [[unroll]] for (int u = 0; u < UNROLL; u++) { \
        [[unroll]] for (int s = 0; s < STEPS; s++) { \
            FACTOR_A a[FRAGMENTS_M]; \
            [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) { \
                [[unroll]] for (int e = 0; e < HALVES * HELD; e++) { \
                    a[i][e] = element(a_words[u * ROW_WORDS + i * HALVES + e / HELD], HELD * s + e % HELD); \
                } \
            } \
            [[unroll]] for (int j = 0; j < FRAGMENTS_N; j++) { \
                FACTOR_B b; \
                [[unroll]] for (int e = 0; e < HALVES * HELD; e++) { \
                    b[e] = element(b_words[u * COLUMN_WORDS + j * HALVES + e / HELD], HELD * s + e % HELD); \
                } \
                [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) sum[i][j] = coopMatMulAdd(a[i], b, sum[i][j]); \
            } \
        } \
    } \
}

    uint first = split * share;
    for (; first + step <= whole; first += step) {
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            [[unroll]] for (int c = 0; c < COLUMN_WORDS; c++) {
                b_words[u * COLUMN_WORDS + c] = B_WORD(c, WORD(first, u));
            }
        }
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            [[unroll]] for (int r = 0; r < ROW_WORDS; r++) a_words[u * ROW_WORDS + r] = A_WORD(r, WORD(first, u));
        }
        MULTIPLY
    }
    if (first < end) {
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            const uint word = WORD(first, u);
            const bool inside = word < end_words;
            const uint at = min(word, words - 1u);
            [[unroll]] for (int c = 0; c < COLUMN_WORDS; c++) {
                b_words[u * COLUMN_WORDS + c] = inside ? B_WORD(c, at) : uvec4(0u);
            }
            [[unroll]] for (int r = 0; r < ROW_WORDS; r++) {
                a_words[u * ROW_WORDS + r] = inside ? A_WORD(r, at) : uvec4(0u);
            }
        }
        MULTIPLY
    }

    // Through shared memory, a row of fragments at a time: DEEP subgroups' sums make one.
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const uint residual_first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;
    const uint team = (batch * gl_NumWorkGroups.y + gl_WorkGroupID.y) * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint part = (team * uint(SPLITS) + split) * uint(ROWS * BLOCK);
    [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) {
        if (i > 0) barrier();
        [[unroll]] for (int j = 0; j < FRAGMENTS_N; j++) {
            coopMatStore(
                sum[i][j], sums, gl_SubgroupID * uint(MATRIX_M * COLUMNS) + uint(j * MATRIX_N), uint(COLUMNS),
                gl_CooperativeMatrixLayoutRowMajor
            );
        }
        barrier();
        // What is left for others is not paired yet.
        const uint columns = uint(SPLITS == 1 ? OWN : BLOCK);
        for (uint n = gl_LocalInvocationIndex; n < uint(MATRIX_M) * columns; n += gl_WorkGroupSize.x) {
            const uvec2 found = row_and_column(n, uint(MATRIX_M), columns);
            const uint row = found.x;
            const uint col = found.y;
            const uint own = SPLITS == 1 ? place(col) : col;
            uint at = (own / uint(COLUMNS) * uint(DEEP * MATRIX_M) + row) * uint(COLUMNS) + own % uint(COLUMNS);
            float value = 0.0, other = 0.0;
            for (int d = 0; d < DEEP; d++) {
                value += sums[at + uint(d * MATRIX_M * COLUMNS)];
                if (GATED == 1 && SPLITS == 1) other += sums[at + 8u + uint(d * MATRIX_M * COLUMNS)];
            }
            if (SPLITS == 1) {
                finish(row_first + uint(i * MATRIX_M) + row, col_first + col, c_first, residual_first, value, other);
            } else {
                parts[part + (uint(i * MATRIX_M) + row) * uint(BLOCK) + col] = value;
            }
        }
    }
    if (SPLITS > 1) {
        if (last_of_team(team, uint(SPLITS))) {
            for (uint n = gl_LocalInvocationIndex; n < uint(ROWS * OWN); n += gl_WorkGroupSize.x) {
                const uvec2 found = row_and_column(n, uint(ROWS), uint(OWN));
                const uint row = found.x;
                const uint col = found.y;
                const uint at = row * uint(BLOCK) + place(col);
                float value = 0.0, other = 0.0;
                for (int s = 0; s < SPLITS; s++) {
                    value += parts[(team * uint(SPLITS) + uint(s)) * uint(ROWS * BLOCK) + at];
                    if (GATED == 1) other += parts[(team * uint(SPLITS) + uint(s)) * uint(ROWS * BLOCK) + at + 8u];
                }
                finish(row_first + row, col_first + col, c_first, residual_first, value, other);
            }
        }
    }
}
