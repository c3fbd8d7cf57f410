#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: exact attention the plainest way, o = softmax(scale q k^T + mask) v: the on-device oracle, and the
//     last resort where nothing faster can run.
// Shapes and layouts, bindings, specialization constants, push constants: attention/attention.glsl.
// Workgroup: THREADS query rows of one head. Invocation: one row. It walks the keys once for the maximum and the sum of
//     the weights, then once for every CHUNK output columns, computing each score anew rather than keeping any: two
//     running numbers and CHUNK accumulators are all its state, so that it needs no shared memory and spills nowhere.
// Accumulation: float32, exponentials of base 2.
// Preconditions: none beyond the common ones (ALIGN 4: everything a multiple of 4 elements).
// Defines: THREADS, CHUNK (a multiple of 4); ROLLED, where columns must not be unrolled further than below.

#define EXTRAS
#include "attention.glsl"

layout(local_size_x = THREADS) in;

const int QUADS = CHUNK / 4;

// The masked base-2 score of a row against a key. STEP columns are unrolled in one trip of the loop.
float masked_score(uint q_row, uint k_row, uint mask_row, uint row, uint key) {
    if (!mask_mod(row, key)) return NEVER;
    float bias = mask_bias(mask_row + key * pc.mask_key);
    vec4 sum = vec4(0.0);
#if defined(ROLLED)
    [[dont_unroll]]
#endif
    for (int d = 0; d < HEAD_DIM; d += 16) {
        [[unroll]] for (int i = 0; i < 16; i += 4) {
            int count = HEAD_DIM - d - i;
            sum += load_q4(q_row + uint(d + i), count) * load_k4(k_row + uint(d + i), count);
        }
    }
    float product = (sum.x + sum.y) + (sum.z + sum.w);
    float score = product * (pc.scale * LOG2_E);
    if (HAS_SCORE_MOD) score = score_mod(score, row, key);
    return score <= NEVER ? NEVER : biased_score(score, bias);
}

void main() {
    uint row = gl_GlobalInvocationID.x;
    uint head = gl_WorkGroupID.y;
    uint batch = gl_WorkGroupID.z;
    begin_extras(batch, head);
    if (row >= QUERIES) return;

    uint q_row = q_index(batch, head, row_start() + row);
    uint k_first = k_index(batch, head, key_start());
    uint v_first = v_index(batch, head, key_start());
    uint o_row = o_index(batch, head, row_start() + row);
    uint lse_at = lse_index(batch, head, row_start() + row);
    uint mask_row = mask_index(batch, head, row);
    uint first_key = hidden_keys(row);
    uint keys = visible_keys(row, row);

    float maximum = NEVER;
    float total = 0.0;
    for (uint key = first_key; key < keys; key++) {
        float score = masked_score(q_row, k_first + K_PLACE(key), mask_row, row, key);
        if (score > maximum) {
            total *= weight(maximum, score);
            maximum = score;
        }
        total += weight(score, maximum);
    }
    float score_maximum = maximum, decay;
    add_sink(row, maximum, total, decay);
    float lse = row_lse(maximum, total);
    float keep = 0.0;
    float add = 1.0;
    if (MERGE == 1) merge_weights(lse_data[lse_at], lse, keep, add, lse);
    // A NaN score leaves a NaN total, which must show: only a total of exactly zero means that nothing was attended to.
    float factor = total == 0.0 ? 0.0 : add * decay / total;

    for (int first = 0; first < VALUE_DIM; first += CHUNK) {
        vec4 sum[QUADS];
        [[unroll]] for (int i = 0; i < QUADS; i++) sum[i] = vec4(0.0);
        for (uint key = first_key; key < keys; key++) {
            float w = weight(masked_score(q_row, k_first + K_PLACE(key), mask_row, row, key), score_maximum);
            if (w != 0.0) w *= dropout_factor(row, key);
            if (w == 0.0) continue;
            uint v_row = v_first + V_PLACE(key) + uint(first);
            [[unroll]] for (int i = 0; i < QUADS; i++) {
                sum[i] += w * load_v4(v_row + uint(4 * i), VALUE_DIM - first - 4 * i);
            }
        }
        [[unroll]] for (int i = 0; i < QUADS; i++) {
            int count = VALUE_DIM - first - 4 * i;
            uint element = o_row + uint(first + 4 * i);
            vec4 value = total == 0.0 ? vec4(0.0) : sum[i] * factor;
            if (MERGE == 1 && keep != 0.0) value += keep * load_o4(element, count);
            store_o4(element, value, count);
        }
    }
    if (LSE == 1 || MERGE == 1) lse_data[lse_at] = lse;
}
