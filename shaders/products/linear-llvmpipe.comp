#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
// What it computes: products/linear-rows.comp's layer of one or two rows of 16-bit elements, for Mesa's CPU driver. A load
//     is a loop over the lanes there and takes nearly all of the time (docs/benchmarks/lavapipe.md). So each word of W is
//     loaded once and no other is: x is held in registers, and W read from front to back, a column after the other.
// Shapes and layouts: x (B, H, M, K), W (N, K), b (N), y and residual (B, H, M, N), GATED W (2 N, K), b (2 N); push
//     constants as in products/matmul.glsl. x and W are read in words of 32 bytes, four 64-bit integers: a load costs by
//     the number of components, not by their size.
// Specialization constants: HAS_BIAS, those of products/epilogue.glsl, GATED, and
//     ROWS     rows of x of a workgroup      COLUMNS  columns of y of a workgroup
//     WORDS    words of a row of x that an invocation holds; W's loop over them is unrolled
//     RAGGED   1: some words lie past the end of the row
// Workgroup (x, y, z) owns COLUMNS columns of y from x * COLUMNS, ROWS rows from y % row blocks * ROWS, head
//     y / row blocks, batch z.
// Invocation: every 8th word, of all columns; at the end every 8th column.
// Accumulation: float32, words first, then the invocation's words, then invocations.
// Preconditions: subgroups of 8, one a workgroup; offsets, strides and K are multiples of 16, but those of y and b, and N.

#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int ROWS = 1;
layout(constant_id = 2) const int COLUMNS = 8;
layout(constant_id = 3) const int WORDS = 1;
layout(constant_id = 4) const int RAGGED = 0;
layout(constant_id = 12) const int GATED = 0;
layout(local_size_x = 8) in;

const int SUBGROUP = 8;
const int WIDE = 16;  // elements of a word
const int PAIRED = GATED == 1 ? 2 : 1;  // rows of W for a column of y
const int SUMS = COLUMNS * PAIRED;

layout(push_constant, std430) uniform Push {
    uint a_offset, a_batch, a_head, a_row;
    uint b_offset, b_batch, b_head, b_row;
    uint c_offset, c_batch, c_head, c_row;
    uint bias_offset;
    uint rows, cols, depth, group;
    int shift;
    float scale;
    uint residual_offset, residual_batch, residual_head, residual_row;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Left { u64vec4 a_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Right { u64vec4 b_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { IO_SCALAR c_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Residual { IO_SCALAR residual_data[]; };
#include "epilogue.glsl"

shared float sums[ROWS * SUMS];

#if defined(DTYPE_float16)
#define HALVES(bits) unpackHalf2x16(bits)
#else
#define HALVES(bits) uintBitsToFloat(uvec2(bits << 16, bits & 0xffff0000u))
#endif
#define SPREAD(to, at, word) { \
    [[unroll]] for (int part = 0; part < 4; part++) { \
        uvec2 both = unpackUint2x32(word[part]); \
        [[unroll]] for (int side = 0; side < 2; side++) { \
            vec2 pair = HALVES(both[side]); \
            to[(at) + 4 * part + 2 * side] = pair.x; \
            to[(at) + 4 * part + 2 * side + 1] = pair.y; \
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
    const uint a_first = (pc.a_offset + batch * pc.a_batch + head * pc.a_head) / uint(WIDE);
    const uint b_first = (pc.b_offset + batch * pc.b_batch + head / pc.group * pc.b_head) / uint(WIDE);
    const uint own_word = gl_SubgroupInvocationID;
    // Words past the end are the last one, and count as nothing.
    uint at[WORDS];
    [[unroll]] for (int i = 0; i < WORDS; i++) {
        at[i] = own_word + uint(i * SUBGROUP);
        if (RAGGED == 1) at[i] = min(at[i], words - 1u);
    }
    // Rows past the end are computed from the last one and not stored.
    float x[ROWS * WORDS * WIDE];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        const uint row = a_first + min(row_first + uint(r), pc.rows - 1u) * (pc.a_row / uint(WIDE));
        [[unroll]] for (int i = 0; i < WORDS; i++) {
            u64vec4 word = a_data[row + at[i]];
            SPREAD(x, (r * WORDS + i) * WIDE, word)
        }
    }
    // GATED: the columns' gates, then the others.
    for (uint own = 0u; own < uint(SUMS); own++) {
        const uint col = min(col_first + own % uint(COLUMNS), pc.cols - 1u) + own / uint(COLUMNS) * pc.cols;
        const uint row = b_first + col * (pc.b_row / uint(WIDE));
        float sum[ROWS];
        [[unroll]] for (int r = 0; r < ROWS; r++) sum[r] = 0.0;
        [[unroll]] for (int i = 0; i < WORDS; i++) {
            u64vec4 word = b_data[row + at[i]];
            float w[WIDE];
            SPREAD(w, 0, word)
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                float part = x[(r * WORDS + i) * WIDE] * w[0];
                [[unroll]] for (int e = 1; e < WIDE; e++) part = fma(x[(r * WORDS + i) * WIDE + e], w[e], part);
                if (RAGGED == 1) part = own_word + uint(i * SUBGROUP) < words ? part : 0.0;
                sum[r] += part;
            }
        }
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            float total = subgroupAdd(sum[r]);
            if (own_word == 0u) sums[uint(r * SUMS) + own] = total;
        }
    }
    barrier();
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const uint residual_first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;
    for (uint i = gl_LocalInvocationIndex; i < uint(ROWS * COLUMNS); i += uint(SUBGROUP)) {
        const uint own_row = i / uint(COLUMNS), own = i % uint(COLUMNS);
        const uint row = row_first + own_row, col = col_first + own;
        if (row < pc.rows && col < pc.cols) {
            float total[PAIRED];
            [[unroll]] for (int p = 0; p < PAIRED; p++) {
                total[p] = pc.scale * sums[own_row * uint(SUMS) + uint(p * COLUMNS) + own];
                if (HAS_BIAS == 1) total[p] += IO_LOAD(bias_data[pc.bias_offset + uint(p) * pc.cols + col]);
            }
            float value = activation(total[0]);
            if (GATED == 1) value *= total[PAIRED - 1];
            if (HAS_RESIDUAL == 1) value += IO_LOAD(residual_data[residual_first + row * pc.residual_row + col]);
            c_data[c_first + row * pc.c_row + col] = IO_STORE(value);
        }
    }
}
