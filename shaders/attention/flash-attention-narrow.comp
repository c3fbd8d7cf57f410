#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require

// o = softmax(scale q k^T + mask) v on matrix units whose accumulators have eight rows and as many columns as a subgroup has
// invocations: Intel's, 8 x 8 x 16 with 8 and 8 x 16 x 16 with 16 (M x N x K).
//
// Shapes, layouts, bindings, specialization constants and push constants: attention/attention.glsl, with ALIGN 8.
// Accumulates in float32, with an online softmax as matrix/flash.glsl says; weights and factors are 16-bit.
//
// Queries are columns: S^T = k q^T and O^T = v^T p^T. An invocation holds one query: of an accumulator all eight rows of its
// column, of a second factor (B) all sixteen, in order. So a query's maximum, sum and scale are its invocation's own, and
// weights become a second factor where they are. First factors (A) have two neighbouring elements of a row in a word.
// Invocation L of 8 holds words L of rows 0 to 7, of 16 words L % 8 of rows L / 8, L / 8 + 2, 4 and 6. Tiles of k and v lie in
// shared memory as factors, in just this order, so that an invocation reads one or two words of 16 bytes a factor. That costs
// nothing for k, whose words are distributed anew, and a few instructions for v, whose words are halves of two keys'.
//
// A workgroup of TEAMS * TEAM_SIZE subgroups owns TEAMS * SUBGROUP query rows. TEAM_SIZE subgroups share a team's rows, as one would
// not have registers for all columns of o: each has its share of them. Of a tile's scores it computes those of its share of
// the keys. Maxima and weights meet in shared memory; weights lie where the tile's keys lay, which are no longer needed.
// Sums of weights meet after the last tile.
//
// TEAMS, TEAM_SIZE  as above
// SPLITS         splits of the keys. Where they are fewer than TEAM_SIZE, several subgroups compute the same scores
// DIM, VDIM      head dimensions rounded up to whole factors (DIM); HEAD_DIM <= DIM, VALUE_DIM <= VDIM
// KEYS           keys of a tile
// Q_SHARED       1: q lies in shared memory; 0: in registers
// HELD_OPTIONS   the options whose words registers have room for (options-in-shared.glsl)
// LOCKSTEP       defined where a subgroup's invocations run in lockstep and subgroupBarrier must not be used
// Preconditions: subgroups are full; offsets, strides and dimensions are multiples of 8.

#ifndef VDIM
#define VDIM DIM
#endif
// What may not stand together: tests/test_shader_macros.py.
#if SUBGROUP != 8 && SUBGROUP != 16
#error "a subgroup has 8 or 16 invocations"
#elif DIM % 16 || VDIM % (8 * TEAM_SIZE)
#error "DIM is whole factors, and every subgroup of a team has whole fragments of VDIM"
#elif SUBGROUP % TEAM_SIZE || TEAM_SIZE % SPLITS
#error "TEAM_SIZE divides SUBGROUP, and SPLITS divides TEAM_SIZE"
#elif KEYS % 16 || KEYS % (8 * SPLITS) || KEYS > 32 * SPLITS
#error "a tile is whole sixteens of keys, and a split of it one to four eights"
#endif

#define MATRIX_M 8
#define MATRIX_N SUBGROUP
#define MATRIX_K 16
#define EXTRAS
#define PARAMETER(n) parameter_at(n)
uint parameter_at(uint n);
#ifdef FUNCTIONS
#define HOLDS_WORDS
#endif
#include "attention.glsl"

#define ORDER 4
// Without a mask no branch leaves o as it is where a maximum stays: fewer instructions, and more registers, as Mesa has them.
#define IN_LINE (MASK == 0)
#define SUBGROUPS (TEAMS * TEAM_SIZE)
#define ROWS (TEAMS * SUBGROUP)
#define ROWS_EACH (SUBGROUP / TEAM_SIZE)  // rows that a subgroup takes in compute_rows()
#define QF (DIM / 16)
#define VF (VDIM / 8 / TEAM_SIZE)
#define D8 (DIM / 8)
#define V8 (VDIM / 8)
#define FACTOR_WORDS 16  // of 16 bytes, in a first factor
#define CHUNK (KEYS / SPLITS)  // keys whose scores a subgroup computes
#define WEIGHT_WORDS (KEYS / 8 * SUBGROUP)  // of a team
#define K_WORDS (KEYS * D8 > TEAMS * WEIGHT_WORDS ? KEYS * D8 : TEAMS * WEIGHT_WORDS)
#define V_WORDS (KEYS * V8)
#define Q_START (K_WORDS + V_WORDS)
#define Q_WORDS (QF * 2 * SUBGROUP)  // of a team
#define MEETING (Q_START + (Q_SHARED != 0 ? TEAMS * Q_WORDS : 0))
#define MEETING_WORDS ((SPLITS + 3) / 4)  // of an invocation's row: a number of each split of the keys
#define SHARED_SIZE (MEETING + ROWS * MEETING_WORDS)

#include "subgroups.glsl"
#include "matrix/factors.glsl"
#include "matrix/options.glsl"

shared uvec4 tile[SHARED_SIZE];
// Raised once a value that some query may not see holds a NaN or an infinity; never lowered.
shared uint poisoned;

uint thread, lane, subgroup, team, part, batch, head, first_row, end, q_base, k_base, v_base;
float base2_scale;

// matrix/numbers.glsl has what recompute.glsl and the last step need.
#define HELD_VALUES 1
#undef PER_THREAD
#define PER_THREAD(vectors) 1
#include "matrix/numbers.glsl"
// A workgroup has all keys of its rows.
#define BEGIN 0u
#define OUT_BATCH batch
#include "matrix/packed-gqa.glsl"
#include "matrix/recompute.glsl"

// Elements of a factor from the words that this invocation holds of it.
#define SET_WORD(factor, at, word) { \
    f16vec2 both = unpackFloat2x16(word); \
    factor[at] = both.x; \
    factor[at + 1u] = both.y; \
}
FACTOR_A first_factor(uint start) {
    FACTOR_A a;
    [[unroll]] for (uint p = 0u; p < 16u / SUBGROUP; ++p) {
        uvec4 words = tile[start + p * SUBGROUP + lane];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) SET_WORD(a, 8u * p + 2u * i, words[i])
    }
    return a;
}
FACTOR_B query_factor(uvec4 low, uvec4 high) {
    FACTOR_B b;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        SET_WORD(b, 2u * i, low[i])
        SET_WORD(b, 8u + 2u * i, high[i])
    }
    return b;
}

uint team_row() { return first_row + team * SUBGROUP; }
uint my_row() { return team_row() + lane; }

SUMS s_frag[1][CHUNK / 8];
#define s s_frag[0]
SUMS o[VF];
float top, sum;  // running maximum of base-2 scores, running sum of weights

#include "matrix/narrow-options.glsl"
#ifdef FUNCTIONS
#define PARAMETER_COUNT (FUNCTION_WORDS + 1u)
#else
#define PARAMETER_COUNT (MASK_BITS_ROW + 1u)
#endif
#include "options-in-shared.glsl"
void apply_score_mod(uint first_key);
#ifdef FUNCTIONS
void apply_mask_function(uint first_key);
#endif

// With a negative scale queries change sign, so that the scale is never negative.
uvec4 fetch_query(uint word) {
    if (HEAD_DIM < DIM && 8u * word >= HEAD_DIM) return uvec4(0u);
    return q_data[(q_base + held_row() * pc.q_row >> 3) + word] ^ (pc.scale < 0.0 ? 0x80008000u : 0u);
}
#if Q_SHARED
#define QUERY_AT(d) (Q_START + team * Q_WORDS + 2u * (d) * SUBGROUP + lane)
#define QUERY_FACTOR(d) query_factor(tile[QUERY_AT(d)], tile[QUERY_AT(d) + SUBGROUP])
void load_queries() {
    for (uint d = part; d < QF; d += TEAM_SIZE) {
        tile[QUERY_AT(d)] = fetch_query(2u * d);
        tile[QUERY_AT(d) + SUBGROUP] = fetch_query(2u * d + 1u);
    }
}
#else
FACTOR_B q_frag[QF];
#define QUERY_FACTOR(d) q_frag[d]
void load_queries() {
    [[unroll]] for (uint d = 0u; d < QF; ++d) q_frag[d] = query_factor(fetch_query(2u * d), fetch_query(2u * d + 1u));
}
#endif

// Keys past the last one are read as copies of it, columns past the head as zeros.
void load_keys(uint first_key) {
    [[unroll]] for (uint n = 0u; n < (KEYS / 4 * D8 + THREADS - 1) / THREADS; ++n) {
        uint e = thread + n * THREADS, word = e % D8, four = e / D8;
        if ((KEYS / 4 * D8) % THREADS != 0 && four >= KEYS / 4) break;
        uvec4 row[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint within = SUBGROUP == 8 ? 4u * (four % 2u) + i : 2u * i + four % 2u;
            uint key = min(first_key + four / 2u * 8u + within, end - 1u);
            row[i] = uvec4(0u);
            if (HEAD_DIM == DIM || 8u * word < HEAD_DIM) row[i] = k_data[(k_base + K_PLACE(key) >> 3) + word];
        }
        uint start = (four / 2u * QF + word / 2u) * FACTOR_WORDS + four % 2u * 8u + 4u * (word % 2u);
        [[unroll]] for (uint w = 0u; w < 4u; ++w) tile[start + w] = uvec4(row[0][w], row[1][w], row[2][w], row[3][w]);
    }
}
void load_values(uint first_key, bool masked) {
    uvec4 carried = uvec4(0u);
    [[unroll]] for (uint n = 0u; n < (KEYS / 2 * V8 + THREADS - 1) / THREADS; ++n) {
        uint e = thread + n * THREADS, word = e % V8, pair = e / V8;
        if ((KEYS / 2 * V8) % THREADS != 0 && pair >= KEYS / 2) break;
        uvec4 a = uvec4(0u), b = uvec4(0u);
        if (VALUE_DIM == VDIM || 8u * word < VALUE_DIM) {
            uint key = first_key + 2u * pair;
            a = v_data[(v_base + V_PLACE(min(key, end - 1u)) >> 3) + word];
            b = v_data[(v_base + V_PLACE(min(key + 1u, end - 1u)) >> 3) + word];
        }
        // The highest bit of each 16 is set for a NaN or an infinity, whose exponent, all ones, carries there.
        if (masked) carried |= (a & EXPONENTS) + EXPONENT_ONES | (b & EXPONENTS) + EXPONENT_ONES;
        uvec4 even = a & 0xffffu | b << 16, odd = a >> 16 | b & 0xffff0000u;
        uint start = K_WORDS + (pair / 8u * V8 + word) * FACTOR_WORDS + pair % 8u;
        tile[start] = SUBGROUP == 8 ? uvec4(even.x, odd.x, even.y, odd.y) : even;
        tile[start + 8u] = SUBGROUP == 8 ? uvec4(even.z, odd.z, even.w, odd.w) : odd;
    }
    if (masked && ((carried.x | carried.y | carried.z | carried.w) & 0x80008000u) != 0u) poisoned = 1u;
}

uint my_split() { return part % SPLITS; }

// A number of each split of the keys, for each row.
void tell(float number) {
    if (part < SPLITS) tile[MEETING + (team * SUBGROUP + lane) * MEETING_WORDS + part / 4u][part % 4u] = floatBitsToUint(number);
}
float told(uint share, uvec4 words[MEETING_WORDS]) { return uintBitsToFloat(words[share / 4u][share % 4u]); }
void read_told(out uvec4 words[MEETING_WORDS]) {
    [[unroll]] for (uint n = 0u; n < MEETING_WORDS; ++n) words[n] = tile[MEETING + (team * SUBGROUP + lane) * MEETING_WORDS + n];
}

void multiply_scores() {
    uint start = my_split() * (CHUNK / 8) * QF;
    [[unroll]] for (uint f = 0u; f < CHUNK / 8; ++f) s[f] = SUMS(0.0);
    [[unroll]] for (uint d = 0u; d < QF; ++d) {
        FACTOR_B q = QUERY_FACTOR(d);
        [[unroll]] for (uint f = 0u; f < CHUNK / 8; ++f) {
            s[f] = coopMatMulAdd(first_factor((start + f * QF + d) * FACTOR_WORDS), q, s[f]);
        }
    }
}
void rescale(float raised) {
    float decay = exp2(top - raised);
    top = raised;
    sum *= decay;
    [[unroll]] for (uint c = 0u; c < VF; ++c) {
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o[c][e] *= decay;
    }
}
// Four at a time: in one chain each comparison would wait for the one before it.
float find_maximum() {
    float most[4];
    [[unroll]] for (uint e = 0u; e < 4u; ++e) most[e] = max(s[0][e], s[0][e + 4u]);
    [[unroll]] for (uint f = 1u; f < CHUNK / 8; ++f) {
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) most[e % 4u] = max(most[e % 4u], s[f][e]);
    }
    return max(max(most[0], most[1]), max(most[2], most[3]));
}
void raise_maximum() {
    uvec4 words[MEETING_WORDS];
    read_told(words);
    float most = told(0u, words);
    [[unroll]] for (uint n = 1u; n < SPLITS; ++n) most = max(most, told(n, words));
    if (IN_LINE) rescale(max(top, most));
    else if (subgroupAny(most > ALLOWED(top))) rescale(max(top, most));
}
// The weights of this subgroup's split of the keys: eight of a row are half of what an invocation holds of a factor.
void make_weights(float factor, uint kept) {
    uint start = team * WEIGHT_WORDS + my_split() * (CHUNK / 8) * SUBGROUP + lane;
    [[unroll]] for (uint f = 0u; f < CHUNK / 8; ++f) {
        uvec4 words;
        float sums[4];
        [[unroll]] for (uint w = 0u; w < 4u; ++w) {
            vec2 pair = exp2(fma(vec2(s[f][2u * w], s[f][2u * w + 1u]), vec2(factor), vec2(-top)));
            sums[w] = pair.x + pair.y;
            if (on(DROPOUT)) {
                uint bits = kept >> 8u * f + 2u * w;
                pair = vec2((bits & 1u) != 0u ? pair.x : 0.0, (bits & 2u) != 0u ? pair.y : 0.0);
            }
            words[w] = pack_weights(pair);
        }
        sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
        if (part < SPLITS) tile[start + f * SUBGROUP] = words;
    }
}
void multiply_values() {
    uint weights = team * WEIGHT_WORDS + lane;
    [[unroll]] for (uint f = 0u; f < KEYS / 16; ++f) {
        FACTOR_B p = query_factor(tile[weights + 2u * f * SUBGROUP], tile[weights + (2u * f + 1u) * SUBGROUP]);
        uint start = K_WORDS + (f * V8 + part * VF) * FACTOR_WORDS;
        [[unroll]] for (uint c = 0u; c < VF; ++c) o[c] = coopMatMulAdd(first_factor(start + c * FACTOR_WORDS), p, o[c]);
    }
}

void store_row() {
    uint row = my_row();
    uvec4 words[MEETING_WORDS];
    read_told(words);
    float row_top = top, row_sum = told(0u, words);
    [[unroll]] for (uint n = 1u; n < SPLITS; ++n) row_sum += told(n, words);
    SINK_AND_DROP(decay)
    float lse = row_lse(row_top, row_sum), share = 1.0, keep = 0.0;
    if (MERGE != 0 && row < QUERIES) merge_weights(lse_data[lse_index(batch, head, ROW_PLACE(row))], lse, keep, share, lse);
    share = row_sum == 0.0 ? 0.0 : share / row_sum;
    UNSINK(share, decay)
    if (MERGE != 0) barrier();  // all parts have read what one of them overwrites
    if ((LSE != 0 || MERGE != 0) && part == 0u && row < QUERIES) lse_data[lse_index(batch, head, ROW_PLACE(row))] = lse;
    uint place = o_index(batch, head, ROW_PLACE(row));
    [[unroll]] for (uint c = 0u; c < VF; ++c) {
        uint column = 8u * (part * VF + c);
        vec4 low = vec4(o[c][0], o[c][1], o[c][2], o[c][3]) * share;
        vec4 high = vec4(o[c][4], o[c][5], o[c][6], o[c][7]) * share;
        STORE_EIGHT(low, high)
    }
}

void main() {
    subgroup = gl_SubgroupID;
    lane = gl_SubgroupInvocationID;
    thread = subgroup * SUBGROUP + lane;
    team = subgroup / TEAM_SIZE;
    part = subgroup % TEAM_SIZE;
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
    copy_parameters(thread);
    begin_extras(batch, head);
    q_base = q_index(batch, head, row_start());
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
    // Under a causal mask later rows see more keys: the longest workgroups start first.
    first_row = (CAUSAL != 0 ? gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x : gl_WorkGroupID.x) * ROWS;
    if (on(LENGTHS) && first_row >= QUERIES) return;
    find_keys();
    base2_scale = max(abs(pc.scale) * LOG2_E, 1e-37);  // not zero, as it multiplies minus infinities
    uint first_key = hidden_keys(first_row) / KEYS * KEYS;
    if (on(TILES) && first_key < end) {
        fetch_tiles(first_key / KEYS);
        read_tiles(first_key / KEYS);
    }
    first_key = find_tile(first_key);

    if (thread == 0u) poisoned = 0u;
    load_queries();
    top = NEVER;
    sum = 0.0;
    [[unroll]] for (uint c = 0u; c < VF; ++c) o[c] = SUMS(0.0);
    read_places();
    keep_words(thread);

    [[dont_unroll]] while (first_key < end) {
        bool masked = MODIFIED || !is_clear(first_key), read = !next_seen;
        float factor = masked && SCALED ? 1.0 : base2_scale;
        barrier();  // the tile before this one has been read
        find_words();
        load_keys(first_key);
        load_values(first_key, masked);
        uint next_key = find_tile(first_key + KEYS);
        barrier();
        find_words();
        if (OPTIONS_IN_SHARED) read_places();
        uint my_key = first_key + my_split() * CHUNK, bits = 0xffffffffu, kept = 0u;
        if (HAS_MASK_MOD && read) bits = read_bits(my_key);
        multiply_scores();
#ifdef FUNCTIONS
        hold_function_words();
#endif
        if (masked && SCALED) apply_score_mod(my_key);
#ifdef FUNCTIONS
        if (on(MASK_FUNCTION) && masked && read) apply_mask_function(my_key);
#endif
        if (masked) apply_mask_mod(bits & range_bits(my_key));
        tell(find_maximum() * factor);
        barrier();  // the tile's keys have been read
        find_words();
        raise_maximum();
        if (on(DROPOUT)) kept = find_kept(my_key);
        make_weights(factor, kept);
        barrier();
        multiply_values();
        first_key = next_key;
    }
    tell(sum);
    barrier();
    find_words();
    if (poisoned == 0u) {
        store_row();
    } else {
#ifdef FUNCTIONS
        hold_function_words();
#endif
        compute_rows();
    }
}

// What changes scores. A fragment is a subgroup's queries by the eight keys of an accumulator there. That gives MATRIX_M and
// MATRIX_N another meaning than the types of matrices, so this comes after all that names such a type.
#undef MATRIX_M
#undef MATRIX_N
#define MATRIX_M SUBGROUP
#define MATRIX_N 8
#define RF 1
#define KF (CHUNK / 8)
#define FIND_PLACES
#define PLACE_ROW(e) lane
#define PLACE_COLUMN(e) (e)
#define MY_ROW team_row()
#include "matrix/score-mod.glsl"
