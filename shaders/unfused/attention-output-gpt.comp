#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the weighted sum of values of a causal, autoregressive decoder: query i, which stands at position
//     i + shift of the sequence (shift: the number of cached keys), sums over the keys up to its own position. Weights
//     and values past it are not used, whatever they hold, and a block of rows stops at its last row's end, which
//     halves the work of a square.
// Shapes and layouts: w (B, H, Sq, Sk) in float32, v (B, H / group, Sk, D), o (B, H, Sq, D): a, b and c of
//     products/matmul.glsl, which has the bindings, the push constants and what each invocation owns.
// Specialization constants: none.
// Accumulation: float32.
// Preconditions: as attention-output.

#define A_FLOAT
#define WEIGHTS
#define CAUSAL
#include "products/matmul.glsl"
