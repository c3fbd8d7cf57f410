#version 450
#extension GL_GOOGLE_include_directive : require

// o = softmax(scale q k^T + mask) v by tiles on matrix units, for heads of more than 256 columns.
//
// Shapes, layouts, bindings, specialization constants and push constants: attention/attention.glsl, and 14 VALUES_IN_KEYS.
// What a workgroup and an invocation own, the defines, and the preconditions: attention/matrix/wide.glsl.
// Accumulates in float32.

#include "matrix/wide.glsl"
