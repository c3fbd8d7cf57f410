// What changes scores, one by one: the soft-cap, and what is read to be added.

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

// What is added to a score, base 2; minus infinity masks the key.
float added(uint row, uint key) {
    float sum_ = 0.0;
    if (on(BIAS)) {
        float bias = bias_data[x_bias + row * parameter(BIAS_ROW) + key * parameter(BIAS_KEY)];
        sum_ = floatBitsToUint(bias) == 0xff800000u ? bias : max(bias * LOG2_E, MASK_FLOOR);
        if (non_finite(bias)) sum_ = bias;  // NaN too, of which max() may make anything
    }
    if (on(T5)) {
        int reach = int(parameter(T5_REACH)), distance = int(key) - int(row) - BASE_SHIFT;
        uint bucket = extra_data[parameter(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)];
        sum_ += uintBitsToFloat(extra_data[parameter(T5_TABLE) + bucket * parameter(T5_ROW) + x_head]) * LOG2_E;
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
