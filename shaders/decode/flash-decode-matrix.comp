#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// What it computes: what flash-decode.comp does, on matrix units. Here a split's maximum is only within SLACK of its
//     largest score: it stays while weights fit 16 bits (the idea is FlashAttention-4's).
// Shapes and layouts, bindings, push constants, o and lse: as flash-decode.comp has them.
// Specialization constants: HEAD_DIM, VALUE_DIM, LSE, ROWS, THREADS, STAGES and SPLIT_KEYS as there, and STAGES may be 3, which is 2
//     without loads past a subgroup's last keys. With EXTRAS also MASK, CAUSAL and FEATURES; else every row sees every key.
// Workgroup (x, y, z) owns key head y, batch z, split x / passes of the keys, and ROWS rows from ROWS * (x % passes) on.
//     A subgroup has 16 rows at most; where there are more, neighbouring subgroups read the same keys for bands of rows,
//     and meet in the cache. q is kept in shared memory then, in the order of its factors: registers are few.
// Invocation: how a subgroup holds a matrix is known (quads.glsl), so keys and values go from memory to the registers of B
//     factors, 16 bytes at a time and without shared memory. Which column of k a row of the factor stands for does not
//     matter as long as q's factor agrees, and neither does which column of v a column of the factor stands for. So
//     an invocation keeps the eight columns of the word that it loaded.
//         across (0..7)  its column of a B factor: a key for k; a word of the row for v, of which each of the eight
//                        columns goes to another matrix
//         deep           the invocations of a column share its rows: words of k, keys of v
// Accumulation: float32, exponentials of base 2.
// Defines: DIM and VDIM, head dimensions rounded up; CHUNKS, matrices' depths of keys in a trip; EXTRAS, where
//     masks, causality and the options but for dropout are offered.
// Preconditions: offsets, strides and dimensions of q, k and v are multiples of 8; HEAD_DIM <= DIM, VALUE_DIM <= VDIM;
//     ROWS is at most 16, with EXTRAS 16 for each subgroup.

// What may not stand together: tests/test_shader_macros.py.
#if DIM != 64 && DIM != 128 || VDIM != 64 && VDIM != 128
#error "DIM and VDIM are 64 or 128"
#elif defined(FUNCTIONS) && !defined(EXTRAS)
#error "FUNCTIONS stands beside EXTRAS"
#endif

#ifdef EXTRAS
#define WITHOUT_TILES
#endif
#define O_ELEMENT IO_VECTOR
#include "attention/attention.glsl"

layout(constant_id = 12) const int ROWS = 1;
layout(constant_id = 11) const int STAGES = 1;
layout(local_size_x_id = 10) in;

#include "quads.glsl"

uint lane;
#define KEYS (CHUNKS * MATRIX_K)  // of a trip
#define TILES (KEYS / 8)
#define QF (DIM / MATRIX_K)
#define K_WORDS (DIM / 8 / DEEP)  // words of a key's row that an invocation loads
#define V_WORDS (VDIM / 64)
#define ROW_QUADS (VDIM / 4)

const int SUBGROUPS = int(gl_WorkGroupSize.x) / SUBGROUP;
#ifdef EXTRAS
const int BANDS = ROWS <= MATRIX_M ? 1 : ROWS <= 2 * MATRIX_M ? 2 : ROWS <= 4 * MATRIX_M ? 4 : 8;
const int BAND_ROWS = ROWS < MATRIX_M ? ROWS : MATRIX_M;
#define MY_BAND (gl_SubgroupID % uint(BANDS))
#define MY_SUBGROUP (gl_SubgroupID / uint(BANDS))
const bool Q_SHARED = ROWS > 8;
#else
#define Q_SHARED false
#define BANDS 1
#define BAND_ROWS ROWS
#define MY_BAND 0u
#define MY_SUBGROUP gl_SubgroupID
#endif
const int SUBGROUPS_OF_BAND = SUBGROUPS / BANDS;  // subgroups with the same rows
const int BLOCK = BAND_ROWS < 8 ? BAND_ROWS : 8;  // rows of a band that are combined at a time
const float LOWEST = -3.2e38;  // flash-decode.comp
const float SLACK = 8.0;

// Conversions to bfloat16 may cut (NVIDIA's do), so they are of numbers that fit; weights are not negative.
#if defined(DTYPE_bfloat16)
#define ROUNDED(weight) uintBitsToFloat((floatBitsToUint(weight) + 0x8000u) & 0xffff0000u)
#define ROUNDED4(x) uintBitsToFloat(bfloat16_words(x) << 16)
#define EXPONENTS 0x7f807f80u
#else
#define ROUNDED(weight) (weight)
#define ROUNDED4(x) (x)
#define EXPONENTS 0x7c007c00u
#endif
#define REACH gl_ScopeQueueFamily
#define WIDE 8
#define SUM_VECTORS (SUBGROUPS * BLOCK * ROW_QUADS)
#include "flash-decode.glsl"

// Where in `sums`, which has no other use before the keys are through, word j of the row of slot r of q is.
uint q_place(int j, int r) { return ((MY_BAND * uint(K_WORDS) + uint(j)) * uint(SLOTS) + uint(r)) * SUBGROUP + lane; }

shared vec2 statistics[SUBGROUPS * BAND_ROWS];

uvec4 k_words[TILES * K_WORDS];
uvec4 v_words[CHUNKS * HELD * V_WORDS];
uint step, k_origin, v_origin, k_stride, v_stride;
FACTOR_A q[QF];
SUMS acc[V_WORDS * 8 / WIDTH];
float maximum[SLOTS];
float total[SLOTS];  // this invocation's part
float factor;

#ifdef EXTRAS
#include "pages.glsl"
#include "slots.glsl"
#else
#define K_KEY(key, stride) ((key) * stride)
#define V_KEY(key, stride) ((key) * stride)
#endif

// Words past the row's end are read from its last one; zeros in q make nothing of those of k.
uint word_of(uint word, int dim) { return min(word, uint(dim / 8 - 1)); }

void load_keys(uint first, uint last) {
    [[unroll]] for (int f = 0; f < TILES; f++) {
        uint row = k_origin + K_KEY(min(first + uint(f * 8) + ACROSS, last), k_stride);
        [[unroll]] for (int j = 0; j < K_WORDS; j++) {
            uint word = MY_DEEP + uint(DEEP * j);
            k_words[f * K_WORDS + j] = k_data[row + word_of(word, HEAD_DIM)];
            if (HEAD_DIM < DIM && word >= uint(HEAD_DIM / 8)) k_words[f * K_WORDS + j] = uvec4(0u);
        }
    }
}

void load_values(uint first, uint last) {
    [[unroll]] for (int c = 0; c < CHUNKS; c++) {
        [[unroll]] for (int e = 0; e < HELD; e++) {
            uint row = v_origin + V_KEY(min(first + uint(c * MATRIX_K) + B_ROW(e), last), v_stride);
            [[unroll]] for (int j = 0; j < V_WORDS; j++) {
                v_words[(c * HELD + e) * V_WORDS + j] = v_data[row + word_of(ACROSS + uint(8 * j), VALUE_DIM)];
            }
        }
    }
}

float16_t element(uvec4 word, uint i) {
    f16vec2 pair = unpackFloat2x16(word[i / 2u]);
    return (i & 1u) == 0u ? pair.x : pair.y;
}

// A trip: KEYS keys from `first` on, of which those up to `last` count, in k_words and v_words. `masked`: some may be hidden;
// `ahead`: the next trip's are loaded as soon as there is room.
void take_trip(uint first, uint last, bool masked, bool ahead) {
    SUMS scores[TILES / WIDTH];
    [[unroll]] for (int f = 0; f < TILES / WIDTH; f++) scores[f] = SUMS(0.0);
    [[unroll]] for (int c = 0; c < QF; c++) {
#ifdef EXTRAS
        if (Q_SHARED) {
            [[unroll]] for (int r = 0; r < SLOTS; r++) {
                uvec4 held = floatBitsToUint(sums[q_place(c / 2, r)]);
                [[unroll]] for (int e = 0; e < HELD; e++) q[c][HELD * r + e] = element(held, uint(HELD * (c % 2) + e));
            }
        }
#endif
        [[unroll]] for (int f = 0; f < TILES / WIDTH; f++) {
            FACTOR_B k;
            [[unroll]] for (int e = 0; e < HELD * WIDTH; e++) {
                uvec4 word = k_words[(f * WIDTH + B_HALF(e)) * K_WORDS + c / 2];
                k[e] = element(word, uint(HELD * (c % 2) + B_HELD(e)));
            }
            scores[f] = coopMatMulAdd(q[c], k, scores[f]);
        }
    }
    if (ahead) load_keys(first + step, last);

    [[unroll]] for (int f = 0; f < TILES; f++) {
        [[unroll]] for (int e = 0; e < ELEMENTS; e++) AT(scores, f, e) *= factor;
    }
    bool apart = false;  // whether values of keys that some row does not see must be kept from it
    if (masked) {
        [[unroll]] for (int f = 0; f < TILES; f++) {
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                uint key = first + uint(f * 8) + COLUMN(e);
#ifdef EXTRAS
                AT(scores, f, e) = seen_score(SLOT(e), AT(scores, f, e), min(key, last));
#endif
                if (key > last) AT(scores, f, e) = NEVER;
            }
        }
        // A key past the end stands for the last one, whose values may not be finite.
        [[unroll]] for (int c = 0; c < CHUNKS; c++) {
            [[unroll]] for (int e = 0; e < HELD; e++) {
                if (first + uint(c * MATRIX_K) + B_ROW(e) > last) {
                    [[unroll]] for (int j = 0; j < V_WORDS; j++) v_words[(c * HELD + e) * V_WORDS + j] = uvec4(0u);
                }
            }
        }
#ifdef EXTRAS
        if (has_masked()) {
            [[unroll]] for (int n = 0; n < CHUNKS * HELD * V_WORDS; n++) apart = apart || some_non_finite(v_words[n]);
            apart = subgroupAny(apart);
        }
#endif
    }
    float most[SLOTS];
    bool grown = false;
    [[unroll]] for (int r = 0; r < SLOTS; r++) most[r] = LOWEST;
    [[unroll]] for (int f = 0; f < TILES; f++) {
        [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
            if (SLOT_FIRST(SLOT(e)) < BAND_ROWS) most[SLOT(e)] = max(most[SLOT(e)], AT(scores, f, e));
        }
    }
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        if (SLOT_FIRST(r) < BAND_ROWS) grown = grown || most[r] > maximum[r] + SLACK;
    }
    if (subgroupAny(grown)) {
        float decay[SLOTS];
        [[unroll]] for (int r = 0; r < SLOTS; r++) {
            decay[r] = 1.0;
            if (SLOT_FIRST(r) < BAND_ROWS) {
                [[unroll]] for (uint distance = 1u; distance < SPREAD; distance *= 2u) {
                    most[r] = max(most[r], subgroupShuffleXor(most[r], distance));
                }
                float top = max(maximum[r], most[r]);
                decay[r] = exp2(maximum[r] - top);
                maximum[r] = top;
                total[r] *= decay[r];
            }
        }
        [[unroll]] for (int n = 0; n < V_WORDS * 8; n++) {
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                if (SLOT_FIRST(SLOT(e)) < BAND_ROWS) AT(acc, n, e) *= decay[SLOT(e)];
            }
        }
    }
    [[unroll]] for (int f = 0; f < TILES; f++) {
        [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
            if (SLOT_FIRST(SLOT(e)) < BAND_ROWS) {
                float w = exp2(AT(scores, f, e) - maximum[SLOT(e)]);
                AT(scores, f, e) = w;
                total[SLOT(e)] += w;
            } else {
                AT(scores, f, e) = 0.0;
            }
        }
    }
#ifdef EXTRAS
    // Rare, so by the key and on vector units: zero times infinity would be NaN on matrix units.
    for (uint n = 0u; apart && n < uint(KEYS); n++) {
        uint row = v_origin + V_AGAIN(min(first + n, last), v_stride);
        uvec4 held[2 * V_WORDS];
        [[unroll]] for (int e = 0; e < 2; e++) {
            [[unroll]] for (int j = 0; j < V_WORDS; j++) {
                held[e * V_WORDS + j] = v_data[row + word_of(COLUMN(e) + uint(8 * j), VALUE_DIM)];
            }
        }
        [[unroll]] for (int r = 0; r < SLOTS; r++) {
            float w = 0.0;
            [[unroll]] for (int f = 0; f < TILES; f++) {
                [[unroll]] for (int e = 0; e < 2; e++) {
                    if (n == uint(f * 8) + 2u * (n % 8u / 2u) + uint(e)) w = AT(scores, f, e + 2 * r);
                }
            }
            w = subgroupShuffle(w, ROW_HOLDER(n));
            [[unroll]] for (int j = 0; j < V_WORDS * 8; j++) {
                [[unroll]] for (int e = 0; e < 2; e++) {
                    float value = float(element(held[e * V_WORDS + j / 8], uint(j % 8)));
                    AT(acc, j, e + 2 * r) += w == 0.0 ? 0.0 : w * value;
                }
            }
        }
    }
#endif
    if (!apart) {
        [[unroll]] for (int c = 0; c < CHUNKS; c++) {
            FACTOR_A p;
            [[unroll]] for (int e = 0; e < 8; e++) {
                p[e] = float16_t(ROUNDED(AT(scores, 2 * c + ((e >> 1) & 1), (e & 1) + 2 * (e >> 2))));
            }
            [[unroll]] for (int n = 0; n < V_WORDS * 8; n += WIDTH) {
                FACTOR_B v;
                [[unroll]] for (int e = 0; e < HELD * WIDTH; e++) {
                    v[e] = element(v_words[(c * HELD + B_HELD(e)) * V_WORDS + n / 8], uint(n % 8 + B_HALF(e)));
                }
                acc[n / WIDTH] = coopMatMulAdd(p, v, acc[n / WIDTH]);
            }
        }
    }
    if (ahead) load_values(first + step, last);
}

void main() {
    lane = gl_SubgroupInvocationID;
    uint rows = pc.queries * pc.group;
    uint passes = (rows + uint(ROWS) - 1u) / uint(ROWS);
    uint split = gl_WorkGroupID.x / passes;
    uint splits = gl_NumWorkGroups.x / passes;
    uint first_row = gl_WorkGroupID.x % passes * uint(ROWS);
    uint key_head = gl_WorkGroupID.y;
    uint batch = gl_WorkGroupID.z;
    uint team = (batch * gl_NumWorkGroups.y + key_head) * passes + gl_WorkGroupID.x % passes;

    // The split: equal shares, of whole trips of the workgroup, while there are keys.
    step = uint(KEYS * SUBGROUPS_OF_BAND);
#ifdef EXTRAS
    begin_extras(batch, key_head * pc.group);
    uint first_query = first_row / pc.group;
    if (on(LENGTHS) && first_query >= QUERIES) return;  // and with it all of its team
    uint last_query = min((min(first_row + uint(ROWS), rows) - 1u) / pc.group, QUERIES - 1u);
    uint seen = visible_keys(first_query, last_query);
    uint unseen = min(hidden_keys(first_query), seen) / uint(KEYS) * uint(KEYS);
    uint share = keys_per_split(seen - unseen, step, splits);
    if (split >= splits) return;
    uint begin = unseen + split * share;
    uint end = min(begin + share, seen);
    uint clear = end;  // keys before this one are seen by every row, as they are
    if (CAUSAL == 1) clear = uint(clamp(int(first_query) + SHIFT + 1, 0, int(end)));
    if (looks()) clear = 0u;
    uint first = begin + MY_SUBGROUP * uint(KEYS);
    uint last = end - 1u;
    k_stride = pc.k_row / 8u;
    v_stride = pc.v_row / 8u;
    k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / 8u + key_start() * k_stride;
    v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / 8u + key_start() * v_stride;
    begin_pages(begin);
#else
    uint share = keys_per_split(pc.keys, step, splits);
    if (split >= splits) return;
    uint end = min(split * share + share, pc.keys);
    uint first = split * share + gl_SubgroupID * uint(KEYS);
    uint last = end - 1u;
    k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / 8u;
    v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / 8u;
    k_stride = pc.k_row / 8u;
    v_stride = pc.v_row / 8u;
#endif
#ifdef EXTRAS
    bool some_clear = first + uint(KEYS) <= clear;
    if (some_clear) FIND_PAGE(first, last);
#else
    bool some_clear = first < end;
#endif
    if (STAGES != 1 && some_clear) {
        load_keys(first, last);
        load_values(first, last);
    }

    [[unroll]] for (int c = 0; c < QF; c++) q[c] = FACTOR_A(0.0);
    [[unroll]] for (int j = 0; j < K_WORDS; j++) {
        uint word = MY_DEEP + uint(DEEP * j);
        [[unroll]] for (int r = 0; r < SLOTS; r++) {
            if (SLOT_FIRST(r) < BAND_ROWS) {
                uint row = min(first_row + min(MY_BAND * uint(MATRIX_M) + SLOT_ROW(r), uint(ROWS - 1)), rows - 1u);
                uint query = row / pc.group;
#ifdef EXTRAS
                query = row_start() + min(query, QUERIES - 1u);
#endif
                uint origin = q_index(batch, key_head * pc.group + row % pc.group, query) / 8u;
                uvec4 held = q_data[origin + word_of(word, HEAD_DIM)];
                if (HEAD_DIM < DIM && word >= uint(HEAD_DIM / 8)) held = uvec4(0u);
                if (Q_SHARED && MY_SUBGROUP == 0u) sums[q_place(j, r)] = uintBitsToFloat(held);
                [[unroll]] for (int e = 0; e < 8; e++) q[2 * j + e / HELD][HELD * r + e % HELD] = element(held, uint(e));
            }
        }
    }
#ifdef EXTRAS
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        uint row = min(first_row + min(MY_BAND * uint(MATRIX_M) + SLOT_ROW(r), uint(ROWS - 1)), rows - 1u);
        begin_slot(r, batch, key_head * pc.group + row % pc.group, min(row / pc.group, QUERIES - 1u));
    }
#endif

    if (Q_SHARED) barrier();

    [[unroll]] for (int n = 0; n < V_WORDS * 8 / WIDTH; n++) acc[n] = SUMS(0.0);
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        maximum[r] = LOWEST;
        total[r] = 0.0;
    }
    factor = pc.scale * LOG2_E;

#ifdef EXTRAS
    // Trips of which every row sees every key, as it is; then the others, whose keys are loaded anew, as registers are few.
    for (; first + uint(KEYS) <= clear; first += step) {
        if (STAGES == 1) {
            load_keys(first, last);
            load_values(first, last);
        }
        FIND_PAGE(first + step, last);
        take_trip(first, last, false, STAGES == 2 || STAGES == 3 && first + step < clear);
    }
    for (; first < end; first += step) {
        FIND_PAGE(first, last);
        load_keys(first, last);
        load_values(first, last);
        take_trip(first, last, true, false);
    }
#else
    for (; first < end; first += step) {
        if (STAGES == 1) {
            load_keys(first, last);
            load_values(first, last);
        }
        take_trip(first, last, first + uint(KEYS) > end, STAGES == 2 || STAGES == 3 && first + step < end);
    }
#endif

    // One result of the subgroups with the same rows, eight rows of each band at a time, through shared memory.
    uint mine = gl_SubgroupID * uint(BAND_ROWS);
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        [[unroll]] for (uint distance = 1u; distance < SPREAD; distance *= 2u) {
            total[r] += subgroupShuffleXor(total[r], distance);
        }
        if (SLOT_ROW(r) < uint(BAND_ROWS) && lane % SPREAD == 0u) statistics[mine + SLOT_ROW(r)] = vec2(maximum[r], total[r]);
    }
    const uint quads = uint(VALUE_DIM / 4);
    if (Q_SHARED) barrier();  // nobody reads q any more
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        if (SLOT_FIRST(r) >= BAND_ROWS) continue;
        barrier();  // statistics are there, and sums of the block before have been read
        if (SLOT_ROW(r) < uint(BAND_ROWS)) {
            float top = LOWEST;
            [[unroll]] for (int s = 0; s < SUBGROUPS_OF_BAND; s++) {
                top = max(top, statistics[(uint(s * BANDS) + MY_BAND) * uint(BAND_ROWS) + SLOT_ROW(r)].x);
            }
            float keep = exp2(maximum[r] - top);
            uint row = (gl_SubgroupID * uint(BLOCK) + SLOT_ROW(r) - uint(SLOT_FIRST(r))) * uint(ROW_QUADS);
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                if (SLOT(e) == r) {
                    [[unroll]] for (int n = 0; n < V_WORDS * 8; n += 4) {
                        vec4 value = vec4(
                            AT(acc, n, e), AT(acc, n + 1, e), AT(acc, n + 2, e),
                            AT(acc, n + 3, e)
                        );
                        sums[row + 2u * (COLUMN(e) + uint(n / 8 * 8)) + uint(n / 4 % 2)] = value * keep;
                    }
                }
            }
        }
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < uint(BANDS * BLOCK) * quads; i += gl_WorkGroupSize.x) {
            uint band = i / quads / uint(BLOCK);
            uint within = i / quads % uint(BLOCK);
            uint column = i % quads;
            uint row = band * uint(MATRIX_M) + uint(SLOT_FIRST(r)) + within;
            if (row >= uint(ROWS)) continue;
            vec4 value = vec4(0.0);
            [[unroll]] for (int s = 0; s < SUBGROUPS_OF_BAND; s++) {
                value += sums[((uint(s * BANDS) + band) * uint(BLOCK) + within) * uint(ROW_QUADS) + column];
            }
            uint at = part_of(team, split, row);
            parts[at + column] = value;
            if (column == 0u) {
                uint told = band * uint(BAND_ROWS) + uint(SLOT_FIRST(r)) + within;
                float top = LOWEST;
                [[unroll]] for (int s = 0; s < SUBGROUPS_OF_BAND; s++) top = max(top, statistics[uint(s * BANDS * BAND_ROWS) + told].x);
                float sum = 0.0;
                [[unroll]] for (int s = 0; s < SUBGROUPS_OF_BAND; s++) {
                    vec2 part = statistics[uint(s * BANDS * BAND_ROWS) + told];
                    sum += part.y * exp2(part.x - top);
                }
                parts[at + uint(RECORD - 1)].xy = vec2(top, sum);
            }
        }
    }
    if (last_of_team(team, splits)) combine_splits(team, splits, batch, key_head, first_row);
}
