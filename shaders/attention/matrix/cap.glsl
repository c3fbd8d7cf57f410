// The soft-cap, in NVIDIA's order.

// cap tanh(score / cap), to 6e-7 of itself. Up to half of the cap, which is where nearly all scores are, it needs no exponential:
// a minimax fit of tanh(x) / x in x^2. Beyond, an exponential past the largest number is infinity, and its reciprocal zero.
#define NEAR_ZERO 0.5
float near_zero(float x, float cap) {
    float z = x * x;
    return x * fma(fma(fma(-0.04478947 * cap, z, 0.13206715 * cap), z, -0.33328265 * cap), z, cap);
}
// Up to a quarter a shorter fit serves, in even powers of the score itself. Its coefficients are numbers as long as what a score
// is multiplied by is not tiny.
#define NEARER_ZERO 0.25
#define NEARER_THIRD -0.33321897
#define NEARER_FIFTH 0.12841434
void cap_scores(float factor) {
    float cap = x_cap / LOG2_E, inverse = factor / cap, most = 0.0;
    EACH_SCORE most = max(most, abs(s_frag[i][f][e]));
    most *= inverse;
    if (subgroupAll(most <= (inverse > 1e-6 ? NEARER_ZERO : 0.0))) {  // not so with NaN
        float square = inverse * inverse, cubic = NEARER_THIRD * factor * square, fifth = NEARER_FIFTH * factor * square * square;
        EACH_SCORE {
            float z = s_frag[i][f][e] * s_frag[i][f][e];
            s_frag[i][f][e] *= fma(fma(fifth, z, cubic), z, factor);
        }
    } else if (subgroupAll(most <= NEAR_ZERO)) {
        EACH_SCORE s_frag[i][f][e] = near_zero(s_frag[i][f][e] * inverse, cap);
    } else {
        EACH_SCORE {
            float x = s_frag[i][f][e] * inverse;
            float far = fma(-2.0 * cap, 1.0 / (exp2(2.0 * LOG2_E * x) + 1.0), cap);
            s_frag[i][f][e] = mix(far, near_zero(x, cap), abs(x) <= NEAR_ZERO);
        }
    }
}
