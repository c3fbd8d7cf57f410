// NVIDIA's element order, 16 x 16: two rows a lane, a row spread over four neighbours.

#define SLOTS 2
#define SLOT(e) ((e) >> 2)
#define SLOT_FIRST(slot) (4u * (slot))
#define SUM_SLOT(e) ((e) * SLOTS / SUM_ELEMENTS)
#define SLOT_ROW(lane, slot) ((lane) / 4u + 8u * (slot))
#define LANE_COLUMN(lane) (2u * ((lane) % 4u))
#define COLUMN_AFTER(e) (((e) & 1u) + 8u * (((e) >> 1) & 1u))
#define SPREAD_BITS 2u
#define SPREAD_FROM 1u
// Of a mask made bits in this order (attention-mask-lanes.comp): the bit of element e of the nth fragment of a unit.
#define MASK_BIT(n, e) ((n) / 2u * 8u + (n) % 2u * 16u + (e))
