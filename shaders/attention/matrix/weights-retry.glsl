// Make weights and multiply values with RETRY, in two steps. Nobody looks for a chunk's maximum: its weights are made with
// the running one, and as long as a lane's sum of them is at most 2^15 none has left float16's range. So neither
// comparisons nor a vote stand between a score and its exponential, which can run beside the products of other scores. Of a
// first chunk FIRST_TOP is taken for the maximum. With COMPUTED that is NEVER, and its weights are infinite; else it is 0, which
// is near enough for most inputs, and where a lane's sum is below LEAST_FIRST, so that weights could be too small for float16,
// the chunk is done again as well.

FACTOR_A p_frag[RF][PF];
float part[RF][SLOTS];  // this invocation's part of the sum of the chunk's weights

#define MOST_WEIGHT 32768.0
#define LEAST_FIRST 0.25
float least_weight = LEAST_FIRST;  // of the next chunk: 0 after the first

#if COMPUTED
// Of scores that lean, and that the soft-cap is still to change: score-mod-computed.glsl has FACTOR_OF and LEVEL_OF.
void make_weights(float factor, bool leaning, bool capped) {
#else
#define FACTOR_OF(score) factor
#define LEVEL_OF(i, r, f) -top[i][r]
void make_weights(float factor) {
#endif
    EACH_SLOT part[i][r] = 0.0;
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 2u) {
                vec2 pair = vec2(exp2(fma(s_frag[i][f][e], FACTOR_OF(s_frag[i][f][e]), LEVEL_OF(i, SLOT(e), f))),
                                 exp2(fma(s_frag[i][f][e + 1u], FACTOR_OF(s_frag[i][f][e + 1u]), LEVEL_OF(i, SLOT(e + 1u), f))));
                part[i][SLOT(e)] += pair.x;
                part[i][SLOT(e + 1u)] += pair.y;
                SET_PAIR(p_frag[i][f], e, pair)
            }
        }
    }
}

// Whether some sum is too large, or NaN, or of a first chunk too small.
bool weights_exceed() {
    bool fit = true;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            fit = fit && part[i][r] <= MOST_WEIGHT;
#if !COMPUTED
            fit = fit && part[i][r] >= least_weight;
#endif
        }
    }
    return !fit;
}

// What was taken for it may be far above the first chunk's.
void forget_maximum() {
    EACH_SLOT top[i][r] = NEVER;
}

void add_parts() {
    EACH_SLOT sum[i][r] += part[i][r];
}

void multiply_values(uint chunk) {
    [[unroll]] for (uint f = 0u; f < PF; ++f) {
        [[unroll]] for (uint c = 0u; c < VF; ++c) {
            FACTOR_B v = value_factor(V_AT + chunk * V_STRIDE, f, c);
            [[unroll]] for (uint i = 0u; i < RF; ++i) o_frag[i][c] = coopMatMulAdd(p_frag[i][f], v, o_frag[i][c]);
        }
    }
}
