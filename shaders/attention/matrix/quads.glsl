// NVIDIA's element order, 16 x 16: two rows a lane, a row spread over four neighbours.

#define SLOTS 2
#define SLOT(e) ((e) >> 2)
#define SLOT_FIRST(slot) (4u * (slot))
#define SLOT_ROW(lane, slot) ((lane) / 4u + 8u * (slot))
// Columns are keys' places. With FOURS the keys of a tile lie in the order that gives a lane four neighbours of a row instead of
// two and two: key 4 c + 2 h + b of each 16 at place 2 c + 8 h + b (KEY_PLACE), and what is said of columns is of keys.
#if SCORE_MODS && !defined(FUNCTIONS)
#define FOURS (uint(FEATURES / ADDED_FOURS) & 1u)
#else
#define FOURS 0u
#endif
#define LANE_COLUMN(lane) ((2u << FOURS) * ((lane) % 4u))
#define COLUMN_AFTER(e) (((e) & 1u) + (8u >> 2u * FOURS) * (((e) >> 1) & 1u))
#define KEY_PLACE(key) ((key) + FOURS * ((((key) & 2u) << 2) + (((key) & 12u) >> 1) - ((key) & 14u)))
#define SPREAD_BITS 2u
#define SPREAD_FROM 1u
// Of a mask made bits in this order (attention-mask-lanes.comp): the bit of element e of the nth fragment of a unit.
#define MASK_BIT(n, e) ((n) / 2u * 8u + (n) % 2u * 16u + (e))
