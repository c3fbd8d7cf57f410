#version 450
#extension GL_GOOGLE_include_directive : require

// o = softmax(scale q k^T + mask) v by tiles, row maxima and sums travelling by subgroup shuffles: a barrier and a
// round trip through shared memory less a tile than flash-attention2.
//
// Shapes, layouts, bindings, specialization constants and push constants: include/attention.glsl.
// What a workgroup and an invocation own, and the defines: include/flash-tiles.glsl.
// Accumulates in float32. Preconditions: VALUE_DIM at most 4 TX CV; full subgroups
// of at least TX << TX_SHIFT invocations, a power of two.

#include "attention.glsl"
#define SHUFFLE
#include "flash-tiles.glsl"
