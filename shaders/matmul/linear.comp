#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: a linear layer, y = activation(scale * x W^T + b) + residual.
// Shapes and layouts: x (B, 1, M, K), W (N, K), b (N), y and residual (B, 1, M, N): a, b, bias, c and residual of
//     matmul/matmul.glsl, which has the bindings, specialization and push constants, and what each invocation owns.
// Accumulation: float32.
// Preconditions: the strides of W over batch and head are 0; scale is 1 for a plain layer.

#define BIASED
#define HOLES 1
#define B_ROWS_ARE_COLS
#include "matmul.glsl"
