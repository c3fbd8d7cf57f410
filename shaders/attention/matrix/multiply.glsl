// Multiply: q with the keys of a chunk; and a fragment of v as a factor.

void begin_scores() {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f] = SUMS(0.0);
    }
}

#ifdef SPLIT
#include "flash-split.glsl"
#else
#include "multiply-16.glsl"
#endif

#ifndef TRANSPOSED
FACTOR_B value_factor(uint start, uint f, uint c) {
    FACTOR_B v;
    coopMatLoad(v, tile, start + f * MATRIX_K * V_STRIDE + c * (MATRIX_N / 8), V_STRIDE, ROW_MAJOR);
    return v;
}
#endif

// The scores of a chunk; a form of the options may begin them otherwise.
#ifndef MULTIPLY_SCORES
#define MULTIPLY_SCORES(first_key, chunk, masked) multiply_scores(chunk);
#endif
