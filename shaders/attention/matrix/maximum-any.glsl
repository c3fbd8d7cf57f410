// Raise the maximum, where nobody knows the rows of elements: rows are exchanged through scratch memory.

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
