// Without options, or of what attention/extras.glsl has only what is done at the end of a row and at the ends of a sample (ENDS):
// sinks, and each sample's own rows and keys. Nothing is done to a score that every row sees, so the schedule is the same.

uint clear;  // keys before this one are seen by every row of the workgroup

#if ENDS
// What the macros of extras.glsl find at each use is found once: it is used in unrolled code.
uint ends_queries, ends_seeing;
int ends_shift;
#undef QUERIES
#undef SHIFT
#define QUERIES ends_queries
#define ROWS_SEEING ends_seeing  // later rows see no key
#define SHIFT ends_shift

// Where the rows and the keys of a sample begin and end: before any barrier, as workgroups without rows end there.
void find_ends(uint batch, uint head) {
    begin_extras(batch, head);
    ends_queries = pc.queries;
    ends_seeing = pc.queries;
    ends_shift = pc.causal_shift;
    if (on(LENGTHS)) {
        ends_queries = x_queries;
        ends_seeing = uint(clamp(x_rows_seeing, 0, int(pc.queries)));
        ends_shift = x_shift + x_right;
    }
}
#define ROW_START row_start()
#define KEY_START key_start()
#define ROW_PLACE(row) (row_start() + (row))
#define KEYS_SEEN(first_row, last_row) visible_keys(first_row, last_row)
// Of a row that sees no key `keys` becomes `none`.
#define MASK_FROM_BLIND(row, keys, none) if (on(LENGTHS) && row >= ROWS_SEEING) keys = none;
bool causal_allows(uint row, uint key) { return CAUSAL == 0 || int(key) <= int(row) + SHIFT; }

// A row without keys has no maximum.
#define SINK_INTO(row_top, row_sum, decay) \
    float decay; \
    if (row_sum == 0.0) row_top = NEVER; \
    add_sink(row, row_top, row_sum, decay);
#define SINK(decay) SINK_INTO(row_top, row_sum, decay)
#define UNSINK(share, decay) share *= decay;
#else
#define ROW_START 0u
#define KEY_START 0u
#define ROW_PLACE(row) row
#define SHIFT pc.causal_shift
#define KEYS_SEEN(first_row, last_row) visible_keys(QUERY_OF(last_row))
#define MASK_FROM_BLIND(row, keys, none)
#define ROWS_SEEING QUERIES
#define K_PLACE(key) key * pc.k_row
#define V_PLACE(key) key * pc.v_row
#define SINK_INTO(row_top, row_sum, decay)
#define SINK(decay)
#define UNSINK(share, decay)
#endif
#define SINK_AND_DROP(decay) SINK(decay)
#define ANYWHERE false

// For recompute.glsl.
#define VISIBLE_KEYS(row) KEYS_SEEN(row, row)
#define FIND_SEEN(row, key)
#define SEEN(key) key < visible
#if COMPUTED
#define SCORE_MOD(score) if (HAS_SCORE_MOD) score = score_mod(score, row, key);
#else
#define SCORE_MOD(score)
#endif
#define DROP(p)
