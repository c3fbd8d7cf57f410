// What the kernels of convolutions share: where windows lie. Output (i, j) reads input (i * stride - padding + a *
// dilation, ...) for places (a, b) of the kernel.

#ifndef GRILLY_WINDOW_GLSL
#define GRILLY_WINDOW_GLSL

// Four elements at a time; 16-bit numbers by their bits, right on every device.
const uint EACH = 4u, HALVES = 0u;

#include "arrays/words.glsl"

layout(constant_id = 0) const uint TYPE = 8u;

layout(local_size_x = THREADS) in;

#endif
