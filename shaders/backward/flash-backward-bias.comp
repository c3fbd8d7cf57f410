#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

// The gradient of what is added to attention scores: dS = P (dP - delta), summed over the axes along which the addend is
// repeated, or along diagonals. The plainest way: each invocation makes the numbers dS that it sums.
//
// Shapes, layouts, bindings, specialization constants and push constants: backward/flash-backward.glsl, but for
//   out_batch, out_head   batches and query heads (B, H); out_offset   the first job
// An element is what dS is summed to: (B or 1, H or 1, queries or 1, keys or 1), or with DIAGONAL
// (B, H, queries + keys - 1), where key - query + queries - 1 is constant. The numbers that an element sums are taken in
// parts of PART, in C order of the axes summed over; result (parts, elements) float32, to be added by
// flash-backward-sum.comp. A job is a tile of THREADS elements of one batch and head of the result, and a part.
// Accumulates in float32. Preconditions: every operand fits its binding.

#define THREADS 64
#include "flash-backward.glsl"

layout(local_size_x = THREADS) in;

layout(constant_id = 8) const int SUM = 0;       // 1 over batches, 2 heads, 4 queries, 8 keys
layout(constant_id = 9) const int DIAGONAL = 0;
layout(constant_id = 10) const int PART = 256;

layout(set = 0, binding = 9, std430) restrict writeonly buffer Parts { float parts_data[]; };

float gradient_of(uint batch, uint head, uint row, uint key) {
    begin_extras(batch, head);
    if (row >= QUERIES || key >= KEY_COUNT || !mask_mod(row, key)) return 0.0;
    uint q = q_base(batch, head) + row * pc.q_row;
    uint k = k_base(batch, head / GROUP) + key * pc.k_row;
    vec4 sum = vec4(0.0);
    for (int d = 0; d < HEAD_DIM; d += 4) sum += load_q4(q + uint(d), HEAD_DIM - d) * load_k4(k + uint(d), HEAD_DIM - d);
    float raw = (sum.x + sum.y) + (sum.z + sum.w);
    uint g = g_base(batch, head) + row * pc.g_row;
    uint v = v_base(batch, head / GROUP) + key * pc.v_row;
    sum = vec4(0.0);
    for (int d = 0; d < VALUE_DIM; d += 4) sum += load_g4(g + uint(d), VALUE_DIM - d) * load_v4(v + uint(d), VALUE_DIM - d);
    float dp = (sum.x + sum.y) + (sum.z + sum.w);
    return pair(batch, head, row, key, key, true, stats_data[stats_base(batch, head) + row].xyz, raw, dp);
}

void main() {
    uint rows = DIAGONAL != 0 || (SUM & 4) != 0 ? 1u : pc.queries;
    uint columns = DIAGONAL != 0 ? pc.queries + pc.keys - 1u : (SUM & 8) != 0 ? 1u : pc.keys;
    uint elements = rows * columns;
    uint tiles = (elements + THREADS - 1u) / THREADS;
    uint heads = (SUM & 2) != 0 ? 1u : pc.out_head;
    uint planes = heads * ((SUM & 1) != 0 ? 1u : pc.out_batch);
    // The axes summed over, and how many numbers that is.
    uint sum_heads = (SUM & 2) != 0 ? pc.out_head : 1u;
    uint sum_rows = DIAGONAL != 0 || (SUM & 4) != 0 ? pc.queries : 1u;
    uint sum_keys = DIAGONAL == 0 && (SUM & 8) != 0 ? pc.keys : 1u;
    uint total = ((SUM & 1) != 0 ? pc.out_batch : 1u) * sum_heads * sum_rows * sum_keys;
    uint parts = (total + PART - 1u) / PART;

    uint job = pc.out_offset + gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint element = job % tiles * THREADS + gl_LocalInvocationIndex;
    uint plane = job / tiles % planes;
    uint part = job / tiles / planes;
    if (element >= elements || part >= parts) return;
    uint row0 = element / columns, column = element % columns;

    float sum = 0.0;
    uint end = min((part + 1u) * PART, total);
    for (uint n = part * PART; n < end; ++n) {
        uint key = n % sum_keys;
        uint row = n / sum_keys % sum_rows;
        uint head = n / sum_keys / sum_rows % sum_heads;
        uint batch = n / sum_keys / sum_rows / sum_heads;
        if ((SUM & 1) == 0) batch = plane / heads;
        if ((SUM & 2) == 0) head = plane % heads;
        if (DIAGONAL != 0) {
            if (row + column + 1u < pc.queries) continue;
            key = row + column + 1u - pc.queries;
            if (key >= pc.keys) continue;
        } else {
            if ((SUM & 4) == 0) row = row0;
            if ((SUM & 8) == 0) key = column;
        }
        sum += gradient_of(batch, head, row, key);
    }
    parts_data[(part * planes + plane) * elements + element] = sum;
}
