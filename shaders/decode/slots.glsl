// The rows that an invocation holds elements of, and what becomes of their scores.

// Whether causality or an option says which rows see which keys.
bool picky() { return CAUSAL == 1 || (FEATURES & HIDING_KEYS) != 0; }
// Whether every score has to be looked at, beyond causality, and whether a row may not see a key that another sees.
bool looks() {
    if (MASK != 0) return true;
    return (FEATURES & (SOFT_CAP | HIDING_SCORES | ALIBI | T5 | HIDING_KEYS)) != 0;
}
bool has_masked() {
    if (MASK != 0) return true;
    return picky() || on(HIDING_SCORES);
}

uint slot_query[SLOTS], slot_head[SLOTS], slot_mask[SLOTS], slot_bias[SLOTS];
float slot_slope[SLOTS];

void begin_slot(int slot, uint batch, uint head, uint query) {
    slot_query[slot] = query;
    slot_mask[slot] = MASK == 0 ? 0u : mask_index(batch, head, query);
    if (FEATURES == 0) return;
    begin_extras(batch, head);
    slot_head[slot] = x_head;
    if (on(ALIBI)) slot_slope[slot] = x_slope;
    if (on(BIAS)) slot_bias[slot] = x_bias;
}

// A base-2 score as its row sees it; `key` is one that there is.
float seen_score(int slot, float score, uint key) {
    if (FEATURES != 0) x_head = slot_head[slot];
    if (on(ALIBI)) x_slope = slot_slope[slot];
    if (on(BIAS)) x_bias = slot_bias[slot];
    if (HAS_SCORE_MOD) score = score_mod(score, slot_query[slot], key);
    if (MASK != 0) {
        float bias = mask_bias(slot_mask[slot] + key * pc.mask_key);
        score = score <= NEVER ? NEVER : biased_score(score, bias);
    }
    if (picky() && !mask_mod(slot_query[slot], key)) score = NEVER;
    return score;
}

// Whether one of eight numbers is NaN or an infinity.
bool some_non_finite(uvec4 words) {
    const uint low = EXPONENTS & 0xffffu, high = EXPONENTS & 0xffff0000u;
    bvec4 found = equal(words & uvec4(low), uvec4(low));
    return any(found) || any(equal(words & uvec4(high), uvec4(high)));
}
