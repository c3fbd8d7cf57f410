// Attention of wide heads on matrix units: keys of up to DIM columns, values of up to VDIM, for which the matrices of one
// subgroup have no room.
//
// Computes o = softmax(scale q k^T + mask) v with an online softmax (Dao 2023, "FlashAttention-2", algorithm 1).
//
// A workgroup of BANDS x PARTS subgroups owns TILE_ROWS query rows and walks along the keys, KEYS at a time. A band of PARTS
// subgroups has RF fragments of MATRIX_M rows. Of these a subgroup holds a part of the columns of q and a part of those of
// the output, both in registers, so that a fragment of k or v is loaded once for all RF. For each tile of keys
//     its scores over the subgroup's columns of q and k go to shared memory,
//     THREADS / TILE_ROWS invocations of each row add up the parts, apply options, and leave weights there,
//     the subgroup multiplies its columns of v by the weights of its band.
// As scores and weights pass through shared memory, no order of elements is assumed; FIND_PLACES finds the one that there is.
// The running maximum is raised only when a tile exceeds it by SLACK powers of two, as flash.glsl has it.
//
// With VALUES_IN_KEYS v is the first VALUE_DIM columns of k (DeepSeek's MLA in its absorbed form): the tile is read once.
// With SPLITS a workgroup has one range of the keys and rows of all query heads that share a key head: decode/flash-decode.glsl.
//
// Invocation (thread): row thread / ROW_THREADS of the tile's scores, EACH neighbouring keys.
// Accumulation: float32, exponentials of base 2.
// Defines: MATRIX_M, MATRIX_N, MATRIX_K, SUBGROUP; BANDS, PARTS, RF, KEYS, DIM, VDIM; Q_SHARED, fragments of a subgroup's part of
//     q that lie in shared memory in place of registers; LOCKSTEP (subgroups.glsl); SPLITS.
// Preconditions: offsets, strides and dimensions of q, k, v and o are multiples of 8; HEAD_DIM <= DIM, VALUE_DIM <= VDIM.

#extension GL_KHR_shader_subgroup_shuffle : require

#define EXTRAS
#define WITHOUT_TILES
#ifdef SPLITS
#define O_ELEMENT IO_VECTOR
#endif
#include "attention/attention.glsl"

#define SUBGROUPS (BANDS * PARTS)
#define TILE_ROWS (BANDS * RF * MATRIX_M)
#ifdef SPLITS
layout(constant_id = 12) const int ROWS = 1;  // of the workgroup, at most TILE_ROWS
#endif
layout(constant_id = 14) const int VALUES_IN_KEYS = 0;

#include "subgroups.glsl"
#include "factors.glsl"

#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define QF (DIM / PARTS / MATRIX_K)
#define VF (VDIM / PARTS / MATRIX_N)
#define KF (KEYS / MATRIX_N)
#define PF (KEYS / MATRIX_K)
#define D8 (DIM / 8)
#define V8 (VDIM / 8)
#define ROW_THREADS (THREADS / TILE_ROWS)
#define EACH (KEYS / ROW_THREADS)
#define KEY_THREADS (THREADS / KEYS)
#define WORDS_EACH(words) (((words) + KEY_THREADS - 1) / KEY_THREADS)

// What may not stand together: tests/test_shader_macros.py.
#if MATRIX_M * MATRIX_N != 8 * SUBGROUP || MATRIX_N % 8 || MATRIX_K % 8
#error "an invocation holds eight elements of an accumulator, and rows are whole words of 16 bytes"
#elif DIM % (PARTS * MATRIX_K) || VDIM % (PARTS * MATRIX_N)
#error "a part of a row is whole fragments"
#elif KEYS % MATRIX_N || KEYS % MATRIX_K
#error "a tile is whole fragments of keys"
#elif Q_SHARED > QF
#error "Q_SHARED is at most the fragments of a part of a row of q"
#elif THREADS % TILE_ROWS || THREADS % KEYS
#error "as many invocations have a row of scores, or a key, as any other"
#elif ROW_THREADS > SUBGROUP || (ROW_THREADS & (ROW_THREADS - 1)) || KEYS % (2 * ROW_THREADS)
#error "a power of two of a subgroup's invocations share a row of scores, each with pairs of keys"
#endif

// Shared memory, in words of 16 bytes: a tile of k or v, rows an odd number of words long against bank conflicts; scores,
// PARTS of them; weights; two numbers of each row; and what is kept of q.
#define STRIDE (MOST(D8, V8) + 1)
#define S_START (KEYS * STRIDE)
#define FRAGMENT_VECTORS (MATRIX_M * MATRIX_N / 4)
#define Q_STRIDE (MATRIX_K / 8 + 1)
#define S_VECTORS MOST(PARTS * TILE_ROWS * KEYS / 4, SUBGROUPS * MOST(MATRIX_M * Q_STRIDE, FRAGMENT_VECTORS))
#define P_START (S_START + S_VECTORS)
#define P_STRIDE (KEYS / 8 + 1)
#define NUMBERS_START (P_START + TILE_ROWS * P_STRIDE)
#define Q_START (NUMBERS_START + TILE_ROWS / 2)
#define Q_ROW (PARTS * Q_SHARED * (MATRIX_K / 8) + 1)
#define SHARED_VECTORS (Q_START + (Q_SHARED > 0 ? TILE_ROWS * Q_ROW : 0))
shared uvec4 tile[SHARED_VECTORS];
shared uint poisoned, grown;  // the last tile, as its first key + 1, that has values which are not finite; that raises a maximum

const float LOWEST = -3.2e38;  // flash-decode.comp
const float SLACK = 8.0;

uint thread, lane, subgroup, band, part, batch, head, first_row, begin, end, k_base, v_base;
FACTOR_A q_frag[RF][QF];
SUMS o_frag[RF][VF];
uvec4 held[WORDS_EACH(MOST(D8, V8))];
uint my_key, my_word;  // whose words of 16 bytes, and from which on, KEY_THREADS apart, this invocation brings
// Of the row of scores that this invocation looks at.
uint my_row, my_query, my_mask;
float top, total;
// Where the elements lie that an invocation holds of a matrix of sums: MATRIX_N row + column, eight bits each.
uint places[2];
#define PLACE(e) (places[(e) / 4u] >> 8u * ((e) % 4u) & 255u)
#define PLACE_ROW(i, e) ((band * RF + (i)) * MATRIX_M + PLACE(e) / MATRIX_N)

#ifdef SPLITS
#if defined(DTYPE_bfloat16)
#define ROUNDED4(x) uintBitsToFloat(bfloat16_words(x) << 16)
#else
#define ROUNDED4(x) (x)
#endif
#define REACH gl_ScopeQueueFamily
#define WIDE 8
#define PUT_SUM(at, sum) tile[at] = floatBitsToUint(sum)
#define GET_SUM(at) uintBitsToFloat(tile[at])
#include "decode/flash-decode.glsl"
uint key_head, rows, part_at;
// Which row of the key head row r of the tile is.
uint row_of(uint r) { return min(first_row + min(r, uint(ROWS - 1)), rows - 1u); }
uint query_of(uint r) { return min(row_of(r) / pc.group, QUERIES - 1u); }
uint head_of(uint r) { return key_head * pc.group + row_of(r) % pc.group; }
#else
#include "attention/longest-first.glsl"
uint query_of(uint r) { return min(first_row + r, QUERIES - 1u); }
uint head_of(uint r) { return head; }
#endif

float number_of(uint row, uint n) { return uintBitsToFloat(tile[NUMBERS_START + row / 2u][row % 2u * 2u + n]); }
void put_number(uint row, uint n, float x) { tile[NUMBERS_START + row / 2u][row % 2u * 2u + n] = floatBitsToUint(x); }

void find_places() {
    for (uint e = thread; e < FRAGMENT_VECTORS; e += THREADS) {
        tile[S_START + e] = floatBitsToUint(vec4(4u * e) + vec4(0.0, 1.0, 2.0, 3.0));
    }
    barrier();
    SUMS found;
    coopMatLoad(found, tile, S_START, MATRIX_N / 4, ROW_MAJOR);
    places[0] = 0u;
    places[1] = 0u;
    [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) places[e / 4u] |= uint(found[e]) << 8u * (e % 4u);
    barrier();
}

// A fragment of q that stays in shared memory, of those past QF - Q_SHARED.
uint shared_query(uint i, uint d) {
    return Q_START + (band * RF + i) * MATRIX_M * Q_ROW + (part * Q_SHARED + d - (QF - Q_SHARED)) * (MATRIX_K / 8);
}

void load_queries() {
    const uint words = MATRIX_K / 8;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        uint r = (band * RF + i) * MATRIX_M + lane / words;
        uint origin = q_index(batch, head_of(r), row_start() + query_of(r));
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            bool resident = d < QF - Q_SHARED;
            uint start = resident ? S_START + subgroup * (MATRIX_M * Q_STRIDE) : shared_query(i, d);
            uint stride = resident ? Q_STRIDE : Q_ROW, column = (part * QF + d) * MATRIX_K + 8u * (lane % words);
            if (lane < MATRIX_M * words) {
                uvec4 word = uvec4(0u);
                if (column < HEAD_DIM) word = q_data[(origin + column) >> 3];
                tile[start + lane / words * stride + lane % words] = word;
            }
            if (resident) {
                SYNC_SUBGROUP;
                coopMatLoad(q_frag[i][d], tile, start, Q_STRIDE, ROW_MAJOR);
                SYNC_SUBGROUP;
            }
        }
    }
}

// Keys past the last are zeros, as what weights of zero multiply must be finite.
void fetch_keys(uint first_key) {
    uint key = first_key + my_key, at = k_base + K_PLACE(key) >> 3;
    [[unroll]] for (uint n = 0u; n < WORDS_EACH(D8); ++n) {
        uint word = my_word + n * KEY_THREADS;
        held[n] = uvec4(0u);
        if (key < end && (HEAD_DIM == DIM && D8 % KEY_THREADS == 0 || word < HEAD_DIM / 8)) held[n] = k_data[at + word];
    }
}
void fetch_values(uint first_key) {
    uint key = first_key + my_key, at = v_base + V_PLACE(key) >> 3;
    [[unroll]] for (uint n = 0u; n < WORDS_EACH(V8); ++n) {
        uint word = my_word + n * KEY_THREADS;
        held[n] = uvec4(0u);
        if (key < end && (VALUE_DIM == VDIM && V8 % KEY_THREADS == 0 || word < VALUE_DIM / 8)) held[n] = v_data[at + word];
    }
}

bool some_non_finite(uvec4 words) {
    const uint low = EXPONENTS & 0xffffu, high = EXPONENTS & 0xffff0000u;
    bvec4 found = equal(words & uvec4(low), uvec4(low));
    return any(found) || any(equal(words & uvec4(high), uvec4(high)));
}

// `masked`: some row may not see some of the keys, so values that are not finite have to be found.
void store_keys(uint first_key, bool masked) {
    [[unroll]] for (uint n = 0u; n < WORDS_EACH(D8); ++n) {
        uint word = my_word + n * KEY_THREADS;
        if (D8 % KEY_THREADS == 0 || word < D8) tile[my_key * STRIDE + word] = held[n];
        bool value = VALUES_IN_KEYS != 0 && word < VALUE_DIM / 8;
        if (masked && value && some_non_finite(held[n])) poisoned = first_key + 1u;
    }
}
void store_values(uint first_key, bool masked) {
    [[unroll]] for (uint n = 0u; n < WORDS_EACH(V8); ++n) {
        uint word = my_word + n * KEY_THREADS;
        if (V8 % KEY_THREADS == 0 || word < V8) tile[my_key * STRIDE + word] = held[n];
        if (masked && some_non_finite(held[n])) poisoned = first_key + 1u;
    }
}

FACTOR_A weight_factor(uint i, uint f) {
    FACTOR_A p;
    coopMatLoad(p, tile, P_START + (band * RF + i) * MATRIX_M * P_STRIDE + f * (MATRIX_K / 8), P_STRIDE, ROW_MAJOR);
    return p;
}
FACTOR_B value_factor(uint f, uint c) {
    FACTOR_B v;
    coopMatLoad(v, tile, f * MATRIX_K * STRIDE + (part * VF + c) * (MATRIX_N / 8), STRIDE, ROW_MAJOR);
    return v;
}

// The part of the scores that the subgroup's columns make.
void multiply_keys() {
    SUMS s_frag[RF][KF];
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f] = SUMS(0.0);
    }
    [[unroll]] for (uint d = 0u; d < QF; ++d) {
#if Q_SHARED
        if (d >= QF - Q_SHARED) {
            [[unroll]] for (uint i = 0u; i < RF; ++i) coopMatLoad(q_frag[i][d], tile, shared_query(i, d), Q_ROW, ROW_MAJOR);
        }
#endif
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            FACTOR_B k;
            coopMatLoad(k, tile, f * MATRIX_N * STRIDE + (part * QF + d) * (MATRIX_K / 8), STRIDE, COLUMN_MAJOR);
            [[unroll]] for (uint i = 0u; i < RF; ++i) s_frag[i][f] = coopMatMulAdd(q_frag[i][d], k, s_frag[i][f]);
        }
    }
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        uint start = S_START + (part * TILE_ROWS + (band * RF + i) * MATRIX_M) * (KEYS / 4);
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            coopMatStore(s_frag[i][f], tile, start + f * (MATRIX_N / 4), KEYS / 4, ROW_MAJOR);
        }
    }
}

// A base-2 score as its row sees it; `key` is one that there is.
float seen_score(float score, uint key) {
    if (HAS_SCORE_MOD) score = score_mod(score, my_query, key);
    if (MASK != 0) {
        float bias = mask_bias(my_mask + key * pc.mask_key);
        score = score <= NEVER ? NEVER : biased_score(score, bias);
    }
    bool picky = CAUSAL == 1 || (FEATURES & (HIDING_KEYS | LENGTHS)) != 0;
    return picky && !mask_mod(my_query, key) ? NEVER : score;
}

void make_weights(uint first_key, bool masked) {
    uint first = thread % ROW_THREADS * EACH;  // of the tile
    float score[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        score[e] = 0.0;
        [[unroll]] for (uint p = 0u; p < PARTS; ++p) {
            uint at = (p * TILE_ROWS + my_row) * KEYS + first + e;
            score[e] += uintBitsToFloat(tile[S_START + at / 4u][at % 4u]);
        }
        score[e] *= pc.scale * LOG2_E;
    }
    if (masked) {
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint key = first_key + first + e;
            score[e] = key < end ? seen_score(score[e], key) : NEVER;
        }
    }
    float most = LOWEST;
    [[unroll]] for (uint e = 0u; e < EACH; ++e) most = max(most, score[e]);
    [[unroll]] for (uint step = 1u; step < ROW_THREADS; step *= 2u) most = max(most, subgroupShuffleXor(most, step));
    float decay = 1.0;
    if (most > top + SLACK) {
        decay = exp2(top - most);
        top = most;
        total *= decay;
        grown = first_key + 1u;
    }
    if (thread % ROW_THREADS == 0u) put_number(my_row, 0u, decay);
    [[unroll]] for (uint e = 0u; e < EACH; ++e) {
        float w = weight(score[e], top);
        total += w;
        if (on(DROPOUT) && w != 0.0) w *= dropout_factor(my_query, first_key + first + e);
        score[e] = w;
    }
    [[unroll]] for (uint e = 0u; e < EACH; e += 2u) {
        uint at = (first + e) / 2u;
        tile[P_START + my_row * P_STRIDE + at / 4u][at % 4u] = pack_weights(vec2(score[e], score[e + 1u]));
    }
}

// Products of weights and values that are not finite, of a tile that is masked: zero times infinity would be NaN. Rare.
// First finite values are multiplied, then ones in place of infinities, of their negatives, and of NaN: where such a product
// is positive, the row sees one. What a tile has of a kind is read anew.
uint of_kind(uint bits, uint kind) {
    const uint exponent = EXPONENTS & 0xffffu, lowest = EXPONENT_ONES & 0xffffu;
    uint found = (bits & exponent) != exponent ? 0u : (bits & (lowest - 1u)) != 0u ? 3u : (bits >> 15) + 1u;
    return found != kind ? 0u : kind == 0u ? bits : (exponent - lowest) / 2u & exponent;  // 1
}

void multiply_poisoned(uint first_key) {
    [[dont_unroll]] for (uint kind = 0u; kind < 4u; ++kind) {
        float special = uintBitsToFloat(kind == 1u ? 0x7f800000u : kind == 2u ? 0xff800000u : 0x7fc00000u);
        uint key = first_key + my_key, at = v_base + V_PLACE(key) >> 3;
        [[dont_unroll]] for (uint word = my_word; word < V8; word += KEY_THREADS) {
            uvec4 found = uvec4(0u);
            if (key < end && word < VALUE_DIM / 8) found = v_data[at + word];
            [[unroll]] for (uint n = 0u; n < 4u; ++n) {
                found[n] = of_kind(found[n] & 0xffffu, kind) | of_kind(found[n] >> 16, kind) << 16;
            }
            tile[my_key * STRIDE + word] = found;
        }
        barrier();
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                FACTOR_B v = value_factor(f, c);
                [[unroll]] for (uint i = 0u; i < RF; ++i) {
                    SUMS more = coopMatMulAdd(weight_factor(i, f), v, SUMS(0.0));
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                        o_frag[i][c][e] += kind == 0u ? more[e] : more[e] > 0.0 ? special : 0.0;
                    }
                }
            }
        }
        barrier();
    }
}

void multiply_values() {
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        FACTOR_A p[RF];
        [[unroll]] for (uint i = 0u; i < RF; ++i) p[i] = weight_factor(i, f);
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            FACTOR_B v = value_factor(f, c);
            [[unroll]] for (uint i = 0u; i < RF; ++i) o_frag[i][c] = coopMatMulAdd(p[i], v, o_frag[i][c]);
        }
    }
}

void scale_output() {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            float decay = number_of(PLACE_ROW(i, e), 0u);
            [[unroll]] for (uint c = 0u; c < VF; ++c) o_frag[i][c][e] *= decay;
        }
    }
}

// One tile of keys. k's words are in `held`, and are the next tile's afterwards.
void add_tile(uint first_key, bool masked) {
    store_keys(first_key, masked);
    barrier();
    if (VALUES_IN_KEYS == 0) fetch_values(first_key);
    multiply_keys();
    barrier();
    if (VALUES_IN_KEYS == 0) store_values(first_key, masked);
    fetch_keys(first_key + KEYS);
    make_weights(first_key, masked);
    barrier();
    if (grown == first_key + 1u) scale_output();
    if (poisoned != first_key + 1u) {
        multiply_values();
        barrier();
    } else {
        multiply_poisoned(first_key);
    }
}

// Eight columns of a row of the output for each invocation of a subgroup, through shared memory.
void store_rows() {
    const uint words = MATRIX_N / 8;
    uint scratch = S_START + subgroup * FRAGMENT_VECTORS;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        uint r = (band * RF + i) * MATRIX_M + lane / words;
#ifdef SPLITS
        bool mine = r < uint(ROWS);
#else
        bool mine = first_row + r < QUERIES;
        float share = number_of(r, 0u), keep = number_of(r, 1u);
        uint place = o_index(batch, head, row_start() + query_of(r));
#endif
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            coopMatStore(o_frag[i][c], tile, scratch, MATRIX_N / 4, ROW_MAJOR);
            SYNC_SUBGROUP;
            vec4 low = uintBitsToFloat(tile[scratch + 2u * lane]), high = uintBitsToFloat(tile[scratch + 2u * lane + 1u]);
            SYNC_SUBGROUP;
            uint column = (part * VF + c) * MATRIX_N + 8u * (lane % words);
            if (mine && column < VALUE_DIM) {
#ifdef SPLITS
                uint at = part_at + r * uint(RECORD) + column / 4u;
                parts[at] = low;
                parts[at + 1u] = high;
#else
                low *= share;
                high *= share;
                STORE_SIXTEEN_BITS(low, high)
#endif
            }
        }
    }
}

void main() {
    subgroup = gl_SubgroupID;
    lane = gl_SubgroupInvocationID;
    thread = subgroup * SUBGROUP + lane;
    band = subgroup / PARTS;
    part = subgroup % PARTS;
    my_row = thread / ROW_THREADS;
    my_key = thread / KEY_THREADS;
    my_word = thread % KEY_THREADS;
    batch = gl_WorkGroupID.z;
    // Which rows, and which of the keys that they see.
#ifdef SPLITS
    key_head = gl_WorkGroupID.y;
    rows = pc.queries * pc.group;
    uint passes = (rows + uint(ROWS) - 1u) / uint(ROWS);
    uint split = gl_WorkGroupID.x / passes, splits = gl_NumWorkGroups.x / passes;
    uint team = (batch * gl_NumWorkGroups.y + key_head) * passes + gl_WorkGroupID.x % passes;
    first_row = gl_WorkGroupID.x % passes * uint(ROWS);
    head = key_head * pc.group;
    begin_extras(batch, head_of(my_row));
    uint first_query = first_row / pc.group;
    if (on(LENGTHS) && first_query >= QUERIES) return;  // and with it all of its team
    uint last_query = min((min(first_row + uint(ROWS), rows) - 1u) / pc.group, QUERIES - 1u);
    uint seen = visible_keys(first_query, last_query);
    uint unseen = min(hidden_keys(first_query), seen) / KEYS * KEYS;
    uint share = keys_per_split(seen - unseen, KEYS, splits);
    if (split >= splits) return;
    begin = unseen + split * share;
    end = min(begin + share, seen);
#else
    head = gl_WorkGroupID.y;
    uint number_ = gl_WorkGroupID.x;
    if (CAUSAL != 0) {
        number_ = gl_NumWorkGroups.x - 1u - longest_first(pc.keys * uint(HEAD_DIM + VALUE_DIM) * 2u, pc.group, head, batch);
    }
    first_row = number_ * TILE_ROWS;
    begin_extras(batch, head);
    if (first_row >= QUERIES) return;
    uint first_query = first_row, last_query = min(first_row + TILE_ROWS, QUERIES) - 1u;
    end = visible_keys(first_query, last_query);
    begin = min(hidden_keys(first_query), end) / KEYS * KEYS;
#endif
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
    my_query = query_of(my_row);
    my_mask = MASK == 0 ? 0u : mask_index(batch, head_of(my_row), my_query);
    top = LOWEST;
    total = 0.0;

    if (thread == 0u) {
        poisoned = 0u;
        grown = 0u;
    }
    find_places();
    fetch_keys(begin);
    load_queries();
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint c = 0u; c < VF; ++c) o_frag[i][c] = SUMS(0.0);
    }
    [[dont_unroll]] for (uint first_key = begin; first_key < end; first_key += KEYS) {
        bool masked = MASK != 0 || HAS_SCORE_MOD || first_key + KEYS > end
            || !mask_is_full(first_query, last_query, first_key, first_key + KEYS - 1u);
        add_tile(first_key, masked);
    }

    [[unroll]] for (uint step = 1u; step < ROW_THREADS; step *= 2u) total += subgroupShuffleXor(total, step);
#ifdef SPLITS
    part_at = part_of(team, split, 0u);
    if (thread % ROW_THREADS == 0u && my_row < uint(ROWS)) {
        parts[part_at + my_row * uint(RECORD) + uint(RECORD - 1)].xy = vec2(top, total);
    }
    store_rows();
    if (last_of_team(team, splits)) combine_splits(team, splits, batch, key_head, first_row);
#else
    if (thread % ROW_THREADS == 0u) {
        bool mine = first_row + my_row < QUERIES;
        uint place = lse_index(batch, head, row_start() + my_query);
        float decay, share = 1.0, keep = 0.0;
        add_sink(my_query, top, total, decay);
        float lse = row_lse(top, total);
        if (MERGE != 0 && mine) merge_weights(lse_data[place], lse, keep, share, lse);
        put_number(my_row, 0u, total == 0.0 ? 0.0 : share / total * decay);
        put_number(my_row, 1u, keep);
        if ((LSE != 0 || MERGE != 0) && mine) lse_data[place] = lse;
    }
    barrier();
    store_rows();
#endif
}
