// Make weights and multiply values: weights, their sums, their products with values, with queries in columns.
// VALUES_NAME is what the function is called. With DROPPED, dropout takes weights out (kept_keys) once they are summed.

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
