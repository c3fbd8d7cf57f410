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
// With QUANTIZED k and v are whole caches, as flash-decode.comp has them.
// Specialization constants: HEAD_DIM, VALUE_DIM, MASK, CAUSAL, LSE and FEATURES as there, MERGE unused, and
//     ROWS   query rows of a workgroup
//     LONG   1: sums go in blocks, so that their rounding does not grow with the keys; it takes up to twice the time
//     BITS   with QUANTIZED, of a level: 8 or 4
// Workgroup (x, y, z) owns key head y, batch z, and ROWS of the group * queries rows that share the key head, from
//     ROWS * x. Rows are numbered query by query, and in it head by head.
// Invocation: of a trip's eight keys one, for scores; then every eighth word of an output row, for values. So neither
//     products nor values are added across invocations, but the sums of weights at the end.
// Accumulation: float32, exponentials of base 2.
// Preconditions: subgroups of 8, one a workgroup; offsets, strides and dimensions of q, k and v are multiples of 8
//     elements (float32: 4). With QUANTIZED those of k and v are multiples of 4 words, dimensions of 32.

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
#ifdef QUANTIZED
layout(constant_id = 14) const int BITS = 8;
const bool LEVELS = true;  // are finite, so that no weight of 0 needs a test
const int BLOCK_NUMBERS = 32;  // that have a scale
const int V_WIDE = VALUE_DIM % 128 == 0 ? 16 : 8;  // numbers of a value that an invocation takes out of a texel
#else
const bool LEVELS = false;
const int V_WIDE = WIDE;
#endif
const int V_QUADS = V_WIDE / 4;
const int V_WORDS = (VALUE_DIM / V_WIDE + 7) / 8;  // of an output row that an invocation has
const int Q_WORDS = (HEAD_DIM / WIDE + 7) / 8;

// As in flash-decode.comp.
const float LOWEST = -3.2e38;
bool some_hidden() { return CAUSAL == 1 || (FEATURES & HIDING_KEYS) != 0; }
bool all_count() { return MASK == 0 && !some_hidden() && (FEATURES & (HIDING_SCORES | DROPOUT)) == 0; }

#include "fours.glsl"

#ifdef QUANTIZED
#include "float16.glsl"

// The i-th four levels of `words`.
vec4 levels_of(uvec4 words, int i) {
    const int levels = int(BITS == 8 ? words[i] : words[i / 2] >> (16 * (i % 2)));
    ivec4 each;
    [[unroll]] for (int e = 0; e < 4; e++) each[e] = bitfieldExtract(levels, BITS * e, BITS);
    return vec4(each);
}

// The words of unit `unit` of a value's levels, of the texel in which they are.
uvec4 unit_words(uvec4 texel, uint unit) {
    const int count = V_WIDE * BITS / 32;
    if (count == 4) return texel;
    const uint place = unit * uint(count) % 4u;
    const uvec2 pair = place < 2u ? texel.xy : texel.zw;
    return uvec4(count == 2 || place % 2u == 0u ? pair : pair.yx, 0u, 0u);
}

// Scales of COUNT blocks, from float16 `at` of DATA on; 0 unless `here`.
#define LOAD_SCALES(DATA, at, COUNT, here, scales) \
    [[unroll]] for (int b = 0; b < COUNT; b++) { \
        if (COUNT % 2 != 0 || b % 2 == 0) { \
            const uvec4 texel = texelFetch(DATA, int((at + uint(b)) / 8u)); \
            const uvec2 two = ((at + uint(b)) / 4u) % 2u == 0u ? texel.xy : texel.zw; \
            const uint word = ((at + uint(b)) / 2u) % 2u == 0u ? two.x : two.y; \
            const uint low = ((at + uint(b)) % 2u) == 0u ? word & 0xffffu : word >> 16; \
            scales[b] = here ? float16_value(low) : 0.0; \
            if (COUNT % 2 == 0) scales[b + 1] = here ? float16_value(word >> 16) : 0.0; \
        } \
    }

uint scale_row(int dim) { return (gl_NumWorkGroups.y * uint(dim / BLOCK_NUMBERS) + 1u) / 2u; }  // words
#endif

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

#ifdef QUANTIZED
    const uint word = 4u;
    // Where float16 scales of this head begin: behind the levels of all samples, whose rows have no gaps.
    const uint k_scales = 2u * (pc.k_offset + gl_NumWorkGroups.z * pc.k_batch
        + (batch * (pc.k_batch / pc.k_row) + key_start()) * scale_row(HEAD_DIM)) + key_head * uint(HEAD_DIM / BLOCK_NUMBERS);
    const uint v_scales = 2u * (pc.v_offset + gl_NumWorkGroups.z * pc.v_batch
        + (batch * (pc.v_batch / pc.v_row) + key_start()) * scale_row(VALUE_DIM)) + key_head * uint(VALUE_DIM / BLOCK_NUMBERS);
#else
    const uint word = uint(WIDE);
#endif
    const uint k_stride = pc.k_row / word;
    const uint v_stride = pc.v_row / word;
    const uint k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / word + key_start() * k_stride;
    const uint v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / word + key_start() * v_stride;

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
    float o[ROWS * V_WORDS * V_WIDE], acc[ROWS * V_WORDS * V_WIDE];
    float whole[ROWS], total[ROWS];
    float maximum[ROWS], former[ROWS];  // of all keys so far, the same in every invocation; and before the block
    [[unroll]] for (int i = 0; i < ROWS * V_WORDS * V_WIDE; i++) o[i] = acc[i] = 0.0;
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
#ifdef QUANTIZED
            float k_scale[HEAD_DIM / BLOCK_NUMBERS], v_scale[VALUE_DIM / BLOCK_NUMBERS];
            const uint k_scale_at = k_scales + 2u * key * scale_row(HEAD_DIM);
            const uint v_scale_at = v_scales + 2u * key * scale_row(VALUE_DIM);
            LOAD_SCALES(k_data, k_scale_at, HEAD_DIM / BLOCK_NUMBERS, true, k_scale)
            LOAD_SCALES(v_data, v_scale_at, VALUE_DIM / BLOCK_NUMBERS, first + lane <= last, v_scale)
            [[unroll]] for (int b = 0; b < HEAD_DIM / BLOCK_NUMBERS; b++) {
                float part[ROWS];
                [[unroll]] for (int r = 0; r < ROWS; r++) part[r] = 0.0;
                [[unroll]] for (int t = 0; t < BITS / 4; t++) {
                    const uvec4 word = texelFetch(k_data, int(k_at) + b * BITS / 4 + t);
                    [[unroll]] for (int i = 0; i < 32 / BITS; i++) {
                        const vec4 k = levels_of(word, i);
                        [[unroll]] for (int r = 0; r < ROWS; r++) {
                            const int d = r * HEAD_DIM + b * BLOCK_NUMBERS + t * 128 / BITS + 4 * i;
                            part[r] += (q[d] * k.x + q[d + 1] * k.y) + (q[d + 2] * k.z + q[d + 3] * k.w);
                        }
                    }
                }
                [[unroll]] for (int r = 0; r < ROWS; r++) score[r] += part[r] * k_scale[b];
            }
#else
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
#endif
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
                [[unroll]] for (int i = 0; i < V_WORDS * V_WIDE; i++) acc[r * V_WORDS * V_WIDE + i] *= factor;
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
                    float v[FOUR * V_WIDE];
#ifdef QUANTIZED
                    const uint unit = min(uint(8 * c) + lane, uint(VALUE_DIM / V_WIDE - 1));
                    float scales[FOUR];
                    [[unroll]] for (int n = 0; n < FOUR; n++) {
                        const uvec4 texel = texelFetch(v_data, int(v_at[n] + unit * uint(V_WIDE * BITS) / 128u));
                        const uvec4 words = unit_words(texel, unit);
                        [[unroll]] for (int i = 0; i < V_QUADS; i++) {
                            const vec4 four = levels_of(words, i);
                            [[unroll]] for (int e = 0; e < 4; e++) v[n * V_WIDE + 4 * i + e] = four[e];
                        }
                        scales[n] = 0.0;
                        [[unroll]] for (int b = 0; b < VALUE_DIM / BLOCK_NUMBERS; b++) {
                            const float its = subgroupShuffle(v_scale[b], uint(j + n));
                            if (unit * uint(V_WIDE) / uint(BLOCK_NUMBERS) == uint(b)) scales[n] = its;
                        }
                    }
#else
                    [[unroll]] for (int n = 0; n < FOUR; n++) {
                        uvec4 word = texelFetch(v_data, int(v_at[n] + min(uint(8 * c) + lane, uint(VALUE_DIM / WIDE - 1))));
                        // A key past the end stands for the last one, whose values may not be finite.
                        if (first + uint(j + n) > last) word = uvec4(0u);
                        [[unroll]] for (int i = 0; i < QUADS; i++) {
                            vec4 four = quad(word, i);
                            [[unroll]] for (int e = 0; e < 4; e++) v[n * WIDE + 4 * i + e] = four[e];
                        }
                    }
#endif
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        float w[FOUR];
                        [[unroll]] for (int n = 0; n < FOUR; n++) w[n] = subgroupShuffle(score[r], uint(j + n));
#ifdef QUANTIZED
                        [[unroll]] for (int n = 0; n < FOUR; n++) w[n] = w[n] != 0.0 ? w[n] * scales[n] : 0.0;
#endif
                        [[unroll]] for (int e = 0; e < V_WIDE; e++) {
                            float part[FOUR];
                            [[unroll]] for (int n = 0; n < FOUR; n++) {
                                part[n] = LEVELS || all_count() || w[n] != 0.0 ? w[n] * v[n * V_WIDE + e] : 0.0;
                            }
                            acc[(r * V_WORDS + c) * V_WIDE + e] += (part[0] + part[1]) + (part[2] + part[3]);
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
            [[unroll]] for (int i = r * V_WORDS * V_WIDE; i < (r + 1) * V_WORDS * V_WIDE; i++) {
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
                if (column < uint(VALUE_DIM / V_WIDE)) {
                    [[unroll]] for (int i = 0; i < V_QUADS; i++) {
                        const int at = (r * V_WORDS + c) * V_WIDE + 4 * i;
                        vec4 four = LONG == 1 ? vec4(o[at], o[at + 1], o[at + 2], o[at + 3])
                                              : vec4(acc[at], acc[at + 1], acc[at + 2], acc[at + 3]);
                        four *= share;
                        o_data[o_at + column * uint(V_QUADS) + uint(i)] = IO_STORE4(sum == 0.0 ? vec4(0.0) : four);
                    }
                }
            }
            if (LSE == 1 && lane == 0u) lse_data[lse_index(batch, head, row_start() + query)] = row_lse(top, sum);
        }
    }
}
