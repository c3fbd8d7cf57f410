// The body of the tiled kernels of attention's gradients, on vector units.
//
// A workgroup of THREADS invocations owns OWN rows of q (OWNER_KEYS 0) or of k (1) and walks the other in tiles of WALK:
//                 owned                walked               results
//   OWNER_KEYS 0  a = q, b = g         a = k, b = v         dq = scale sum (dS score_mod') k
//   OWNER_KEYS 1  a = k, b = v         a = q, b = g         dk = scale sum (dS score_mod') q,  dv = sum (m P) g
// with the weights and dS made anew of the products a a^T and b b^T. dq is divided by the sum of its row's weights, and
// that sum is left for the other kernels (backward/flash-backward.glsl), where it differs from 1 by no more than rounding.
// Float32 results are added up in memory, BLOCK walked rows at a time, so that rounding grows with BLOCK and with the
// number of blocks.
// Owning keys, it walks the queries of all GROUP query
// heads of its key head, so that nothing is added by two workgroups: no atomics, and the same bits every time.
//
// Invocation (tx, ty), tx < TX, owns the rows ty + TY i (i < TM), the walked rows tx + TX j (j < KT) of each tile, and
// columns 4 (tx + TX c) .. + 3 (c < CV) of the results, all in registers. The products are register-blocked and read
// 4-vectors from shared memory, in chunks of DC columns and of TX JC walked rows. Chunk rows are an odd number of
// 4-vectors long, so that consecutive rows start in different banks.
//
// The including shader defines OWNER_KEYS, THREADS, TX, TM, KT, CV, DC and JC. HEAD_DIM, and with OWNER_KEYS also VALUE_DIM,
// is at most 4 TX CV.

#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = THREADS, local_size_y = 1, local_size_z = 1) in;

#define TY (THREADS / TX)
#define OWN (TY * TM)
#define WALK (TX * KT)
#define DC4 (DC / 4)
#define D_STRIDE (DC4 + 1)
#define CHUNK (TX * JC)
#define V_STRIDE (TX * CV)
#define P_STRIDE (CHUNK / 4 + (JC % 2 == 0 ? TX / 4 : 0))
#define WALK_START (OWN * D_STRIDE)
#define P_START (CHUNK * V_STRIDE)
#define SCORE_VECTORS (WALK_START + WALK * D_STRIDE)
#define OUTPUT_VECTORS (P_START + OWN * P_STRIDE)
#define TILE_VECTORS (SCORE_VECTORS > OUTPUT_VECTORS ? SCORE_VECTORS : OUTPUT_VECTORS)
#define PER_THREAD(vectors) (((vectors) + THREADS - 1) / THREADS)
#define BLOCK 1024
// A sum of weights may differ from 1 by this much, times the log-sum-exp's size, and be due to rounding: 2^-20. On an H200,
// whose kernels add up scores in different orders, 2^-21 left a row with a log-sum-exp of 33 as it was.
#define MOST_ROUNDING 9.5367431640625e-7

// What may not stand together: tests/test_shader_macros.py.
#if THREADS % (2 * TX) || KT % JC
#error "TX divides THREADS, an even number of times, and JC divides KT"
#elif TX % 4 || DC % 4
#error "TX and DC are whole vectors of four"
#elif OWN % 8 || WALK % 8
#error "tiles of owned and of walked rows are whole eights"
#endif

#if OWNER_KEYS
#define OWNED key_rows()
#define WALKED query_rows()
#define load_own_a4 load_k4
#define load_own_b4 load_v4
#define load_walk_a4 load_q4
#define load_walk_b4 load_g4
#define OWN_A_ROW pc.k_row
#define OWN_B_ROW pc.v_row
#define WALK_A_ROW pc.q_row
#define WALK_B_ROW pc.g_row
GRILLY_RESULT(dk, 9)
GRILLY_RESULT(dv, 10)
#else
#define OWNED query_rows()
#define WALKED key_rows()
#define load_own_a4 load_q4
#define load_own_b4 load_g4
#define load_walk_a4 load_k4
#define load_walk_b4 load_v4
#define OWN_A_ROW pc.q_row
#define OWN_B_ROW pc.g_row
#define WALK_A_ROW pc.k_row
#define WALK_B_ROW pc.v_row
GRILLY_RESULT(dq, 9)
#endif

shared vec4 tile[TILE_VECTORS];
// Raised once a walked row that some owned one has nothing to do with holds a NaN or an infinity; never lowered.
shared uint poisoned;

uint tx, ty, batch, head, first_own, own_a, own_b, walk_a, walk_b;
float s[TM][KT];  // a a^T, then the weights
float t[TM][KT];  // b b^T, then dS
vec4 sum_a[TM][CV];
#if OWNER_KEYS
vec4 sum_b[TM][CV];
#else
float total[TM];   // this invocation's part of the sum of weights
float finish[TM];  // what dq is multiplied by
#endif
uint pending;  // walked rows in the sums

// The row of a chunk that vector e of it belongs to: eight lanes store two rows, four apart, of four vectors.
uint chunk_row(uint e) {
    uint row = e / DC4;
    return DC4 == 4 ? (row & ~7u) | (row >> 1 & 3u) | (row & 1u) << 2 : row;
}

// Adds to PRODUCT the products of owned and walked rows. Rows past the last one are read as copies of the last one:
// `pair` overrules them.
#define PRODUCTS(NAME, DIM, LOAD_OWN, LOAD_WALK, OWN_BASE, OWN_ROW, WALK_BASE, WALK_ROW, PRODUCT) \
    void NAME(uint first) { \
        [[dont_unroll]] for (uint column = 0u; column < DIM; column += DC) { \
            [[unroll]] for (uint n = 0u; n < PER_THREAD(OWN * DC4); ++n) { \
                uint e = gl_LocalInvocationIndex + n * THREADS; \
                uint d = column + 4u * (e % DC4); \
                uint row = min(first_own + chunk_row(e), OWNED - 1u); \
                vec4 value = LOAD_OWN(OWN_BASE + row * OWN_ROW + d, DIM % DC == 0 ? 4 : DIM - int(d)); \
                if ((OWN * DC4) % THREADS == 0 || e < OWN * DC4) tile[chunk_row(e) * D_STRIDE + e % DC4] = value; \
            } \
            [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * DC4); ++n) { \
                uint e = gl_LocalInvocationIndex + n * THREADS; \
                uint d = column + 4u * (e % DC4); \
                uint row = min(first + chunk_row(e), WALKED - 1u); \
                vec4 value = LOAD_WALK(WALK_BASE + row * WALK_ROW + d, DIM % DC == 0 ? 4 : DIM - int(d)); \
                if ((WALK * DC4) % THREADS == 0 || e < WALK * DC4) { \
                    tile[WALK_START + chunk_row(e) * D_STRIDE + e % DC4] = value; \
                } \
            } \
            barrier(); \
            [[dont_unroll]] for (uint d = 0u; d < DC4; ++d) { \
                vec4 other[KT]; \
                [[unroll]] for (uint j = 0u; j < KT; ++j) other[j] = tile[WALK_START + (tx + TX * j) * D_STRIDE + d]; \
                [[unroll]] for (uint i = 0u; i < TM; ++i) { \
                    vec4 own = tile[(ty + TY * i) * D_STRIDE + d]; \
                    [[unroll]] for (uint j = 0u; j < KT; ++j) PRODUCT[i][j] += own.x * other[j].x; \
                    [[unroll]] for (uint j = 0u; j < KT; ++j) PRODUCT[i][j] += own.y * other[j].y; \
                    [[unroll]] for (uint j = 0u; j < KT; ++j) PRODUCT[i][j] += own.z * other[j].z; \
                    [[unroll]] for (uint j = 0u; j < KT; ++j) PRODUCT[i][j] += own.w * other[j].w; \
                } \
            } \
            barrier(); \
        } \
    }

PRODUCTS(multiply_a, HEAD_DIM, load_own_a4, load_walk_a4, own_a, OWN_A_ROW, walk_a, WALK_A_ROW, s)
PRODUCTS(multiply_b, VALUE_DIM, load_own_b4, load_walk_b4, own_b, OWN_B_ROW, walk_b, WALK_B_ROW, t)

// Adds to SUM the walked rows times WEIGHT. Where some pairs are hidden and a number is not finite, the rows are taken
// one at a time and a weight of zero is never multiplied: 0 times infinity would be NaN.
#define GATHER(NAME, DIM, LOAD_WALK, WALK_BASE, WALK_ROW, WEIGHT, SUM) \
    void NAME(uint first, bool some_hidden) { \
        [[dont_unroll]] for (uint phase = 0u; phase < KT / JC; ++phase) { \
            bool bad = false; \
            [[unroll]] for (uint n = 0u; n < PER_THREAD(CHUNK * V_STRIDE); ++n) { \
                uint e = gl_LocalInvocationIndex + n * THREADS; \
                uint column = 4u * (e % V_STRIDE); \
                uint row = min(first + phase * CHUNK + e / V_STRIDE, WALKED - 1u); \
                vec4 value = LOAD_WALK(WALK_BASE + row * WALK_ROW + column, DIM == 4 * V_STRIDE ? 4 : DIM - int(column)); \
                if ((CHUNK * V_STRIDE) % THREADS == 0 || e < CHUNK * V_STRIDE) tile[e] = value; \
                if (some_hidden) bad = bad || non_finite(value); \
            } \
            if (bad) poisoned = 1u; \
            [[unroll]] for (uint part = 0u; part < KT / JC; ++part) { \
                if (phase == part) { \
                    [[unroll]] for (uint i = 0u; i < TM; ++i) { \
                        [[unroll]] for (uint j = 0u; j < JC; ++j) { \
                            tile[P_START + (ty + TY * i) * P_STRIDE + (tx + TX * j) / 4u][tx % 4u] = \
                                WEIGHT[i][part * JC + j]; \
                        } \
                    } \
                } \
            } \
            barrier(); \
            if (some_hidden && poisoned != 0u) { \
                [[dont_unroll]] for (uint key = 0u; key < CHUNK; ++key) { \
                    [[unroll]] for (uint i = 0u; i < TM; ++i) { \
                        float w = tile[P_START + (ty + TY * i) * P_STRIDE + key / 4u][key % 4u]; \
                        [[unroll]] for (uint c = 0u; c < CV; ++c) { \
                            if (4 * TX * int(c) < DIM && w != 0.0) SUM[i][c] += w * tile[key * V_STRIDE + tx + TX * c]; \
                        } \
                    } \
                } \
            } else { \
                [[dont_unroll]] for (uint n = 0u; n < CHUNK / 4; ++n) { \
                    vec4 w[TM]; \
                    [[unroll]] for (uint i = 0u; i < TM; ++i) w[i] = tile[P_START + (ty + TY * i) * P_STRIDE + n]; \
                    [[unroll]] for (uint c = 0u; c < CV; ++c) { \
                        if (4 * TX * int(c) < DIM) { \
                            vec4 value[4]; \
                            [[unroll]] for (uint r = 0u; r < 4u; ++r) value[r] = tile[(4u * n + r) * V_STRIDE + tx + TX * c]; \
                            [[unroll]] for (uint i = 0u; i < TM; ++i) { \
                                SUM[i][c] += w[i].x * value[0]; \
                                SUM[i][c] += w[i].y * value[1]; \
                                SUM[i][c] += w[i].z * value[2]; \
                                SUM[i][c] += w[i].w * value[3]; \
                            } \
                        } \
                    } \
                } \
            } \
            barrier(); \
        } \
    }

GATHER(gather_a, HEAD_DIM, load_walk_a4, walk_a, WALK_A_ROW, t, sum_a)
#if OWNER_KEYS
GATHER(gather_b, VALUE_DIM, load_walk_b4, walk_b, WALK_B_ROW, s, sum_b)
#endif

// Odd where the key is, as TX and TY are even.
#define LIKE_KEY(first) (OWNER_KEYS != 0 ? first_own + ty : (first) + tx)

// Makes weights and dS of the products.
void weigh(uint first, uint query_head, uint stats, bool some_hidden) {
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
#if !OWNER_KEYS
        float tile_total = 0.0;
#endif
        [[unroll]] for (uint j = 0u; j < KT; ++j) {
            uint own = first_own + ty + TY * i;
            uint walked = first + tx + TX * j;
            uint row = OWNER_KEYS != 0 ? walked : own;
            uint key = OWNER_KEYS != 0 ? own : walked;
            vec4 stat = stats_data[stats + min(row, query_rows() - 1u)];
            float rest = OWNER_KEYS != 0 ? stat.z : 0.0;
            pair(batch, query_head, row, key, LIKE_KEY(first), some_hidden, vec3(stat.xy, rest), s[i][j], t[i][j]);
#if !OWNER_KEYS
            tile_total += pair_weight;
#endif
        }
#if !OWNER_KEYS
        total[i] += tile_total;
#endif
    }
}

// Ends a block: adds the sums to the results, and begins them anew.
void store_sums() {
    uint result = out_row(batch, head) + (OWNER_KEYS != 0 ? key_start() : row_start());
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        uint own = first_own + ty + TY * i;
        [[unroll]] for (uint c = 0u; c < CV; ++c) {
            uint column = 4u * (tx + TX * c);
            int head_columns = own < OWNED ? HEAD_DIM - int(column) : 0;
#if OWNER_KEYS
            int value_columns = own < OWNED ? VALUE_DIM - int(column) : 0;
            store_dk4((result + own) * HEAD_DIM + column, sum_a[i][c] * pc.scale, head_columns);
            store_dv4((result + own) * VALUE_DIM + column, sum_b[i][c], value_columns);
            sum_b[i][c] = vec4(0.0);
#else
            factor = finish[i];
            store_dq4((result + own) * HEAD_DIM + column, sum_a[i][c] * pc.scale, head_columns);
#endif
            sum_a[i][c] = vec4(0.0);
        }
    }
    adds = true;
    pending = 0u;
}

// Walks the rows from `begin` to `end` of one query head.
void walk(uint query_head, uint begin, uint end) {
    uint stats = stats_base(batch, query_head) + row_start();
    [[dont_unroll]] for (uint block = begin; block < end; block += BLOCK) {
        if (WIDE != 0 && pending >= BLOCK) store_sums();
        uint block_end = min(block + BLOCK, end);
        pending += block_end - block;
        [[dont_unroll]] for (uint first = block; first < block_end; first += WALK) {
            uint last_own = first_own + OWN - 1u;
            uint last = first + WALK - 1u;
#ifdef FUNCTIONS
            uint found = OWNER_KEYS != 0 ? block_class(first, last, first_own, last_own) : block_class(first_own, last_own, first, last);
            if (found == TILE_EMPTY) continue;
#endif
            // With a bias, or a score function, minus infinity masks a key.
            bool some_hidden = MASK != 0 || on(BIAS) || last >= end || last_own >= OWNED;
#ifdef FUNCTIONS
            some_hidden = some_hidden || on(SCORE_FUNCTION);
#endif
            if (OWNER_KEYS != 0) some_hidden = some_hidden || !mask_is_full(first, last, first_own, last_own);
            else some_hidden = some_hidden || !mask_is_full(first_own, last_own, first, last);
            [[unroll]] for (uint i = 0u; i < TM; ++i) {
                [[unroll]] for (uint j = 0u; j < KT; ++j) {
                    s[i][j] = 0.0;
                    t[i][j] = 0.0;
                }
            }
            multiply_a(first);
            multiply_b(first);
            weigh(first, query_head, stats, some_hidden);
            gather_a(first, some_hidden);
#if OWNER_KEYS
            gather_b(first, some_hidden);
#endif
        }
    }
}

#if !OWNER_KEYS
// Gathers the sums of weights of all keys, of this dispatch and of those before it, and says what mends them.
void finish_rows() {
    uint stats = stats_base(batch, head) + row_start();
    vec4 stat[TM];
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        uint own = ty + TY * i;
        stat[i] = stats_data[stats + min(first_own + own, OWNED - 1u)];
        tile[(own * TX + tx) / 4u][tx % 4u] = total[i];
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        uint own = ty + TY * i;
        vec4 parts = tile[own * (TX / 4)];
        [[unroll]] for (uint n = 1u; n < TX / 4; ++n) parts += tile[own * (TX / 4) + n];
        float all = (parts.x + parts.y) + (parts.z + parts.w);
        if ((ACCUMULATE & ADD_TO_RESULT) != 0) all += stat[i].w;
        stat[i].w = all;
        if ((ACCUMULATE & KEYS_FOLLOW) == 0) {
            if (on(SINKS)) all += exp2((uintBitsToFloat(extra_data[parameter(SINK) + x_head]) - stat[i].x) * LOG2_E);
            // A log-sum-exp of more keys than there are here is the caller's right: then nothing is mended.
            float error = all - 1.0;
            bool mends = abs(error) <= min(MOST_ROUNDING * (1.0 + abs(stat[i].x)), 0.0078125);
            finish[i] = mends ? 1.0 / all : 1.0;
            stat[i].z = mends ? (error - 0.5 * error * error) * LOG2_E : 0.0;  // log2(1 + error), which devices round more
        }
        if (tx == 0u && first_own + own < OWNED) stats_data[stats + first_own + own] = stat[i];
    }
}
#endif

void main() {
    tx = gl_LocalInvocationIndex % TX;
    ty = gl_LocalInvocationIndex / TX;
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
    // Under a causal mask late rows see more keys, and early keys are seen by more rows: the longest start first.
    uint block = CAUSAL != 0 && OWNER_KEYS == 0 ? gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x : gl_WorkGroupID.x;
    first_own = block * OWN;
    begin_extras(batch, OWNER_KEYS != 0 ? head * GROUP : head);
    if (on(LENGTHS) && first_own >= OWNED) return;
#ifdef FUNCTIONS
    hold_function_words();
    hold_block_parameters();
    barrier();
#endif
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        [[unroll]] for (uint c = 0u; c < CV; ++c) {
            sum_a[i][c] = vec4(0.0);
#if OWNER_KEYS
            sum_b[i][c] = vec4(0.0);
#endif
        }
#if !OWNER_KEYS
        total[i] = 0.0;
        finish[i] = 1.0;
#endif
    }
    pending = 0u;
    if (gl_LocalInvocationIndex == 0u) poisoned = 0u;  // barriers come before its first reading

#if OWNER_KEYS
    own_a = k_base(batch, head) + key_start() * pc.k_row;
    own_b = v_base(batch, head) + key_start() * pc.v_row;
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
    own_a = q_base(batch, head) + row_start() * pc.q_row;
    own_b = g_base(batch, head) + row_start() * pc.g_row;
    walk_a = k_base(batch, head / GROUP) + key_start() * pc.k_row;
    walk_b = v_base(batch, head / GROUP) + key_start() * pc.v_row;
    walk(head, hidden_keys(first_own), visible_keys(first_own, min(first_own + OWN, OWNED) - 1u));
    finish_rows();
#endif
    store_sums();
}
