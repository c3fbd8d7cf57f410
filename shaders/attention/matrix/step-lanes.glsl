// What is done with the scores of a chunk before their weights are made, with classes of tiles and a mask alone: products are
// added to what masks keys.

#define SCALED false
#define FACTOR (masked && SCALED ? 1.0 : SCORE_SCALE)
#define SEEN_LATER false
#define FORGET_TESTS forget_tests();
#define FETCH_ADDED(first_key)
#define SHARE_ADDED
#define MULTIPLY_VALUES(chunk) multiply_values(chunk, FACTOR);

void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (masked) apply_mask_mod(first_key, chunk);
}

void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    begin_seen_scores(first_key, chunk, masked);
    add_scores(chunk);
}
