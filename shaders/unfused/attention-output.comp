#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: attention's weighted sum of values, o = w v. Heads stay apart.
// Shapes and layouts: w (B, H, Sq, Sk) in float32, v (B, H / group, Sk, D), o (B, H, Sq, D): a, b and c of
//     products/matmul.glsl, which has the bindings, the push constants and what each invocation owns.
// Specialization constants: none.
// Accumulation: float32.
// Preconditions: a weight of exactly 0 means that the key was not attended to: its value never reaches the output.

#define A_FLOAT
#define WEIGHTS
#include "products/matmul.glsl"
