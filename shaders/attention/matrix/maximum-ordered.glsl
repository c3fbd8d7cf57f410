// Raise the maximum, where an invocation knows the rows of its elements.

// Raises the running maximum, with RETRY to the chunk's, else where that exceeds it by more than SLACK. `factor` scales the
// scores.
void raise_maximum(float factor) {
    float most[RF][SLOTS];
    bool grown = false;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) most[i][r] = s_frag[i][0][SLOT_FIRST(r)];
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                most[i][SLOT(e)] = max(most[i][SLOT(e)], s_frag[i][f][e]);
            }
        }
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            most[i][r] *= factor;
            grown = grown || most[i][r] > ALLOWED(top[i][r]);
        }
    }
#if RETRY
    {
#else
    RAISE (subgroupAny(grown)) {
#endif
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            float decay[SLOTS];
            [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
                [[unroll]] for (uint n = 0u; n < SPREAD_BITS; ++n) {
                    most[i][r] = max(most[i][r], subgroupShuffleXor(most[i][r], SPREAD_FROM << n));
                }
                float raised = max(top[i][r], LIFTED(most[i][r]));
                decay[r] = exp2(top[i][r] - raised);
                top[i][r] = raised;
#if !SUM_COLUMNS
                sum[i][r] *= decay[r];
#endif
            }
#if SUM_COLUMNS
            [[unroll]] for (uint e = 0u; e < SUM_ELEMENTS; ++e) sum[i][e] *= decay[SUM_SLOT(e)];
#endif
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o_frag[i][c][e] *= decay[SLOT(e)];
            }
        }
        grown = false;
    }
}
