// Queries in columns: S^T = k q^T and O^T = v^T p^T, for devices whose accumulators turn into second factors (B) at less cost
// than into first ones (A): AMD's.
//
// A query is a column of every accumulator, and an invocation holds elements of one column of a matrix, so it has one
// running maximum and one sum for each fragment of queries. What it holds of S^T are eight keys of its query; what it holds
// of O^T are eight columns of its query's result, which it stores as one word of 16 bytes.
//
// With H = SUBGROUP / MATRIX_N lanes to a column, element e of lane L of an accumulator is in column L % MATRIX_N, and its
// row, with h = L / MATRIX_N, is one of
//   8 h + e   in sequence: RDNA 4, llvmpipe
//   H e + h   in turns: RDNA 3, where a factor is held by all H lanes alike, so that a lane holds H times as many
//             elements of a factor as of an accumulator: that is how the two are told apart
// In the second case rows of k, and columns of v, take turns in shared memory in the same way. So an invocation holds keys
// and columns 8 h + e in both. A second factor holds rows 8 h + e in the first case, and all rows in sequence in the second:
// the other lanes' weights come by a shuffle of pairs.
//
// v lies transposed in shared memory: a row of keys for each of its columns, as first factors take it from there in whole
// words.
//
// MATRIX_M, MATRIX_N and MATRIX_K are equal, and 8 H; TURN_SHARED needs only the order of accumulators to be as above.
//
// What is said elsewhere of rows is here true of queries, and what is said of columns, of keys.

#define SLOTS 1
#define SLOT(e) 0
#define SLOT_FIRST(slot) 0
#define SLOT_ROW(lane, slot) ((lane) % MATRIX_N)
#define LANE_COLUMN(lane) (8u * ((lane) / MATRIX_N))
#define COLUMN_AFTER(e) (e)
#define SPREAD_BITS (SUBGROUP / MATRIX_N / 2)  // for up to four lanes to a query
#define SPREAD_FROM uint(MATRIX_N)

#define QUERY_FACTOR FACTOR_B
#define QUERY_LAYOUT COLUMN_MAJOR
#define KEY_FACTOR FACTOR_A
#define KEY_LAYOUT ROW_MAJOR
#define ADD_SCORES(q, k, sums) coopMatMulAdd(k, q, sums)
#define KEY_AT(row) ((row) / MATRIX_M * MATRIX_M + held_at((row) % MATRIX_M))
uint held_at(uint row);  // which of a fragment's keys lies in a row of shared memory: values-transposed.glsl

#define V_STRIDE (KEYS / 8 + 1)
#define V_VECTORS (VDIM * V_STRIDE)
#define VALUE_PAIRS (KEYS / 2 * V8)
#define HELD_VALUES (2 * PER_THREAD(VALUE_PAIRS))

// A lane stores what it holds.
#define STORED_ROW (lane % MATRIX_N)
#define STORED_PART (lane / MATRIX_N)
#define GATHER_STATISTICS(i) \
    row_top = top[i][0]; \
    row_sum = sum[i][0]; \
    [[unroll]] for (uint n = 0u; n < SPREAD_BITS; ++n) row_sum += subgroupShuffleXor(row_sum, SPREAD_FROM << n);
#define GATHER_EIGHT(i, c) \
    vec4 low = vec4(o_frag[i][c][0], o_frag[i][c][1], o_frag[i][c][2], o_frag[i][c][3]) * share; \
    vec4 high = vec4(o_frag[i][c][4], o_frag[i][c][5], o_frag[i][c][6], o_frag[i][c][7]) * share;
