// What depends on the distance of query and key alone, ALiBi and T5's table, in NVIDIA's order: found once for all scores that are
// as far apart, and in tiles that lie on one side of the diagonal as a whole once for a row or a column.

// Not with ADDED_FOURS, whose keys lie otherwise.
// Columns and rows of a fragment that lie 8 apart move the distance by as much. Scores of distance number 2 (f - i) + h - s +
// 2 RF - 1 are those of half h of the columns of fragment f and half s of the rows of fragment i.
#define DISTANCES (2 * (KF + RF) - 1)
#define DEPENDS_ON_DISTANCE ((FEATURES & (ALIBI | T5)) != 0)

// What T5's table has for a distance.
float by_bucket(int distance, int reach) {
    uint bucket = extra_data[parameter(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)];
    return uintBitsToFloat(extra_data[parameter(T5_TABLE) + bucket * parameter(T5_ROW) + x_head]);
}

// Where nothing but the distance changes scores, a tile may lie on one side of the diagonal as a whole (T5: so far from it that
// the table has one number for all). What is added is then a part that a row's scores have in common, and with ALiBi one that
// a column's have. The row's moves its running maximum, once for all tiles on a side; to the column's the products are added.
// So such tiles are clear.
bool leans() {
    if (on(SOFT_CAP) || on(BIAS) || on(DROPOUT) || MASK == MASK_ADDED) return false;
    return on(ALIBI) != on(T5);
}
float level = 0.0;  // base 2, what the running maxima are short of: T5's number, or ALiBi's for each row of the workgroup
float level_left, level_right;  // what they may be short of, on either side
int lean_reach;  // keys from a row on which a side begins

void begin_leaning() {
    if (!leans()) return;
    lean_reach = on(ALIBI) ? 0 : int(parameter(T5_REACH));
    level_left = on(ALIBI) ? x_slope : by_bucket(-lean_reach, lean_reach) * LOG2_E;
    level_right = on(ALIBI) ? -x_slope : by_bucket(lean_reach, lean_reach) * LOG2_E;
    // What products are added to has to leave them their bits.
    bool gentle = abs(x_slope) <= 4.0 && base2_scale >= 1e-3 * abs(x_slope);
    if (on(ALIBI) && !gentle) level_left = level_right = -minus_infinity();
}

// Which side a tile lies on as a whole: -1 left, 1 right, 0 none, or one whose number is none to reckon with.
int lean_side(uint first_key) {
    int nearest = int(first_key) - int(first_row) - BASE_SHIFT;
    if (nearest + KEYS - 1 <= -lean_reach) return abs(level_left) < 1e30 ? -1 : 0;
    if (nearest - (ROWS - 1) >= lean_reach) return abs(level_right) < 1e30 ? 1 : 0;
    return 0;
}
bool leans_as_whole(uint first_key) { return lean_side(first_key) != 0; }

// Before a tile: maxima that are short of what a side's are, or of nothing.
void lean(int side) {
    if (!leans()) return;
    float next = side == 0 ? 0.0 : side < 0 ? level_left : level_right;
    if (next == level) return;
    EACH_SLOT {
        float rows = on(ALIBI) ? -float(subgroup * ROWS_EACH + i * MATRIX_M + ROW_HELD(r)) : 1.0;
        top[i][r] = fma(level - next, rows, top[i][r]);
    }
    level = next;
#if COMPUTED
    find_lean_within();
#endif
}

// The scores of a chunk of a clear tile before the products.
void lean_scores(uint first_key) {
    float each = level / SCORE_SCALE, from = each * float(int(first_key + PLACE_COLUMN(0u)) - int(first_row) - BASE_SHIFT);
    EACH_SCORE {
        s_frag[i][f][e] = fma(each, float(f * MATRIX_N + COLUMN_AFTER(e)), from);
    }
}
// Multiplies scores by a factor and adds what depends on the distance. Most tiles lie far from the diagonal: there
// T5's table has one number for all.
void add_by_distance(uint first_key, float factor) {
    float near[DISTANCES * 2];
    int nearest = int(first_key + PLACE_COLUMN(0u)) - int(MY_ROW + PLACE_ROW(0u)) - BASE_SHIFT - 8 * (2 * RF - 1);
    int least = int(first_key) - int(MY_ROW) - BASE_SHIFT - (ROWS_EACH - 1), most = least + CHUNK + ROWS_EACH - 2;
    [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] = 0.0;
    if (on(ALIBI)) {
        // Whole numbers below 2^24, so exact.
        float from = float(nearest), slope = -x_slope / LOG2_E;
        [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] = slope * abs(from + float(n / 2u * 8u + n % 2u));
    }
    if (on(T5)) {
        int reach = int(parameter(T5_REACH));
        if (least >= reach || most <= -reach) {
            float one = by_bucket(least, reach);
            [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] += one;
        } else {
            [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] += by_bucket(nearest + int(n / 2u * 8u + n % 2u), reach);
        }
    }
    EACH_SCORE {
        s_frag[i][f][e] = fma(s_frag[i][f][e], factor, near[(2u * f + e / 2u % 2u + uint(2 * RF - 1) - 2u * i - e / 4u) * 2u + e % 2u]);
    }
}
