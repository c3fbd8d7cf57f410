// Functions of users (functions.glsl), called for each element that an invocation holds of a chunk's scores. Of all forms. No
// conditions in loops: see score-mod.glsl.

#define ELEMENT_ROW(i, e) (MY_ROW + (i) * MATRIX_M + PLACE_ROW(e))
#define ELEMENT_KEY(first_key, f, e) (first_key + (f) * MATRIX_N + PLACE_COLUMN(e))

// Scores become base 2. Minus infinity hides a key, the lowest finite number does not, and NaN stays.
void apply_score_function(uint first_key) {
    float factor = SCORE_SCALE * LN_2, never = minus_infinity(), least = MASK_FLOOR;
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float score = function_score(s_frag[i][f][e] * factor, ELEMENT_ROW(i, e), ELEMENT_KEY(first_key, f, e));
                s_frag[i][f][e] = mix(score, max(score * LOG2_E, least), score > never);
            }
        }
    }
}

// Minus infinity for hidden keys, whatever their scores were.
void apply_mask_function(uint first_key) {
    float never = minus_infinity();
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                bool seen = function_sees(ELEMENT_ROW(i, e), ELEMENT_KEY(first_key, f, e));
                s_frag[i][f][e] = mix(never, s_frag[i][f][e], seen);
            }
        }
    }
}
