// What is done with the scores of a chunk before their weights are made. `masked` says whether some of its keys may be hidden,
// `read` whether what masks them must be read.

#define FACTOR (MASK != 0 ? 1.0 : SCORE_SCALE)
#define SEEN_LATER true
#define FORGET_TESTS
#define FETCH_ADDED(first_key)
#define MULTIPLY_VALUES(chunk) multiply_values(chunk, FACTOR);

#if BUFFERS == 4
bool masked_values(uint first_key) { return first_key >= clear && first_key < end; }
#endif

void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (MASK != 0) mask_scores(first_key + chunk, SCORE_SCALE);
    else if (masked) apply_mask_mod(first_key + chunk);
}

void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    multiply_scores(chunk);
    see_scores(first_key, chunk, masked, read);
}
