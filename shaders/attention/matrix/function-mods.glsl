// Functions of users (functions.glsl), called for each element that an invocation holds of a chunk's scores. Of all forms. No
// conditions in loops: see score-mod.glsl.

#define ELEMENT_ROW(i, e) (MY_ROW + (i) * MATRIX_M + PLACE_ROW(e))
#define ELEMENT_KEY(first_key, f, e) (first_key + (f) * MATRIX_N + PLACE_COLUMN(e))

// Scores become base 2. Minus infinity hides a key, the lowest finite number does not (one that base 2 would make infinite becomes
// less), and NaN stays. Such low scores are few: only where there are some is each looked at.
void apply_score_function(uint first_key) {
    float factor = SCORE_SCALE * LN_2, least = MASK_FLOOR / LOG2_E, lowest = 0.0;
    FIND_PLACES
    EACH_SCORE {
        float score = function_score(s_frag[i][f][e] * factor, ELEMENT_ROW(i, e), ELEMENT_KEY(first_key, f, e));
        lowest = min(lowest, score);
        s_frag[i][f][e] = score;
    }
    if (subgroupAny(!(lowest >= least))) {
        float never = minus_infinity();
        EACH_SCORE {
            float score = s_frag[i][f][e];
            s_frag[i][f][e] = mix(score, max(score, least), score > never);
        }
    }
    EACH_SCORE s_frag[i][f][e] *= LOG2_E;
}

// Minus infinity for hidden keys, whatever their scores were.
void apply_mask_function(uint first_key) {
    float never = minus_infinity();
    FIND_PLACES
    EACH_SCORE {
        bool seen = function_sees(ELEMENT_ROW(i, e), ELEMENT_KEY(first_key, f, e));
        s_frag[i][f][e] = mix(never, s_frag[i][f][e], seen);
    }
}
