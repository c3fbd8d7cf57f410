// mask_mod: keys past the last one and those that causality masks, and all of them from rows past a sample's last one.

// Minus infinity for keys that causality or an end masks, whatever their product was, so that the weight is zero whatever
// the maximum.
void apply_mask_mod(uint first_key) {
    float never = minus_infinity();
    FIND_PLACES
    EACH_HELD_ROW {
        // The last key that the row may see, counted from the first that this lane holds.
        int last = int(end) - 1;
        uint row = first_row + subgroup * ROWS_EACH + i * MATRIX_M + ROW_HELD(r);
        if (CAUSAL != 0) last = min(last, int(QUERY_OF(row)) + SHIFT);
        MASK_FROM_BLIND(row, last, -1)
        last -= int(first_key + COLUMN_HELD(r));
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            if (HELD_ROW(e) != r) continue;
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                if (int(f * MATRIX_N + COLUMN_PAST(e)) > last) s_frag[i][f][e] = never;
            }
        }
    }
}
