// mask_mod: keys by a mask, whose numbers are also added to scores.

// Scores under a mask, multiplied by a factor that makes them base 2; minus infinity where a key is hidden, whatever the product was.
void mask_scores(uint first_key, float factor) {
    float never = minus_infinity();
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            uint row = first_row + subgroup * ROWS_EACH + i * MATRIX_M + PLACE_ROW(e);
            uint mask_row = mask_index(batch, head, row);
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                uint key = first_key + f * MATRIX_N + PLACE_COLUMN(e);
                float score = NEVER;
                if (key < end && row < ROWS_SEEING && causal_allows(row, key)) {
                    score = biased_score(s_frag[i][f][e] * factor, mask_bias(mask_row + key * pc.mask_key));
                }
                s_frag[i][f][e] = score <= NEVER ? never : score;  // NaN stays
            }
        }
    }
}
