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
#if SPLIT
        share *= float(1 << LIFT);
#endif
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

#if WHOLE_ROWS
// The same where nothing is merged: a lane knows the rows of what it holds, so the numbers are divided and rounded where they
// are, and whole rows of a fragment change places at once.
void store_whole_rows() {
    uint start = subgroup * WHOLE_VECTORS;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        float share[SLOTS];
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            FIND_WHOLE(i, r)
            uint row = MY_ROW + i * MATRIX_M + SLOT_ROW(lane, r);
            SINK_INTO(top[i][r], whole, sunk)
            share[r] = whole == 0.0 ? 0.0 : 1.0 / whole;
            UNSINK(share[r], sunk)
            if (LSE != 0 && LANE_COLUMN(lane) == 0u && row < QUERIES) {
                lse_data[lse_index(OUT_BATCH, head, ROW_PLACE(row))] = row_lse(top[i][r], whole);
            }
        }
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            FACTOR_A rounded;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 2u) {
                f16vec2 both = unpackFloat2x16(pack_pair(vec2(o_frag[i][c][e] * share[SLOT(e)],
                                                              o_frag[i][c][e + 1u] * share[SLOT(e + 1u)])));
                rounded[e] = both.x;
                rounded[e + 1u] = both.y;
            }
            coopMatStore(rounded, tile, start + c * (MATRIX_N / 8), WHOLE_STRIDE, ROW_MAJOR);
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint n = 0u; n < MATRIX_M * V8 / SUBGROUP; ++n) {
            uint e = lane + n * SUBGROUP, row = MY_ROW + i * MATRIX_M + e / V8;
            if (row < QUERIES && (VALUE_DIM == VDIM || 8u * (e % V8) < VALUE_DIM)) {
                o_data[(o_index(OUT_BATCH, head, ROW_PLACE(row)) >> 3) + e % V8] = tile[start + e / V8 * WHOLE_STRIDE + e % V8];
            }
        }
        if (i + 1u < RF) SYNC_SUBGROUP;
    }
}
#endif
