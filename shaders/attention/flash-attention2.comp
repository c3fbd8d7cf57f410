#version 450
#extension GL_GOOGLE_include_directive : require

// o = softmax(scale q k^T + mask) v by tiles (FlashAttention-2), on any Vulkan 1.1 device: row maxima and sums
// travel through shared memory, behind barriers.
//
// Shapes, layouts, bindings, specialization constants and push constants: attention/attention.glsl.
// What a workgroup and an invocation own, and the defines: attention/flash-tiles.glsl.
// Accumulates in float32. Preconditions: VALUE_DIM at most 4 TX CV.

#define EXTRAS
#ifdef HELD_OPTIONS
#define PARAMETER(n) parameter_at(n)
uint parameter_at(uint n);
#endif
#include "attention.glsl"
#include "flash-tiles.glsl"
