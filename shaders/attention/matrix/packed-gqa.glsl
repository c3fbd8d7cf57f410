// What a row of a tile is: a query of one head or, where keys are shared out, of all PACKED_HEADS heads that share a key head,
// those of a query beside each other. So few queries fill a tile, and what it reads of keys serves all of them.

#if SPLIT_KV
layout(constant_id = 6) const uint PACKED_HEADS = 1u;  // `head` counts key heads where there are several

#undef QUERIES
#define QUERIES (pc.queries * PACKED_HEADS)
#define FIRST_HEAD (head * PACKED_HEADS)
#define Q_PLACE(row) ((row) / PACKED_HEADS * pc.q_row + (row) % PACKED_HEADS * pc.q_head)
#define QUERY_OF(row) ((row) / PACKED_HEADS)
#define LAST_QUERY(rows_end) int(((rows_end) - 1u) / PACKED_HEADS)
#else
#define FIRST_HEAD head
#define Q_PLACE(row) row * pc.q_row
#define QUERY_OF(row) row
#define LAST_QUERY(rows_end) int(rows_end) - 1
#endif
