// Make weights and multiply values: weights, their sums, their products with values, through shared memory. VALUES_NAME
// and WEIGHTS_NAME are what the functions are called. With DROPPED, dropout takes weights out (kept_keys) once they are
// summed.

#ifndef DROPPED
FACTOR_A p_frag[RF][PF];
#endif

void WEIGHTS_NAME(uint chunk, float factor) {
    uint start = P_START + subgroup * P_VECTORS;
    FACTOR_B ones = FACTOR_B(1.0);
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> p;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                p[e] = float16_t(ROUNDED(exp2(fma(s_frag[i][f][e], factor, -top[i][e]))));
            }
            coopMatStore(p, tile, start + f * (MATRIX_N / 8), P_STRIDE, ROW_MAJOR);
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            coopMatLoad(p_frag[i][f], tile, start + f * (MATRIX_K / 8), P_STRIDE, ROW_MAJOR);
            sum[i] = coopMatMulAdd(p_frag[i][f], ones, sum[i]);
        }
        SYNC_SUBGROUP;
#ifdef DROPPED
        FIND_PLACES
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> p;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float weight_ = ROUNDED(exp2(fma(s_frag[i][f][e], factor, -top[i][e])));
                p[e] = float16_t((ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, e) & 1u) != 0u ? weight_ : 0.0);
            }
            coopMatStore(p, tile, start + f * (MATRIX_N / 8), P_STRIDE, ROW_MAJOR);
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            coopMatLoad(p_frag[i][f], tile, start + f * (MATRIX_K / 8), P_STRIDE, ROW_MAJOR);
        }
        SYNC_SUBGROUP;
#endif
    }
}

void VALUES_NAME(uint chunk, float factor) {
    WEIGHTS_NAME(chunk, factor);
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            FACTOR_B v = value_factor(V_AT + chunk * V_STRIDE, f, c);
            [[unroll]] for (uint i = 0u; i < RF; ++i) o_frag[i][c] = coopMatMulAdd(p_frag[i][f], v, o_frag[i][c]);
        }
    }
}
