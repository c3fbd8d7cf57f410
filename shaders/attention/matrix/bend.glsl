// What bends scores: the soft-cap, ALiBi, and what is added to them.

// cap tanh(score / cap), both base 2. By one exponential, to 1e-7 of the cap, where the cap is such that this does not show in
// weights of 16 bits; an exponential past the largest number is infinity, and its reciprocal zero.
#define SMALL_CAP 128.0
float softly_capped(float score, float turn) { return fma(-2.0 * x_cap, 1.0 / (exp2(score * turn) + 1.0), x_cap); }

// Else to 3e-7 of itself, the same way for all arguments: a minimax fit of x P(x^2) / Q(x^2) on |x| <= 8.5, beyond which 1 is
// as near. Comparisons, not min(), so that NaN stays.
float bounded_tanh(float x) {
    x = x > 8.5 ? 8.5 : x < -8.5 ? -8.5 : x;
    float z = x * x;
    float p = fma(fma(fma(fma(1.4269272e-08, z, 2.125108e-05), z, 0.0035340292), z, 0.13413249), z, 1.0);
    float q = fma(fma(fma(fma(8.1451424e-07, z, 0.00033488686), z, 0.02602276), z, 0.46746573), z, 1.0);
    return x * p / q;
}

void cap_scores() {
    float turn = 2.0 * LOG2_E / x_cap, inverse = 1.0 / x_cap;
    if (x_cap <= SMALL_CAP) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = softly_capped(s_frag[i][f][e], turn);
            }
        }
    } else {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = x_cap * bounded_tanh(s_frag[i][f][e] * inverse);
            }
        }
    }
}

// What is added to a score, base 2; minus infinity hides the key.
float added(uint row, uint key) {
    float sum_ = 0.0;
    if (on(BIAS)) {
        float bias = bias_data[x_bias + row * word(BIAS_ROW) + key * word(BIAS_KEY)];
        sum_ = floatBitsToUint(bias) == 0xff800000u ? bias : max(bias * LOG2_E, MASK_FLOOR);
        if (non_finite(bias)) sum_ = bias;  // NaN too, of which max() may make anything
    }
    if (on(T5)) {
        int reach = int(word(T5_REACH)), distance = int(key) - int(row) - BASE_SHIFT;
        uint bucket = extra_data[word(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)];
        sum_ += uintBitsToFloat(extra_data[word(T5_TABLE) + bucket * word(T5_ROW) + x_head]) * LOG2_E;
    }
    if (MASK == MASK_ADDED) {
        float bias = mask_bias(mask_index(batch, head, row) + key * pc.mask_key);
        if (bias <= NEVER) sum_ = minus_infinity();
        else sum_ += non_finite(bias) ? bias : max(bias * LOG2_E, MASK_FLOOR);
    }
    return sum_;
}

// A hidden key may have a score of any kind.
float with_added(float score, float one) { return one == minus_infinity() ? one : score + one; }

#ifdef ORDER
// All of a chunk's numbers are under way at once. They are floats first, not elements of matrices: the build tool does not
// unroll loops that hold conditions, and matrices that the driver finds in loops end in memory.
void add_biases(uint first_key) {
    float more[RF * KF * ELEMENTS];
    [[unroll]] for (uint n = 0u; n < RF * KF * ELEMENTS; ++n) {
        uint e = n % ELEMENTS, row = MY_ROW + n / (KF * ELEMENTS) * MATRIX_M + PLACE_ROW(e);
        uint key = first_key + n / ELEMENTS % KF * MATRIX_N + PLACE_COLUMN(e);
        more[n] = added(min(row, QUERIES - 1u), min(key, end - 1u));
    }
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                s_frag[i][f][e] = with_added(s_frag[i][f][e], more[(i * KF + f) * ELEMENTS + e]);
            }
        }
    }
}
#else
void add_biases(uint first_key) {
    [[dont_unroll]] for (uint n = 0u; n < RF * KF; ++n) {
        uint row0 = MY_ROW + n / KF * MATRIX_M, key0 = first_key + n % KF * MATRIX_N;
        SYNC_SUBGROUP;
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            uint at = e * SUBGROUP + lane, row = row0 + at / MATRIX_N, key = key0 + at % MATRIX_N;
            float one = added(min(row, QUERIES - 1u), min(key, end - 1u));
            tile[MY_SCRATCH + at / 4u][at % 4u] = floatBitsToUint(one);
        }
        SYNC_SUBGROUP;
        SUMS more;
        coopMatLoad(more, tile, MY_SCRATCH, MATRIX_N / 4, ROW_MAJOR);
        // A matrix's registers must be known when compiling: one branch each.
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                if (n == i * KF + f) {
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = with_added(s_frag[i][f][e], more[e]);
                }
            }
        }
    }
}
#endif

void bend_scores(uint first_key) {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f] *= SCORE_SCALE;
    }
    if (on(SOFT_CAP)) cap_scores();
    if (on(ALIBI)) {
        FIND_PLACES
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                // Whole numbers below 2^24, so exact.
                float distance = float(int(first_key + PLACE_COLUMN(e)) - int(MY_ROW + i * MATRIX_M + PLACE_ROW(e)) - BASE_SHIFT);
                [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f][e] -= x_slope * abs(distance + float(f * MATRIX_N));
            }
        }
    }
    if (ADDS) add_biases(first_key);
}
