// A chunk with RETRY, before the second barrier of a tile and after it: scores and weights, again where these do not fit,
// then values.

void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
    begin_seen(first_key, chunk, masked, read);
    make_weights(FACTOR);
    bool grown = weights_exceed();
    RAISE (subgroupAny(grown)) {
        FORGET_TESTS
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
