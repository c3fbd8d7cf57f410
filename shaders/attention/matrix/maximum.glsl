// Raise the maximum.

#if ORDER
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
#if !SUM_ON_MATRIX
                sum[i][r] *= decay[r];
#endif
            }
#if SUM_ON_MATRIX
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) sum[i][e] *= decay[e * SLOTS / ELEMENTS];
#endif
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o_frag[i][c][e] *= decay[SLOT(e)];
            }
        }
        grown = false;
    }
}
#else
// Nobody knows the rows of elements: rows are exchanged through scratch memory.
void raise_maximum(float factor) {
    uint scratch = MY_SCRATCH;
    SUMS most[RF];
    bool grown = false;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        most[i] = s_frag[i][0];
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            [[unroll]] for (uint f = 1u; f < KF; ++f) most[i][e] = max(most[i][e], s_frag[i][f][e]);
            most[i][e] *= factor;
            grown = grown || most[i][e] > ALLOWED(top[i][e]);
        }
    }
    RAISE (subgroupAny(grown)) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            // Eight elements of a row for each lane, wherever they came from.
            coopMatStore(most[i], tile, scratch, MATRIX_N / 4, ROW_MAJOR);
            SYNC_SUBGROUP;
            vec4 a = max(uintBitsToFloat(tile[scratch + 2u * lane]), uintBitsToFloat(tile[scratch + 2u * lane + 1u]));
            float row = max(max(a.x, a.y), max(a.z, a.w));
            if (MATRIX_N == 16) row = max(row, subgroupShuffleXor(row, 1u));
            SYNC_SUBGROUP;
            tile[scratch + 2u * lane] = uvec4(floatBitsToUint(row));
            tile[scratch + 2u * lane + 1u] = uvec4(floatBitsToUint(row));
            SYNC_SUBGROUP;
            SUMS decay;
            coopMatLoad(decay, tile, scratch, MATRIX_N / 4, ROW_MAJOR);
            SYNC_SUBGROUP;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float raised = max(top[i][e], LIFTED(decay[e]));
                decay[e] = exp2(top[i][e] - raised);
                top[i][e] = raised;
                sum[i][e] *= decay[e];
            }
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o_frag[i][c][e] *= decay[e];
            }
        }
        grown = false;
    }
}
#endif
