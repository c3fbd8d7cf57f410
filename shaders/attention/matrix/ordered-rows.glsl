// The statistics of a row on their way to the lane that stores it: every lane of a row holds them, and lanes of one row write
// the same.

#include "rows.glsl"
#include "ordered.glsl"

#if SUM_COLUMNS
#define FIND_WHOLE(i, r) float whole = sum[i][r * (SUM_ELEMENTS / SLOTS)];
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
