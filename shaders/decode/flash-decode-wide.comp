#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: what flash-decode.comp does, on matrix units and for wide heads.
// Shapes and layouts, bindings, push constants, o and lse: as flash-decode.comp has them.
// Specialization constants: HEAD_DIM, VALUE_DIM, MASK, CAUSAL, LSE, FEATURES, ROWS and SPLIT_KEYS as there, and 14 VALUES_IN_KEYS.
// Workgroup (x, y, z) owns key head y, batch z, split x / passes of the keys, and ROWS rows from ROWS * (x % passes) on.
// What an invocation owns, accumulation, defines, preconditions: attention/matrix/wide.glsl.

#define SPLITS
#include "attention/matrix/wide.glsl"
