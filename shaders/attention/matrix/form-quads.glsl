// The form for NVIDIA's element order.

#include "quads.glsl"
#include "ordered-rows.glsl"
