// A chunk, before the second barrier of a tile and after it: scores, then the maximum, weights and values.

void begin_chunk(uint first_key, uint chunk, bool masked, bool read) {
    FETCH_ADDED(first_key + chunk)
    if (SEEN_LATER) {
        MULTIPLY_SCORES(first_key, chunk, masked)
    } else {
        begin_seen(first_key, chunk, masked, read);
    }
}
void end_chunk(uint first_key, uint chunk, bool masked, bool read) {
    if (SEEN_LATER) see_scores(first_key, chunk, masked, read);
    raise_maximum(FACTOR);
    MULTIPLY_VALUES(chunk)
}
