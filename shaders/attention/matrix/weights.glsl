// Make weights and multiply values: weights, their sums, their products with values. VALUES_NAME is what the function is called.
// With DROPPED, dropout takes weights out (kept_keys) once they are summed.

#if ORDER == 3
void VALUES_NAME(uint chunk, float factor) {
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        FACTOR_B p[RF];
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            uint pairs[ELEMENTS / 2];
            [[unroll]] for (uint n = 0u; n < ELEMENTS / 2; ++n) {
                vec2 pair = vec2(s_frag[i][f][2u * n], s_frag[i][f][2u * n + 1u]);
                pair = exp2(fma(pair, vec2(factor), vec2(-top[i][0])));
                sum[i][0] += pair.x + pair.y;
#ifdef DROPPED
                if ((ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, 2u * n) & 1u) == 0u) pair.x = 0.0;
                if ((ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, 2u * n + 1u) & 1u) == 0u) pair.y = 0.0;
#endif
                pairs[n] = pack_weights(pair);
            }
            p[i] = weight_factor(pairs);
        }
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            FACTOR_A v = value_factor(V_AT, f, c);
            [[unroll]] for (uint i = 0u; i < RF; ++i) o_frag[i][c] = coopMatMulAdd(v, p[i], o_frag[i][c]);
        }
    }
}
#elif ORDER
// Weights by chunks of keys: exponentials of one chunk run beside the products of the one before.
void VALUES_NAME(uint chunk, float factor) {
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        FACTOR_A p[RF];
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 2u) {
                vec2 pair = vec2(exp2(fma(s_frag[i][f][e], factor, -top[i][SLOT(e)])),
                                 exp2(fma(s_frag[i][f][e + 1u], factor, -top[i][SLOT(e + 1u)])));
#if !SUM_ON_MATRIX
                sum[i][SLOT(e)] += pair.x;
                sum[i][SLOT(e + 1u)] += pair.y;
#endif
                SET_PAIR(p[i], e, pair)
#ifdef DROPPED
                s_frag[i][f][e] = (ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, e) & 1u) != 0u ? pair.x : 0.0;
                s_frag[i][f][e + 1u] = (ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, e + 1u) & 1u) != 0u ? pair.y : 0.0;
#endif
            }
#if SUM_ON_MATRIX
            sum[i] = coopMatMulAdd(p[i], FACTOR_B(1.0), sum[i]);
#endif
#ifdef DROPPED
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 2u) {
                SET_PAIR(p[i], e, vec2(s_frag[i][f][e], s_frag[i][f][e + 1u]))
            }
#endif
        }
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            FACTOR_B v = value_factor(V_AT + chunk * V_STRIDE, f, c);
            [[unroll]] for (uint i = 0u; i < RF; ++i) o_frag[i][c] = coopMatMulAdd(p[i], v, o_frag[i][c]);
        }
    }
}
#else
// Through shared memory. WEIGHTS_NAME is what the first half is called.
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
#endif
