// The rows of a workgroup that met poisoned numbers, from the start and on vector units: zero times infinity, or minus
// infinity plus NaN, would be NaN on matrix units, so nothing that they made can be kept. Keys by lanes for the scores,
// columns by lanes for the output.

void compute_rows() {
    const uint columns = (VDIM / 2 + SUBGROUP - 1) / SUBGROUP;  // pairs of columns a lane
    [[dont_unroll]] for (uint r = 0u; r < ROWS_EACH; ++r) {
        uint row = first_row + subgroup * ROWS_EACH + r;
        if (row >= QUERIES) break;
        uint q_place = q_base + Q_PLACE(row), mask_row = mask_index(batch, head, row);
        uint visible = min(end, VISIBLE_KEYS(row));
        float row_top = NEVER, row_sum = 0.0;
        vec2 o[columns];
        [[unroll]] for (uint c = 0u; c < columns; ++c) o[c] = vec2(0.0);
        [[dont_unroll]] for (uint first_key = BEGIN; first_key < visible; first_key += SUBGROUP) {
            uint key = first_key + lane;
            float score = NEVER;
            FIND_SEEN(row, key)
            if (SEEN(key)) {
                float dot_ = 0.0;
                ADD_DOT(dot_)
                score = dot_ * pc.scale * LOG2_E;
                SCORE_MOD(score)
                if (MASK != 0) score = biased_score(score, mask_bias(mask_row + key * pc.mask_key));
            }
            float most = score;
            [[unroll]] for (uint step = 1u; step < SUBGROUP; step *= 2u) most = max(most, subgroupShuffleXor(most, step));
            float raised = max(row_top, most);
            // No test for a row that has seen nothing yet: NaN scores, which max() need not show, must reach the sum.
            float decay = exp2(row_top - raised), p = weight(score, raised);
            row_top = raised;
            row_sum = row_sum * decay + p;
            DROP(p)
            [[unroll]] for (uint c = 0u; c < columns; ++c) o[c] *= decay;
            [[dont_unroll]] for (uint n = 0u; n < min(SUBGROUP, visible - first_key); ++n) {
                float share = subgroupShuffle(p, n);
                if (share == 0.0) continue;
                uint place = v_base + V_PLACE((first_key + n));
                [[unroll]] for (uint c = 0u; c < columns; ++c) {
                    uint column = 2u * (lane + c * SUBGROUP);
                    if (column < VALUE_DIM) {
                        ADD_VALUES(o[c])
                    }
                }
            }
        }
        [[unroll]] for (uint step = 1u; step < SUBGROUP; step *= 2u) row_sum += subgroupShuffleXor(row_sum, step);
        SINK(sunk)
        float lse = row_lse(row_top, row_sum), share = 1.0, keep = 0.0;
        if (MERGE != 0) merge_weights(lse_data[lse_index(OUT_BATCH, head, ROW_PLACE(row))], lse, keep, share, lse);
        share = row_sum == 0.0 ? 0.0 : share / row_sum;
        UNSINK(share, sunk)
        SYNC_SUBGROUP;  // every lane has read what one of them overwrites
        if ((LSE != 0 || MERGE != 0) && lane == 0u) lse_data[lse_index(OUT_BATCH, head, ROW_PLACE(row))] = lse;
        uint place = o_index(OUT_BATCH, head, ROW_PLACE(row));
        [[unroll]] for (uint c = 0u; c < columns; ++c) {
            uint column = 2u * (lane + c * SUBGROUP);
            if (column >= VALUE_DIM) continue;
            vec2 result = o[c] * share;
            STORE_PAIR(result)
        }
    }
}
