#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// What it computes: attention of few query rows, for Mesa's CPU driver, where q, k and v are read as texels of 16 bytes
//     (docs/benchmarks/lavapipe.md says why). Nothing is split: a workgroup has all keys of its rows.
// Shapes and layouts, bindings, push constants: attention/attention.glsl with ALIGN 8 and TEXELS, but o is written as
//     4-vectors; attention/extras.glsl without tiles.
// Specialization constants: HEAD_DIM, VALUE_DIM, MASK, CAUSAL, LSE and FEATURES as there, MERGE unused, and
//     ROWS   query rows of a workgroup
//     LONG   1: sums go in blocks, so that their rounding does not grow with the keys; it takes up to twice the time
// Workgroup (x, y, z) owns key head y, batch z, and ROWS of the group * queries rows that share the key head, from
//     ROWS * x. Rows are numbered query by query, and in it head by head.
// Invocation: of a trip's eight keys one, for scores; then every eighth word of an output row, for values. So neither
//     products nor values are added across invocations, but the sums of weights at the end.
// Accumulation: float32, exponentials of base 2.
// Preconditions: subgroups of 8, one a workgroup; offsets, strides and dimensions of q, k and v are multiples of 8
//     elements (float32: 4).

#define ALIGN 8
#define TEXELS
#define EXTRAS
#define WITHOUT_TILES
#define O_ELEMENT IO_VECTOR
#include "attention/attention.glsl"

layout(constant_id = 12) const int ROWS = 1;
layout(constant_id = 13) const int LONG = 0;
layout(local_size_x = 8) in;

const int KEYS = 8;  // of a trip
const int FOUR = 4;
const uint BLOCK = 512u;  // keys whose weighted values are summed on their own where LONG says so
#if defined(DTYPE_float32)
const int WIDE = 4;  // elements of a texel
#else
const int WIDE = 8;
#endif
const int QUADS = WIDE / 4;
const int K_WORDS = HEAD_DIM / WIDE;
const int V_WORDS = (VALUE_DIM / WIDE + 7) / 8;  // words of an output row that an invocation has
const int Q_WORDS = (HEAD_DIM / WIDE + 7) / 8;

// As in flash-decode.comp.
const float LOWEST = -3.2e38;
bool some_hidden() { return CAUSAL == 1 || (FEATURES & (WINDOW | PREFIX | SEGMENTS | BLOCKS)) != 0; }
bool all_count() { return MASK == 0 && !some_hidden() && (FEATURES & (BIAS | DROPOUT)) == 0; }

#include "fours.glsl"

// What the functions of extras.glsl read of the head that a row belongs to.
float slopes[ROWS];
uint biases[ROWS];
uint heads[ROWS];
void turn_to(int r) {
    if (on(ALIBI)) x_slope = slopes[r];
    if (on(BIAS)) x_bias = biases[r];
    x_head = heads[r];
}

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const uint rows = pc.queries * pc.group;
    const uint first_row = gl_WorkGroupID.x * uint(ROWS);
    const uint key_head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    begin_extras(batch, key_head * pc.group);
    const uint first_query = first_row / pc.group;
    if (on(LENGTHS) && first_query >= QUERIES) return;
    const uint last_query = min((min(first_row + uint(ROWS), rows) - 1u) / pc.group, QUERIES - 1u);
    const uint seen = visible_keys(first_query, last_query);
    const uint last = max(seen, 1u) - 1u;

    const uint k_stride = pc.k_row / uint(WIDE);
    const uint v_stride = pc.v_row / uint(WIDE);
    const uint k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / uint(WIDE) + key_start() * k_stride;
    const uint v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / uint(WIDE) + key_start() * v_stride;

    float q[ROWS * HEAD_DIM];  // every invocation has all of it
    uint mask_rows[ROWS], queries[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        const uint row = min(first_row + uint(r), rows - 1u);
        const uint query = min(row / pc.group, QUERIES - 1u);
        const uint head = key_head * pc.group + row % pc.group;
        const uint origin = q_index(batch, head, row_start() + query) / uint(WIDE);
        [[unroll]] for (int c = 0; c < Q_WORDS; c++) {
            uvec4 word = texelFetch(q_data, int(origin + min(uint(8 * c) + lane, uint(K_WORDS - 1))));
            [[unroll]] for (int i = 0; i < QUADS; i++) {
                vec4 four = quad(word, i) * (pc.scale * LOG2_E);
                [[unroll]] for (int l = 0; l < 8; l++) {
                    const int d = (8 * c + l) * WIDE + 4 * i;
                    if (d < HEAD_DIM) {
                        [[unroll]] for (int e = 0; e < 4; e++) q[r * HEAD_DIM + d + e] = subgroupShuffle(four[e], uint(l));
                    }
                }
            }
        }
        mask_rows[r] = MASK == 0 ? 0u : mask_index(batch, head, query);
        queries[r] = query;
        if (FEATURES != 0) {
            begin_extras(batch, head);
            if (on(ALIBI)) slopes[r] = x_slope;
            if (on(BIAS)) biases[r] = x_bias;
            heads[r] = x_head;
        }
    }

    // The weighted values, and those of the block's keys; the same of the weights of the invocation's own keys.
    float o[ROWS * V_WORDS * WIDE], acc[ROWS * V_WORDS * WIDE];
    float whole[ROWS], total[ROWS];
    float maximum[ROWS], former[ROWS];  // of all keys so far, the same in every invocation; and before the block
    [[unroll]] for (int i = 0; i < ROWS * V_WORDS * WIDE; i++) o[i] = acc[i] = 0.0;
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        maximum[r] = former[r] = LOWEST;
        whole[r] = total[r] = 0.0;
    }

    uint first = hidden_keys(first_query);
    while (first < seen) {
        const uint stop = min(first + BLOCK, seen);
        do {
            const uint key = min(first + lane, last);
            const uint k_at = k_origin + (on(PAGED) ? K_PLACE(key) / uint(WIDE) : key * k_stride);
            const uint v_row = on(PAGED) ? V_PLACE(key) / uint(WIDE) : key * v_stride;
            float score[ROWS];
            [[unroll]] for (int r = 0; r < ROWS; r++) score[r] = 0.0;
            [[unroll]] for (int c = 0; c < K_WORDS; c++) {
                uvec4 word = texelFetch(k_data, int(k_at) + c);
                [[unroll]] for (int i = 0; i < QUADS; i++) {
                    vec4 k = quad(word, i);
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        const int d = r * HEAD_DIM + c * WIDE + 4 * i;
                        score[r] += (q[d] * k.x + q[d + 1] * k.y) + (q[d + 2] * k.z + q[d + 3] * k.w);
                    }
                }
            }
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                float modified = score[r];
                if (FEATURES != 0) turn_to(r);
                if (HAS_SCORE_MOD) modified = score_mod(modified, queries[r], key);
                if (MASK != 0) {
                    float bias = mask_bias(mask_rows[r] + key * pc.mask_key);
                    modified = modified <= NEVER ? NEVER : biased_score(modified, bias);
                }
                bool hidden = first + lane > last;
                if (some_hidden()) hidden = hidden || !mask_mod(queries[r], key);
                modified = hidden ? NEVER : modified;
                const float top = max(maximum[r], subgroupMax(modified));
                const float factor = exp2(maximum[r] - top);
                maximum[r] = top;
                float w = exp2(modified - top);
                total[r] = total[r] * factor + w;
                [[unroll]] for (int i = 0; i < V_WORDS * WIDE; i++) acc[r * V_WORDS * WIDE + i] *= factor;
                if (on(DROPOUT)) w *= w != 0.0 ? dropout_factor(queries[r], first + lane) : 1.0;
                score[r] = w;
            }
            // Products of four keys are added before the sum is, so that its rounding grows with a quarter of the keys.
            [[unroll]] for (int j = 0; j < KEYS; j += FOUR) {
                uint v_at[FOUR];
                [[unroll]] for (int n = 0; n < FOUR; n++) {
                    v_at[n] = v_origin
                    + (on(PAGED) ? subgroupShuffle(v_row, uint(j + n)) : min(first + uint(j + n), last) * v_stride);
                }
                [[unroll]] for (int c = 0; c < V_WORDS; c++) {
                    float v[FOUR * WIDE];
                    [[unroll]] for (int n = 0; n < FOUR; n++) {
                        uvec4 word = texelFetch(v_data, int(v_at[n] + min(uint(8 * c) + lane, uint(VALUE_DIM / WIDE - 1))));
                        // A key past the end stands for the last one, whose values may not be finite.
                        if (first + uint(j + n) > last) word = uvec4(0u);
                        [[unroll]] for (int i = 0; i < QUADS; i++) {
                            vec4 four = quad(word, i);
                            [[unroll]] for (int e = 0; e < 4; e++) v[n * WIDE + 4 * i + e] = four[e];
                        }
                    }
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        float w[FOUR];
                        [[unroll]] for (int n = 0; n < FOUR; n++) w[n] = subgroupShuffle(score[r], uint(j + n));
                        [[unroll]] for (int e = 0; e < WIDE; e++) {
                            float part[FOUR];
                            [[unroll]] for (int n = 0; n < FOUR; n++) {
                                part[n] = all_count() || w[n] != 0.0 ? w[n] * v[n * WIDE + e] : 0.0;
                            }
                            acc[(r * V_WORDS + c) * WIDE + e] += (part[0] + part[1]) + (part[2] + part[3]);
                        }
                    }
                }
            }
            first += uint(KEYS);
        } while (LONG == 1 && first < stop);
        [[unroll]] for (int r = 0; r < ROWS && LONG == 1; r++) {
            const float decay = exp2(former[r] - maximum[r]);
            former[r] = maximum[r];
            whole[r] = whole[r] * decay + total[r];
            total[r] = 0.0;
            [[unroll]] for (int i = r * V_WORDS * WIDE; i < (r + 1) * V_WORDS * WIDE; i++) {
                o[i] = o[i] * decay + acc[i];
                acc[i] = 0.0;
            }
        }
    }

    [[unroll]] for (int r = 0; r < ROWS; r++) {
        const uint row = first_row + uint(r);
        const uint query = row / pc.group;
        const uint head = key_head * pc.group + row % pc.group;
        float sum = subgroupAdd(LONG == 1 ? whole[r] : total[r]), top = maximum[r], decay = 1.0;
        if (on(LENGTHS) && int(query) >= x_rows_seeing) sum = 0.0;
        if (on(SINKS)) {
            turn_to(r);
            add_sink(query, top, sum, decay);
        }
        const float share = sum == 0.0 ? 0.0 : decay / sum;
        // Beyond QUERIES there are none, or those of another sample.
        if (row < rows && query < QUERIES) {
            const uint o_at = o_index(batch, head, row_start() + query) / 4u;
            [[unroll]] for (int c = 0; c < V_WORDS; c++) {
                const uint column = uint(8 * c) + lane;
                if (column < uint(VALUE_DIM / WIDE)) {
                    [[unroll]] for (int i = 0; i < QUADS; i++) {
                        const int at = (r * V_WORDS + c) * WIDE + 4 * i;
                        vec4 four = LONG == 1 ? vec4(o[at], o[at + 1], o[at + 2], o[at + 3])
                                              : vec4(acc[at], acc[at + 1], acc[at + 2], acc[at + 3]);
                        four *= share;
                        o_data[o_at + column * uint(QUADS) + uint(i)] = IO_STORE4(sum == 0.0 ? vec4(0.0) : four);
                    }
                }
            }
            if (LSE == 1 && lane == 0u) lse_data[lse_index(batch, head, row_start() + query)] = row_lse(top, sum);
        }
    }
}
