// The body of the kernels of attention's gradients on matrix units (VK_KHR_cooperative_matrix).
//
// What it computes and what a workgroup owns: backward/flash-backward-tiles.glsl, with OWNER_KEYS as there. Factors are
// 16-bit, also the weights and dS when they multiply; sums and exponentials are float32.
//
// A workgroup of SUBGROUPS subgroups owns OWN rows; each subgroup owns RF row fragments of MATRIX_M rows, and keeps them
// (as first factors), their two products with the walked rows, and its part of the results in cooperative matrices. Walked
// rows are taken in tiles of WALK, which lie in shared memory as 16-byte words, rows an odd number of words long against
// bank conflicts. Both products of a tile read it by columns, the sums read it by rows.
//
// One thing is assumed of the order of elements: that an accumulator and a first factor have the same (NVIDIA, llvmpipe),
// so that weights become a factor element by element. With ORDER 1 which elements an invocation holds is known, too
// (attention/matrix/quads.glsl). Without, numbers of a row (lse, delta) are loaded as matrices with a stride of zero, and
// where rows and columns of elements matter, at a tile's hidden keys and with options, a matrix of positions tells.
//
// In a tile with hidden pairs, walked numbers that are not finite are read as zeros: zero times infinity would be NaN on
// matrix units. A row that holds one and is seen has an lse or a delta that is not finite, which shows in all it touches.
//
// The including shader defines OWNER_KEYS and
//   MATRIX_M, MATRIX_N, MATRIX_K   the matrix shape
//   SUBGROUP, SUBGROUPS            invocations in a subgroup (full), subgroups in the workgroup
//   RF, WALK                       row fragments of a subgroup, rows of a walked tile
//   DIM, VDIM                      head dimensions rounded up to whole fragments (DIM); HEAD_DIM <= DIM, VALUE_DIM <= VDIM
//   PREFETCH                       1: the next tile is loaded into registers while the present one is computed
//   STORED                         rows and keys in whose multiples dS is stored
//   LOCKSTEP                       defined where a subgroup's invocations run in lockstep and subgroupBarrier must not be used
// HEAD_DIM, VALUE_DIM, offsets and strides are multiples of 8 (ALIGN 8).

#include "attention/longest-first.glsl"
#include "flash-backward-factors.glsl"
#if ORDER == 1
#include "attention/matrix/quads.glsl"
#endif

#ifndef VDIM
#define VDIM DIM
#endif
#ifndef TURN
#define TURN (WALK / MATRIX_N)
#endif
#define KF TURN
#define AF (DIM / MATRIX_K)
#define BF (VDIM / MATRIX_K)

// What may not stand together: tests/test_shader_macros.py.
#if ORDER != 0 && (ORDER != 1 || MATRIX_M != 16 || MATRIX_N != 16)
#error "ORDER is 0, or 1 of matrices of 16 x 16 x 16"
#elif DIM % MATRIX_K || VDIM % MATRIX_K
#error "DIM and VDIM are whole fragments"
#elif WALK % (TURN * MATRIX_N)
#error "a walked tile is whole turns, of whole fragments"
#elif OWNER_KEYS && (STORED % OWN || STORED % WALK)
#error "dS is stored in whole tiles"
#elif OWNER_KEYS && ORDER == 1 && WALK > 2 * THREADS
#error "an invocation brings the numbers of two walked rows"
#endif

#if OWNER_KEYS
#define OWNED key_rows()
#define WALKED query_rows()
#define OWN_A_DATA k_data
#define OWN_B_DATA v_data
#define WALK_A_DATA q_data
#define WALK_B_DATA g_data
#define OWN_A_ROW pc.k_row
#define OWN_B_ROW pc.v_row
#define WALK_ROWS pc.queries
#define WALK_A_ROW pc.q_row
#define WALK_B_ROW pc.g_row
#define STATS WALK
GRILLY_RESULT(dk, 9)
GRILLY_RESULT(dv, 10)
layout(constant_id = 8) const int STORES = 0;  // 1: dS is stored
layout(constant_id = 9) const int SHARES = 1;  // workgroups that share the query heads of a key head, GROUP each
layout(set = 0, binding = 11, std430) restrict writeonly buffer Stored { uvec4 stored_data[]; };
#else
#define OWNED query_rows()
#define WALKED key_rows()
#define OWN_A_DATA q_data
#define OWN_B_DATA g_data
#define WALK_A_DATA k_data
#define WALK_B_DATA v_data
#define OWN_A_ROW pc.q_row
#define OWN_B_ROW pc.g_row
#define WALK_ROWS pc.keys
#define WALK_A_ROW pc.k_row
#define WALK_B_ROW pc.v_row
#define STATS OWN
GRILLY_RESULT(dq, 9)
#endif

// 16-byte words of the shared array: tile a, tile b. Before the first tile factors pass through its start, and rows of the
// results after the last one.
#define A8 (DIM / 8)
#define B8 (VDIM / 8)
#define A_STRIDE (A8 + 1)
#define B_STRIDE (B8 + 1)
#define B_START (WALK * A_STRIDE)
#define TILE_VECTORS MOST(B_START + WALK * B_STRIDE, SUBGROUPS * PASS_VECTORS)

shared uvec4 tile[TILE_VECTORS];
// lse, base 2, and delta.
#if ORDER != 1
shared float tile_lse[STATS];
shared float tile_delta[STATS];
shared float iota[MATRIX_M * MATRIX_N];
#elif OWNER_KEYS
shared vec4 tile_stats[STATS / 2];  // of two rows
#else
vec2 row_stats[RF][SLOTS];  // of the rows that the invocation holds elements of
#endif

uint thread, lane, subgroup, batch, head, first_own, walk_a, walk_b;
uint turn;  // the first fragment of walked rows that is under work, counted in the tile
float base2_scale;
FACTOR_A own_a[RF][AF];
FACTOR_A own_b[RF][BF];
SUMS s[RF][TURN];
SUMS t[RF][TURN];
FACTOR_A pulls[RF][TURN];
SUMS sum_a[RF][AF];
#if OWNER_KEYS
FACTOR_A weights[RF][TURN];
SUMS sum_b[RF][BF];
#endif
uvec4 held_a[PER_THREAD(WALK * A8)];
uvec4 held_b[PER_THREAD(WALK * B8)];

// Rows past the last one are read as copies of it, columns past the head are zeros.
void fetch(uint first) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * A8); ++n) {
        uint e = thread + n * THREADS, column = 8u * (e % A8), row = min(first + e / A8, WALKED - 1u);
        held_a[n] = uvec4(0u);
        if (e < WALK * A8 && column < HEAD_DIM) held_a[n] = WALK_A_DATA[(walk_a + row * WALK_A_ROW + column) >> 3];
    }
    [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * B8); ++n) {
        uint e = thread + n * THREADS, column = 8u * (e % B8), row = min(first + e / B8, WALKED - 1u);
        held_b[n] = uvec4(0u);
        if (e < WALK * B8 && column < VALUE_DIM) held_b[n] = WALK_B_DATA[(walk_b + row * WALK_B_ROW + column) >> 3];
    }
}

void store(bool some_hidden) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * A8); ++n) {
        uint e = thread + n * THREADS;
        if (some_hidden) held_a[n] = finite(held_a[n]);
        if (e < WALK * A8) tile[e / A8 * A_STRIDE + e % A8] = held_a[n];
    }
    [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * B8); ++n) {
        uint e = thread + n * THREADS;
        if (some_hidden) held_b[n] = finite(held_b[n]);
        if (e < WALK * B8) tile[B_START + e / B8 * B_STRIDE + e % B8] = held_b[n];
    }
}

vec2 stats_of(uint stats, uint row) {
    vec2 stat = stats_data[stats + min(row, query_rows() - 1u)].xy;
    return vec2(min(stat.x, 2.0e38) * LOG2_E, stat.y);
}

#if OWNER_KEYS && ORDER == 1
// Those of the walked rows are fetched and stored with the tile.
vec4 held_stats;
void fetch_stats(uint stats, uint first) {
    if (thread < STATS / 2) held_stats = vec4(stats_of(stats, first + 2u * thread), stats_of(stats, first + 2u * thread + 1u));
}
void store_stats(uint stats, uint first) {
    if (thread < STATS / 2) tile_stats[thread] = held_stats;
}
#else
void store_stats(uint stats, uint first) {
#if ORDER != 1
    for (uint n = thread; n < STATS; n += THREADS) {
        vec2 stat = stats_of(stats, first + n);
        tile_lse[n] = stat.x;
        tile_delta[n] = stat.y;
    }
#else
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            row_stats[i][r] = stats_of(stats, first + subgroup * OWN_EACH + i * MATRIX_M + SLOT_ROW(lane, r));
        }
    }
#endif
}
#endif

#define MULTIPLY(OWN_FRAGMENTS, COUNT, START, STRIDE, PRODUCT) \
    EACH_FRAGMENT PRODUCT[i][f] = SUMS(0.0); \
    [[unroll]] for (uint d = 0u; d < COUNT; ++d) { \
        [[unroll]] for (uint f = 0u; f < TURN; ++f) { \
            FACTOR_B other; \
            coopMatLoad(other, tile, START + (turn + f) * MATRIX_N * STRIDE + d * (MATRIX_K / 8), STRIDE, COLUMN_MAJOR); \
            [[unroll]] for (uint i = 0u; i < RF; ++i) { \
                PRODUCT[i][f] = coopMatMulAdd(OWN_FRAGMENTS[i][d], other, PRODUCT[i][f]); \
            } \
        } \
    }

#define GATHER(WEIGHTS, COUNT, START, STRIDE, SUM) \
    [[unroll]] for (uint f = 0u; f < TURN; ++f) { \
        [[unroll]] for (uint c = 0u; c < COUNT; ++c) { \
            FACTOR_B other; \
            coopMatLoad(other, tile, START + (turn + f) * MATRIX_K * STRIDE + c * (MATRIX_N / 8), STRIDE, ROW_MAJOR); \
            [[unroll]] for (uint i = 0u; i < RF; ++i) SUM[i][c] = coopMatMulAdd(WEIGHTS[i][f], other, SUM[i][c]); \
        } \
    }

// Makes weights and dS of the products where every pair may attend and nothing changes scores.
void weigh_all() {
    EACH_FRAGMENT {
#if ORDER != 1
        SUMS lse;
        SUMS delta;
        uint at = OWNER_KEYS != 0 ? (turn + f) * MATRIX_N : subgroup * OWN_EACH + i * MATRIX_M;
        coopMatLoad(lse, tile_lse, at, 0, OWNER_KEYS != 0 ? ROW_MAJOR : COLUMN_MAJOR);
        coopMatLoad(delta, tile_delta, at, 0, OWNER_KEYS != 0 ? ROW_MAJOR : COLUMN_MAJOR);
#define STAT(e) vec2(lse[e], delta[e])
#elif OWNER_KEYS
        uint at = ((turn + f) * MATRIX_N + LANE_COLUMN(lane)) / 2u;
        vec4 near = tile_stats[at], far = tile_stats[at + 4u];  // eight columns on
#define STAT(e) (COLUMN_AFTER(e) == 0u ? near.xy : COLUMN_AFTER(e) == 1u ? near.zw : COLUMN_AFTER(e) == 8u ? far.xy : far.zw)
#else
#define STAT(e) row_stats[i][SLOT(e)]
#endif
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            vec2 stat = STAT(e);
            float weight = exp2(s[i][f][e] * base2_scale - stat.x);
            s[i][f][e] = weight;
            t[i][f][e] = weight * (t[i][f][e] - stat.y);
        }
    }
}

// The same, one pair at a time.
void weigh_each(uint first, uint query_head, uint stats) {
#if ORDER == 1
#define PLACE(e) uvec2(SLOT_ROW(lane, SLOT(e)), LANE_COLUMN(lane) + COLUMN_AFTER(e))
#else
    SUMS place;
    coopMatLoad(place, iota, 0, MATRIX_N, ROW_MAJOR);
#define PLACE(e) uvec2(uint(place[e]) / MATRIX_N, uint(place[e]) % MATRIX_N)
#endif
    EACH_SCORE {
        uvec2 at = PLACE(e);
        uint own = first_own + subgroup * OWN_EACH + i * MATRIX_M + at.x;
        uint walked = first + (turn + f) * MATRIX_N + at.y;
        uint row = OWNER_KEYS != 0 ? walked : own;
        uint key = OWNER_KEYS != 0 ? own : walked;
        vec3 stat = stats_data[stats + min(row, query_rows() - 1u)].xyz;
        float raw = s[i][f][e], dp = t[i][f][e];
        pair(batch, query_head, row, key, key, true, stat, raw, dp);
        if (non_finite(stat.y) && raw != 0.0) raw = stat.y;
        s[i][f][e] = raw;
        t[i][f][e] = dp;
    }
}

#if OWNER_KEYS
// Stores dS for flash-backward-dq-stored.comp.
void store_pulls(uint query_head, uint first) {
    uint rows = FRAGMENTS(pc.queries);
    uint at = (batch * gl_NumWorkGroups.y * GROUP + query_head) * FRAGMENTS(pc.keys);
    at = (at + (first_own + subgroup * OWN_EACH) / MATRIX_M) * rows + first / MATRIX_N + turn;
    EACH_FRAGMENT {
#define PAIR(e) PACKED(pulls[i][f][e], pulls[i][f][e + 1])
        stored_data[(at + i * rows + f) * FRAGMENT + lane] = uvec4(PAIR(0), PAIR(2), PAIR(4), PAIR(6));
#undef PAIR
    }
}
#endif

#if OWNER_KEYS
// The dS of hidden blocks.
void store_zeros(uint query_head, uint first) {
    uint rows = FRAGMENTS(pc.queries);
    uint at = (batch * gl_NumWorkGroups.y * GROUP + query_head) * FRAGMENTS(pc.keys);
    at = (at + (first_own + subgroup * OWN_EACH) / MATRIX_M) * rows + first / MATRIX_N;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < WALK / MATRIX_N; ++f) stored_data[(at + i * rows + f) * FRAGMENT + lane] = uvec4(0u);
    }
}
#endif

#ifdef FUNCTIONS
uint class_of_tile(uint first) {
    uint last_own = first_own + OWN - 1u, last = first + WALK - 1u;
    return OWNER_KEYS != 0 ? block_class(first, last, first_own, last_own) : block_class(first_own, last_own, first, last);
}
#endif

// The first tile from `first` on that a block mask does not hide.
uint next_walked(uint query_head, uint first, uint beyond) {
#ifdef FUNCTIONS
    [[dont_unroll]] while (first < beyond && class_of_tile(first) == TILE_EMPTY) {
#if OWNER_KEYS
        if (STORES != 0) store_zeros(query_head, first);
#endif
        first += WALK;
    }
#endif
    return first;
}

bool has_masked(uint first, uint end) {
    uint last_own = first_own + OWN - 1u, last = first + WALK - 1u;
#ifdef FUNCTIONS
    class_of_tile(first);
    if (on(SCORE_FUNCTION)) return true;  // minus infinity masks a key, as with a bias
#endif
    if (MASK != 0 || on(BIAS) || last >= end || last_own >= OWNED) return true;
    return OWNER_KEYS != 0 ? !mask_is_full(first, last, first_own, last_own) : !mask_is_full(first_own, last_own, first, last);
}

void fetch_all(uint stats, uint first) {
    fetch(first);
#if OWNER_KEYS && ORDER == 1
    fetch_stats(stats, first);
#endif
}

// What a tile of walked rows, which begins at `first`, adds to the results.
void work(uint query_head, uint stats, uint first, bool some_hidden) {
    [[dont_unroll]] for (turn = 0u; turn < WALK / MATRIX_N; turn += TURN) {
        MULTIPLY(own_a, AF, 0u, A_STRIDE, s)
        MULTIPLY(own_b, BF, B_START, B_STRIDE, t)
        if (some_hidden || HAS_SCORE_MOD || on(DROPOUT)) weigh_each(first, query_head, stats);
        else weigh_all();
        EACH_SCORE pulls[i][f][e] = float16_t(ROUNDED(t[i][f][e]));
#if OWNER_KEYS
        if (STORES != 0) store_pulls(query_head, first);
        EACH_SCORE weights[i][f][e] = float16_t(ROUNDED(s[i][f][e]));
#endif
        GATHER(pulls, AF, 0u, A_STRIDE, sum_a)
#if OWNER_KEYS
        GATHER(weights, BF, B_START, B_STRIDE, sum_b)
#endif
    }
}

// Walks the rows from `begin` to `end` of one query head; where dS is stored, of whole tiles of those who read it.
void walk(uint query_head, uint begin, uint end) {
    uint beyond = end;
#if OWNER_KEYS
    if (STORES != 0 && begin < end) {
        begin = begin / STORED * STORED;
        beyond = (end + STORED - 1u) / STORED * STORED;
    }
#endif
    uint stats = stats_base(batch, query_head) + row_start();
#if !OWNER_KEYS
    store_stats(stats, first_own);
#endif
    uint next = next_walked(query_head, begin, beyond);
#if PREFETCH
    if (next < beyond) fetch_all(stats, next);
#endif
    [[dont_unroll]] while (next < beyond) {
        uint first = next;
        bool some_hidden = has_masked(first, end);
#if !PREFETCH
        fetch_all(stats, first);
#endif
        store(some_hidden);
#if OWNER_KEYS
        store_stats(stats, first);
#endif
        barrier();
        next = next_walked(query_head, first + WALK, beyond);
#if PREFETCH
        if (next < beyond) fetch_all(stats, next);
#endif
        work(query_head, stats, first, some_hidden);
        barrier();
    }
}

// The subgroup's own rows as factors.
#define LOAD_OWN(DATA, BASE, ROW, WIDTH, COUNT, FRAGMENTS) \
    [[unroll]] for (uint i = 0u; i < RF; ++i) { \
        const uint words = MATRIX_K / 8; \
        uint row = min(first_own + subgroup * OWN_EACH + i * MATRIX_M + lane / words, OWNED - 1u); \
        [[unroll]] for (uint d = 0u; d < COUNT; ++d) { \
            uint column = d * MATRIX_K + 8u * (lane % words); \
            if (lane < MATRIX_M * words) { \
                tile[subgroup * PASS_VECTORS + lane / words * PASS_STRIDE + lane % words] = \
                    column < WIDTH ? DATA[(BASE + row * ROW + column) >> 3] : uvec4(0u); \
            } \
            SYNC_SUBGROUP; \
            coopMatLoad(FRAGMENTS[i][d], tile, subgroup * PASS_VECTORS, PASS_STRIDE, ROW_MAJOR); \
            SYNC_SUBGROUP; \
        } \
    }

void main() {
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    thread = subgroup * SUBGROUP + lane;
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
    base2_scale = pc.scale * LOG2_E;
    // Under a causal mask late rows see more keys, and early keys are seen by more rows: the longest start first.
    uint block = gl_WorkGroupID.x;
    if (CAUSAL != 0) {
        uint bytes = WALK_ROWS * uint(HEAD_DIM + VALUE_DIM) * 2u;
        block = longest_first(OWNER_KEYS != 0 ? bytes * GROUP : bytes, OWNER_KEYS != 0 ? 1u : uint(GROUP), head, batch);
        if (OWNER_KEYS == 0) block = gl_NumWorkGroups.x - 1u - block;
    }
    first_own = block * OWN;
    begin_extras(batch, OWNER_KEYS != 0 ? head * GROUP : head);
    if (on(LENGTHS) && first_own >= OWNED) return;
#ifdef FUNCTIONS
    hold_function_words();
#endif

#if ORDER != 1
    for (uint n = thread; n < MATRIX_M * MATRIX_N; n += THREADS) iota[n] = float(n);
#endif
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint c = 0u; c < AF; ++c) sum_a[i][c] = SUMS(0.0);
#if OWNER_KEYS
        [[unroll]] for (uint c = 0u; c < BF; ++c) sum_b[i][c] = SUMS(0.0);
#endif
    }
#if OWNER_KEYS
    uint start_a = k_base(batch, head / SHARES) + key_start() * pc.k_row;
    uint start_b = v_base(batch, head / SHARES) + key_start() * pc.v_row;
#else
    uint start_a = q_base(batch, head) + row_start() * pc.q_row;
    uint start_b = g_base(batch, head) + row_start() * pc.g_row;
#endif
    LOAD_OWN(OWN_A_DATA, start_a, OWN_A_ROW, HEAD_DIM, AF, own_a)
    LOAD_OWN(OWN_B_DATA, start_b, OWN_B_ROW, VALUE_DIM, BF, own_b)
    barrier();

#if OWNER_KEYS
    uint begin = first_seeing_row(first_own);
    uint end = seeing_rows(min(first_own + OWN, OWNED) - 1u);
    [[dont_unroll]] for (uint member = 0u; member < GROUP; ++member) {
        uint query_head = head * GROUP + member;
        begin_extras(batch, query_head);
        walk_a = q_base(batch, query_head) + row_start() * pc.q_row;
        walk_b = g_base(batch, query_head) + row_start() * pc.g_row;
        walk(query_head, begin, end);
    }
#else
    walk_a = k_base(batch, head / GROUP) + key_start() * pc.k_row;
    walk_b = v_base(batch, head / GROUP) + key_start() * pc.v_row;
    walk(head, hidden_keys(first_own), visible_keys(first_own, min(first_own + OWN, OWNED) - 1u));
#endif

    uint result = out_row(batch, head) + (OWNER_KEYS != 0 ? key_start() : row_start());
#if OWNER_KEYS
    STORE_SUMS(sum_a, AF, HEAD_DIM, pc.scale, store_dk8)
    STORE_SUMS(sum_b, BF, VALUE_DIM, 1.0, store_dv8)
#else
    STORE_SUMS(sum_a, AF, HEAD_DIM, pc.scale, store_dq8)
#endif
}
