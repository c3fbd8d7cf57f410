// A chunk where a rule changes scores (COMPUTED); chunk.glsl is that of the others.
//
// At first as if scores were small (begin_seen). Beside the diagonal ALiBi is added to them; elsewhere products begin with its
// part within 16 keys, and weights have the rest (lean_fragment). The soft-cap is a factor of each, a polynomial in its square.
// Then, where weights or scores were too large, whatever they are (see_again).

// Whether the soft-cap is a polynomial at first: where nothing is done to scores after it.
#define CAPPED_LATE (on(SOFT_CAP) && !on(ALIBI) && MASK == 0)
#define LEANS_LATE(masked) (leans() && !masked)
#define FACTOR (MASK != 0 ? 1.0 : masked && !on(SOFT_CAP) && HAS_SCORE_MOD ? MODIFIED_FACTOR : SCORE_SCALE)
#define AGAIN_FACTOR (MASK != 0 ? 1.0 : (masked || on(SOFT_CAP)) && HAS_SCORE_MOD ? MODIFIED_FACTOR : SCORE_SCALE)

void mask_or_bias(uint first_key, bool masked) {
    if (MASK != 0) mask_scores(first_key, HAS_SCORE_MOD ? MODIFIED_FACTOR : SCORE_SCALE);
    else if (masked) apply_mask_mod(first_key);
}
void begin_seen(uint first_key, uint chunk, bool masked) {
    if (LEANS_LATE(masked)) begin_leaning_scores(first_key + chunk);
    else begin_scores();
    add_scores(chunk);
    if (CAPPED_LATE) note_sizes();
    else if (masked && on(ALIBI)) add_by_distance(first_key + chunk, SCORE_SCALE / LOG2_E);
    mask_or_bias(first_key + chunk, masked);
}
void see_again(uint first_key, uint chunk, bool masked) {
    if (LEANS_LATE(masked)) lean_scores(first_key + chunk);
    else begin_scores();
    add_scores(chunk);
    float factor = SCORE_SCALE / LOG2_E;  // that scores are still to be multiplied by
    if (on(SOFT_CAP)) {
        cap_scores(factor);
        factor = 1.0;
    }
    if (masked && on(ALIBI)) add_by_distance(first_key + chunk, factor);
    mask_or_bias(first_key + chunk, masked);
}

// As chunk.glsl with RETRY, but where scores are known to be too large for what is done at first, that is left out. They always
// are in the first tile, whose weights a maximum is yet to be found for.

bool too_large = true;  // known when a tile begins, the same for all subgroups

void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
    bool grown = true;
    if (!masked || !too_large) {
        begin_seen(first_key, chunk, masked);
        make_weights(FACTOR, LEANS_LATE(masked), CAPPED_LATE);
        bool large = CAPPED_LATE && sizes_exceed();
        if (large) steep = 1u;
        grown = weights_exceed() || large;
    }
    RAISE (subgroupAny(grown)) {
        see_again(first_key, chunk, masked);
        raise_maximum(AGAIN_FACTOR);
        make_weights(AGAIN_FACTOR, false, false);
        grown = false;
    }
    add_parts();
}
void end_chunk(uint first_key, uint chunk, bool masked, bool read) { multiply_values(chunk); }
