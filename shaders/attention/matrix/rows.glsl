// A query is a row of the accumulators: S = q k^T and O = p v. Of all forms but form-transposed.glsl.

#define QUERY_FACTOR FACTOR_A
#define QUERY_LAYOUT ROW_MAJOR
#define KEY_FACTOR FACTOR_B
#define KEY_LAYOUT COLUMN_MAJOR
#define ADD_SCORES(q, k, sums) coopMatMulAdd(q, k, sums)
#define KEY_AT(row) (row)  // which key of the tile lies in a row of shared memory

#define V_STRIDE (V8 + 1)
#define V_VECTORS (KEYS * V_STRIDE)
#define HELD_VALUES PER_THREAD(KEYS * V8)

// The row and the eight columns of a fragment that a lane stores, gathered through scratch memory.
#define STORED_ROW lane / parts
#define STORED_PART (lane % parts)
#define GATHER_EIGHT(i, c) \
    coopMatStore(o_frag[i][c], tile, scratch, MATRIX_N / 4, ROW_MAJOR); \
    SYNC_SUBGROUP; \
    vec4 low = uintBitsToFloat(tile[scratch + 2u * lane]) * share; \
    vec4 high = uintBitsToFloat(tile[scratch + 2u * lane + 1u]) * share; \
    RESCALE(low, high) \
    SYNC_SUBGROUP;
