#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
// What it computes: a linear layer, y = activation(scale * x W^T + b) + residual, on matrix units.
// Shapes and layouts: x (B, H, M, K), W (N, K), b (N), y and residual (B, H, M, N); bindings, push constants and workgroups as in
//     matmul/matmul.glsl and matmul-tile.glsl, but z is batch * SPLITS + split: each split has an equal share of the
//     depth, in whole panels, and matmul/splits.glsl makes one result of them. Bindings 7 and 8: r and p of finish.glsl.
// A workgroup owns BM x BN of y, a subgroup WM x WN of it as float32 fragments of MATRIX_M x MATRIX_N. Panels of BK of
//     the depth pass through shared memory, as rows of 16-byte vectors with one more at the end, so that the rows of a
//     fragment begin in different banks. The next panel is loaded into registers while this one is used.
//     BIAS_FIRST: what belongs to columns is fetched before the first panel.
// TRANSPOSED_A, TRANSPOSED_B: x is (B, H, K, M), W (K, N), so a panel has rows of the depth, and the fragments are read across them.
// DTYPE_float32: x and W are not the arrays but what linear-split.comp made of them (its head has the layout), a row of
//     high and low 16-bit parts and an exponent. high high + high low + low high is summed over a panel by the matrix
//     unit, and panels in ordinary float32, because a matrix unit may cut off the bits below its running sum.
// UNALIGNED: rows begin anywhere. ALIGNED_A, ALIGNED_B: those of x and of W do not, and are whole vectors; others are read as
//     the two vectors that eight elements lie in. y is written in vectors where its rows allow it.
// Accumulation: float32.
// Preconditions: subgroups of SUBGROUP, full. 16-bit types but for UNALIGNED: offsets, strides, K and N, with TRANSPOSED_A M,
//     are multiples of 8.

#ifdef DTYPE_float32
#define SPLIT
#else
#define MATRIX_ELEMENTS
#endif
#define HOLES 1

layout(constant_id = 0) const int HAS_BIAS = 0;
// Whether M and N are multiples of BM and BN.
layout(constant_id = 1) const int WHOLE = 0;
layout(constant_id = 2) const int SPLITS = 1;
#ifdef SPLIT
const int TRANSPOSED_A = 0;
const int TRANSPOSED_B = 0;
#else
layout(constant_id = 3) const int TRANSPOSED_A = 0;
layout(constant_id = 4) const int TRANSPOSED_B = 0;
#endif

const int SUBGROUPS_M = BM / WM;
const int SUBGROUPS_N = BN / WN;
#define THREADS (SUBGROUP * (BM / WM) * (BN / WN))
const int FRAGMENTS_M = WM / MATRIX_M;
const int FRAGMENTS_N = WN / MATRIX_N;
#ifdef SPLIT
const int PARTS = 2;
#else
const int PARTS = 1;
#endif
const int VECTORS = BK / 8 * PARTS;  // of a panel's row
const int STRIDE = VECTORS + 1;
const int ROWS_AT_ONCE = THREADS / VECTORS;
const int LOADS_A = BM / ROWS_AT_ONCE;
const int LOADS_B = BN / ROWS_AT_ONCE;
const int TRANSPOSED_STRIDE_A = BM / 8 + 1;
const int TRANSPOSED_STRIDE_B = BN / 8 + 1;
const int PANEL_B = max(BM * STRIDE, BK * TRANSPOSED_STRIDE_A);
const int PANEL = PANEL_B + max(BN * STRIDE, BK * TRANSPOSED_STRIDE_B);
// Results leave through shared memory, where the order of elements is known: LEAVE_ROWS x LEAVE of a subgroup at a time,
// as many rows as the panels' memory holds.
const int LEAVE = FRAGMENTS_N % 2 == 0 ? 2 * MATRIX_N : MATRIX_N;
const int LEAVE_STRIDE = LEAVE / 4 + 1;
const uint BAND = 8u;
#include "bands.glsl"

layout(local_size_x = THREADS) in;

#include "linear-push.glsl"

// To the nearest 16-bit number. Conversions to bfloat16 may cut (NVIDIA's do), so theirs are of numbers that fit; NaN gets
// a bit that stays.
#if defined(DTYPE_bfloat16)
vec4 ROUNDED(vec4 x) {
    uvec4 bits = floatBitsToUint(x);
    uvec4 nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    return uintBitsToFloat(mix(nearest, bits | 0x400000u, greaterThan(bits & 0x7fffffffu, uvec4(0x7f800000u))));
}
#else
#define ROUNDED(x) (x)
#endif

layout(set = 0, binding = 0, std430) readonly buffer Left { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Right { uvec4 b_data[]; };
#ifdef SPLIT
#define ELEMENTS 4u  // in a vector of 16 bytes
layout(set = 0, binding = 2, std430) writeonly buffer Result { vec4 c_data[]; };
layout(set = 0, binding = 2, std430) writeonly buffer ResultScalars { float c_scalars[]; };
layout(set = 0, binding = 3, std430) readonly buffer Bias { float bias_data[]; };
layout(set = 0, binding = 4, std430) readonly buffer Residual { float residual_scalars[]; };
#else
#ifdef UNALIGNED
#define ELEMENTS 1u
layout(constant_id = 5) const int ALIGNED_A = 0;
layout(constant_id = 6) const int ALIGNED_B = 0;
layout(set = 0, binding = 0, std430) readonly buffer LeftScalars { uint16_t a_scalars[]; };
layout(set = 0, binding = 1, std430) readonly buffer RightScalars { uint16_t b_scalars[]; };
layout(set = 0, binding = 2, std430) writeonly buffer ResultScalars { float16_t c_scalars[]; };
layout(set = 0, binding = 4, std430) readonly buffer ResidualScalars { float16_t residual_scalars[]; };
#else
#define ELEMENTS 8u
#endif
layout(set = 0, binding = 2, std430) writeonly buffer Result { f16vec4 c_data[]; };
layout(set = 0, binding = 3, std430) readonly buffer Bias { float16_t bias_data[]; };
#ifdef DTYPE_bfloat16
layout(set = 0, binding = 4, std430) readonly buffer Residual { uvec2 residual_data[]; };  // bfloat16 fours are read one by one
#else
layout(set = 0, binding = 4, std430) readonly buffer Residual { f16vec4 residual_data[]; };
#endif
#endif

#define FINISH_BINDING 7
#include "epilogue.glsl"
#include "splits.glsl"

// After the last panel it holds the results that leave.
const int LEAVING = SUBGROUPS_M * SUBGROUPS_N * LEAVE_STRIDE;  // a row of each subgroup
const int LEAVE_HALF = WM % (2 * MATRIX_M) == 0 && WM / 2 * LEAVING <= PANEL ? WM / 2 : MATRIX_M;
const int LEAVE_ROWS = WM * LEAVING <= PANEL ? WM : LEAVE_HALF;
// Rows that a subgroup takes up at a time, and in one piece of code: a long piece, run once, comes slower than it is done.
const int LEAVE_STEP = SUBGROUP / (LEAVE / 4);
const int MADE_ROWS = min(4 * LEAVE_STEP, LEAVE_ROWS);
const int MADE_STEPS = MADE_ROWS / LEAVE_STEP;
shared uvec4 panels[PANEL > LEAVE_ROWS * LEAVING ? PANEL : LEAVE_ROWS * LEAVING];

#define FRAGMENT_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FRAGMENT_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define FRAGMENT_C coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

#ifdef SPLIT
// x * 2^power, in two steps because the power of two alone may be out of range.
float scaled(float x, int power) {
    int first = clamp(power, -252, 252) / 2;
    int second = clamp(power, -252, 252) - first;
    return x * uintBitsToFloat(uint(first + 127) << 23) * uintBitsToFloat(uint(second + 127) << 23);
}
#endif

void main() {
    const int rows = int(pc.rows);
    const int cols = int(pc.cols);
    const uint depth = pc.depth;
#ifdef SPLIT
    const uint tail = (depth + 31u) / 32u * 8u;  // vectors before a row's exponent
    const uint a_stride = pc.a_row / ELEMENTS;
    const uint b_stride = pc.b_row / ELEMENTS;
    const uint all_vectors = tail;
#else
    const uint a_stride = pc.a_row / ELEMENTS;
    const uint b_stride = pc.b_row / ELEMENTS;
    const uint all_vectors = (depth + 7u) / 8u;
#endif
    const uint row_blocks = (pc.rows + uint(BM) - 1u) / uint(BM);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z / uint(SPLITS);
    const uint split = gl_WorkGroupID.z % uint(SPLITS);
    const uint share = (all_vectors + uint(SPLITS * VECTORS) - 1u) / uint(SPLITS * VECTORS) * uint(VECTORS);
    const uint own_first = split * share;
    const uint row_vectors = min(own_first + share, all_vectors);
    FIND_BAND(row_blocks)
    const int row_first = int(band + turn % band_rows) * BM;
    const int col_first = int(turn / band_rows) * BN;
    const uint a_first = (pc.a_offset + batch * pc.a_batch + head * pc.a_head) / ELEMENTS;
    const uint b_first = (pc.b_offset + batch * pc.b_batch + (head / pc.group) * pc.b_head) / ELEMENTS;

    const int thread = int(gl_LocalInvocationIndex);
    // Eight invocations write 128 bytes at once. Rows of four vectors lie five apart, so that of two such rows no two vectors
    // are in one bank where the rows are four apart.
    const int load_row = VECTORS == 4 ? thread / 32 * 8 + thread / 8 % 4 + thread / 4 % 2 * 4 : thread / VECTORS;
    const int load_vector = thread % VECTORS;
#ifdef SPLIT
    // In memory high and low vectors alternate; in a panel all high ones of a row come first.
    const int store_vector = load_vector % 2 * (VECTORS / 2) + load_vector / 2;
#else
    const int store_vector = load_vector;
#endif
    const int store_at = load_row * STRIDE + store_vector;
    // Rows past the end are computed from the last one and not stored: no test inside the loop.
#define A_ROW(l) (WHOLE != 0 ? row_first + load_row + (l) * ROWS_AT_ONCE : min(row_first + load_row + (l) * ROWS_AT_ONCE, rows - 1))
#define B_ROW(l) (WHOLE != 0 ? col_first + load_row + (l) * ROWS_AT_ONCE : min(col_first + load_row + (l) * ROWS_AT_ONCE, cols - 1))
    // Of a transposed panel, whose rows have WIDE elements: the row and the vector of load l.
#define TRANSPOSED_ROW(l, WIDE) ((thread + (l) * THREADS) / ((WIDE) / 8))
#define TRANSPOSED_VECTOR(l, WIDE) ((thread + (l) * THREADS) % ((WIDE) / 8))
#ifdef UNALIGNED
#define TRANSPOSED_AT(l, WIDE, first, step, begin, end) \
    first + uint(TRANSPOSED_ROW(l, WIDE)) * step + uint(min((begin) + 8 * TRANSPOSED_VECTOR(l, WIDE), (end) - 1 & ~7))
#else
#define TRANSPOSED_AT(l, WIDE, first, step, begin, end) \
    first + uint(TRANSPOSED_ROW(l, WIDE)) * step + uint(min((begin) / 8 + TRANSPOSED_VECTOR(l, WIDE), (end) / 8 - 1))
#endif
#ifdef SPLIT
    const uint vector = 1u;
#else
    const uint vector = 8u / ELEMENTS;  // how far apart vectors of a row are
#endif
    uint a_at[LOADS_A];
    uint b_at[LOADS_B];
    [[unroll]] for (int l = 0; l < LOADS_A; l++) {
        a_at[l] = TRANSPOSED_A != 0 ? TRANSPOSED_AT(l, BM, a_first, a_stride, row_first, rows)
                                : a_first + uint(A_ROW(l)) * a_stride + uint(load_vector) * vector;
    }
    [[unroll]] for (int l = 0; l < LOADS_B; l++) {
        b_at[l] = TRANSPOSED_B != 0 ? TRANSPOSED_AT(l, BN, b_first, b_stride, col_first, cols)
                                : b_first + uint(B_ROW(l)) * b_stride + uint(load_vector) * vector;
    }

    uvec4 next_a[LOADS_A];
    uvec4 next_b[LOADS_B];
    // What the depth has at a vector of it, turned at eight rows, is so far apart.
    const uint a_along = TRANSPOSED_A != 0 ? 8u * a_stride : vector;
    const uint b_along = TRANSPOSED_B != 0 ? 8u * b_stride : vector;
#define INSIDE(TRANSPOSED, l, WIDE, first) \
    (TRANSPOSED != 0 ? 8u * (first) + uint(TRANSPOSED_ROW(l, WIDE)) < 8u * row_vectors : (first) + uint(load_vector) < row_vectors)
#ifdef UNALIGNED
    // Eight elements that begin anywhere, of the two vectors that they lie in.
#define EIGHT(DATA, ALIGNED, at, WORD) \
    if (ALIGNED != 0) { \
        WORD = DATA[(at) / 8u]; \
    } else { \
        const uvec4 low = DATA[(at) / 8u], high = DATA[(at) / 8u + 1u]; \
        const uvec4 half_low = ((at) & 4u) != 0u ? uvec4(low.zw, high.xy) : low; \
        const uvec2 half_high = ((at) & 4u) != 0u ? high.zw : high.xy; \
        const uvec4 words = ((at) & 2u) != 0u ? uvec4(half_low.yzw, half_high.x) : half_low; \
        const uint behind = ((at) & 2u) != 0u ? half_high.y : half_high.x; \
        WORD = ((at) & 1u) != 0u ? words >> 16 | uvec4(words.yzw, behind) << 16 : words; \
    }
    // At the end of the depth: zeros behind it, and no vector that ends behind the array, of which devices may read nothing.
#define EIGHT_AT_END(SCALARS, TRANSPOSED, l, WIDE, first, at, WORD) { \
    const uint place = 8u * (first) + (TRANSPOSED != 0 ? uint(TRANSPOSED_ROW(l, WIDE)) : 8u * uint(load_vector)); \
    const uint within = min(8u * row_vectors, depth); \
    WORD = uvec4(0u); \
    [[unroll]] for (uint e = 0u; e < 8u; e++) { \
        if (place + (TRANSPOSED != 0 ? 0u : e) < within) { \
            WORD[e / 2u] |= uint(SCALARS[min((at) + e, uint(SCALARS.length()) - 1u)]) << 16u * (e % 2u); \
        } \
    } \
}
#define FETCH(first) { \
    if (8u * ((first) + uint(VECTORS) + 1u) <= depth && (first) + uint(VECTORS) <= row_vectors) { \
        [[unroll]] for (int l = 0; l < LOADS_A; l++) EIGHT(a_data, ALIGNED_A, a_at[l] + (first) * a_along, next_a[l]) \
        [[unroll]] for (int l = 0; l < LOADS_B; l++) EIGHT(b_data, ALIGNED_B, b_at[l] + (first) * b_along, next_b[l]) \
    } else { \
        [[unroll]] for (int l = 0; l < LOADS_A; l++) \
            EIGHT_AT_END(a_scalars, TRANSPOSED_A, l, BM, first, a_at[l] + (first) * a_along, next_a[l]) \
        [[unroll]] for (int l = 0; l < LOADS_B; l++) \
            EIGHT_AT_END(b_scalars, TRANSPOSED_B, l, BN, first, b_at[l] + (first) * b_along, next_b[l]) \
    } \
}
#else
#define FETCH_INSIDE(first) { \
    [[unroll]] for (int l = 0; l < LOADS_A; l++) \
        next_a[l] = INSIDE(TRANSPOSED_A, l, BM, first) ? a_data[a_at[l] + (first) * a_along] : uvec4(0u); \
    [[unroll]] for (int l = 0; l < LOADS_B; l++) \
        next_b[l] = INSIDE(TRANSPOSED_B, l, BN, first) ? b_data[b_at[l] + (first) * b_along] : uvec4(0u); \
}
#ifdef SPLIT
#define FETCH(first) FETCH_INSIDE(first)
#else
    // A whole panel asks for none of its vectors.
#define FETCH(first) { \
    if ((first) + uint(VECTORS) <= row_vectors) { \
        [[unroll]] for (int l = 0; l < LOADS_A; l++) next_a[l] = a_data[a_at[l] + (first) * a_along]; \
        [[unroll]] for (int l = 0; l < LOADS_B; l++) next_b[l] = b_data[b_at[l] + (first) * b_along]; \
    } else FETCH_INSIDE(first) \
}
#endif
#endif
#define STORED_AT(TRANSPOSED, l, WIDE, TRANSPOSED_STRIDE) \
    (TRANSPOSED != 0 ? TRANSPOSED_ROW(l, WIDE) * TRANSPOSED_STRIDE + TRANSPOSED_VECTOR(l, WIDE) : store_at + (l) * ROWS_AT_ONCE * STRIDE)
#define STORE { \
    [[unroll]] for (int l = 0; l < LOADS_A; l++) \
        panels[STORED_AT(TRANSPOSED_A, l, BM, TRANSPOSED_STRIDE_A)] = next_a[l]; \
    [[unroll]] for (int l = 0; l < LOADS_B; l++) \
        panels[PANEL_B + STORED_AT(TRANSPOSED_B, l, BN, TRANSPOSED_STRIDE_B)] = next_b[l]; \
}

    const int own_row = int(gl_SubgroupID) % SUBGROUPS_M * WM;
    const int own_col = int(gl_SubgroupID) / SUBGROUPS_M * WN;
    FRAGMENT_C sum[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) {
        [[unroll]] for (int j = 0; j < FRAGMENTS_N; j++) sum[i][j] = FRAGMENT_C(0.0);
    }

#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor
#define LOAD(fragment, TRANSPOSED, first, at, k, TRANSPOSED_STRIDE, LAYOUT, TRANSPOSED_LAYOUT) \
    if (TRANSPOSED != 0) { \
        coopMatLoad(fragment, panels, (first) + (k) * TRANSPOSED_STRIDE + (at) / 8, TRANSPOSED_STRIDE, TRANSPOSED_LAYOUT); \
    } else { \
        coopMatLoad(fragment, panels, (first) + (at) * STRIDE + (k) / 8, STRIDE, LAYOUT); \
    }
#define LOAD_A(fragment, i, k) \
    LOAD(fragment, TRANSPOSED_A, 0, own_row + (i) * MATRIX_M, k, TRANSPOSED_STRIDE_A, ROW_MAJOR, COLUMN_MAJOR)
#define LOAD_B(fragment, j, k) \
    LOAD(fragment, TRANSPOSED_B, PANEL_B, own_col + (j) * MATRIX_N, k, TRANSPOSED_STRIDE_B, COLUMN_MAJOR, ROW_MAJOR)
#ifdef SPLIT
    // a[i][k][0] is high, a[i][k][1] low.
#define MULTIPLY { \
    FRAGMENT_A a[FRAGMENTS_M][BK / MATRIX_K][2]; \
    [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) { \
        [[unroll]] for (int k = 0; k < BK / MATRIX_K; k++) { \
            LOAD_A(a[i][k][0], i, k * MATRIX_K) \
            LOAD_A(a[i][k][1], i, k * MATRIX_K + BK) \
        } \
    } \
    [[unroll]] for (int j = 0; j < FRAGMENTS_N; j++) { \
        FRAGMENT_B b[BK / MATRIX_K][2]; \
        [[unroll]] for (int k = 0; k < BK / MATRIX_K; k++) { \
            LOAD_B(b[k][0], j, k * MATRIX_K) \
            LOAD_B(b[k][1], j, k * MATRIX_K + BK) \
        } \
        [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) { \
            FRAGMENT_C part = FRAGMENT_C(0.0); \
            [[unroll]] for (int k = 0; k < BK / MATRIX_K; k++) { \
                part = coopMatMulAdd(a[i][k][1], b[k][0], part); \
                part = coopMatMulAdd(a[i][k][0], b[k][1], part); \
            } \
            [[unroll]] for (int k = 0; k < BK / MATRIX_K; k++) part = coopMatMulAdd(a[i][k][0], b[k][0], part); \
            sum[i][j] = sum[i][j] + part; \
        } \
    } \
}
#else
#define MULTIPLY { \
    [[unroll]] for (int k = 0; k < BK; k += MATRIX_K) { \
        FRAGMENT_A a[FRAGMENTS_M]; \
        [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) LOAD_A(a[i], i, k) \
        [[unroll]] for (int j = 0; j < FRAGMENTS_N; j++) { \
            FRAGMENT_B b; \
            LOAD_B(b, j, k) \
            [[unroll]] for (int i = 0; i < FRAGMENTS_M; i++) sum[i][j] = coopMatMulAdd(a[i], b, sum[i][j]); \
        } \
    } \
}
#endif

#ifdef SPLIT
#define COLUMN_POWER(col, col_power, e) col_power[e] = int(b_data[b_first + uint(col) * b_stride + tail].x);
#else
#define COLUMN_POWER(col, col_power, e)
#endif
    // What belongs to four columns.
#define OF_COLUMNS(col, bias, col_power) \
    vec4 bias = vec4(0.0); \
    ivec4 col_power = ivec4(0); \
    [[unroll]] for (int e = 0; e < 4; e++) { \
        const int near_col = min((col) + e, cols - 1); \
        if (HAS_BIAS == 1) bias[e] = float(bias_data[pc.bias_offset + uint(near_col)]); \
        COLUMN_POWER(near_col, col_power, e) \
    }

    const int lane = int(gl_SubgroupInvocationID);
    const int leave_at = int(gl_SubgroupID) * LEAVE_ROWS * LEAVE_STRIDE;
    const int lane_col = lane % (LEAVE / 4) * 4;
    const int lane_row = lane / (LEAVE / 4);
    vec4 biases[WN / LEAVE];
    ivec4 col_powers[WN / LEAVE];
#define OF_ALL_COLUMNS \
    [[unroll]] for (int j = 0; j < WN; j += LEAVE) { \
        OF_COLUMNS(col_first + own_col + j + lane_col, bias, col_power) \
        biases[j / LEAVE] = bias; \
        col_powers[j / LEAVE] = col_power; \
    }
#ifdef BIAS_FIRST
    OF_ALL_COLUMNS
#endif

    FETCH(own_first)
#ifdef SPLIT
    // With a barrier between what is fetched and the fragments Intel's compiler does not spill.
    for (uint first = own_first; first < row_vectors; first += uint(VECTORS)) {
        STORE
        FETCH(first + uint(VECTORS))
        barrier();
        MULTIPLY
        barrier();
    }
#else
    STORE
    barrier();
    // What is fetched is stored in the same turn: kept for the next, each register would be copied.
    for (uint first = own_first; first < row_vectors; first += uint(VECTORS)) {
        FETCH(first + uint(VECTORS))
        MULTIPLY
        barrier();
        STORE
        barrier();
    }
#endif

    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const uint residual_first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;
#define RESIDUAL_AT(row, col) (residual_first + uint(row) * pc.residual_row + uint(col))
    // A result is made wherever it lies and kept where it is of y: with a test around all of it, each would wait for the one
    // before. What it takes from memory past the end is that of the last row or columns.
#if defined(SPLIT) || defined(UNALIGNED)
#define NEAR_COL(col, e) min((col) + (e), cols - 1)
    const bool vectors = ((c_first | pc.c_row | pc.cols) & 3u) == 0u;
#else
#define NEAR_COL(col, e) (min(col, cols - 4) + (e))
#endif
#ifdef SPLIT
#define ROUNDED_FOUR(value) const vec4 four = value;
#else
#define ROUNDED_FOUR(value) const f16vec4 four = f16vec4(ROUNDED(value));
#endif
    // The residual of four results is read as FOUR.
#if defined(SPLIT)
#define FOUR vec4
#define NUMBERS(four) four
#elif defined(DTYPE_bfloat16) && !defined(UNALIGNED)
#define FOUR uvec2
#define NUMBERS(four) uintBitsToFloat(uvec4(four.x << 16, four.x & 0xffff0000u, four.y << 16, four.y & 0xffff0000u))
#else
#define FOUR f16vec4
#define NUMBERS(four) vec4(four)
#endif
#if defined(SPLIT) || defined(UNALIGNED)
#define READ_ADDED(four, row, col) { \
    [[unroll]] for (int e = 0; e < 4; e++) four[e] = residual_scalars[RESIDUAL_AT(min(row, rows - 1), NEAR_COL(col, e))]; \
}
#else
#define READ_ADDED(four, row, col) four = residual_data[RESIDUAL_AT(min(row, rows - 1), NEAR_COL(col, 0)) / 4u];
#endif
    // With what stands behind.
#define FINISH(row, col, value) \
    if (FINISHED == 1u) { \
        ROUNDED_FOUR(value) \
        const uint line = c_first - pc.c_offset + uint(min(row, rows - 1)) * pc.c_row; \
        if (NEAR_COL(col, 0) + 3 == NEAR_COL(col, 3)) { \
            value = vec4(behind(four, line + uint(NEAR_COL(col, 0)), uint(NEAR_COL(col, 0)))); \
        } else { \
            [[unroll]] for (int e = 0; e < 4; e++) { \
                const uint own = uint(NEAR_COL(col, e)); \
                value[e] = float(behind(four[e], line + own, own)); \
            } \
        } \
    }
#ifdef SPLIT
#define MAKE(row, col, value, added, bias, col_power) { \
    const int near_row = min(row, rows - 1); \
    const int row_power = int(a_data[a_first + uint(near_row) * a_stride + tail].x); \
    [[unroll]] for (int e = 0; e < 4; e++) value[e] = scaled(value[e], row_power + col_power[e]); \
    value = activation(value * pc.scale + bias); \
    if (HAS_RESIDUAL == 1) value += NUMBERS(added); \
    FINISH(row, col, value) \
}
#define KEEP(row, col, value) { \
    const uint at = c_first + uint(row) * pc.c_row + uint(col); \
    if (vectors) { \
        c_data[at / 4u] = value; \
    } else { \
        [[unroll]] for (int e = 0; e < 4; e++) if (col + e < cols) c_scalars[at + uint(e)] = value[e]; \
    } \
}
#else
#define MAKE(row, col, value, added, bias, col_power) { \
    value = activation(value * pc.scale + bias); \
    if (HAS_RESIDUAL == 1) value += NUMBERS(added); \
    FINISH(row, col, value) \
}
#ifdef UNALIGNED
#define KEEP(row, col, value) { \
    const f16vec4 four = f16vec4(ROUNDED(value)); \
    const uint at = c_first + uint(row) * pc.c_row + uint(col); \
    if (vectors) { \
        c_data[at / 4u] = four; \
    } else { \
        [[unroll]] for (int e = 0; e < 4; e++) if (col + e < cols) c_scalars[at + uint(e)] = four[e]; \
    } \
}
#else
#define KEEP(row, col, value) c_data[(c_first + uint(row) * pc.c_row + uint(col)) / 4u] = f16vec4(ROUNDED(value));
#endif
#endif
    const uint team = (batch * gl_NumWorkGroups.y + gl_WorkGroupID.y) * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint own_part = (team * uint(SPLITS) + split) * uint(BM * BN);
#ifndef BIAS_FIRST
    OF_ALL_COLUMNS
#endif
    // Read ahead, four numbers of float32 are more registers than Intel's A770 has.
#ifdef SPLIT
#define READS_AHEAD 0
#else
#define READS_AHEAD 1
#endif
#define LEAVE_TILE(WITHIN) \
    [[unroll]] for (int j = 0; j < WN; j += LEAVE) { \
        const int block_col = own_col + j + lane_col; \
        const int col = col_first + block_col; \
        const vec4 bias = biases[j / LEAVE]; \
        const ivec4 col_power = col_powers[j / LEAVE]; \
        [[unroll]] for (int i = 0; i < WM; i += LEAVE_ROWS) { \
            const int first = row_first + own_row + i + lane_row; \
            FOUR next[MADE_STEPS]; \
            if (HAS_RESIDUAL == 1 && SPLITS == 1 && READS_AHEAD == 1) { \
                [[unroll]] for (int n = 0; n < MADE_STEPS; n++) READ_ADDED(next[n], first + n * LEAVE_STEP, col) \
            } \
            [[unroll]] for (int down = 0; down < LEAVE_ROWS; down += MATRIX_M) { \
                [[unroll]] for (int part = 0; part < LEAVE / MATRIX_N; part++) { \
                    coopMatStore( \
                        sum[(i + down) / MATRIX_M][j / MATRIX_N + part], panels, \
                        leave_at + down * LEAVE_STRIDE + part * (MATRIX_N / 4), LEAVE_STRIDE, gl_CooperativeMatrixLayoutRowMajor \
                    ); \
                } \
            } \
            subgroupBarrier(); \
            [[dont_unroll]] for (int steps = 0; steps < LEAVE_ROWS; steps += MADE_ROWS) { \
            FOUR added[MADE_STEPS]; \
            if (READS_AHEAD == 1) { \
                added = next; \
            } else if (HAS_RESIDUAL == 1 && SPLITS == 1) { \
                [[unroll]] for (int n = 0; n < MADE_STEPS; n++) READ_ADDED(added[n], first + steps + n * LEAVE_STEP, col) \
            } \
            if (HAS_RESIDUAL == 1 && SPLITS == 1 && READS_AHEAD == 1 && steps + MADE_ROWS < LEAVE_ROWS) { \
                [[unroll]] for (int n = 0; n < MADE_STEPS; n++) READ_ADDED(next[n], first + steps + MADE_ROWS + n * LEAVE_STEP, col) \
            } \
            [[unroll]] for (int n = 0; n < MADE_STEPS; n++) { \
                const int down = steps + n * LEAVE_STEP + lane_row; \
                const int block_row = own_row + i + down; \
                const int row = row_first + block_row; \
                vec4 value = uintBitsToFloat(panels[leave_at + down * LEAVE_STRIDE + lane_col / 4]); \
                if (SPLITS == 1) { \
                    MAKE(row, col, value, added[n], bias, col_power) \
                    if (WITHIN) KEEP(row, col, value) \
                } else if (WITHIN) { \
                    [[unroll]] for (int e = 0; e < 4; e++) parts[own_part + uint(block_row * BN + block_col + e)] = value[e]; \
                } \
            } \
            } \
            subgroupBarrier(); \
        } \
    }
    // Most tiles lie within y as a whole, and ask for none of their elements. Expressions stand in one of the two.
    if (FINISHED == 0u && (WHOLE != 0 || row_first + BM <= rows && col_first + BN <= cols)) {
        LEAVE_TILE(true)
    } else {
        LEAVE_TILE(row < rows && col < cols)
    }
    if (SPLITS > 1) {
        if (last_of_team(team, uint(SPLITS))) {
            for (int n = 4 * int(gl_LocalInvocationIndex); n < BM * BN; n += 4 * THREADS) {
                const int row = row_first + n / BN;
                const int col = col_first + n % BN;
                if (row < rows && col < cols) {
                    OF_COLUMNS(col, bias, col_power)
                    vec4 value = vec4(0.0);
                    for (uint s = 0u; s < uint(SPLITS); s++) {
                        const uint at = (team * uint(SPLITS) + s) * uint(BM * BN) + uint(n);
                        value += vec4(parts[at], parts[at + 1u], parts[at + 2u], parts[at + 3u]);
                    }
                    FOUR added;
                    if (HAS_RESIDUAL == 1) READ_ADDED(added, row, col)
                    MAKE(row, col, value, added, bias, col_power)
                    KEEP(row, col, value)
                }
            }
        }
    }
}
