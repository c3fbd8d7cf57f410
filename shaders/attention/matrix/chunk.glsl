// A chunk of a tile: its scores and what is done with them before their weights are made, then weights, then values; in two
// functions, before the second barrier of a tile and after it. `masked` says whether some of the chunk's keys may be hidden,
// `read` whether what masks them must be read.

#if TILED
#define FACTOR SCORE_SCALE
#define SEEN_LATER false
void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (masked) apply_mask_mod(first_key, chunk);
}
// Products are added to what masks keys.
void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    begin_seen_scores(first_key, chunk, masked);
    add_scores(chunk);
}
#elif SCORE_MODS
#define FACTOR ((masked || MODIFIED) && SCALED ? MODIFIED_FACTOR : SCORE_SCALE)
void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if ((masked || MODIFIED) && SCALED) apply_score_mod(first_key + chunk);
    if (masked || MODIFIED) FETCH_AHEAD(chunk + CHUNK < KEYS ? first_key + chunk + CHUNK : tile_after)
    if (masked) apply_mask_mod(first_key, chunk, read);
}
#else
#define FACTOR (MASK != 0 ? 1.0 : SCORE_SCALE)
#if BUFFERS == 4
bool masked_values(uint first_key) { return first_key >= clear && first_key < end; }
#endif
void see_scores(uint first_key, uint chunk, bool masked, bool read) {
    if (MASK != 0) mask_scores(first_key + chunk, SCORE_SCALE);
    else if (masked) apply_mask_mod(first_key + chunk);
}
#endif
#if !TILED
#define SEEN_LATER true
void begin_seen(uint first_key, uint chunk, bool masked, bool read) {
    multiply_scores(chunk);
    see_scores(first_key, chunk, masked, read);
}
#endif

#if RETRY
// Scores and weights, again where these do not fit, then values.
void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
    begin_seen(first_key, chunk, masked, read);
    make_weights(FACTOR);
    bool grown = weights_exceed();
    RAISE (subgroupAny(grown)) {
#if TILED
        forget_tests();
#endif
        multiply_scores(chunk);
        see_scores(first_key, chunk, masked, read);
        if (least_weight > 0.0) forget_maximum();
        raise_maximum(FACTOR);
        make_weights(FACTOR);
        grown = false;
    }
    least_weight = 0.0;
    add_parts();
}
void end_chunk(uint first_key, uint chunk, bool masked, bool read) { multiply_values(chunk); }
#else
void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
#if SCORE_MODS
    FETCH_ADDED(first_key + chunk)
#endif
    if (SEEN_LATER) {
        MULTIPLY_SCORES(first_key, chunk, masked)
    } else {
        begin_seen(first_key, chunk, masked, read);
    }
}
void end_chunk(uint first_key, uint chunk, bool masked, bool read) {
    if (SEEN_LATER) see_scores(first_key, chunk, masked, read);
    raise_maximum(FACTOR);
#if SCORE_MODS
    if (on(DROPOUT)) multiply_kept_values(chunk, FACTOR);
    else
#endif
    multiply_values(chunk, FACTOR);
}
#endif
