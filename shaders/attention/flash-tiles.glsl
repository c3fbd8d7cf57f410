// Tiled attention with an online softmax: the body of flash-attention2 and flash-attention3.
//
// Computes, for each query row, o = softmax(scale q k^T + mask) v without storing the scores: keys are taken in tiles,
// and a running maximum and sum correct what was accumulated before (Dao 2023, "FlashAttention-2", algorithm 1).
//
// A workgroup of THREADS invocations owns ROWS query rows; TX invocations share TM of them. Invocation (tx, ty) owns rows
// ty + TY i (i < TM), the keys tx + TX j (j < KT) of each tile of KEYS = TX KT keys, and columns 4 (tx + TX c) .. + 3
// (c < CV) of the output, all in registers. Both products are register-blocked matrix products that read 4-vectors from
// shared memory:
//   scores   in chunks of DC head-dimension columns:  tile = q chunk (ROWS x DC), k chunk (KEYS x DC)
//   output   in chunks of TX JC keys:                 tile = v chunk (TX JC x 4 TX CV), weights (ROWS x TX JC)
// Chunk rows are an odd number of 4-vectors long, so that consecutive rows start in different banks.
// With PREFETCH, what a chunk needs is loaded into registers before the chunk ahead of it is multiplied, and stored after.
//
// tx is made of lane bits TX_SHIFT and up, ty of the others: with TX_SHIFT 1 each run of 8 lanes spans 4 x 2 rather than
// 8 x 1 invocations and reads fewer distinct vectors.
//
// The including shader defines THREADS, TX, TX_SHIFT (0), TM, KT, CV, DC, JC, PREFETCH, UNROLL_CHUNKS
// (the steps of a chunk), UNROLL_PHASES (the chunks of keys), where registers allow it BLOCK_SUMS (each tile's output is
// summed by itself), LEAN (a vector of v at a time, for few registers), and, for the row maximum by subgroup shuffles, SHUFFLE:
// subgroups must then be full and of at least TX << TX_SHIFT invocations. HELD_OPTIONS, for few registers: options-in-shared.glsl.
// HEAD_DIM is free; VALUE_DIM is at most 4 TX CV.

#ifdef SHUFFLE
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = THREADS, local_size_y = 1, local_size_z = 1) in;

#ifndef TX_SHIFT
#define TX_SHIFT 0
#endif
#ifndef BLOCK_SUMS
#define BLOCK_SUMS 0
#endif
#define TY (THREADS / TX)
#define ROWS (TY * TM)
#define KEYS (TX * KT)
#define DC4 (DC / 4)
#define D_STRIDE (DC4 + 1)
#define CHUNK (TX * JC)
#define V_STRIDE (TX * CV)
#define P_STRIDE (CHUNK / 4 + (JC % 2 == 0 ? TX / 4 : 0))
#define K_START (ROWS * D_STRIDE)
#define P_START (CHUNK * V_STRIDE)
#define SCORE_VECTORS (K_START + KEYS * D_STRIDE)
#define OUTPUT_VECTORS (P_START + ROWS * P_STRIDE)
#define TILE_VECTORS (SCORE_VECTORS > OUTPUT_VECTORS ? SCORE_VECTORS : OUTPUT_VECTORS)
#define PER_THREAD(vectors) (((vectors) + THREADS - 1) / THREADS)

// What may not stand together: tests/test_shader_macros.py.
#if THREADS % TX || KT % JC
#error "TX divides THREADS, and JC divides KT"
#elif TX % 4 || DC % 4
#error "TX and DC are whole vectors of four"
#elif ROWS % 8 || KEYS % 8
#error "tiles of rows and of keys are whole eights"
#endif

#if UNROLL_CHUNKS
#define UNROLL_CHUNK [[unroll]]
#else
#define UNROLL_CHUNK [[dont_unroll]]
#endif
#if UNROLL_PHASES
#define UNROLL_PHASE [[unroll]]
#else
#define UNROLL_PHASE [[dont_unroll]]
#endif

#include "tile-walk.glsl"

shared vec4 tile[TILE_VECTORS];
// Raised once a value row that some query may not see holds a NaN or an infinity; never lowered.
shared uint poisoned;
#ifndef SHUFFLE
shared vec4 partial[ROWS * TX / 4];
#endif

uint lane, tx, ty, batch, head, first_row, end, q_base, k_base, v_base;
#ifdef HELD_OPTIONS
#ifdef FUNCTIONS
#define PARAMETER_COUNT (FUNCTION_WORDS + 1u)
#else
#define PARAMETER_COUNT (V_PAGE + 1u)
#endif
#include "options-in-shared.glsl"
#define COPY_PARAMETERS copy_parameters(lane);
#define KEEP_WORDS keep_words(lane);
#define FIND_WORDS find_words();
#else
#define COPY_PARAMETERS
#define KEEP_WORDS
#define FIND_WORDS
#endif
vec4 held_q[PER_THREAD(ROWS * DC4)];
vec4 held_k[PER_THREAD(KEYS * DC4)];
vec4 held_v[PER_THREAD(CHUNK * V_STRIDE)];
float s[TM][KT];
vec4 o[TM][CV];
#if BLOCK_SUMS
vec4 part[TM][CV];  // the output of one tile, so that rounding grows with the number of tiles and not of keys
#else
#define part o
#endif

// The row of a chunk that vector e of it belongs to. Eight lanes store two rows of four vectors; rows four apart, five
// vectors long each, fill the eight bank groups, where rows next to each other would meet in one.
uint chunk_row(uint e) {
    uint row = e / DC4;
    return DC4 == 4 ? (row & ~7u) | (row >> 1 & 3u) | (row & 1u) << 2 : row;
}

// Rows past the last one are read as copies of the last one. Nobody stores such a query row, mask_scores overrules such
// a key, and such a value is multiplied by zero or, if it is not finite, skipped. Columns past the head are zeros.
void fetch_scores_chunk(uint first_key, uint column) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(ROWS * DC4); ++n) {
        uint e = lane + n * THREADS;
        uint d = column + 4u * (e % DC4);
        uint row = min(first_row + chunk_row(e), QUERIES - 1u);
        held_q[n] = load_q4(q_base + row * pc.q_row + d, HEAD_DIM % DC == 0 ? 4 : HEAD_DIM - int(d));
    }
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * DC4); ++n) {
        uint e = lane + n * THREADS;
        uint d = column + 4u * (e % DC4);
        uint key = min(first_key + chunk_row(e), end - 1u);
        held_k[n] = load_k4(k_base + K_PLACE(key) + d, HEAD_DIM % DC == 0 ? 4 : HEAD_DIM - int(d));
    }
}

void store_scores_chunk() {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(ROWS * DC4); ++n) {
        uint e = lane + n * THREADS;
        if ((ROWS * DC4) % THREADS == 0 || e < ROWS * DC4) tile[chunk_row(e) * D_STRIDE + e % DC4] = held_q[n];
    }
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * DC4); ++n) {
        uint e = lane + n * THREADS;
        if ((KEYS * DC4) % THREADS == 0 || e < KEYS * DC4) tile[K_START + chunk_row(e) * D_STRIDE + e % DC4] = held_k[n];
    }
}

void fetch_values_chunk(uint first_key) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(CHUNK * V_STRIDE); ++n) {
        uint e = lane + n * THREADS;
        uint column = 4u * (e % V_STRIDE);
        uint key = min(first_key + e / V_STRIDE, end - 1u);
        held_v[n] = load_v4(v_base + V_PLACE(key) + column, VALUE_DIM == 4 * V_STRIDE ? 4 : VALUE_DIM - int(column));
    }
}

void store_values_chunk(bool masked) {
    bool bad = false;
    [[unroll]] for (uint n = 0u; n < PER_THREAD(CHUNK * V_STRIDE); ++n) {
        uint e = lane + n * THREADS;
        if ((CHUNK * V_STRIDE) % THREADS == 0 || e < CHUNK * V_STRIDE) tile[e] = held_v[n];
        if (masked) bad = bad || non_finite(held_v[n]);
    }
    if (bad) poisoned = 1u;
}

// Weights of keys j0 .. j0 + JC - 1 of every invocation. TX neighbours write TX neighbouring floats of each row, and
// P_STRIDE puts the rows of 32 lanes into different banks.
void store_weights(uint j0) {
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        [[unroll]] for (uint j = 0u; j < JC; ++j) {
            tile[P_START + (ty + TY * i) * P_STRIDE + (tx + TX * j) / 4u][tx % 4u] = s[i][j0 + j];
        }
    }
}

void multiply_scores_chunk() {
    UNROLL_CHUNK for (uint d = 0u; d < DC4; ++d) {
        vec4 k[KT];
        [[unroll]] for (uint j = 0u; j < KT; ++j) k[j] = tile[K_START + (tx + TX * j) * D_STRIDE + d];
        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            vec4 q = tile[(ty + TY * i) * D_STRIDE + d];
            // A product and a sum, which compilers fuse where the device has a fast fused instruction.
            [[unroll]] for (uint j = 0u; j < KT; ++j) s[i][j] += q.x * k[j].x;
            [[unroll]] for (uint j = 0u; j < KT; ++j) s[i][j] += q.y * k[j].y;
            [[unroll]] for (uint j = 0u; j < KT; ++j) s[i][j] += q.z * k[j].z;
            [[unroll]] for (uint j = 0u; j < KT; ++j) s[i][j] += q.w * k[j].w;
        }
    }
}

void multiply_values_chunk() {
    UNROLL_CHUNK for (uint n = 0u; n < CHUNK / 4; ++n) {
#if LEAN
        vec4 p[TM];
        [[unroll]] for (uint i = 0u; i < TM; ++i) p[i] = tile[P_START + (ty + TY * i) * P_STRIDE + n];
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            [[unroll]] for (uint c = 0u; c < CV; ++c) {
                if (4 * TX * int(c) < VALUE_DIM) {
                    vec4 v = tile[(4u * n + r) * V_STRIDE + tx + TX * c];
                    [[unroll]] for (uint i = 0u; i < TM; ++i) part[i][c] += p[i][r] * v;
                }
            }
        }
#else
        vec4 v[4][CV];
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            [[unroll]] for (uint c = 0u; c < CV; ++c) {
                if (4 * TX * int(c) < VALUE_DIM) v[r][c] = tile[(4u * n + r) * V_STRIDE + tx + TX * c];
            }
        }
        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            vec4 p = tile[P_START + (ty + TY * i) * P_STRIDE + n];
            [[unroll]] for (uint c = 0u; c < CV; ++c) {
                if (4 * TX * int(c) < VALUE_DIM) {
                    part[i][c] += p.x * v[0][c];
                    part[i][c] += p.y * v[1][c];
                    part[i][c] += p.z * v[2][c];
                    part[i][c] += p.w * v[3][c];
                }
            }
        }
#endif
    }
}

// The same, one key at a time, never multiplying a weight of zero: 0 times infinity would be NaN.
void multiply_poisoned_values_chunk() {
    [[dont_unroll]] for (uint key = 0u; key < CHUNK; ++key) {
        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            float p = tile[P_START + (ty + TY * i) * P_STRIDE + key / 4u][key % 4u];
            [[unroll]] for (uint c = 0u; c < CV; ++c) {
                if (4 * TX * int(c) < VALUE_DIM) {
                    vec4 v = tile[key * V_STRIDE + tx + TX * c];
                    if (p != 0.0) part[i][c] += p * v;
                }
            }
        }
    }
}

// The scores of a tile in which some key is masked or some score modified: NEVER where masked, whatever the product was.
void mask_scores(uint first_key) {
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        uint row = first_row + ty + TY * i;
        uint mask_row = mask_index(batch, head, row);
        [[unroll]] for (uint j = 0u; j < KT; ++j) {
            uint key = first_key + tx + TX * j;
            bool allowed = key < end && row < QUERIES && mask_mod(row, key);
            if (HAS_SCORE_MOD && allowed) {
                s[i][j] = score_mod(s[i][j], row, key);
                allowed = !(s[i][j] <= NEVER);
            }
            if (MASK != 0 && allowed) s[i][j] = biased_score(s[i][j], mask_bias(mask_row + key * pc.mask_key));
            if (!allowed) s[i][j] = NEVER;
        }
    }
}

// What dropout multiplies a weight by (TX is even).
#ifdef HELD_OPTIONS
uint kept;  // weights that stay, a bit each: one generator at a time has registers enough
void find_kept(uint first_key) {
    kept = 0u;
    [[dont_unroll]] for (uint n = 0u; n < TM * KT; ++n) {
        float share = dropout_factor(first_row + ty + TY * (n / KT), first_key + tx + TX * (n % KT), first_key + tx);
        kept |= (share != 0.0 ? 1u : 0u) << n;
    }
}
#define DROPOUT_FACTOR(i, j) ((kept >> ((i) * KT + (j)) & 1u) != 0u ? number(KEEP_SCALE) : 0.0)
#else
#define DROPOUT_FACTOR(i, j) dropout_factor(first_row + ty + TY * i, first_key + tx + TX * j, first_key + tx)
#endif

#ifdef SHUFFLE
#define REDUCE_ROWS(VALUES, COMBINE) \
    [[unroll]] for (uint i = 0u; i < TM; ++i) { \
        [[unroll]] for (uint step = TX / 2; step > 0u; step /= 2u) \
            VALUES[i] = COMBINE(VALUES[i], subgroupShuffleXor(VALUES[i], step << TX_SHIFT)); \
    }
#else
// `partial` is free whenever this starts: a barrier lies between its last reading and here.
#define REDUCE_ROWS(VALUES, COMBINE) \
    [[unroll]] for (uint i = 0u; i < TM; ++i) \
        partial[((ty + TY * i) * TX + tx) / 4u][tx % 4u] = VALUES[i]; \
    barrier(); \
    [[unroll]] for (uint i = 0u; i < TM; ++i) { \
        vec4 all = partial[(ty + TY * i) * (TX / 4)]; \
        [[unroll]] for (uint n = 1u; n < TX / 4; ++n) all = COMBINE(all, partial[(ty + TY * i) * (TX / 4) + n]); \
        VALUES[i] = COMBINE(COMBINE(all.x, all.y), COMBINE(all.z, all.w)); \
    }
#endif
#define ADD(a, b) ((a) + (b))

// The first tile from `first_key` on, of this row of tiles, that is not hidden as a whole; `end` or more if there is none.
uint next_tile(uint first_key) {
    if (!on(TILES)) return first_key;
    return KEYS * shown_tile(batch, head, first_row / ROWS, first_key / KEYS, (end + KEYS - 1u) / KEYS);
}

void main() {
#ifdef SHUFFLE
    // Not gl_LocalInvocationIndex: which invocations form a subgroup is the device's affair.
    lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    lane = gl_LocalInvocationIndex;
#endif
    tx = (lane >> TX_SHIFT) % TX;
    ty = (lane >> TX_SHIFT) / TX << TX_SHIFT | (lane & ((1u << TX_SHIFT) - 1u));
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
    COPY_PARAMETERS
    begin_extras(batch, head);
    q_base = q_index(batch, head, row_start());
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
    // Under a causal mask later rows see more keys: the longest workgroups start first.
    first_row = (CAUSAL != 0 ? gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x : gl_WorkGroupID.x) * ROWS;
    if (on(LENGTHS) && first_row >= QUERIES) return;
    uint last_row = min(first_row + ROWS, QUERIES) - 1u;
    // Keys from here on are seen by no row of this workgroup.
    end = visible_keys(first_row, last_row);

    float top[TM];   // running maximum of base-2 scores
    float sum[TM];   // this invocation's part of the running sum of weights
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        top[i] = NEVER;
        sum[i] = 0.0;
        [[unroll]] for (uint c = 0u; c < CV; ++c) o[i][c] = vec4(0.0);
    }
    if (lane == 0u) poisoned = 0u;  // the first chunk's barriers come before its first reading

    const uint chunks = uint(HEAD_DIM + DC - 1) / DC;
    float base2_scale = pc.scale * LOG2_E;
    uint next_key = next_tile(hidden_keys(first_row) / KEYS * KEYS);
#if PREFETCH
    if (next_key < end) fetch_scores_chunk(next_key, 0u);
#endif
    KEEP_WORDS
    [[dont_unroll]] while (next_key < end) {
        FIND_WORDS
        uint first_key = next_key;
        next_key = next_tile(first_key + KEYS);
        bool masked = first_key + KEYS > end || !mask_is_full(first_row, last_row, first_key, first_key + KEYS - 1u);
        if (on(TILES)) masked = masked || tile_class(batch, head, first_row / ROWS, first_key / KEYS) != TILE_FULL;
        else masked = masked || MASK != 0;
        masked = masked || on(BIAS);  // minus infinity masks a key
#ifdef FUNCTIONS
        masked = masked || on(SCORE_FUNCTION);
#endif

        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            [[unroll]] for (uint j = 0u; j < KT; ++j) s[i][j] = 0.0;
        }
        [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; ++chunk) {
#if !PREFETCH
            fetch_scores_chunk(first_key, chunk * DC);
#endif
            store_scores_chunk();
            barrier();
#if PREFETCH
            if (chunk + 1u < chunks) fetch_scores_chunk(first_key, (chunk + 1u) * DC);
            else fetch_values_chunk(first_key);
#endif
            multiply_scores_chunk();
            barrier();
        }

        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            [[unroll]] for (uint j = 0u; j < KT; ++j) s[i][j] *= base2_scale;
        }
        FIND_WORDS
        if (masked || HAS_SCORE_MOD) mask_scores(first_key);
        float tile_top[TM], decay[TM];
        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            tile_top[i] = s[i][0];
            [[unroll]] for (uint j = 1u; j < KT; ++j) tile_top[i] = max(tile_top[i], s[i][j]);
        }
        REDUCE_ROWS(tile_top, max)
#ifdef HELD_OPTIONS
        if (on(DROPOUT)) find_kept(first_key);
#endif
        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            float new_top = max(top[i], tile_top[i]);
            // With nothing seen yet, subtract 0, so that exp2(NEVER - 0) is 0 and not exp2(NEVER - NEVER).
            float base = new_top <= NEVER ? 0.0 : new_top;
            decay[i] = exp2(top[i] - base);
            top[i] = new_top;
            float tile_sum = 0.0;
            [[unroll]] for (uint j = 0u; j < KT; ++j) {
                s[i][j] = exp2(s[i][j] - base);
                tile_sum += s[i][j];
                if (on(DROPOUT)) s[i][j] *= DROPOUT_FACTOR(i, j);
            }
            sum[i] = sum[i] * decay[i] + tile_sum;
            [[unroll]] for (uint c = 0u; c < CV; ++c) part[i][c] = BLOCK_SUMS != 0 ? vec4(0.0) : o[i][c] * decay[i];
        }

        UNROLL_PHASE for (uint phase = 0u; phase < KT / JC; ++phase) {
#if !PREFETCH
            fetch_values_chunk(first_key + phase * CHUNK);
#endif
            store_values_chunk(masked);
            // A weight's register must be known when compiling. One branch each lets the rest of the loop stay rolled.
            [[unroll]] for (uint n = 0u; n < KT / JC; ++n) {
                if (phase == n) store_weights(n * JC);
            }
            barrier();
#if PREFETCH
            if (phase + 1u < KT / JC) fetch_values_chunk(first_key + (phase + 1u) * CHUNK);
            else if (next_key < end) fetch_scores_chunk(next_key, 0u);
#endif
            if (masked && poisoned != 0u) multiply_poisoned_values_chunk();
            else multiply_values_chunk();
            barrier();
        }
#if BLOCK_SUMS
        [[unroll]] for (uint i = 0u; i < TM; ++i) {
            [[unroll]] for (uint c = 0u; c < CV; ++c) o[i][c] = o[i][c] * decay[i] + part[i][c];
        }
#endif
    }

    FIND_WORDS
    REDUCE_ROWS(sum, ADD)
    float keep[TM];
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        uint row = first_row + ty + TY * i;
        float share;
        add_sink(row, top[i], sum[i], share);
        float lse = row_lse(top[i], sum[i]), add = 1.0;
        keep[i] = 0.0;
        if (MERGE != 0 && row < QUERIES) {
            merge_weights(lse_data[lse_index(batch, head, row_start() + row)], lse, keep[i], add, lse);
            share *= add;
        }
        top[i] = lse;
        sum[i] = sum[i] == 0.0 ? 0.0 : share / sum[i];
    }
    if (MERGE != 0) barrier();  // all invocations of a row have read lse before one of them writes it
    [[unroll]] for (uint i = 0u; i < TM; ++i) {
        uint row = first_row + ty + TY * i;
        if (row < QUERIES) {
            if ((LSE != 0 || MERGE != 0) && tx == 0u) lse_data[lse_index(batch, head, row_start() + row)] = top[i];
            [[unroll]] for (uint c = 0u; c < CV; ++c) {
                uint column = 4u * (tx + TX * c);
                uint element = o_index(batch, head, row_start() + row) + column;
                vec4 value = sum[i] == 0.0 ? vec4(0.0) : o[i][c] * sum[i];
                if (MERGE != 0 && keep[i] != 0.0) value += keep[i] * load_o4(element, VALUE_DIM - int(column));
                store_o4(element, value, VALUE_DIM - int(column));
            }
        }
    }
}
