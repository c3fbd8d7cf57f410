// Multiply: q with the keys of a chunk, of 16-bit numbers.

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
