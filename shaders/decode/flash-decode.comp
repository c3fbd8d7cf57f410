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
// Specialization constants: HEAD_DIM, VALUE_DIM, MASK, CAUSAL, LSE and FEATURES as there, MERGE unused, and
//     ROWS      query rows of a workgroup            LANES     invocations that share a key's row, a power of two
//     UNROLL    keys an invocation has in flight     SUBGROUP  the subgroup size
//     THREADS   invocations of a workgroup           STAGES    2: the next keys are loaded before these are used up
//     SPLIT_KEYS  as decode/flash-decode.glsl has it
// Workgroup (x, y, z) owns key head y, batch z, split x / passes of the keys, and ROWS of the group * queries rows that
//     share the key head, starting at ROWS * (x % passes): neighbours read the same keys, and meet in the cache. Rows are
//     numbered query by query, and in it head by head.
// Invocation: LANES of them hold a key's row, 16 bytes at a time and far apart, so that neighbours read neighbouring
//     words; SUBGROUP / LANES keys are handled side by side, each with statistics and sums of its own until the end.
// Accumulation: float32, exponentials of base 2.
// Preconditions: LANES divides SUBGROUP and SUBGROUP divides THREADS; offsets, strides and dimensions of q, k and v are
//     multiples of 8 elements (float32: 4).

#define ALIGN 8
#define EXTRAS
#define WITHOUT_TILES
#define O_ELEMENT IO_VECTOR
#include "attention/attention.glsl"

layout(constant_id = 12) const int ROWS = 1;
layout(constant_id = 7) const int LANES = 8;
layout(constant_id = 8) const int UNROLL = 4;
layout(constant_id = 9) const int SUBGROUP = 8;
layout(constant_id = 11) const int STAGES = 1;
layout(local_size_x_id = 10) in;

#if defined(DTYPE_float32)
const int WIDE = 4;  // elements of a 16-byte word
#else
const int WIDE = 8;
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
bool some_hidden() { return CAUSAL == 1 || (FEATURES & (WINDOW | PREFIX | SEGMENTS | BLOCKS)) != 0; }
// Whether every weight is more than nothing, so that values need no test.
bool all_count() { return MASK == 0 && !some_hidden() && (FEATURES & (BIAS | DROPOUT)) == 0; }

#define REACH gl_ScopeDevice
#define ROUNDED4(x) (x)
#define SUM_VECTORS (SUBGROUPS * COLUMNS)
#include "flash-decode.glsl"

shared vec2 statistics[SUBGROUPS * ROWS];

uvec4 k_words[UNROLL * K_WORDS];
uvec4 v_words[UNROLL * V_WORDS];
uint lane, slot;

// Words past the row's end are read from its last one: no branch stands between the loads.
uint word_of(int c, int dim) { return min(uint(c * LANES) + lane, uint(dim / WIDE - 1)); }

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

    uint k_stride = pc.k_row / uint(WIDE);
    uint v_stride = pc.v_row / uint(WIDE);
    uint k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / uint(WIDE) + key_start() * k_stride;
    uint v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / uint(WIDE) + key_start() * v_stride;
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
        uint origin = q_index(batch, head, row_start() + query) / uint(WIDE);
        [[unroll]] for (int c = 0; c < K_WORDS; c++) {
            uvec4 word = q_data[origin + word_of(c, HEAD_DIM)];
            if (!K_WHOLE && (c * LANES + int(lane)) * WIDE >= HEAD_DIM) word = uvec4(0u);
            [[unroll]] for (int i = 0; i < QUADS; i++) {
                q[(r * K_WORDS + c) * QUADS + i] = quad(word, i) * (pc.scale * LOG2_E);
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
                    [[unroll]] for (int c = 0; c < V_WORDS; c++) v_words[u * V_WORDS + c] = uvec4(0u);
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
                    vec4 v = quad(v_words[u * V_WORDS + c], i);
                    [[unroll]] for (int r = 0; r < ROWS; r++) {
                        float w = score[u * ROWS + r];
                        int at = (r * V_WORDS + c) * QUADS + i;
                        if (all_count() || w != 0.0) acc[at] = fma(vec4(w), v, acc[at]);
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
