#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the weighted sum of values of an encoder-decoder (T5), with the heads joined: row i of o is the
//     concatenation over heads of w v, the inner dimension H * D, which in T5 need not be the model's. The output
//     projection reads o as a plain matrix. Self- and cross-attention (Sq != Sk) are the same product.
// Shapes and layouts: w (B, H, Sq, Sk) in float32, v (B, H, Sk, D), o (B, Sq, H * D) contiguous: a, b and c of
//     products/matmul.glsl, which has the bindings, the push constants and what each invocation owns.
// Specialization constants: none.
// Accumulation: float32.
// Preconditions: c_head = D, c_row = H * D; otherwise as attention-output.

#define A_FLOAT
#define WEIGHTS
#include "products/matmul.glsl"
