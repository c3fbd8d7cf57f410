// What is done with the scores of a chunk before their weights are made, with what attention/extras.glsl has.

#define FACTOR ((masked || MODIFIED) && SCALED ? MODIFIED_FACTOR : SCORE_SCALE)
#define SEEN_LATER true
#define FORGET_TESTS
#define MULTIPLY_VALUES(chunk) \
    if (on(DROPOUT)) multiply_kept_values(chunk, FACTOR); \
    else multiply_values(chunk, FACTOR);

void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if ((masked || MODIFIED) && SCALED) apply_score_mod(first_key + chunk);
    if (masked || MODIFIED) FETCH_AHEAD(chunk + CHUNK < KEYS ? first_key + chunk + CHUNK : tile_after)
    if (masked) apply_mask_mod(first_key, chunk, read);
}

void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    multiply_scores(chunk);
    see_scores(first_key, chunk, masked, read);
}
