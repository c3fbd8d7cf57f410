#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: attention's weighted sum of values, o = w v. Three families are this source:
//     attention-output       heads stay apart
//     attention-output-gpt   of a causal, autoregressive decoder: query i, which stands at position i + shift of the
//                            sequence (shift: the number of cached keys), sums over the keys up to its own position.
//                            Weights and values past it are not used, whatever they hold, and a block of rows stops at
//                            its last row's end, which halves the work of a square (CAUSAL)
//     attention-output-t5    of an encoder-decoder, heads joined: row i of o is the concatenation over heads of w v, the
//                            inner dimension H * D, which in T5 need not be the model's. The output projection reads o as
//                            a plain matrix (c_head = D, c_row = H * D)
// Shapes and layouts: w (B, H, Sq, Sk) in float32, v (B, H / group, Sk, D), o (B, H, Sq, D) or (B, Sq, H * D): a, b and c
//     of matmul/matmul.glsl, which has the bindings, the push constants and what each invocation owns.
// Specialization constants: 0 CAUSAL.
// Accumulation: float32.
// Preconditions: a weight of exactly 0 means that the key was not attended to: its value never reaches the output.

#define A_FLOAT
#define WEIGHTS
#include "matmul/matmul.glsl"
