#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// What it computes: a convolution without a matrix of windows, on matrix units, for one group:
//     y[n, i, j, o] = b[o] + sum over channels k and places (a, b) of the kernel of
//     x[n, k, h, w] * t[o, a, b, k], with h = i * stride_h - padding_h + a * dilation_h where that is
//     within x, and w alike; else the term is 0.
// Shapes and layouts: x (batch, own, height, width), any strides; t contiguous, in matrices of MATRIX_N outputs and MATRIX_K
//     channels, (tiles of outputs, kernel_h, kernel_w, own / MATRIX_K, MATRIX_N, MATRIX_K); y (batch, out_h, out_w, outputs)
//     contiguous.
// Bindings: 0 x, 1 t, 2 b, 3 y, all of the variant's dtype; 4 r, 5 p (finish.glsl).
// Specialization constants: HAS_BIAS; PLANAR, whether x is read one channel at a time, by invocations that are neighbours along
//     w; PLACES, of the patch of x that a workgroup reads; TAPS, of the kernel; STRIDE, along w; those of
//     finish.glsl: what stands behind.
// Push constants: see the block; offsets and strides in elements. The patch has patch_w places in a row.
// Workgroup: SUBGROUPS * EACH rows and MATRIX_M columns of the output, and a tile of MATRIX_N outputs (x counts the columns for
//     one tile after another, y the rows), of a sample (z). Subgroup: EACH rows.
// Accumulation: float32, MATRIX_K channels after one another, in each the places of the kernel; rounded once, before what stands behind.
// Preconditions: subgroups are full; own is a multiple of MATRIX_K, t_offset of 8. Without PLANAR x_channel is 1, and x_offset
//     and x's other strides are multiples of 8.
// Defines: MATRIX_M, MATRIX_N, MATRIX_K, SUBGROUP, of the device; THREADS, EACH.

#define MATRIX_ELEMENTS
#include "elements.glsl"

layout(constant_id = 0) const uint HAS_BIAS = 0u;
layout(constant_id = 1) const uint PLANAR = 0u;
layout(constant_id = 2) const uint PLACES = 1u;
layout(constant_id = 3) const uint TAPS = 1u;
layout(constant_id = 4) const uint STRIDE = 1u;

layout(local_size_x = THREADS) in;

const uint SUBGROUPS = uint(THREADS) / uint(SUBGROUP);
const uint ROWS = SUBGROUPS * uint(EACH);
const uint WORDS = uint(MATRIX_K) / 8u;  // of 16 bytes, of MATRIX_K channels
const uint APART = WORDS + 1u;  // and one more in shared memory: eight neighbours are in different banks
const uint MATRIX = uint(MATRIX_N) * WORDS;
const uint AT_ONCE = 4u;  // words that an invocation reads before it writes them

layout(push_constant, std430) uniform Push {
    uint out_h, out_w, height, width, kernel_h, kernel_w;
    uint stride_h, padding_h, padding_w, dilation_h, dilation_w;
    uint own, outputs, patch_w;
    uint x_offset, x_batch, x_channel, x_h, x_w, t_offset, b_offset, y_offset;
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer T { uvec4 t_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Bias { float16_t b_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Y { float16_t y_data[]; };
#define FINISH_BINDING 4
#define FINISH_SMALL outputs
#include "finish.glsl"

shared uvec4 patch_data[PLACES * APART];
shared uvec4 weights_data[TAPS * uint(MATRIX_N) * APART];
shared float sums[SUBGROUPS * MATRIX_M * MATRIX_N];

#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

// Conversions to bfloat16 may cut (NVIDIA's do), so they are of numbers that fit.
#if defined(DTYPE_bfloat16)
#define ROUNDED(x) uintBitsToFloat(bfloat16_word(x) << 16)
#else
#define ROUNDED(x) (x)
#endif

uint x_half(uint i) { return x_data[i >> 3][i >> 1 & 3u] >> (i & 1u) * 16u & 0xffffu; }

// Eight channels of a place, the first of which is element i of x.
uvec4 x_word(uint i) {
    if (PLANAR == 0u) return x_data[i >> 3];
    uvec4 found;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        found[k] = x_half(i + 2u * k * pc.x_channel) | x_half(i + (2u * k + 1u) * pc.x_channel) << 16;
    }
    return found;
}

// Channels from `first` on of all places that the workgroup reads; those outside of x are 0. (h, w) is the first place.
void fetch(uint h, uint w, uint first) {
    uint base = pc.x_offset + gl_WorkGroupID.z * pc.x_batch + first * pc.x_channel;
    const uint count = PLACES * WORDS;
    for (uint begin = gl_LocalInvocationIndex; begin < count; begin += AT_ONCE * uint(THREADS)) {
        uvec4 found[AT_ONCE];
        uint to[AT_ONCE];
        [[unroll]] for (uint i = 0u; i < AT_ONCE; i++) {
            uint n = begin + i * uint(THREADS);
            uint place = PLANAR == 1u ? n % PLACES : n / WORDS, word = PLANAR == 1u ? n / PLACES : n % WORDS;
            uint row = place / pc.patch_w;
            uvec2 at = uvec2(h + row, w + place - row * pc.patch_w);  // below 0 wraps to what is beyond any extent
            found[i] = uvec4(0u);
            if (n < count && at.x < pc.height && at.y < pc.width) {
                found[i] = x_word(base + at.x * pc.x_h + at.y * pc.x_w + 8u * word * pc.x_channel);
            }
            to[i] = place * APART + word;
        }
        [[unroll]] for (uint i = 0u; i < AT_ONCE; i++) {
            if (begin + i * uint(THREADS) < count) patch_data[to[i]] = found[i];
        }
    }
}

// The weights of channels from `first` on, for the outputs of a tile.
void fetch_weights(uint tile, uint first) {
    uint tap = pc.own / uint(MATRIX_K) * MATRIX;
    uint from = (pc.t_offset >> 3) + tile * TAPS * tap + first / uint(MATRIX_K) * MATRIX;
    [[unroll]] for (uint begin = 0u; begin < TAPS * MATRIX; begin += uint(THREADS)) {
        uint n = begin + gl_LocalInvocationIndex;
        if (n < TAPS * MATRIX) weights_data[n / WORDS * APART + n % WORDS] = t_data[from + n / MATRIX * tap + n % MATRIX];
    }
}

void main() {
    uint across = (pc.out_w + uint(MATRIX_M) - 1u) / uint(MATRIX_M);
    uint tile = gl_WorkGroupID.x / across, left = (gl_WorkGroupID.x - tile * across) * uint(MATRIX_M);
    uint top = gl_WorkGroupID.y * ROWS, own_row = gl_SubgroupID * uint(EACH);
    SUMS sum[EACH];
    [[unroll]] for (int e = 0; e < EACH; e++) sum[e] = SUMS(0.0);
    for (uint first = 0u; first < pc.own; first += uint(MATRIX_K)) {
        if (first > 0u) barrier();
        fetch(top * pc.stride_h - pc.padding_h, left * STRIDE - pc.padding_w, first);
        fetch_weights(tile, first);
        barrier();
        uint t_at = 0u;
        for (uint a = 0u; a < pc.kernel_h; a++) {
            for (uint b = 0u; b < pc.kernel_w; b++) {
                uint place = (own_row * pc.stride_h + a * pc.dilation_h) * pc.patch_w + b * pc.dilation_w;
                FACTOR_B weights;
                coopMatLoad(weights, weights_data, t_at, APART, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int e = 0; e < EACH; e++) {
                    FACTOR_A x;
                    coopMatLoad(x, patch_data, (place + uint(e) * pc.stride_h * pc.patch_w) * APART, STRIDE * APART,
                                gl_CooperativeMatrixLayoutRowMajor);
                    sum[e] = coopMatMulAdd(x, weights, sum[e]);
                }
                t_at += uint(MATRIX_N) * APART;
            }
        }
    }

    uint lane = gl_SubgroupInvocationID, from = gl_SubgroupID * uint(MATRIX_M * MATRIX_N);
    uint outputs = min(uint(MATRIX_N), pc.outputs - tile * uint(MATRIX_N));
    [[unroll]] for (int e = 0; e < EACH; e++) {
        if (e > 0) barrier();
        coopMatStore(sum[e], sums, from, uint(MATRIX_N), gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        uint row = top + own_row + uint(e);
        uint to = pc.y_offset + ((gl_WorkGroupID.z * pc.out_h + row) * pc.out_w + left) * pc.outputs + tile * uint(MATRIX_N);
        for (uint n = lane; n < uint(MATRIX_M) * outputs; n += uint(SUBGROUP)) {
            uint place = n / outputs, o = n - place * outputs;
            if (row >= pc.out_h || left + place >= pc.out_w) continue;
            float value = sums[from + place * uint(MATRIX_N) + o];
            if (HAS_BIAS == 1u) value += float(b_data[pc.b_offset + tile * uint(MATRIX_N) + o]);
            uint at = to + place * pc.outputs + o;
            y_data[at] = behind(float16_t(ROUNDED(value)), at - pc.y_offset, tile * uint(MATRIX_N) + o);
        }
    }
}
