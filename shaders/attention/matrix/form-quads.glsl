// The form for NVIDIA's element order.

#ifdef BENDING
#define FOURS (uint(FEATURES / ADDED_FOURS) & 1u)
#endif
#include "quads.glsl"
#include "ordered-rows.glsl"
