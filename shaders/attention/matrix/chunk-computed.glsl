// A chunk where a rule changes scores (COMPUTED), before the second barrier of a tile and after it: as chunk-retry.glsl, but where
// scores are known to be too large for what is done at first, that is left out. They always are in the first tile, whose weights
// a maximum is yet to be found for.

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
