// Of the forms that know which elements of a matrix an invocation holds: a row's statistics live in registers.
//
// The form has said, of element e of a matrix that lane L of a subgroup holds: the number of rows a lane holds elements of
// (SLOTS), which of them e belongs to (SLOT), its row and column (SLOT_ROW, LANE_COLUMN + COLUMN_AFTER), and how many lane bits
// a row is spread over (SPREAD_BITS), from which on (SPREAD_FROM).

#define PLACE_ROW(e) SLOT_ROW(lane, SLOT(e))
#define PLACE_COLUMN(e) (LANE_COLUMN(lane) + COLUMN_AFTER(e))
#define FIND_PLACES
// The rows that a lane holds elements of in a fragment, and where their elements lie.
#define HELD_ROWS SLOTS
#define HELD_ROW(e) SLOT(e)
#define ROW_HELD(r) SLOT_ROW(lane, r)
#define COLUMN_HELD(r) LANE_COLUMN(lane)
#define COLUMN_PAST(e) COLUMN_AFTER(e)

#if SCORE_MODS || TURN_SHARED
// Scratch memory is needed beside a tile.
#define SCRATCH_START Q_END
#define SHARED_VECTORS (Q_END + SUBGROUPS * MOST(Q_VECTORS, SCRATCH_VECTORS))
#else
// Fragments of q pass through the start before the first tile, rows of the output after the last one.
#if WHOLE_ROWS
#define SHARED_VECTORS MOST(Q_END, SUBGROUPS * MOST(WHOLE_VECTORS, SCRATCH_VECTORS))
#else
#define SHARED_VECTORS MOST(Q_END, SUBGROUPS * MOST(PARTS * Q_VECTORS, SCRATCH_VECTORS))
#endif
#define SCRATCH_START 0
#endif

// What the running maximum begins with: weights-retry.glsl.
#if RETRY && !COMPUTED
#define FIRST_TOP 0.0
#else
#define FIRST_TOP NEVER
#endif
float top[RF][SLOTS];  // running maximum of base-2 scores
#if SUM_ON_MATRIX
SUMS sum[RF];  // running sum of weights, all columns equal
#define CLEAR_STATISTICS(i) \
    [[unroll]] for (uint r = 0u; r < SLOTS; ++r) { \
        top[i][r] = FIRST_TOP; \
    } \
    sum[i] = SUMS(0.0);
#else
float sum[RF][SLOTS];  // this invocation's part of the running sum of weights
#define CLEAR_STATISTICS(i) \
    [[unroll]] for (uint r = 0u; r < SLOTS; ++r) { \
        top[i][r] = FIRST_TOP; \
        sum[i][r] = 0.0; \
    }
#endif

#if ORDER != 3
// On its way to the lane that stores a row: every lane of the row holds its statistics, and lanes of one row write the same.
#if SUM_ON_MATRIX
#define FIND_WHOLE(i, r) float whole = sum[i][r * (ELEMENTS / SLOTS)];
#else
#define FIND_WHOLE(i, r) \
    float whole = sum[i][r]; \
    [[unroll]] for (uint n = 0u; n < SPREAD_BITS; ++n) whole += subgroupShuffleXor(whole, SPREAD_FROM << n);
#endif
#define GATHER_STATISTICS(i) \
    [[unroll]] for (uint r = 0u; r < SLOTS; ++r) { \
        FIND_WHOLE(i, r) \
        tile[scratch + SLOT_ROW(lane, r)].xy = floatBitsToUint(vec2(top[i][r], whole)); \
    } \
    SYNC_SUBGROUP; \
    row_top = uintBitsToFloat(tile[scratch + lane / parts].x); \
    row_sum = uintBitsToFloat(tile[scratch + lane / parts].y); \
    SYNC_SUBGROUP;
#endif
