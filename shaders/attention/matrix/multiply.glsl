// Multiply: q with the keys of a chunk; and a fragment of v as a factor.

void begin_scores() {
    EACH_FRAGMENT s_frag[i][f] = SUMS(0.0);
}

#if SPLIT
#include "flash-split.glsl"
#else
void add_scores(uint chunk) {
#if Q_SHARED < QF
    [[unroll]] for (uint d = 0u; d < QF - Q_SHARED; ++d) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            KEY_FACTOR k = key_factor(K_AT + chunk * K_STRIDE, f, d);
            [[unroll]] for (uint i = 0u; i < RF; ++i) s_frag[i][f] = ADD_SCORES(q_frag[i][d], k, s_frag[i][f]);
        }
    }
#endif
#if Q_SHARED
    [[unroll]] for (uint d = QF - Q_SHARED; d < QF; ++d) {
        QUERY_FACTOR q[RF];
        [[unroll]] for (uint i = 0u; i < RF; ++i) coopMatLoad(q[i], tile, shared_query(i, d), Q_ROW, QUERY_LAYOUT);
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            KEY_FACTOR k = key_factor(K_AT + chunk * K_STRIDE, f, d);
            [[unroll]] for (uint i = 0u; i < RF; ++i) s_frag[i][f] = ADD_SCORES(q[i], k, s_frag[i][f]);
        }
    }
#endif
}
void multiply_scores(uint chunk) {
    begin_scores();
    add_scores(chunk);
}
#endif

#if ORDER != 3
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
