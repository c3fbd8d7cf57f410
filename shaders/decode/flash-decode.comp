#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// What it computes: attention of few query rows over many keys. A workgroup has one range of the keys ("split"): for every
//     row it makes the sum of exp2(score - maximum) v, not divided by anything, the maximum, and the sum of
//     exp2(score - maximum). A row with nothing to attend to in the split leaves the maximum LOWEST (below) and zeros.
//     What the rows of the workgroup may see is split, so a short sample or a window has as many splits as the others.
//     The last workgroup to finish makes o and lse of all splits: decode/flash-decode.glsl.
// Shapes and layouts, bindings, push constants: attention/attention.glsl with ALIGN 8 (16-byte words), but o is written as
//     4-vectors; attention/extras.glsl without tiles; and decode/flash-decode.glsl.
// With QUANTIZED k and v are whole caches of levels and scales, as shaders/cache/cache-quantize.comp writes them: the
//     strides are those of levels, in 32-bit words, and samples and heads are those of the dispatch. A "word" of a row of
//     k or v is then eight numbers.
// Specialization constants: HEAD_DIM, VALUE_DIM, MASK, CAUSAL, LSE and FEATURES as there, MERGE unused, and
//     ROWS      query rows of a workgroup            LANES     invocations that share a key's row, a power of two
//     UNROLL    keys an invocation has in flight     SUBGROUP  the subgroup size
//     THREADS   invocations of a workgroup           STAGES    2: the next keys are loaded before these are used up
//     SPLIT_KEYS  as decode/flash-decode.glsl has it  BITS      with QUANTIZED, of a level: 8 or 4
// Workgroup (x, y, z) owns key head y, batch z, split x / passes of the keys, and ROWS of the group * queries rows that
//     share the key head, starting at ROWS * (x % passes): neighbours read the same keys, and meet in the cache. Rows are
//     numbered query by query, and in it head by head.
// Invocation: LANES of them hold a key's row, 16 bytes at a time and far apart, so that neighbours read neighbouring
//     words; SUBGROUP / LANES keys are handled side by side, each with statistics and sums of its own until the end.
// Accumulation: float32, exponentials of base 2.
// Preconditions: LANES divides SUBGROUP and SUBGROUP divides THREADS; offsets, strides and dimensions of q, k and v are
//     multiples of 8 elements (float32: 4). With QUANTIZED offsets and strides of k and v are multiples of 2 words,
//     dimensions of 32; and there are no pages.

#define ALIGN 8
#define EXTRAS
#define WITHOUT_TILES
#define O_ELEMENT IO_VECTOR
#ifdef QUANTIZED
#define K_ELEMENT uvec2
#endif
#include "attention/attention.glsl"

layout(constant_id = 12) const int ROWS = 1;
layout(constant_id = 7) const int LANES = 8;
layout(constant_id = 8) const int UNROLL = 4;
layout(constant_id = 9) const int SUBGROUP = 8;
layout(constant_id = 11) const int STAGES = 1;
layout(local_size_x_id = 10) in;

#if defined(DTYPE_float32)
const int Q_WIDE = 4;  // elements of a 16-byte word
#else
const int Q_WIDE = 8;
#endif
#ifdef QUANTIZED
layout(constant_id = 14) const int BITS = 8;
const int WIDE = 8;
#else
const int WIDE = Q_WIDE;
#endif
const int QUADS = WIDE / 4;
const int SLOTS = SUBGROUP / LANES;
const int K_WORDS = (HEAD_DIM / WIDE + LANES - 1) / LANES;  // words of a row that an invocation holds
const int V_WORDS = (VALUE_DIM / WIDE + LANES - 1) / LANES;
const bool K_WHOLE = K_WORDS * LANES * WIDE == HEAD_DIM;
const int SUBGROUPS = int(gl_WorkGroupSize.x) / SUBGROUP;
const int STEP = SLOTS * UNROLL;  // keys of a subgroup's trip
const int COLUMNS = V_WORDS * LANES * QUADS;  // 4-vectors of an output row, the last ones unused where it is padded

#include "fours.glsl"

// A maximum starts here: below every score that is attended to, and so far above NEVER that exp2(NEVER - maximum) is 0
// whatever the maximum is. No weight needs a test.
const float LOWEST = -3.2e38;

// Whether some rows see some keys before `end` that others do not: every slot is then asked.
bool some_hidden() { return CAUSAL == 1 || (FEATURES & HIDING_KEYS) != 0; }
// Whether every weight is more than nothing, so that values need no test.
bool all_count() { return MASK == 0 && !some_hidden() && (FEATURES & (HIDING_SCORES | DROPOUT)) == 0; }

#define REACH gl_ScopeDevice
#define ROUNDED4(x) (x)
#define SUM_VECTORS (SUBGROUPS * COLUMNS)
#include "flash-decode.glsl"

shared vec2 statistics[SUBGROUPS * ROWS];

#ifdef QUANTIZED
uvec2 k_words[UNROLL * K_WORDS], v_words[UNROLL * V_WORDS];
float k_scales[UNROLL * K_WORDS], v_scales[UNROLL * V_WORDS];
#define WEIGHT(w, word) ((w) * v_scales[word])
#else
#define WEIGHT(w, word) w
uvec4 k_words[UNROLL * K_WORDS];
uvec4 v_words[UNROLL * V_WORDS];
#endif
uint lane, slot;

// Words past the row's end are read from its last one: no branch stands between the loads.
uint word_of(int c, int dim) { return min(uint(c * LANES) + lane, uint(dim / WIDE - 1)); }

#ifdef QUANTIZED
#include "float16.glsl"

const uint LEVEL_WORDS = uint(BITS) / 4u;  // of eight numbers

uint of_pair(uvec2 pair, uint place) { return (place & 1u) == 0u ? pair.x : pair.y; }

// Levels of word w of a head's row of `dim` numbers that begins at word `row` of DATA, and their scale: `scales` is where
// those of the key begin.
#define LOAD_LEVELS(DATA, row, scales, dim, w, levels, scale) { \
    const uint at = row + w * LEVEL_WORDS; \
    const uvec2 pair = DATA[at / 2u]; \
    levels = BITS == 8 ? pair : uvec2(of_pair(pair, at), 0u); \
    const uint block = gl_WorkGroupID.y * uint(dim / 32) + w / 4u, scale_at = scales + block / 2u; \
    const uint both = of_pair(DATA[scale_at / 2u], scale_at); \
    scale = float16_value((block & 1u) == 0u ? both & 0xffffu : both >> 16); \
}

// Words of a key's scales.
uint scale_row(int dim) { return (gl_NumWorkGroups.y * uint(dim / 32) + 1u) / 2u; }
uint k_scales_origin, v_scales_origin;

// The i-th four levels of a word.
vec4 levels_of(uvec2 word, int i) {
    const int levels = int(BITS == 4 ? word.x >> (16 * i) : i == 0 ? word.x : word.y);
    ivec4 each;
    [[unroll]] for (int e = 0; e < 4; e++) each[e] = bitfieldExtract(levels, BITS * e, BITS);
    return vec4(each);
}

void load_keys(uint origin, uint stride, uint first, uint last) {
    [[unroll]] for (int u = 0; u < UNROLL; u++) {
        const uint key = min(first + uint(u * SLOTS) + slot, last);
        const uint row = origin + key * stride, scales = k_scales_origin + key * scale_row(HEAD_DIM);
        [[unroll]] for (int c = 0; c < K_WORDS; c++) {
            LOAD_LEVELS(k_data, row, scales, HEAD_DIM, word_of(c, HEAD_DIM), k_words[u * K_WORDS + c], k_scales[u * K_WORDS + c])
            if (!K_WHOLE && (c * LANES + int(lane)) * WIDE >= HEAD_DIM) k_scales[u * K_WORDS + c] = 0.0;
        }
    }
}

void load_values(uint origin, uint stride, uint first, uint last) {
    [[unroll]] for (int u = 0; u < UNROLL; u++) {
        const uint key = min(first + uint(u * SLOTS) + slot, last);
        const uint row = origin + key * stride, scales = v_scales_origin + key * scale_row(VALUE_DIM);
        [[unroll]] for (int c = 0; c < V_WORDS; c++) {
            LOAD_LEVELS(v_data, row, scales, VALUE_DIM, word_of(c, VALUE_DIM), v_words[u * V_WORDS + c], v_scales[u * V_WORDS + c])
        }
    }
}
#else
void load_keys(uint origin, uint stride, uint first, uint last) {
    [[unroll]] for (int u = 0; u < UNROLL; u++) {
        uint key = min(first + uint(u * SLOTS) + slot, last);
        uint row = origin + (on(PAGED) ? K_PLACE(key) / uint(WIDE) : key * stride);
        [[unroll]] for (int c = 0; c < K_WORDS; c++) {
            uvec4 word = k_data[row + word_of(c, HEAD_DIM)];
            if (!K_WHOLE && (c * LANES + int(lane)) * WIDE >= HEAD_DIM) word = uvec4(0u);
            k_words[u * K_WORDS + c] = word;
        }
    }
}

void load_values(uint origin, uint stride, uint first, uint last) {
    [[unroll]] for (int u = 0; u < UNROLL; u++) {
        uint key = min(first + uint(u * SLOTS) + slot, last);
        uint row = origin + (on(PAGED) ? V_PLACE(key) / uint(WIDE) : key * stride);
        [[unroll]] for (int c = 0; c < V_WORDS; c++) v_words[u * V_WORDS + c] = v_data[row + word_of(c, VALUE_DIM)];
    }
}
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
    lane = gl_SubgroupInvocationID % uint(LANES);
    slot = gl_SubgroupInvocationID / uint(LANES);
    uint rows = pc.queries * pc.group;
    uint passes = (rows + uint(ROWS) - 1u) / uint(ROWS);
    uint split = gl_WorkGroupID.x / passes;
    uint splits = gl_NumWorkGroups.x / passes;
    uint first_row = gl_WorkGroupID.x % passes * uint(ROWS);
    uint key_head = gl_WorkGroupID.y;
    uint batch = gl_WorkGroupID.z;
    uint team = (batch * gl_NumWorkGroups.y + key_head) * passes + gl_WorkGroupID.x % passes;

    begin_extras(batch, key_head * pc.group);
    uint first_query = first_row / pc.group;
    if (on(LENGTHS) && first_query >= QUERIES) return;  // and with it all of its team

    // The split: equal shares, of whole trips of the workgroup, while there are keys.
    uint step = uint(STEP * SUBGROUPS);
    uint last_query = min((min(first_row + uint(ROWS), rows) - 1u) / pc.group, QUERIES - 1u);
    uint seen = visible_keys(first_query, last_query);
    uint unseen = min(hidden_keys(first_query), seen);
    uint share = keys_per_split(seen - unseen, step, splits);
    if (split >= splits) return;
    uint begin = unseen + split * share;
    uint end = min(begin + share, seen);

#ifdef QUANTIZED
    const uint k_stride = pc.k_row, v_stride = pc.v_row;
    const uint k_origin = pc.k_offset + batch * pc.k_batch + key_head * pc.k_head + key_start() * k_stride;
    const uint v_origin = pc.v_offset + batch * pc.v_batch + key_head * pc.v_head + key_start() * v_stride;
    // Behind the levels of all samples, whose rows have no gaps.
    k_scales_origin = pc.k_offset + gl_NumWorkGroups.z * pc.k_batch
        + (batch * (pc.k_batch / k_stride) + key_start()) * scale_row(HEAD_DIM);
    v_scales_origin = pc.v_offset + gl_NumWorkGroups.z * pc.v_batch
        + (batch * (pc.v_batch / v_stride) + key_start()) * scale_row(VALUE_DIM);
#else
    uint k_stride = pc.k_row / uint(WIDE);
    uint v_stride = pc.v_row / uint(WIDE);
    uint k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / uint(WIDE) + key_start() * k_stride;
    uint v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / uint(WIDE) + key_start() * v_stride;
#endif
    uint first = begin + gl_SubgroupID * uint(STEP);
    uint last = end - 1u;
    if (STAGES == 2 && first < end) {
        load_keys(k_origin, k_stride, first, last);
        load_values(v_origin, v_stride, first, last);
    }

    vec4 q[ROWS * K_WORDS * QUADS];
    uint mask_rows[ROWS];
    uint queries[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        uint row = min(first_row + uint(r), rows - 1u);
        uint query = min(row / pc.group, QUERIES - 1u);
        uint head = key_head * pc.group + row % pc.group;
        uint origin = q_index(batch, head, row_start() + query) / uint(Q_WIDE);
        [[unroll]] for (int c = 0; c < K_WORDS; c++) {
            [[unroll]] for (int part = 0; part < WIDE / Q_WIDE; part++) {
                uvec4 word = q_data[origin + word_of(c, HEAD_DIM) * uint(WIDE / Q_WIDE) + uint(part)];
                if (!K_WHOLE && (c * LANES + int(lane)) * WIDE >= HEAD_DIM) word = uvec4(0u);
                [[unroll]] for (int i = 0; i < Q_WIDE / 4; i++) {
                    q[(r * K_WORDS + c) * QUADS + part * (Q_WIDE / 4) + i] = quad(word, i) * (pc.scale * LOG2_E);
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

    vec4 acc[ROWS * V_WORDS * QUADS];
    float maximum[ROWS];
    float total[ROWS];
    [[unroll]] for (int i = 0; i < ROWS * V_WORDS * QUADS; i++) acc[i] = vec4(0.0);
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        maximum[r] = LOWEST;
        total[r] = 0.0;
    }

    for (; first < end; first += step) {
        if (STAGES == 1) {
            load_keys(k_origin, k_stride, first, last);
            load_values(v_origin, v_stride, first, last);
        }
        float score[UNROLL * ROWS];
        [[unroll]] for (int i = 0; i < UNROLL * ROWS; i++) score[i] = 0.0;
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            [[unroll]] for (int c = 0; c < K_WORDS; c++) {
#ifdef QUANTIZED
                [[unroll]] for (int r = 0; r < ROWS; r++) {
                    float sum = 0.0;
                    [[unroll]] for (int i = 0; i < QUADS; i++) {
                        vec4 k = levels_of(k_words[u * K_WORDS + c], i), part = q[(r * K_WORDS + c) * QUADS + i];
                        [[unroll]] for (int e = 0; e < 4; e++) sum = fma(part[e], k[e], sum);
                    }
                    score[u * ROWS + r] = fma(sum, k_scales[u * K_WORDS + c], score[u * ROWS + r]);
                }
#else
                [[unroll]] for (int i = 0; i < QUADS; i++) {
                    vec4 k = quad(k_words[u * K_WORDS + c], i);
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        vec4 part = q[(r * K_WORDS + c) * QUADS + i];
                        float sum = fma(part.x, k.x, score[u * ROWS + r]);
                        sum = fma(part.y, k.y, sum);
                        sum = fma(part.z, k.z, sum);
                        score[u * ROWS + r] = fma(part.w, k.w, sum);
                    }
                }
#endif
            }
        }
        if (STAGES == 2) load_keys(k_origin, k_stride, first + step, last);
        [[unroll]] for (int distance = LANES / 2; distance > 0; distance /= 2) {
            [[unroll]] for (int i = 0; i < UNROLL * ROWS; i++) {
                score[i] += subgroupShuffleXor(score[i], uint(distance));
            }
        }
        if (some_hidden() || MASK != 0 || HAS_SCORE_MOD || first + uint(STEP) > end) {
            [[unroll]] for (int u = 0; u < UNROLL; u++) {
                uint key = first + uint(u * SLOTS) + slot;
                [[unroll]] for (int r = 0; r < ROWS; r++) {
                    float modified = score[u * ROWS + r];
                    if (FEATURES != 0) turn_to(r);
                    if (HAS_SCORE_MOD) modified = score_mod(modified, queries[r], min(key, last));
                    if (MASK != 0) {
                        float bias = mask_bias(mask_rows[r] + min(key, last) * pc.mask_key);
                        modified = modified <= NEVER ? NEVER : biased_score(modified, bias);
                    }
                    if (key > last || (some_hidden() && !mask_mod(queries[r], min(key, last)))) modified = NEVER;
                    score[u * ROWS + r] = modified;
                }
                // A key past the end stands for the last one, whose values may not be finite.
                if (key > last) {
#ifdef QUANTIZED
                    [[unroll]] for (int c = 0; c < V_WORDS; c++) v_scales[u * V_WORDS + c] = 0.0;
#else
                    [[unroll]] for (int c = 0; c < V_WORDS; c++) v_words[u * V_WORDS + c] = uvec4(0u);
#endif
                }
            }
        }
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            float top = maximum[r];
            [[unroll]] for (int u = 0; u < UNROLL; u++) top = max(top, score[u * ROWS + r]);
            if (top > maximum[r]) {
                float factor = exp2(maximum[r] - top);
                maximum[r] = top;
                total[r] *= factor;
                [[unroll]] for (int i = 0; i < V_WORDS * QUADS; i++) acc[r * V_WORDS * QUADS + i] *= factor;
            }
            [[unroll]] for (int u = 0; u < UNROLL; u++) {
                float w = exp2(score[u * ROWS + r] - maximum[r]);
                total[r] += w;
                if (on(DROPOUT)) {
                    turn_to(r);
                    if (w != 0.0) w *= dropout_factor(queries[r], first + uint(u * SLOTS) + slot);
                }
                score[u * ROWS + r] = w;
            }
        }
        [[unroll]] for (int u = 0; u < UNROLL; u++) {
            [[unroll]] for (int c = 0; c < V_WORDS; c++) {
                [[unroll]] for (int i = 0; i < QUADS; i++) {
#ifdef QUANTIZED
                    vec4 v = levels_of(v_words[u * V_WORDS + c], i);
#else
                    vec4 v = quad(v_words[u * V_WORDS + c], i);
#endif
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        float w = score[u * ROWS + r];
                        int at = (r * V_WORDS + c) * QUADS + i;
                        if (all_count() || w != 0.0) acc[at] = fma(vec4(WEIGHT(w, u * V_WORDS + c)), v, acc[at]);
                    }
                }
            }
        }
        if (STAGES == 2) load_values(v_origin, v_stride, first + step, last);
    }

    // One result of the subgroup's slots. Rows that see nothing since they are past their sample's are found out at the end.
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        float top = maximum[r];
        [[unroll]] for (int distance = LANES; distance < SUBGROUP; distance *= 2) {
            top = max(top, subgroupShuffleXor(top, uint(distance)));
        }
        float factor = exp2(maximum[r] - top);
        maximum[r] = top;
        total[r] *= factor;
        [[unroll]] for (int i = 0; i < V_WORDS * QUADS; i++) acc[r * V_WORDS * QUADS + i] *= factor;
        [[unroll]] for (int distance = LANES; distance < SUBGROUP; distance *= 2) {
            total[r] += subgroupShuffleXor(total[r], uint(distance));
            [[unroll]] for (int i = 0; i < V_WORDS * QUADS; i++) {
                int at = r * V_WORDS * QUADS + i;
                acc[at] += subgroupShuffleXor(acc[at], uint(distance));
            }
        }
    }

    // One result of the workgroup's subgroups, row after row through shared memory.
    if (gl_SubgroupInvocationID == 0u) {
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            statistics[gl_SubgroupID * uint(ROWS) + uint(r)] = vec2(maximum[r], total[r]);
        }
    }
    barrier();
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        float top = LOWEST;
        [[unroll]] for (int s = 0; s < SUBGROUPS; s++) top = max(top, statistics[s * ROWS + r].x);
        float sum = 0.0;
        [[unroll]] for (int s = 0; s < SUBGROUPS; s++) {
            vec2 part = statistics[s * ROWS + r];
            sum += part.y * exp2(part.x - top);
        }
        float factor = exp2(maximum[r] - top);
        if (slot == 0u) {
            [[unroll]] for (int c = 0; c < V_WORDS; c++) {
                [[unroll]] for (int i = 0; i < QUADS; i++) {
                    uint column = (uint(c * LANES) + lane) * uint(QUADS) + uint(i);
                    sums[gl_SubgroupID * uint(COLUMNS) + column] = acc[(r * V_WORDS + c) * QUADS + i] * factor;
                }
            }
        }
        barrier();
        uint at = part_of(team, split, uint(r));
        for (uint column = gl_LocalInvocationIndex; column < uint(VALUE_DIM / 4); column += gl_WorkGroupSize.x) {
            vec4 value = sums[column];
            [[unroll]] for (int s = 1; s < SUBGROUPS; s++) value += sums[uint(s * COLUMNS) + column];
            parts[at + column] = value;
        }
        if (gl_LocalInvocationIndex == 0u) parts[at + uint(RECORD - 1)].xy = vec2(top, sum);
        barrier();
    }
    if (last_of_team(team, splits)) combine_splits(team, splits, batch, key_head, first_row);
}
