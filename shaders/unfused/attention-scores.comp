#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: attention scores, s = scale * q k^T, the first of the three shaders of the unfused path.
// Shapes and layouts: q (B, H, Sq, D), k (B, H / group, Sk, D), s (B, H, Sq, Sk) in float32: a, b and c of
//     matmul/matmul.glsl, which has the bindings, the push constants and what each invocation owns.
// Specialization constants: none.
// Accumulation: float32.
// Preconditions: none beyond those of matmul/matmul.glsl.

#define C_FLOAT
#define B_ROWS_ARE_COLS
#include "matmul/matmul.glsl"
