// Store: the subgroup's rows of the result, and their log-sum-exp.

void store_rows() {
    uint scratch = MY_SCRATCH;
    const uint parts = MATRIX_N / 8;  // a lane stores eight columns of a row
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        float row_top, row_sum;
        GATHER_STATISTICS(i)
        uint row = first_row + subgroup * ROWS_EACH + i * MATRIX_M + STORED_ROW;
        SINK_AND_DROP(decay)
        float lse = row_lse(row_top, row_sum), share = 1.0, keep = 0.0;
        if (MERGE != 0 && row < QUERIES) merge_weights(lse_data[lse_index(OUT_BATCH, head, ROW_PLACE(row))], lse, keep, share, lse);
        share = row_sum == 0.0 ? 0.0 : share / row_sum;
        UNSINK(share, decay)
        UNLIFT(share)
        SYNC_SUBGROUP;  // both lanes of a row have read what one of them overwrites
        if ((LSE != 0 || MERGE != 0) && STORED_PART == 0u && row < QUERIES) {
            lse_data[lse_index(OUT_BATCH, head, ROW_PLACE(row))] = lse;
        }
        uint place = o_index(OUT_BATCH, head, ROW_PLACE(row));
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            uint column = c * MATRIX_N + 8u * STORED_PART;
            GATHER_EIGHT(i, c)
            STORE_EIGHT(low, high)
        }
    }
}
