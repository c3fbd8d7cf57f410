#version 450
#extension GL_GOOGLE_include_directive : require

// o = softmax(scale q k^T + mask) v by tiles, for devices with subgroups. With MATRIX the products run on matrix units
// (matrix/flash.glsl); else on vector units, row maxima and sums travelling by subgroup shuffles: a barrier and a
// round trip through shared memory less a tile than flash-attention2 (attention/flash-tiles.glsl).
//
// Shapes, layouts, bindings, specialization constants and push constants: attention/attention.glsl.
// What a workgroup and an invocation own, the defines, and the preconditions: the include of the form.
// Accumulates in float32.

#ifdef MATRIX
#include "matrix/flash.glsl"
#else
#define EXTRAS
#include "attention.glsl"
#define SHUFFLE
#include "flash-tiles.glsl"
#endif
