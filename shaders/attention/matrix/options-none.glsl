// Attention with a mask and causality and nothing else.

uint clear;  // keys before this one are seen by every row of the workgroup

#define ANYWHERE false
#define ROW_PLACE(row) row
#define K_PLACE(key) key * pc.k_row
#define V_PLACE(key) key * pc.v_row

// What options.glsl has to do to a row of the result and this has not.
#define SINK(decay)
#define SINK_AND_DROP(decay)
#define UNSINK(share, decay)

// For again.glsl.
#define VISIBLE_KEYS(row) visible_keys(row)
#define FIND_SEEN(row, key)
#define SEEN(key) key < visible
#define BEND(score)
#define DROP(p)
