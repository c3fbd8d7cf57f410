// The form for NVIDIA's element order.

#if defined(SCORE_MODS) && !defined(FUNCTIONS)
#define FOURS (uint(FEATURES / ADDED_FOURS) & 1u)
#endif
#include "quads.glsl"
#include "ordered-rows.glsl"
