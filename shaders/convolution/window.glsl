// What the kernels of convolutions share: where windows lie. Output (i, j) reads input (i * stride - padding + a *
// dilation, ...) for places (a, b) of the kernel.

#ifndef GRILLY_WINDOW_GLSL
#define GRILLY_WINDOW_GLSL

const uint EACH = 4u;  // (words.glsl)

#include "arrays/words.glsl"

layout(constant_id = 0) const uint TYPE = 8u;

layout(local_size_x = THREADS) in;

#endif
