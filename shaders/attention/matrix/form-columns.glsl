// llvmpipe's element order, 8 x 8: a lane holds a column.

#define SLOTS 8
#define SLOT(e) (e)
#define SLOT_FIRST(slot) (slot)
#define SLOT_ROW(lane, slot) (slot)
#define LANE_COLUMN(lane) (lane)
#define COLUMN_AFTER(e) 0u
#define SPREAD_BITS 3u
#define SPREAD_FROM 1u
// Of a mask made bits in this order (attention-mask-lanes.comp): the bit of element e of the nth fragment of a unit.
#define MASK_BIT(n, e) ((n) * 8u + (e))
