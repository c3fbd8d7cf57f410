// No element order: nothing is assumed of which elements an invocation holds. The row maximum is exchanged and weights change
// their role through shared memory, the row sum is a product with ones, so statistics are matrices, all columns equal.

// Where the elements that this invocation holds lie: a matrix of their numbers, loaded when it must be known.
#define FIND_PLACES SUMS place; coopMatLoad(place, tile, IOTA_START, MATRIX_N / 4, ROW_MAJOR);
#define PLACE_ROW(e) (uint(place[e]) / MATRIX_N)
#define PLACE_COLUMN(e) (uint(place[e]) % MATRIX_N)
#define HELD_ROWS ELEMENTS
#define HELD_ROW(e) (e)
#define ROW_HELD(r) PLACE_ROW(r)
#define COLUMN_HELD(r) PLACE_COLUMN(r)
#define COLUMN_PAST(e) 0u

#define P_STRIDE (KEYS / 8 + 1)
#define P_VECTORS (MATRIX_M * P_STRIDE)
#define IOTA_START Q_END
#define P_START (IOTA_START + SCRATCH_VECTORS)
#define SCRATCH_START (P_START + SUBGROUPS * P_VECTORS)
#define SHARED_VECTORS (SCRATCH_START + SUBGROUPS * SCRATCH_VECTORS)

SUMS top[RF];  // running maximum of base-2 scores
SUMS sum[RF];  // of weights; glslang 13 gives a second name in one declaration another type
#define CLEAR_STATISTICS(i) \
    top[i] = SUMS(NEVER); \
    sum[i] = SUMS(0.0);
#define GATHER_STATISTICS(i) \
    coopMatStore(top[i], tile, scratch, MATRIX_N / 4, ROW_MAJOR); \
    SYNC_SUBGROUP; \
    row_top = uintBitsToFloat(tile[scratch + 2u * lane].x); \
    SYNC_SUBGROUP; \
    coopMatStore(sum[i], tile, scratch, MATRIX_N / 4, ROW_MAJOR); \
    SYNC_SUBGROUP; \
    row_sum = uintBitsToFloat(tile[scratch + 2u * lane].x); \
    SYNC_SUBGROUP;
