// Factors: the subgroup's rows of q, and a fragment of k.

#if !SPLIT
// Where fragment d of row fragment i of q lies that stays in shared memory.
uint shared_query(uint i, uint d) {
    return Q_START + (subgroup * ROWS_EACH + i * MATRIX_M) * Q_ROW + (d - (QF - Q_SHARED)) * (MATRIX_K / 8);
}

#if WHOLE_ROWS
// With a negative scale they change sign, so that the scale is never negative and a row's maximum stays its maximum when
// scaled. All words are asked for before any is waited for, and those of a row fragment change places at once.
void load_queries() {
    uint turn = pc.scale < 0.0 ? 0x80008000u : 0u;
    uvec4 held[RF][MATRIX_M * D8 / SUBGROUP];
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint n = 0u; n < MATRIX_M * D8 / SUBGROUP; ++n) {
            uint e = lane + n * SUBGROUP, row = min(MY_ROW + i * MATRIX_M + e / D8, QUERIES - 1u);
            held[i][n] = uvec4(0u);
            if (HEAD_DIM == DIM || 8u * (e % D8) < HEAD_DIM) held[i][n] = q_data[(q_base + Q_PLACE(row) >> 3) + e % D8] ^ turn;
        }
    }
    uint start = subgroup * WHOLE_VECTORS;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint n = 0u; n < MATRIX_M * D8 / SUBGROUP; ++n) {
            uint e = lane + n * SUBGROUP;
            tile[start + e / D8 * WHOLE_STRIDE + e % D8] = held[i][n];
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            coopMatLoad(q_frag[i][d], tile, start + d * (MATRIX_K / 8), WHOLE_STRIDE, QUERY_LAYOUT);
        }
        SYNC_SUBGROUP;
    }
}
#else
// The subgroup's rows of q as factors. With a negative scale they change sign, so that the scale is never negative and a
// row's maximum stays its maximum when scaled.
void load_queries() {
    uint turn = pc.scale < 0.0 ? 0x80008000u : 0u;
    const uint words = MATRIX_K / 8;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        uint row = min(first_row + subgroup * ROWS_EACH + i * MATRIX_M + lane / words, QUERIES - 1u);
        uvec4 held[QF];
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            uint column = d * MATRIX_K + 8u * (lane % words);
            held[d] = uvec4(0u);
            if (lane < FACTOR_VECTORS && column < HEAD_DIM) held[d] = q_data[(q_base + Q_PLACE(row) + column) >> 3] ^ turn;
        }
#if Q_SHARED < QF
        [[unroll]] for (uint d = 0u; d < QF - Q_SHARED; ++d) {
            uint start = subgroup * Q_VECTORS;
            if (lane < FACTOR_VECTORS) tile[start + lane / words * Q_STRIDE + lane % words] = held[d];
            SYNC_SUBGROUP;
            coopMatLoad(q_frag[i][d], tile, start, Q_STRIDE, QUERY_LAYOUT);
            SYNC_SUBGROUP;
        }
#endif
#if Q_SHARED
        [[unroll]] for (uint d = QF - Q_SHARED; d < QF; ++d) {
            uint start = shared_query(i, d);
            if (lane < FACTOR_VECTORS) tile[start + lane / words * Q_ROW + lane % words] = held[d];
        }
#endif
    }
}
#endif
#endif

// A fragment of k.
KEY_FACTOR key_factor(uint start, uint f, uint d) {
    KEY_FACTOR k;
    coopMatLoad(k, tile, start + f * MATRIX_N * K_STRIDE + d * (MATRIX_K / 8), K_STRIDE, KEY_LAYOUT);
    return k;
}
