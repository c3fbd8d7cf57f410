// What a row of a tile is: a query of one head or, where keys are shared out, of all MEMBERS heads that share a key head,
// those of a query beside each other. So few queries fill a tile, and what it reads of keys serves all of them.

#ifdef SHARED_KEYS
layout(constant_id = 6) const uint MEMBERS = 1u;  // `head` counts key heads where there are several

#undef QUERIES
#define QUERIES (pc.queries * MEMBERS)
#define FIRST_HEAD (head * MEMBERS)
#define Q_PLACE(row) ((row) / MEMBERS * pc.q_row + (row) % MEMBERS * pc.q_head)
#define QUERY_OF(row) ((row) / MEMBERS)
#define LAST_QUERY(rows_end) int(((rows_end) - 1u) / MEMBERS)
#else
#define FIRST_HEAD head
#define Q_PLACE(row) row * pc.q_row
#define QUERY_OF(row) row
#define LAST_QUERY(rows_end) int(rows_end) - 1
#endif
