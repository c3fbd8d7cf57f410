#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// What it computes: a linear layer, y = activation(scale * x W^T + b) + residual, on matrices that a whole workgroup holds.
// Shapes, layouts, push constants and workgroups: as in linear-matrix.comp, but z is the batch.
//     A workgroup owns BM x BN of y. The driver deals matrices out to invocations and brings them from memory, so there is
//     no shared memory here and no barrier, and what divides a depth has no place: with it the driver spills. UNROLL panels
//     of BK of the depth are one piece of code, then FEWER, then each is one: the driver begins to load a panel while the
//     one before is multiplied, where it sees both.
//     Blocks that lie within y load without a test; others load what lies past the end as zeros, a panel at a time.
// TRANSPOSED_A, TRANSPOSED_B: x is (B, H, K, M), W (K, N).
// Accumulation: float32.
// Preconditions: offsets, strides, K and N, with TRANSPOSED_A M, are multiples of 8.

#include "tensor-matrices.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 3) const int TRANSPOSED_A = 0;
layout(constant_id = 4) const int TRANSPOSED_B = 0;

const uint BAND = 16u;
#include "bands.glsl"

layout(local_size_x = THREADS) in;

#include "linear-push.glsl"

// Vectors of 16 bytes, so that the driver knows how panels and results are aligned.
layout(set = 0, binding = 0, std430) readonly buffer Left { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Right { uvec4 b_data[]; };
layout(set = 0, binding = 2, std430) buffer Result { uvec4 c_data[]; };
layout(set = 0, binding = 3, std430) readonly buffer Bias { float16_t bias_data[]; };
layout(set = 0, binding = 4, std430) readonly buffer Residual { f16vec4 residual_data[]; };

#include "epilogue.glsl"

#define MATRIX_A coopmat<float16_t, gl_ScopeWorkgroup, BM, BK, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeWorkgroup, BK, BN, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
#define NARROW coopmat<float16_t, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>

TENSOR_LOADS(load_a_whole, MATRIX_A, uvec4, Layout)
TENSOR_LOADS(load_a_edge, MATRIX_A, uvec4, ClampedLayout)
TENSOR_LOADS(load_b_whole, MATRIX_B, uvec4, Layout)
TENSOR_LOADS(load_b_edge, MATRIX_B, uvec4, ClampedLayout)
TENSOR_LOADS(load_bias, NARROW, float16_t, ClampedLayout)
TENSOR_LOADS(load_residual, NARROW, f16vec4, ClampedLayout)
TENSOR_STORES(store, NARROW, uvec4, Layout)
TENSOR_STORES(store_edge, NARROW, uvec4, ClampedLayout)

void main() {
    // Multiples of 8, as the driver is to see.
    const uint rows = pc.rows;
    const uint cols = pc.cols / 8u * 8u;
    const uint depth = pc.depth / 8u * 8u;
    const uint row_blocks = (rows + uint(BM) - 1u) / uint(BM);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z;
    FIND_BAND(row_blocks)
    const uint row = (band + turn % band_rows) * uint(BM);
    const uint col = turn / band_rows * uint(BN);

    const uint a_first = (pc.a_offset + batch * pc.a_batch + head * pc.a_head) / 8u;
    const uint b_first = (pc.b_offset + batch * pc.b_batch + (head / pc.group) * pc.b_head) / 8u;
    const uint c_first = (pc.c_offset + batch * pc.c_batch + head * pc.c_head) / 8u;
    const Transposed transposed = new_transposed();

#define SIZES(TRANSPOSED, lines) TRANSPOSED != 0 ? depth : lines, TRANSPOSED != 0 ? lines : depth
    Layout a_layout = with_sizes(new_layout(), SIZES(TRANSPOSED_A, rows));
    Layout b_layout = with_sizes(new_layout(), SIZES(TRANSPOSED_B, cols));
    a_layout = with_steps(a_layout, pc.a_row / 8u * 8u, 1u);
    b_layout = with_steps(b_layout, pc.b_row / 8u * 8u, 1u);
    ClampedLayout a_edge = clamped_sizes(new_clamped_layout(), SIZES(TRANSPOSED_A, rows));
    ClampedLayout b_edge = clamped_sizes(new_clamped_layout(), SIZES(TRANSPOSED_B, cols));
    a_edge = clamped_steps(a_edge, pc.a_row / 8u * 8u, 1u);
    b_edge = clamped_steps(b_edge, pc.b_row / 8u * 8u, 1u);

    SUMS sum = SUMS(0.0);
#define PANEL(EDGE, WITHIN, A, B, k) { \
    MATRIX_A a; \
    MATRIX_B b; \
    if (TRANSPOSED_A != 0) a = load_a_##EDGE##_transposed(a_data[a_first], a, WITHIN(A, k, uint(BK), row, uint(BM)), 0u, 1u, transposed); \
    else a = load_a_##EDGE(a_data[a_first], a, WITHIN(A, row, uint(BM), k, uint(BK)), 0u, 0u); \
    if (TRANSPOSED_B != 0) b = load_b_##EDGE(b_data[b_first], b, WITHIN(B, k, uint(BK), col, uint(BN)), 0u, 0u); \
    else b = load_b_##EDGE##_transposed(b_data[b_first], b, WITHIN(B, col, uint(BN), k, uint(BK)), 0u, 1u, transposed); \
    sum = coopMatMulAdd(a, b, sum); \
}
#define PANELS(many, begin, end) \
    for (uint first = begin; first < end; first += uint(BK * (many))) { \
        [[unroll]] for (uint panel = 0u; panel < uint(many); panel++) { \
            PANEL(whole, within, a_layout, b_layout, first + panel * uint(BK)) \
        } \
    }
    const bool inside = row + uint(BM) <= rows && col + uint(BN) <= cols;
    uint k = 0u;
    if (inside) {
        const uint most = depth / uint(BK * UNROLL) * uint(BK * UNROLL);
        const uint some = depth / uint(BK * FEWER) * uint(BK * FEWER);
        k = depth / uint(BK) * uint(BK);
        PANELS(UNROLL, 0u, most)
        PANELS(FEWER, most, some)
        [[dont_unroll]] PANELS(1, some, k)
    }
    [[dont_unroll]] for (; k < depth; k += uint(BK)) PANEL(edge, clamped_within, a_edge, b_edge, k)

    // Bias and residual come in the shape of the sums, so that an invocation has those of its own elements.
    NARROW bias;
    NARROW residual;
    if (HAS_BIAS == 1) {
        ClampedLayout everywhere = clamped_steps(clamped_sizes(new_clamped_layout(), rows, cols), 0u, 1u);
        bias = load_bias(bias_data[pc.bias_offset], bias, clamped_within(everywhere, row, uint(BM), col, uint(BN)), 0u, 0u);
    }
    if (HAS_RESIDUAL == 1) {
        const uint first = (pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head) / 4u;
        ClampedLayout added = clamped_steps(clamped_sizes(new_clamped_layout(), rows, cols), pc.residual_row, 1u);
        residual = load_residual(residual_data[first], residual, clamped_within(added, row, uint(BM), col, uint(BN)), 0u, 0u);
    }
    [[unroll]] for (int i = 0; i < sum.length(); i++) {
        float value = sum[i] * pc.scale;
        if (HAS_BIAS == 1) value += float(bias[i]);
        value = activation(value);
        if (HAS_RESIDUAL == 1) value += float(residual[i]);
        sum[i] = value;
    }
    const NARROW result = NARROW(sum);
    if (inside) {
        Layout c_layout = with_steps(with_sizes(new_layout(), rows, cols), pc.c_row / 8u * 8u, 1u);
        store(c_data[c_first], result, within(c_layout, row, uint(BM), col, uint(BN)), 0u, 0u);
    } else {
        ClampedLayout c_edge = clamped_steps(clamped_sizes(new_clamped_layout(), rows, cols), pc.c_row / 8u * 8u, 1u);
        store_edge(c_data[c_first], result, clamped_within(c_edge, row, uint(BM), col, uint(BN)), 0u, 0u);
    }
}
