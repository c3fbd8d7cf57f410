// Attention with a mask and causality and nothing else.

uint clear;  // keys before this one are seen by every row of the workgroup

// Where the rows and the keys of a batch begin and end: as in options-ends.glsl.
#define FIND_ENDS
#define ROW_START 0u
#define KEY_START 0u
#define SHIFT pc.causal_shift
#define KEYS_SEEN(first_row, last_row) visible_keys(QUERY_OF(last_row))
#define MASK_FROM_BLIND(row, keys, none)
#define ROWS_SEEING QUERIES

#define ANYWHERE false
#define ROW_PLACE(row) row
#define K_PLACE(key) key * pc.k_row
#define V_PLACE(key) key * pc.v_row

// What options.glsl has to do to a row of the result and this has not.
#define SINK_INTO(row_top, row_sum, decay)
#define SINK(decay)
#define SINK_AND_DROP(decay)
#define UNSINK(share, decay)

// For recompute.glsl.
#define VISIBLE_KEYS(row) KEYS_SEEN(row, row)
#define FIND_SEEN(row, key)
#define SEEN(key) key < visible
#define SCORE_MOD(score)
#define DROP(p)
