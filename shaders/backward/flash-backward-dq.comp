#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

// The gradients of attention by tiles, on any Vulkan 1.1 device or, with MATRIX, on matrix units: dq, each
// workgroup for a tile of query rows.
//
// Shapes, layouts, bindings, specialization constants and push constants: backward/flash-backward.glsl.
// What a workgroup and an invocation own, and the defines: backward/flash-backward-tiles.glsl, -matrix.glsl.
// Accumulates in float32.

#define OWNER_KEYS 0
#define STATS_ACCESS
#ifndef MATRIX
#define WORDS_IN_SHARED
#endif
#include "flash-backward.glsl"

#ifdef MATRIX
#include "flash-backward-matrix.glsl"
#else
#include "flash-backward-tiles.glsl"
#endif
