// The form for NVIDIA's element order.

#ifdef SCORE_MODS
#define FOURS (uint(FEATURES / ADDED_FOURS) & 1u)
#endif
#include "quads.glsl"
#include "ordered-rows.glsl"
