// Attention on matrix units (VK_KHR_cooperative_matrix) with an online softmax: the matrix variants of flash-attention3.
//
// Computes, for each query row, o = softmax(scale q k^T + mask) v without storing the scores (Dao 2023,
// "FlashAttention-2", algorithm 1). Factors are 16-bit, sums, exponentials and the output until it is stored are float32.
// The running maximum is raised only when a tile exceeds it by SLACK powers of two (the idea is FlashAttention-4's): until
// then weights may reach 2^SLACK, which changes no relative precision.
//
// A workgroup of SUBGROUPS subgroups owns ROWS query rows; each subgroup owns RF row fragments of MATRIX_M rows and keeps
// their q, scores and output in cooperative matrices of MATRIX_M x MATRIX_N x MATRIX_K. Keys are taken in tiles of KEYS.
// k and v tiles lie in shared memory as 16-byte words, rows an odd number of words long against bank conflicts. What the
// next step needs is loaded into registers before the present one is computed, and stored after it.
//
// Three forms:
//   ORDER defined     which elements of a matrix an invocation holds is known (below). A row's statistics live in
//                     registers, its maximum travels by shuffles, and the weights become a factor element by element,
//                     as an accumulator and an A factor have the same order on the devices listed.
//   ORDER undefined   nothing is assumed. The row maximum is exchanged and the weights change their role through shared
//                     memory, the row sum is a product with ones, so statistics are matrices, all columns equal.
//   TRANSPOSED        both products are transposed, so that a query is a column, in AMD's orders or llvmpipe's:
//                     include/flash-matrix-transposed.glsl. What is said of rows here is then true of queries.
//
// The including shader defines
//   MATRIX_M, MATRIX_N, MATRIX_K   the matrix shape; MATRIX_M * MATRIX_N / SUBGROUP must be 8, and MATRIX_K a multiple of 8;
//                                  with ORDER, MATRIX_N == MATRIX_K
//   SUBGROUP, SUBGROUPS            invocations in a subgroup (full), subgroups in the workgroup
//   RF, KEYS                       row fragments of a subgroup, keys of a tile
//   DIM, VDIM                      head dimensions rounded up to whole fragments; HEAD_DIM <= DIM, VALUE_DIM <= VDIM
//   Q_SHARED                       trailing fragments of each q row kept in shared memory instead of registers
//   BUFFERS                        1 (default): tiles of k and v take turns in one place, four barriers a tile; 2: each has
//                                  its own, two barriers, three with CHUNK; 4: each has two, one barrier; not with SPLIT, 4
//                                  not with EXTRAS
//   CHUNK                          keys of a tile whose scores are held at once: KEYS (default), or less with BUFFERS 2 or 4
//                                  and ORDER
//   SUM_COLUMNS                    with ORDER: 0, or the columns of a matrix of ones that sums the weights on the matrix unit
//   SPLIT_LOOPS                    1: tiles without any masked key have a loop of their own
//   RETRY                          1: weights are made with the maximum as it is, without looking for the chunk's; where their
//                                  sums show that it must be raised, the chunk is done again (include/flash-matrix-retry.glsl).
//                                  With ORDER and SUM_COLUMNS 0, not with SPLIT or EXTRAS other than TILED
//   STEPS                          1: what a thread fetches of a whole tile lies at equal steps from its first word, which
//                                  saves the arithmetic of places and tests; THREADS is a multiple of D8 and V8, and KEYS D8
//                                  and KEYS V8 are multiples of THREADS. Not with SPLIT or TRANSPOSED
//   LOCKSTEP                       defined where a subgroup's invocations run in lockstep and subgroupBarrier must not be used
//   RAISE_WHILE                    1: the rare branch is written as a loop that runs at most once: compilers place it elsewhere
//   SPLIT                          defined where q, k, v and o are float32 and every factor is split into two float16
//                                  parts: include/flash-split.glsl, which has a few more defines
//   TRANSPOSED                     defined for that form, in place of ORDER. Not with SPLIT
//   TURN_SHARED                    with TRANSPOSED: defined where weights become a factor through shared memory
//   EXTRAS                         defined where what include/extras.glsl has is offered: include/flash-matrix-extras.glsl.
//                                  Not with SPLIT
//   TILED                          defined beside EXTRAS where classes of tiles are all that is offered of it:
//                                  include/flash-matrix-tiled.glsl. With ORDER, BUFFERS 1 or 2
// HEAD_DIM, VALUE_DIM, offsets and strides are multiples of 8 (ALIGN 8), with SPLIT of 4 (ALIGN 4).

#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

// Within a branch that only some subgroups of a workgroup take. llvmpipe would wait there for the whole workgroup; its
// subgroups run in lockstep and need memory order only.
#ifdef LOCKSTEP
#define SYNC_SUBGROUP subgroupMemoryBarrierShared()
#else
#define SYNC_SUBGROUP subgroupBarrier()
#endif

#define THREADS (SUBGROUPS * SUBGROUP)
layout(local_size_x = THREADS, local_size_y = 1, local_size_z = 1) in;

// Element e of a matrix that lane L of a subgroup holds: its row and column, the number of rows a lane holds elements of
// (SLOTS), which of them e belongs to, and how many lane bits a row is spread over, from which on.
#define ORDER_QUADS 1    // NVIDIA, 16 x 16: two rows a lane, a row spread over four neighbours
#define ORDER_COLUMNS 2  // llvmpipe, 8 x 8: a lane holds a column
#define ORDER_LANES 3    // TRANSPOSED: a lane holds elements of one column, which is a query
#ifdef TRANSPOSED
#define ORDER ORDER_LANES
#endif
#if ORDER == ORDER_QUADS
#define SLOTS 2
#define SLOT(e) ((e) >> 2)
#define SLOT_FIRST(slot) (4u * (slot))
#define SUM_SLOT(e) ((e) * SLOTS / SUM_ELEMENTS)
#define SLOT_ROW(lane, slot) ((lane) / 4u + 8u * (slot))
#define LANE_COLUMN(lane) (2u * ((lane) % 4u))
#define COLUMN_AFTER(e) (((e) & 1u) + 8u * (((e) >> 1) & 1u))
#define SPREAD_BITS 2u
#define SPREAD_FROM 1u
#elif ORDER == ORDER_COLUMNS
#define SLOTS 8
#define SLOT(e) (e)
#define SLOT_FIRST(slot) (slot)
#define SLOT_ROW(lane, slot) (slot)
#define LANE_COLUMN(lane) (lane)
#define COLUMN_AFTER(e) 0u
#define SPREAD_BITS 3u
#define SPREAD_FROM 1u
#elif ORDER == ORDER_LANES
// By row a query is meant, by column a key.
#define SLOTS 1
#define SLOT(e) 0
#define SLOT_FIRST(slot) 0
#define SLOT_ROW(lane, slot) ((lane) % MATRIX_N)
#define LANE_COLUMN(lane) (8u * ((lane) / MATRIX_N))
#define COLUMN_AFTER(e) (e)
#define SPREAD_BITS (SUBGROUP / MATRIX_N / 2)  // for up to four lanes to a query
#define SPREAD_FROM uint(MATRIX_N)
#endif
#define ELEMENT_COLUMN(lane, e) (LANE_COLUMN(lane) + COLUMN_AFTER(e))

#ifndef BUFFERS
#define BUFFERS 1
#endif
#ifndef CHUNK
#define CHUNK KEYS
#endif

#define ELEMENTS 8
#define ROWS_EACH (MATRIX_M * RF)
#define ROWS (SUBGROUPS * ROWS_EACH)
#define QF (DIM / MATRIX_K)
#define VF (VDIM / MATRIX_N)
#define KF (CHUNK / MATRIX_N)
#define PF (CHUNK / MATRIX_K)
#define D8 (DIM / 8)
#define V8 (VDIM / 8)
#if STEPS && (THREADS % D8 || THREADS % V8 || KEYS * D8 % THREADS || KEYS * V8 % THREADS)
#error "STEPS needs threads that take whole rows of k and v, and tiles of whole steps"
#endif
#if RETRY && (!defined(ORDER) || SUM_COLUMNS || defined(SPLIT) || defined(EXTRAS) && !defined(TILED))
#error "RETRY needs ORDER and sums by lanes, and nothing else to do to scores"
#endif
#define K_STRIDE (D8 + 1)
#define K_VECTORS (KEYS * K_STRIDE)
#define PER_THREAD(vectors) (((vectors) + THREADS - 1) / THREADS)
#ifdef TRANSPOSED
#define V_STRIDE (KEYS / 8 + 1)
#define V_VECTORS (VDIM * V_STRIDE)
#define VALUE_PAIRS (KEYS / 2 * V8)
#define HELD_VALUES (2 * PER_THREAD(VALUE_PAIRS))
#else
#define V_STRIDE (V8 + 1)
#define V_VECTORS (KEYS * V_STRIDE)
#define HELD_VALUES PER_THREAD(KEYS * V8)
#endif
#ifdef SPLIT
#define PARTS 2
#define SLACK 4.0
#define LIFT 11  // weights are multiplied by 2^LIFT, so that few are too small for float16: 2^(SLACK + LIFT) at most
#define LIFTED(top) ((top) - float(LIFT))
#define ALLOWED(top) ((top) + (SLACK + float(LIFT)))
#else
#define PARTS 1
#define SLACK 8.0
#define LIFTED(top) (top)
#define ALLOWED(top) ((top) + SLACK)
#endif
#if RAISE_WHILE
#define RAISE while
#else
#define RAISE if
#endif

// Words of the shared array. One subgroup's scratch holds a float32 matrix (2 ELEMENTS bytes a lane and float).
#define FACTOR_VECTORS (MATRIX_M * MATRIX_K / 8)
#define SCRATCH_VECTORS (MATRIX_M * MATRIX_N / 4)
#define Q_STRIDE (MATRIX_K / 8 + 1)
#define Q_VECTORS (MATRIX_M * Q_STRIDE)
#define Q_ROW (Q_SHARED * (MATRIX_K / 8) + 1)
// Where the present tiles of k and v begin.
#if BUFFERS == 1
#define K_AT 0u
#define V_AT 0u
#define TILE_END (PARTS * (K_VECTORS > V_VECTORS ? K_VECTORS : V_VECTORS))
#else
#define SIDE (K_VECTORS + V_VECTORS)
#define TILE_END (BUFFERS / 2 * SIDE)
#if BUFFERS == 4
uint tile_side = 0u;  // 0 or SIDE
#define K_AT tile_side
#define V_AT (tile_side + K_VECTORS)
#else
#define K_AT 0u
#define V_AT K_VECTORS
#endif
#endif
#define Q_START TILE_END
#define Q_END (Q_START + (Q_SHARED > 0 ? ROWS * Q_ROW : 0))
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#if defined(ORDER) && (defined(EXTRAS) && !defined(TILED) || defined(TURN_SHARED))
// Scratch memory is needed beside a tile.
#define SCRATCH_START Q_END
#define SHARED_VECTORS (Q_END + SUBGROUPS * MOST(Q_VECTORS, SCRATCH_VECTORS))
#elif defined(ORDER)
// Fragments of q pass through the start before the first tile, rows of the output after the last one.
#define SHARED_VECTORS MOST(Q_END, SUBGROUPS * MOST(PARTS * Q_VECTORS, SCRATCH_VECTORS))
#define SCRATCH_START 0
#else
#define P_STRIDE (KEYS / 8 + 1)
#define P_VECTORS (MATRIX_M * P_STRIDE)
#define IOTA_START Q_END
#define P_START (IOTA_START + SCRATCH_VECTORS)
#define SCRATCH_START (P_START + SUBGROUPS * P_VECTORS)
#define SHARED_VECTORS (SCRATCH_START + SUBGROUPS * SCRATCH_VECTORS)
#endif

#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define ONES coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, SUM_COLUMNS, gl_MatrixUseB>
#define SUM_MATRIX coopmat<float, gl_ScopeSubgroup, MATRIX_M, SUM_COLUMNS, gl_MatrixUseAccumulator>
#define SUM_ELEMENTS (MATRIX_M * SUM_COLUMNS / SUBGROUP)
const int ROW_MAJOR = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMN_MAJOR = gl_CooperativeMatrixLayoutColumnMajor;
// What becomes of q and k, their product, and which key of the tile lies in which row of it.
#ifdef TRANSPOSED
#define QUERY_FACTOR FACTOR_B
#define QUERY_LAYOUT COLUMN_MAJOR
#define KEY_FACTOR FACTOR_A
#define KEY_LAYOUT ROW_MAJOR
#define ADD_SCORES(q, k, sums) coopMatMulAdd(k, q, sums)
#define KEY_AT(row) ((row) / MATRIX_M * MATRIX_M + held_at((row) % MATRIX_M))
uint held_at(uint row);
#else
#define QUERY_FACTOR FACTOR_A
#define QUERY_LAYOUT ROW_MAJOR
#define KEY_FACTOR FACTOR_B
#define KEY_LAYOUT COLUMN_MAJOR
#define ADD_SCORES(q, k, sums) coopMatMulAdd(q, k, sums)
#define KEY_AT(row) (row)
#endif

// To the nearest 16-bit number. Conversions to bfloat16 may cut (NVIDIA's do), so those of weights, which are not negative,
// are of numbers that fit. Rounding by bits makes zero of NaN: where lanes sum weights their sum shows it, elsewhere min() keeps
// it.
#if defined(DTYPE_bfloat16)
#if defined(ORDER) && !SUM_COLUMNS
#define ROUNDED_BITS(weight) (floatBitsToUint(weight) + 0x8000u)
#else
#define ROUNDED_BITS(weight) min(floatBitsToUint(weight) + 0x8000u, 0x7fc00000u)
#endif
#define ROUNDED(weight) uintBitsToFloat(ROUNDED_BITS(weight) & 0xffff0000u)
uint pack_pair(vec2 x) { return bfloat16_word(x.x) | bfloat16_word(x.y) << 16; }
uint pack_weights(vec2 pair) { return ROUNDED_BITS(pair.x) >> 16 | ROUNDED_BITS(pair.y) & 0xffff0000u; }
#else
#define ROUNDED(weight) (weight)
uint pack_pair(vec2 x) { return packFloat2x16(f16vec2(x)); }
uint pack_weights(vec2 pair) { return pack_pair(pair); }
#endif

// Elements e and e + 1 of a factor become two weights.
#define SET_PAIR(factor, e, pair) { \
    f16vec2 both = unpackFloat2x16(pack_weights(pair)); \
    factor[e] = both.x; \
    factor[e + 1u] = both.y; \
}

// Of 16-bit numbers, two to a word: the bits of exponents, and their lowest ones.
#if defined(DTYPE_bfloat16)
const uint EXPONENTS = 0x7f807f80u, EXPONENT_ONES = 0x00800080u;
#else
const uint EXPONENTS = 0x7c007c00u, EXPONENT_ONES = 0x04000400u;
#endif

shared uvec4 tile[SHARED_VECTORS];
// Raised once a value that some query may not see holds a NaN or an infinity, with SPLIT a key or a query too, with TILED once
// an output is NaN; never lowered.
shared uint poisoned;

uint thread, lane, subgroup, batch, head, first_row, end, q_base, k_base, v_base;
#ifndef EXTRAS
uint clear;  // keys before this one are seen by every row of the workgroup
#endif
float base2_scale;
#ifndef SPLIT
uvec4 held_k[PER_THREAD(KEYS * D8)];
uvec4 held_v[HELD_VALUES];
#endif
QUERY_FACTOR q_frag[RF][QF];
SUMS s_frag[RF][KF];
SUMS o_frag[RF][VF];
#ifdef ORDER
float top[RF][SLOTS];  // running maximum of base-2 scores
#if SUM_COLUMNS
SUM_MATRIX sum[RF];  // running sum of weights, all columns equal
#else
float sum[RF][SLOTS];  // this invocation's part of the running sum of weights
#endif
#if RETRY
FACTOR_A p_frag[RF][PF];
float part[RF][SLOTS];  // the same of the chunk's weights
#endif
#else
#ifndef SPLIT
FACTOR_A p_frag[RF][PF];
#endif
SUMS top[RF];
SUMS sum[RF];  // glslang 13 gives a second name in one declaration another type
#endif

#ifdef EXTRAS
#define ROW_PLACE(row) (row_start() + (row))
#define ANYWHERE on(PAGED)
#else
#define ANYWHERE false
#define ROW_PLACE(row) row
#define K_PLACE(key) key * pc.k_row
#define V_PLACE(key) key * pc.v_row
#endif

#ifndef SPLIT
#define SCORE_SCALE base2_scale

// Rows past the last one are read as copies of it, columns past the head are zeros. Nobody stores such a query row,
// mask_scores and hide_scores overrule such a key, and such a value is multiplied by zero or, if it is not finite, taken out.
uvec4 fetch_key(uint first_key, uint e) {
    uint column = 8u * (e % D8), key = min(first_key + KEY_AT(e / D8), end - 1u);
    if (HEAD_DIM < DIM && column >= HEAD_DIM) return uvec4(0u);
    return k_data[(k_base + K_PLACE(key) + column) >> 3];
}
uvec4 fetch_value(uint first_key, uint e) {
    uint column = 8u * (e % V8), key = min(first_key + e / V8, end - 1u);
    if (VALUE_DIM < VDIM && column >= VALUE_DIM) return uvec4(0u);
    return v_data[(v_base + V_PLACE(key) + column) >> 3];
}
#if STEPS
uint k_word, v_word;  // the thread's first word of the first tile
#define WORDS_OF(stride) uint(int(stride) >> 3)  // strides may be negative
void begin_steps() {
    k_word = (k_base + thread / D8 * pc.k_row >> 3) + thread % D8;
    v_word = (v_base + thread / V8 * pc.v_row >> 3) + thread % V8;
}
bool in_steps(uint first_key) { return !ANYWHERE && first_key + KEYS <= end; }
#endif
void fetch_keys(uint first_key) {
#if STEPS
    if (in_steps(first_key)) {
        uint row = WORDS_OF(pc.k_row), at = k_word + first_key * row;
        [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
            held_k[n] = uvec4(0u);
            if (HEAD_DIM == DIM || thread % D8 < HEAD_DIM / 8) held_k[n] = k_data[at + n * (THREADS / D8) * row];
        }
        return;
    }
#endif
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        uint e = thread + n * THREADS;
        if ((KEYS * D8) % THREADS == 0 || e < KEYS * D8) held_k[n] = fetch_key(first_key, e);
    }
}
#ifndef TRANSPOSED
void fetch_values(uint first_key) {
#if STEPS
    if (in_steps(first_key)) {
        uint row = WORDS_OF(pc.v_row), at = v_word + first_key * row;
        [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
            held_v[n] = uvec4(0u);
            if (VALUE_DIM == VDIM || thread % V8 < VALUE_DIM / 8) held_v[n] = v_data[at + n * (THREADS / V8) * row];
        }
        return;
    }
#endif
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        uint e = thread + n * THREADS;
        if ((KEYS * V8) % THREADS == 0 || e < KEYS * V8) held_v[n] = fetch_value(first_key, e);
    }
}
#endif
// The highest bit of each 16 is set for a NaN or an infinity, whose exponent, all ones, carries there.
uvec4 carried_exponents(uvec4 words) { return (words & EXPONENTS) + EXPONENT_ONES; }
bool found_non_finite(uvec4 carried) { return ((carried.x | carried.y | carried.z | carried.w) & 0x80008000u) != 0u; }
// Where a thread stores the nth word it fetched, and whether it has one.
#if STEPS
#define K_WORD(n) thread / D8 * K_STRIDE + thread % D8 + (n) * (THREADS / D8 * K_STRIDE)
#define V_WORD(n) thread / V8 * V_STRIDE + thread % V8 + (n) * (THREADS / V8 * V_STRIDE)
#else
#define K_WORD(n) (thread + (n) * THREADS) / D8 * K_STRIDE + (thread + (n) * THREADS) % D8
#define V_WORD(n) (thread + (n) * THREADS) / V8 * V_STRIDE + (thread + (n) * THREADS) % V8
#endif
#define HAS_K(n) ((KEYS * D8) % THREADS == 0 || thread + (n) * THREADS < KEYS * D8)
#define HAS_V(n) ((KEYS * V8) % THREADS == 0 || thread + (n) * THREADS < KEYS * V8)
void store_keys(uint start) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        if (HAS_K(n)) tile[start + K_WORD(n)] = held_k[n];
    }
}
#ifdef TRANSPOSED
#include "flash-matrix-transposed.glsl"
#else
void store_values(uint start, bool masked) {
    uvec4 carried = uvec4(0u);
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        if (HAS_V(n)) {
            tile[start + V_WORD(n)] = held_v[n];
            if (masked) carried |= carried_exponents(held_v[n]);
        }
    }
    if (masked && found_non_finite(carried)) poisoned = 1u;
}
#endif

// Where fragment d of row fragment i of q lies that stays in shared memory.
uint shared_query(uint i, uint d) {
    return Q_START + (subgroup * ROWS_EACH + i * MATRIX_M) * Q_ROW + (d - (QF - Q_SHARED)) * (MATRIX_K / 8);
}

// The subgroup's rows of q as factors. With a negative scale they change sign, so that the scale is never negative and a
// row's maximum stays its maximum when scaled.
void load_queries() {
    uint turn = pc.scale < 0.0 ? 0x80008000u : 0u;
    const uint words = MATRIX_K / 8;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        uint row = min(first_row + subgroup * ROWS_EACH + i * MATRIX_M + lane / words, QUERIES - 1u);
        uvec4 held[QF];
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            uint column = d * MATRIX_K + 8u * (lane % words);
            held[d] = uvec4(0u);
            if (lane < FACTOR_VECTORS && column < HEAD_DIM) held[d] = q_data[(q_base + row * pc.q_row + column) >> 3] ^ turn;
        }
#if Q_SHARED < QF
        [[unroll]] for (uint d = 0u; d < QF - Q_SHARED; ++d) {
            uint start = subgroup * Q_VECTORS;
            if (lane < FACTOR_VECTORS) tile[start + lane / words * Q_STRIDE + lane % words] = held[d];
            SYNC_SUBGROUP;
            coopMatLoad(q_frag[i][d], tile, start, Q_STRIDE, QUERY_LAYOUT);
            SYNC_SUBGROUP;
        }
#endif
#if Q_SHARED
        [[unroll]] for (uint d = QF - Q_SHARED; d < QF; ++d) {
            uint start = shared_query(i, d);
            if (lane < FACTOR_VECTORS) tile[start + lane / words * Q_ROW + lane % words] = held[d];
        }
#endif
    }
}

#endif

KEY_FACTOR key_factor(uint start, uint f, uint d) {
    KEY_FACTOR k;
    coopMatLoad(k, tile, start + f * MATRIX_N * K_STRIDE + d * (MATRIX_K / 8), K_STRIDE, KEY_LAYOUT);
    return k;
}

#ifdef ORDER
#define PLACE_ROW(e) SLOT_ROW(lane, SLOT(e))
#define PLACE_COLUMN(e) ELEMENT_COLUMN(lane, e)
#define FIND_PLACES
// The rows that a lane holds elements of in a fragment, and where their elements lie.
#define HELD_ROWS SLOTS
#define HELD_ROW(e) SLOT(e)
#define ROW_HELD(r) SLOT_ROW(lane, r)
#define COLUMN_HELD(r) LANE_COLUMN(lane)
#define COLUMN_PAST(e) COLUMN_AFTER(e)
#else
#define HELD_ROWS ELEMENTS
#define HELD_ROW(e) (e)
#define ROW_HELD(r) PLACE_ROW(r)
#define COLUMN_HELD(r) PLACE_COLUMN(r)
#define COLUMN_PAST(e) 0u
#define PLACE_ROW(e) (uint(place[e]) / MATRIX_N)
#define PLACE_COLUMN(e) (uint(place[e]) % MATRIX_N)
#define FIND_PLACES SUMS place; coopMatLoad(place, tile, IOTA_START, MATRIX_N / 4, ROW_MAJOR);
#endif

#ifdef EXTRAS
#extension GL_KHR_shader_subgroup_arithmetic : require
#ifdef TILED
#include "flash-matrix-tiled.glsl"
#else
#include "flash-matrix-extras.glsl"
#endif
#else

// Minus infinity for keys that causality or the end hides, whatever their product was, so that the weight is zero whatever
// the maximum.
void hide_scores(uint first_key) {
    float never = minus_infinity();
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
            // The last key that the row may see, counted from the first that this lane holds.
            int last = int(end) - 1;
            uint row = first_row + subgroup * ROWS_EACH + i * MATRIX_M + ROW_HELD(r);
            if (CAUSAL != 0) last = min(last, int(row) + pc.causal_shift);
            last -= int(first_key + COLUMN_HELD(r));
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                if (HELD_ROW(e) != r) continue;
                [[unroll]] for (uint f = 0u; f < KF; ++f) {
                    if (int(f * MATRIX_N + COLUMN_PAST(e)) > last) s_frag[i][f][e] = never;
                }
            }
        }
    }
}

#endif

void begin_scores() {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f] = SUMS(0.0);
    }
}

#ifdef SPLIT
#include "flash-split.glsl"
#else
void add_scores(uint chunk) {
#if Q_SHARED < QF
    [[unroll]] for (uint d = 0u; d < QF - Q_SHARED; ++d) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            KEY_FACTOR k = key_factor(K_AT + chunk * K_STRIDE, f, d);
            [[unroll]] for (uint i = 0u; i < RF; ++i) s_frag[i][f] = ADD_SCORES(q_frag[i][d], k, s_frag[i][f]);
        }
    }
#endif
#if Q_SHARED
    [[unroll]] for (uint d = QF - Q_SHARED; d < QF; ++d) {
        QUERY_FACTOR q[RF];
        [[unroll]] for (uint i = 0u; i < RF; ++i) coopMatLoad(q[i], tile, shared_query(i, d), Q_ROW, QUERY_LAYOUT);
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            KEY_FACTOR k = key_factor(K_AT + chunk * K_STRIDE, f, d);
            [[unroll]] for (uint i = 0u; i < RF; ++i) s_frag[i][f] = ADD_SCORES(q[i], k, s_frag[i][f]);
        }
    }
#endif
}
void multiply_scores(uint chunk) {
    begin_scores();
    add_scores(chunk);
}
#endif

#ifndef TRANSPOSED
FACTOR_B value_factor(uint start, uint f, uint c) {
    FACTOR_B v;
    coopMatLoad(v, tile, start + f * MATRIX_K * V_STRIDE + c * (MATRIX_N / 8), V_STRIDE, ROW_MAJOR);
    return v;
}
#endif

#ifndef EXTRAS
// Scores under a mask, scaled; minus infinity where a key is hidden, whatever the product was.
void mask_scores(uint first_key) {
    float never = minus_infinity();
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            uint row = first_row + subgroup * ROWS_EACH + i * MATRIX_M + PLACE_ROW(e);
            uint mask_row = mask_index(batch, head, row);
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                uint key = first_key + f * MATRIX_N + PLACE_COLUMN(e);
                float score = NEVER;
                if (key < end && row < pc.queries && causal_allows(row, key)) {
                    score = biased_score(s_frag[i][f][e] * SCORE_SCALE, mask_bias(mask_row + key * pc.mask_key));
                }
                s_frag[i][f][e] = score <= NEVER ? never : score;  // NaN stays
            }
        }
    }
}
#endif

#ifdef ORDER

// Raises the running maximum, with RETRY to the chunk's, else where that exceeds it by more than SLACK. `factor` scales the
// scores.
void raise_maximum(float factor) {
    float most[RF][SLOTS];
    bool grown = false;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) most[i][r] = s_frag[i][0][SLOT_FIRST(r)];
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                most[i][SLOT(e)] = max(most[i][SLOT(e)], s_frag[i][f][e]);
            }
        }
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            most[i][r] *= factor;
            grown = grown || most[i][r] > ALLOWED(top[i][r]);
        }
    }
#if RETRY
    {
#else
    RAISE (subgroupAny(grown)) {
#endif
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            float decay[SLOTS];
            [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
                [[unroll]] for (uint n = 0u; n < SPREAD_BITS; ++n) {
                    most[i][r] = max(most[i][r], subgroupShuffleXor(most[i][r], SPREAD_FROM << n));
                }
                float raised = max(top[i][r], LIFTED(most[i][r]));
                decay[r] = exp2(top[i][r] - raised);
                top[i][r] = raised;
#if !SUM_COLUMNS
                sum[i][r] *= decay[r];
#endif
            }
#if SUM_COLUMNS
            [[unroll]] for (uint e = 0u; e < SUM_ELEMENTS; ++e) sum[i][e] *= decay[SUM_SLOT(e)];
#endif
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o_frag[i][c][e] *= decay[SLOT(e)];
            }
        }
        grown = false;
    }
}

#else

void raise_maximum(float factor) {
    uint scratch = SCRATCH_START + subgroup * SCRATCH_VECTORS;
    SUMS most[RF];
    bool grown = false;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        most[i] = s_frag[i][0];
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            [[unroll]] for (uint f = 1u; f < KF; ++f) most[i][e] = max(most[i][e], s_frag[i][f][e]);
            most[i][e] *= factor;
            grown = grown || most[i][e] > ALLOWED(top[i][e]);
        }
    }
    RAISE (subgroupAny(grown)) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            // Eight elements of a row for each lane, wherever they came from.
            coopMatStore(most[i], tile, scratch, MATRIX_N / 4, ROW_MAJOR);
            SYNC_SUBGROUP;
            vec4 a = max(uintBitsToFloat(tile[scratch + 2u * lane]), uintBitsToFloat(tile[scratch + 2u * lane + 1u]));
            float row = max(max(a.x, a.y), max(a.z, a.w));
            if (MATRIX_N == 16) row = max(row, subgroupShuffleXor(row, 1u));
            SYNC_SUBGROUP;
            tile[scratch + 2u * lane] = uvec4(floatBitsToUint(row));
            tile[scratch + 2u * lane + 1u] = uvec4(floatBitsToUint(row));
            SYNC_SUBGROUP;
            SUMS decay;
            coopMatLoad(decay, tile, scratch, MATRIX_N / 4, ROW_MAJOR);
            SYNC_SUBGROUP;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float raised = max(top[i][e], LIFTED(decay[e]));
                decay[e] = exp2(top[i][e] - raised);
                top[i][e] = raised;
                sum[i][e] *= decay[e];
            }
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o_frag[i][c][e] *= decay[e];
            }
        }
        grown = false;
    }
}

#endif

#if RETRY
#include "flash-matrix-retry.glsl"
#elif !defined(SPLIT)
#define VALUES_NAME multiply_values
#define WEIGHTS_NAME make_weights
#include "flash-matrix-values.glsl"
#undef VALUES_NAME
#undef WEIGHTS_NAME
#if defined(EXTRAS) && !defined(TILED)
#define DROPPED
#define VALUES_NAME multiply_kept_values
#define WEIGHTS_NAME make_kept_weights
#include "flash-matrix-values.glsl"
#endif
#endif
#ifndef SPLIT
#define NOTE_KEYS
#define NOTE_VALUES
#endif

#if BUFFERS == 4
bool masked_values(uint first_key) { return first_key >= clear && first_key < end; }
#endif

// What is done with a chunk before the second barrier of a tile, and after it. `read` says whether some of what hides the
// tile's keys must be read.
#ifdef EXTRAS
#define FACTOR (masked && SCALED ? 1.0 : SCORE_SCALE)
#ifdef TILED
void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (masked) hide_scores(first_key, chunk);
}
#else
void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (masked && SCALED) bend_scores(first_key + chunk);
    if (masked) hide_scores(first_key, chunk, read);
}
#endif
#else
#define FACTOR (MASK != 0 ? 1.0 : SCORE_SCALE)
void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (MASK != 0) mask_scores(first_key + chunk);
    else if (masked) hide_scores(first_key + chunk);
}
#endif

#ifdef TILED
void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    begin_seen_scores(first_key, chunk, masked);
    add_scores(chunk);
}
#else
void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    multiply_scores(chunk);
    see_scores(first_key, chunk, masked, read);
}
#endif

#if RETRY
void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
    begin_seen(first_key, chunk, masked, read);
    make_weights(FACTOR);
    bool grown = weights_exceed();
    RAISE (subgroupAny(grown)) {
#ifdef TILED
        forget_tests();
#endif
        multiply_scores(chunk);
        see_scores(first_key, chunk, masked, read);
        raise_maximum(FACTOR);
        make_weights(FACTOR);
        grown = false;
    }
    add_parts();
}
void end_chunk(uint first_key, uint chunk, bool masked, bool read) { multiply_values(chunk); }
#else
#ifdef TILED
#define SEEN_LATER false
#else
#define SEEN_LATER true
#endif
void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
    if (SEEN_LATER) multiply_scores(chunk);
    else begin_seen(first_key, chunk, masked, read);
}
void end_chunk(uint first_key, uint chunk, bool masked, bool read) {
    if (SEEN_LATER) see_scores(first_key, chunk, masked, read);
    raise_maximum(FACTOR);
#if defined(EXTRAS) && !defined(TILED)
    if (masked && on(DROPOUT)) multiply_kept_values(chunk, FACTOR);
    else multiply_values(chunk, FACTOR);
#else
    multiply_values(chunk, FACTOR);
#endif
}
#endif

#ifdef EXTRAS
// `next_key` is where the next tile that counts begins.
void add_tile(uint first_key, uint next_key, bool masked, bool read) {
    bool seen = true;  // whether any of this subgroup's rows sees any of these keys
#ifdef TILED
    take_mask(next_key);
#else
    if (masked && MASK_IS_BITS && read) fetch_mask(first_key);
#endif
    store_keys(K_AT);
    fetch_values(first_key);
#ifndef TILED
    if (masked) seen = find_seen(first_key, HIDES && read);
#endif
    barrier();
    if (seen) begin_chunk(first_key, 0u, masked, read);
#if BUFFERS == 1
    barrier();
#endif
#ifdef TILED
    store_values(V_AT, false);  // note_output() finds what matters
#else
    store_values(V_AT, masked);
#endif
    fetch_keys(next_key);
    barrier();
    if (seen) {
#ifndef TILED
        if (masked && on(DROPOUT)) find_kept(first_key);
#endif
        end_chunk(first_key, 0u, masked, read);
        [[unroll]] for (uint chunk = CHUNK; chunk < KEYS; chunk += CHUNK) {
            begin_chunk(first_key, chunk, masked, read);
            end_chunk(first_key, chunk, masked, read);
        }
    }
#if BUFFERS == 1 || CHUNK < KEYS
    barrier();
#endif
}
#else
// Whether this subgroup's last row sees any of the keys from here on.
bool sees_some(uint first_key, bool masked) {
    return CAUSAL == 0 || !masked || int(first_key) <= int(first_row + (subgroup + 1u) * ROWS_EACH) - 1 + pc.causal_shift;
}

#if BUFFERS == 4
void add_tile(uint first_key, bool masked) {
    uint other = SIDE - tile_side;
    barrier();  // this tile has been stored, and the one before it read
    fetch_keys(first_key + KEYS);
    [[unroll]] for (uint chunk = 0u; chunk < KEYS; chunk += CHUNK) {
        bool seen = sees_some(first_key + chunk, masked);
        if (seen) begin_chunk(first_key, chunk, masked, false);
        if (chunk == KEYS / CHUNK / 2u * CHUNK) {
            store_keys(other);
            fetch_values(first_key + KEYS);
        }
        if (seen) end_chunk(first_key, chunk, masked, false);
    }
    store_values(other + K_VECTORS, masked_values(first_key + KEYS));
    tile_side = other;
}
#else
void add_tile(uint first_key, bool masked) {
    bool seen = sees_some(first_key, masked);
    store_keys(K_AT);
    fetch_values(first_key);
    barrier();
    if (seen) begin_chunk(first_key, 0u, masked, false);
    NOTE_VALUES
#if BUFFERS == 1
    barrier();
#endif
    store_values(V_AT, masked);
    fetch_keys(first_key + KEYS);
    barrier();
    if (seen) end_chunk(first_key, 0u, masked, false);
    [[unroll]] for (uint chunk = CHUNK; chunk < KEYS; chunk += CHUNK) {
        if (sees_some(first_key + chunk, masked)) {
            begin_chunk(first_key, chunk, masked, false);
            end_chunk(first_key, chunk, masked, false);
        }
    }
    NOTE_KEYS
#if BUFFERS == 1 || CHUNK < KEYS
    barrier();
#endif
}
#endif
#endif

void store_rows() {
    uint scratch = SCRATCH_START + subgroup * SCRATCH_VECTORS;
    const uint parts = MATRIX_N / 8;  // a lane stores eight columns of a row
#ifdef TRANSPOSED
#define STORED_ROW (lane % MATRIX_N)
#define STORED_PART (lane / MATRIX_N)
#else
#define STORED_ROW lane / parts
#define STORED_PART (lane % parts)
#endif
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        float row_top, row_sum;
#ifdef TRANSPOSED
        row_top = top[i][0];
        row_sum = sum[i][0];
        [[unroll]] for (uint n = 0u; n < SPREAD_BITS; ++n) row_sum += subgroupShuffleXor(row_sum, SPREAD_FROM << n);
#elif defined(ORDER)
        // Every lane of a row holds its statistics; lanes of one row write the same.
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
#if SUM_COLUMNS
            float whole = sum[i][r * (SUM_ELEMENTS / SLOTS)];
#else
            float whole = sum[i][r];
            [[unroll]] for (uint n = 0u; n < SPREAD_BITS; ++n) whole += subgroupShuffleXor(whole, SPREAD_FROM << n);
#endif
            tile[scratch + SLOT_ROW(lane, r)].xy = floatBitsToUint(vec2(top[i][r], whole));
        }
        SYNC_SUBGROUP;
        row_top = uintBitsToFloat(tile[scratch + lane / parts].x);
        row_sum = uintBitsToFloat(tile[scratch + lane / parts].y);
        SYNC_SUBGROUP;
#else
        coopMatStore(top[i], tile, scratch, MATRIX_N / 4, ROW_MAJOR);
        SYNC_SUBGROUP;
        row_top = uintBitsToFloat(tile[scratch + 2u * lane].x);
        SYNC_SUBGROUP;
        coopMatStore(sum[i], tile, scratch, MATRIX_N / 4, ROW_MAJOR);
        SYNC_SUBGROUP;
        row_sum = uintBitsToFloat(tile[scratch + 2u * lane].x);
        SYNC_SUBGROUP;
#endif
        uint row = first_row + subgroup * ROWS_EACH + i * MATRIX_M + STORED_ROW;
#ifdef EXTRAS
        float decay;
        add_sink(row, row_top, row_sum, decay);
        if (on(DROPOUT)) decay *= number(KEEP_SCALE);
#endif
        float lse = row_lse(row_top, row_sum), share = 1.0, keep = 0.0;
        if (MERGE != 0 && row < QUERIES) merge_weights(lse_data[lse_index(batch, head, ROW_PLACE(row))], lse, keep, share, lse);
        share = row_sum == 0.0 ? 0.0 : share / row_sum;
#ifdef EXTRAS
        share *= decay;
#endif
#ifdef SPLIT
        share *= float(1 << LIFT);
#endif
        SYNC_SUBGROUP;  // both lanes of a row have read what one of them overwrites
        if ((LSE != 0 || MERGE != 0) && STORED_PART == 0u && row < QUERIES) {
            lse_data[lse_index(batch, head, ROW_PLACE(row))] = lse;
        }
        uint place = o_index(batch, head, ROW_PLACE(row));
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            uint column = c * MATRIX_N + 8u * STORED_PART;
#ifdef TRANSPOSED
            vec4 low = vec4(o_frag[i][c][0], o_frag[i][c][1], o_frag[i][c][2], o_frag[i][c][3]) * share;
            vec4 high = vec4(o_frag[i][c][4], o_frag[i][c][5], o_frag[i][c][6], o_frag[i][c][7]) * share;
#else
            coopMatStore(o_frag[i][c], tile, scratch, MATRIX_N / 4, ROW_MAJOR);
            SYNC_SUBGROUP;
            vec4 low = uintBitsToFloat(tile[scratch + 2u * lane]) * share;
            vec4 high = uintBitsToFloat(tile[scratch + 2u * lane + 1u]) * share;
#ifdef SPLIT
            low *= power_of_two(o_exponent);
            high *= power_of_two(o_exponent);
#endif
            SYNC_SUBGROUP;
#endif
#ifdef SPLIT
            [[unroll]] for (uint n = 0u; n < 2u; ++n) {
                if (row < QUERIES && column + 4u * n < VALUE_DIM) {
                    uint at = ((place + column) >> 2) + n;
                    vec4 result = n == 0u ? low : high;
                    if (MERGE != 0 && keep != 0.0) result += keep * o_data[at];
                    o_data[at] = result;
                }
            }
#else
            if (row < QUERIES && column < VALUE_DIM) {
                if (MERGE != 0 && keep != 0.0) {
                    uvec4 old = o_data[(place + column) >> 3];
                    low += keep * vec4(unpackFloat2x16(old.x), unpackFloat2x16(old.y));
                    high += keep * vec4(unpackFloat2x16(old.z), unpackFloat2x16(old.w));
                }
                o_data[(place + column) >> 3] =
                    uvec4(pack_pair(low.xy), pack_pair(low.zw), pack_pair(high.xy), pack_pair(high.zw));
            }
#endif
        }
    }
}

// With SPLIT: two neighbouring elements of an array, the first at an even index.
#define PAIR(data, at) vec2(data[(at) >> 2][(at) % 4u], data[(at) >> 2][(at) % 4u + 1u])

// The rows of a workgroup that met poisoned numbers, from the start and on vector units: zero times infinity, or minus
// infinity plus NaN, would be NaN on matrix units, so nothing that they made can be kept. Keys by lanes for the scores,
// columns by lanes for the output.
void compute_rows() {
    const uint columns = (VDIM / 2 + SUBGROUP - 1) / SUBGROUP;  // pairs of columns a lane
    [[dont_unroll]] for (uint r = 0u; r < ROWS_EACH; ++r) {
        uint row = first_row + subgroup * ROWS_EACH + r;
        if (row >= QUERIES) break;
        uint q_place = q_base + row * pc.q_row, mask_row = mask_index(batch, head, row);
#ifdef EXTRAS
        uint visible = min(end, visible_keys(row, row));
#else
        uint visible = min(end, visible_keys(row));
#endif
        float row_top = NEVER, row_sum = 0.0;
        vec2 o[columns];
        [[unroll]] for (uint c = 0u; c < columns; ++c) o[c] = vec2(0.0);
        [[dont_unroll]] for (uint first_key = 0u; first_key < visible; first_key += SUBGROUP) {
            uint key = first_key + lane;
            float score = NEVER;
#ifdef EXTRAS
            bool seen = key < visible && sees(row, key);
#ifdef TILED
            if (seen) seen = tile_class(batch, head, row / ROWS, key / KEYS) != TILE_HIDDEN;
#endif
            if (seen) {
#else
            if (key < visible) {
#endif
                float dot_ = 0.0;
#ifdef SPLIT
                [[dont_unroll]] for (uint d = 0u; d < HEAD_DIM; d += 4u) {
                    dot_ += dot(q_data[(q_place + d) >> 2], k_data[(k_base + key * pc.k_row + d) >> 2]);
                }
#else
                [[dont_unroll]] for (uint d = 0u; d < HEAD_DIM; d += 8u) {
                    uvec4 a = q_data[(q_place + d) >> 3], b = k_data[(k_base + K_PLACE(key) + d) >> 3];
                    [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                        vec2 x = vec2(unpackFloat2x16(a[w])), y = vec2(unpackFloat2x16(b[w]));
                        dot_ += x.x * y.x + x.y * y.y;
                    }
                }
#endif
                score = dot_ * pc.scale * LOG2_E;
#ifdef EXTRAS
                if (BENDS) score = bend(score, row, key);
#endif
                if (MASK != 0) score = biased_score(score, mask_bias(mask_row + key * pc.mask_key));
            }
            float most = score;
            [[unroll]] for (uint step = 1u; step < SUBGROUP; step *= 2u) most = max(most, subgroupShuffleXor(most, step));
            float raised = max(row_top, most);
            // No test for a row that has seen nothing yet: NaN scores, which max() need not show, must reach the sum.
            float decay = exp2(row_top - raised), p = weight(score, raised);
            row_top = raised;
            row_sum = row_sum * decay + p;
#ifdef EXTRAS
            if (on(DROPOUT) && p != 0.0) p *= kept_share(row, key);
#endif
            [[unroll]] for (uint c = 0u; c < columns; ++c) o[c] *= decay;
            [[dont_unroll]] for (uint n = 0u; n < min(SUBGROUP, visible - first_key); ++n) {
                float share = subgroupShuffle(p, n);
                if (share == 0.0) continue;
                uint place = v_base + V_PLACE((first_key + n));
                [[unroll]] for (uint c = 0u; c < columns; ++c) {
                    uint column = 2u * (lane + c * SUBGROUP);
                    if (column < VALUE_DIM) {
#ifdef SPLIT
                        o[c] += share * PAIR(v_data, place + column);
#else
                        uint word = v_data[(place + column) >> 3][column / 2u % 4u];
                        o[c] += share * vec2(unpackFloat2x16(word));
#endif
                    }
                }
            }
        }
        [[unroll]] for (uint step = 1u; step < SUBGROUP; step *= 2u) row_sum += subgroupShuffleXor(row_sum, step);
#ifdef EXTRAS
        float sunk;
        add_sink(row, row_top, row_sum, sunk);
#endif
        float lse = row_lse(row_top, row_sum), share = 1.0, keep = 0.0;
        if (MERGE != 0) merge_weights(lse_data[lse_index(batch, head, ROW_PLACE(row))], lse, keep, share, lse);
        share = row_sum == 0.0 ? 0.0 : share / row_sum;
#ifdef EXTRAS
        share *= sunk;
#endif
        SYNC_SUBGROUP;  // every lane has read what one of them overwrites
        if ((LSE != 0 || MERGE != 0) && lane == 0u) lse_data[lse_index(batch, head, ROW_PLACE(row))] = lse;
        uint place = o_index(batch, head, ROW_PLACE(row));
        [[unroll]] for (uint c = 0u; c < columns; ++c) {
            uint column = 2u * (lane + c * SUBGROUP);
            if (column >= VALUE_DIM) continue;
            vec2 result = o[c] * share;
#ifdef SPLIT
            if (MERGE != 0 && keep != 0.0) result += keep * PAIR(o_data, place + column);
            o_data[(place + column) >> 2][column % 4u] = result.x;
            o_data[(place + column) >> 2][column % 4u + 1u] = result.y;
#else
            if (MERGE != 0 && keep != 0.0) {
                uint old = o_data[(place + column) >> 3][column / 2u % 4u];
                result += keep * vec2(unpackFloat2x16(old));
            }
            o_data[(place + column) >> 3][column / 2u % 4u] = pack_pair(result);
#endif
        }
    }
}

void main() {
    subgroup = gl_SubgroupID;
    lane = gl_SubgroupInvocationID;
    thread = subgroup * SUBGROUP + lane;
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
#ifdef EXTRAS
    begin_extras(batch, head);
    q_base = q_index(batch, head, row_start());
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
#else
    q_base = q_index(batch, head, 0u);
    k_base = k_index(batch, head, 0u);
    v_base = v_index(batch, head, 0u);
#endif
    // Under a causal mask later rows see more keys: the longest workgroups start first.
    first_row = (CAUSAL != 0 ? gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x : gl_WorkGroupID.x) * ROWS;
    // Keys from here on are seen by no row of this workgroup.
#ifdef EXTRAS
    if (on(LENGTHS) && first_row >= QUERIES) return;
    find_keys();
    uint first_key = hidden_keys(first_row) / KEYS * KEYS;
    if (on(TILES) && first_key < end) {
        fetch_tiles(first_key / KEYS);
        read_tiles(first_key / KEYS);
    }
    #ifdef TILED
    first_key = next_tile(first_key);
#else
    first_key = find_tile(first_key);
#endif
#else
    end = visible_keys(min(first_row + ROWS, pc.queries) - 1u);
#endif
    // Not zero, as it multiplies minus infinities.
    base2_scale = max(abs(pc.scale) * LOG2_E, 1e-37);

    if (thread == 0u) poisoned = 0u;
#if STEPS
    begin_steps();
#endif
#ifdef EXTRAS
    if (first_key < end) fetch_keys(first_key);
#else
    if (end > 0u) {
        fetch_keys(0u);
    }
#endif
    load_queries();
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
#ifdef ORDER
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            top[i][r] = NEVER;
#if !SUM_COLUMNS
            sum[i][r] = 0.0;
#endif
        }
#if SUM_COLUMNS
        sum[i] = SUM_MATRIX(0.0);
#endif
#else
        top[i] = SUMS(NEVER);
        sum[i] = SUMS(0.0);
#endif
        [[unroll]] for (uint c = 0u; c < VF; ++c) o_frag[i][c] = SUMS(0.0);
    }
#ifndef ORDER
    for (uint e = thread; e < SCRATCH_VECTORS; e += THREADS) {
        tile[IOTA_START + e] = floatBitsToUint(vec4(4u * e) + vec4(0.0, 1.0, 2.0, 3.0));
    }
#endif
#ifdef SPLIT
    if (end > 0u) note_keys();
#endif
    barrier();  // q has been read from where k goes
#ifdef SPLIT
    if (bad_query) poisoned = 1u;
#elif defined(EXTRAS)
    read_places();
#endif

#ifdef TILED
    if (first_key < end) fetch_mask(first_key);
    // Only the last tile may have keys past the end.
    [[dont_unroll]] while (is_clear(first_key)) {
        uint next_key = next_tile(first_key + KEYS);
        add_tile(first_key, next_key, false, false);
        first_key = next_key;
    }
    [[dont_unroll]] while (first_key < end) {
        uint next_key = next_tile(first_key + KEYS);
        add_tile(first_key, next_key, true, true);
        first_key = next_key;
    }
#elif defined(EXTRAS)
    // Runs of clear tiles and of others take turns.
    bool clear = is_clear(first_key), read = !next_seen;
    [[dont_unroll]] while (first_key < end) {
#if SPLIT_LOOPS
        [[dont_unroll]] while (clear) {
            uint next_key = find_tile(first_key + KEYS);
            add_tile(first_key, next_key, false, false);
            first_key = next_key;
            clear = is_clear(first_key);
        }
        read = !next_seen;
        bool mixed = first_key < end;
        [[dont_unroll]] while (mixed) {
            uint next_key = find_tile(first_key + KEYS);
            add_tile(first_key, next_key, true, read);
            first_key = next_key;
            read = !next_seen;
            clear = is_clear(first_key);
            mixed = first_key < end && !clear;
        }
#else
        uint next_key = find_tile(first_key + KEYS);
        add_tile(first_key, next_key, !clear, read);
        first_key = next_key;
        read = !next_seen;
        clear = is_clear(first_key);
#endif
    }
#else
    // Leading keys in whole tiles that every row of the workgroup sees.
    clear = 0u;
    if (MASK == 0) {
        clear = CAUSAL == 0 ? end : uint(clamp(int(first_row) + pc.causal_shift + 1, 0, int(end)));
        clear -= clear % KEYS;
    }
    uint first_key = 0u;
#if BUFFERS == 4
    if (end > 0u) {
        store_keys(K_AT);
        fetch_values(0u);
        store_values(V_AT, masked_values(0u));
    }
#endif
#if SPLIT_LOOPS
    [[dont_unroll]] for (; first_key < clear; first_key += KEYS) add_tile(first_key, false);
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, true);
#else
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, first_key >= clear);
#endif
#endif
#ifdef TILED
    note_output();
#endif
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) store_rows();
    else compute_rows();
}
