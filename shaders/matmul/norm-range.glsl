// The RMS norm before a product, of rows of x whose squares are beyond float32's range or may be lost below it.

#include "square-range.glsl"

#define IS_BEYOND(squares) (non_finite(squares) || squares + pc.norm_eps * float(pc.depth) < SMALL_SQUARES)
#define POWER_FOR(squares) (non_finite(squares) ? 1.0 / SCALE : SCALE)
