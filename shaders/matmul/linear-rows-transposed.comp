#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
// What it computes: a linear layer of few rows whose matrix lies transposed, y = activation(scale * x W + b) + residual. W is read
//     once and nothing else weighs.
// Shapes and layouts: x (B, H, M, K), W (K, N), b (N), y and residual (B, H, M, N); push constants as in matmul/matmul.glsl.
//     x and W are read in words of 16 bytes.
// Specialization constants: HAS_BIAS, those of matmul/epilogue.glsl, and
//     ROWS    rows of x of a workgroup
//     SPLITS  workgroups that divide the depth (matmul/splits.glsl)
// Workgroup (x, y, z) owns COLUMNS of y, ROWS rows from y % row blocks, head y / row blocks, batch z / SPLITS, split
//     z % SPLITS of the depth.
// Invocation: a word of W's rows, eight neighbouring rows of every EIGHTS * 8: eight invocations read 128 bytes beside each
//     other.
// Accumulation: float32, eight of the depth first, then the invocation's eights, then invocations and splits.
// Preconditions: offsets, strides, K and N are multiples of 8 (float32: 4).

#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int ROWS = 1;
layout(constant_id = 2) const int SPLITS = 1;

#define THREADS 128
#define ACROSS 8  // invocations beside each other
#define EIGHTS (THREADS / ACROSS)
#if defined(DTYPE_float32)
const int WIDE = 4;  // elements of a word
#else
const int WIDE = 8;
#endif
const int QUADS = WIDE / 4;
const int COLUMNS = ACROSS * WIDE;
const int WORDS = 8 / WIDE;  // of a row of x that eight of the depth take

layout(local_size_x = THREADS) in;

#include "linear-push.glsl"

layout(set = 0, binding = 0, std430) restrict readonly buffer Left { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Right { uvec4 b_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { IO_SCALAR c_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Residual { IO_SCALAR residual_data[]; };
#define FINISH_BINDING 7
#include "epilogue.glsl"
#define REACH gl_ScopeDevice
#include "splits.glsl"

shared vec4 sums[THREADS * QUADS];

#include "fours.glsl"

void finish(uint batch, uint head, uint row, uint col, float value) {
    value *= pc.scale;
    if (HAS_BIAS == 1) value += IO_LOAD(bias_data[pc.bias_offset + col]);
    value = activation(value);
    if (HAS_RESIDUAL == 1) {
        const uint first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;
        value += IO_LOAD(residual_data[first + row * pc.residual_row + col]);
    }
    const uint place = batch * pc.c_batch + head * pc.c_head + row * pc.c_row + col;
    c_data[pc.c_offset + place] = IO_STORE(behind(value, place, col));
}

void main() {
    const uint wide = uint(WIDE);
    const uint row_blocks = (pc.rows + uint(ROWS) - 1u) / uint(ROWS);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z / uint(SPLITS);
    const uint split = gl_WorkGroupID.z % uint(SPLITS);
    const uint row_first = gl_WorkGroupID.y % row_blocks * uint(ROWS);
    const uint col_first = gl_WorkGroupID.x * uint(COLUMNS);
    const uint across = gl_LocalInvocationIndex % ACROSS;
    const uint own = gl_LocalInvocationIndex / ACROSS;
    // Rows and words past the end are computed from the last one and not stored.
    const uint a_first = (pc.a_offset + batch * pc.a_batch + head * pc.a_head) / wide;
    const uint b_stride = pc.b_row / wide;
    const uint b_first = (pc.b_offset + batch * pc.b_batch + head / pc.group * pc.b_head) / wide +
        min(col_first / wide + across, pc.cols / wide - 1u);
    uint a_at[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) a_at[r] = a_first + min(row_first + uint(r), pc.rows - 1u) * (pc.a_row / wide);

    vec4 sum[ROWS * QUADS];
    [[unroll]] for (int i = 0; i < ROWS * QUADS; i++) sum[i] = vec4(0.0);
    const uint eights = (pc.depth + 7u) / 8u;
    const uint share = (eights + uint(SPLITS) - 1u) / uint(SPLITS);
    const uint end = min(split * share + share, eights);
    for (uint eight = split * share + own; eight < end; eight += EIGHTS) {
        uvec4 held[8];
        [[unroll]] for (int k = 0; k < 8; k++) held[k] = b_data[b_first + min(8u * eight + uint(k), pc.depth - 1u) * b_stride];
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            vec4 part[QUADS];
            [[unroll]] for (int i = 0; i < QUADS; i++) part[i] = vec4(0.0);
            [[unroll]] for (int w = 0; w < WORDS; w++) {
                // Of float32 the last word may be past the end.
                const uint at = eight * uint(WORDS) + uint(w);
                const uvec4 word = WORDS == 1 || at * wide < pc.depth ? a_data[a_at[r] + at] : uvec4(0u);
                [[unroll]] for (int e = 0; e < WIDE; e++) {
                    const float x = quad(word, e / 4)[e % 4];
                    [[unroll]] for (int i = 0; i < QUADS; i++) part[i] = fma(vec4(x), quad(held[w * WIDE + e], i), part[i]);
                }
            }
            [[unroll]] for (int i = 0; i < QUADS; i++) sum[r * QUADS + i] += part[i];
        }
    }

    const uint team = (batch * gl_NumWorkGroups.y + gl_WorkGroupID.y) * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint col = col_first + gl_LocalInvocationIndex;
    const bool ends = gl_LocalInvocationIndex < uint(COLUMNS) && col < pc.cols;
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        if (r > 0) barrier();
        [[unroll]] for (int i = 0; i < QUADS; i++) sums[gl_LocalInvocationIndex * uint(QUADS) + uint(i)] = sum[r * QUADS + i];
        barrier();
        if (ends) {
            float value = 0.0;
            for (uint n = 0u; n < EIGHTS; n++) {
                value += sums[(n * uint(COLUMNS) + gl_LocalInvocationIndex) / 4u][gl_LocalInvocationIndex % 4u];
            }
            if (SPLITS == 1) {
                if (row_first + uint(r) < pc.rows) finish(batch, head, row_first + uint(r), col, value);
            } else {
                parts[((team * uint(SPLITS) + split) * uint(ROWS) + uint(r)) * uint(COLUMNS) + gl_LocalInvocationIndex] = value;
            }
        }
    }
    if (SPLITS > 1) {
        if (last_of_team(team, uint(SPLITS))) {
            for (uint n = gl_LocalInvocationIndex; n < uint(ROWS * COLUMNS); n += THREADS) {
                const uint row = row_first + n / uint(COLUMNS);
                const uint own_col = col_first + n % uint(COLUMNS);
                if (row < pc.rows && own_col < pc.cols) {
                    float value = 0.0;
                    for (uint s = 0u; s < uint(SPLITS); s++) value += parts[(team * uint(SPLITS) + s) * uint(ROWS * COLUMNS) + n];
                    finish(batch, head, row, own_col, value);
                }
            }
        }
    }
}
