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
// Packed, queries that are summed over with batches are rows of all sequences, stats_head of them.
// With READS (for FUNCTIONS) dS is multiplied by the derivative by an element of a tensor that the score function reads, and
// places (elements) uint32 are those of the read elements: along the axes summed over they must be one.
// Accumulates in float32. Preconditions: every operand fits its binding.

#define THREADS 64
#include "flash-backward.glsl"

layout(local_size_x = THREADS) in;

layout(constant_id = 8) const int SUM = 0;       // 1 over batches, 2 heads, 4 queries, 8 keys
layout(constant_id = 9) const int DIAGONAL = 0;
layout(constant_id = 10) const int PART = 256;

layout(constant_id = 11) const int READS = 0;

layout(set = 0, binding = 9, std430) restrict writeonly buffer Parts { float parts_data[]; };
#ifdef FUNCTIONS
layout(set = 0, binding = 10, std430) restrict writeonly buffer Places { uint places_data[]; };
uint place;  // of what the pair seen last reads

// dS of a pair, multiplied by the derivative by what it reads.
float read_gradient(float score, float pulled, uint row, uint key) {
    uvec2 found = function_read(score, row, key);
    place = found.y;
    return pulled == 0.0 ? 0.0 : pulled * cap_derivative * uintBitsToFloat(found.x);
}
#endif

// The sequence that a row of all sequences belongs to, or the last one.
uint sequence_of(uint row) {
    uint low = 0u, high = pc.out_batch;
    while (low + 1u < high) {
        uint middle = (low + high) / 2u;
        if (extra_data[parameter(SAMPLES) + 4u * middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

float gradient_of(uint batch, uint head, uint row, uint key) {
    begin_extras(batch, head);
    if (row >= QUERIES || key >= KEY_COUNT || !mask_mod(row, key)) return 0.0;
    uint q = q_base(batch, head) + (row_start() + row) * pc.q_row;
    uint k = k_base(batch, head / GROUP) + (key_start() + key) * pc.k_row;
    vec4 sum = vec4(0.0);
    for (int d = 0; d < HEAD_DIM; d += 4) sum += load_q4(q + uint(d), HEAD_DIM - d) * load_k4(k + uint(d), HEAD_DIM - d);
    float raw = (sum.x + sum.y) + (sum.z + sum.w);
    uint g = g_base(batch, head) + (row_start() + row) * pc.g_row;
    uint v = v_base(batch, head / GROUP) + (key_start() + key) * pc.v_row;
    sum = vec4(0.0);
    for (int d = 0; d < VALUE_DIM; d += 4) sum += load_g4(g + uint(d), VALUE_DIM - d) * load_v4(v + uint(d), VALUE_DIM - d);
    float dp = (sum.x + sum.y) + (sum.z + sum.w);
#ifdef FUNCTIONS
    float score = raw * pc.scale;
#endif
    float pulled = pair(batch, head, row, key, key, true, stats_data[stats_base(batch, head) + row_start() + row].xyz, raw, dp);
#ifdef FUNCTIONS
    if (READS != 0) return read_gradient(score, pulled, row, key);
#endif
    return pulled;
}

void main() {
    uint rows = DIAGONAL != 0 || (SUM & 4) != 0 ? 1u : pc.queries;
    uint columns = DIAGONAL != 0 ? pc.queries + pc.keys - 1u : (SUM & 8) != 0 ? 1u : pc.keys;
    uint elements = rows * columns;
    uint tiles = (elements + THREADS - 1u) / THREADS;
    uint heads = (SUM & 2) != 0 ? 1u : pc.out_head;
    uint planes = heads * ((SUM & 1) != 0 ? 1u : pc.out_batch);
    // The axes summed over, and how many numbers that is.
    bool sums_rows = DIAGONAL != 0 || (SUM & 4) != 0, sums_batches = (SUM & 1) != 0;
    bool packed = sums_rows && sums_batches && on(LENGTHS) && parameter(PACKED) != 0u;
    uint sum_batches = sums_batches && !packed ? pc.out_batch : 1u;
    uint sum_heads = (SUM & 2) != 0 ? pc.out_head : 1u;
    uint sum_rows = packed ? pc.stats_head : sums_rows ? pc.queries : 1u;
    uint sum_keys = DIAGONAL == 0 && (SUM & 8) != 0 ? pc.keys : 1u;
    uint total = sum_batches * sum_heads * sum_rows * sum_keys;
    uint parts = (total + PART - 1u) / PART;

    uint job = pc.out_offset + gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint element = job % tiles * THREADS + gl_LocalInvocationIndex;
    uint plane = job / tiles % planes;
    uint part = job / tiles / planes;
    if (element >= elements || part >= parts) return;
    uint row0 = element / columns, column = element % columns;

#ifdef FUNCTIONS
    hold_function_words();
    place = 0u;
    if (READS != 0 && part == 0u) {
        // Of the element's first pair, and where every pair is an element of its own that one's.
        uint below = pc.queries - 1u;
        begin_extras((SUM & 1) != 0 ? 0u : plane / heads, (SUM & 2) != 0 ? 0u : plane % heads);
        if (DIAGONAL != 0) read_gradient(0.0, 0.0, below - min(column, below), column - min(column, below));
        else read_gradient(0.0, 0.0, row0, column);
        places_data[plane * elements + element] = place;
    }
#endif
    float sum = 0.0;
    uint end = min((part + 1u) * PART, total);
    for (uint n = part * PART; n < end; ++n) {
        uint key = n % sum_keys;
        uint row = n / sum_keys % sum_rows;
        uint head = n / sum_keys / sum_rows % sum_heads;
        uint batch = n / sum_keys / sum_rows / sum_heads;
        if ((SUM & 1) == 0) batch = plane / heads;
        if ((SUM & 2) == 0) head = plane % heads;
        if (packed) {
            batch = sequence_of(row);
            row -= extra_data[parameter(SAMPLES) + 4u * batch];
        }
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
#ifdef FUNCTIONS
    if (READS != 0 && total == 1u) places_data[plane * elements + element] = place;
#endif
    parts_data[(part * planes + plane) * elements + element] = sum;
}
