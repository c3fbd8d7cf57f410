// Make weights and multiply values: weights, their sums, their products with values, in registers. VALUES_NAME is what
// the function is called. With DROPPED, dropout takes weights out (kept_keys) once they are summed.

// Weights by chunks of keys: exponentials of one chunk run beside the products of the one before.
void VALUES_NAME(uint chunk, float factor) {
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        FACTOR_A p[RF];
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 2u) {
                vec2 pair = vec2(exp2(fma(s_frag[i][f][e], factor, -top[i][SLOT(e)])),
                                 exp2(fma(s_frag[i][f][e + 1u], factor, -top[i][SLOT(e + 1u)])));
#if !SUM_COLUMNS
                sum[i][SLOT(e)] += pair.x;
                sum[i][SLOT(e + 1u)] += pair.y;
#endif
                SET_PAIR(p[i], e, pair)
#ifdef DROPPED
                s_frag[i][f][e] = (ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, e) & 1u) != 0u ? pair.x : 0.0;
                s_frag[i][f][e + 1u] = (ELEMENT_BITS(kept_keys, i, chunk + f * MATRIX_N, e + 1u) & 1u) != 0u ? pair.y : 0.0;
#endif
            }
#if SUM_COLUMNS
            sum[i] = coopMatMulAdd(p[i], ONES(1.0), sum[i]);
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
