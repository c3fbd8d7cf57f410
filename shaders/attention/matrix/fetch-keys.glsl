// Fetch: a tile's words of k, from the array into the registers of the threads that will store them; and what fetches values.

// Rows past the last one are read as copies of it, columns past the head are zeros. Nobody stores such a query row,
// mask_scores and apply_mask_mod overrule such a key, and such a value is multiplied by zero or, if it is not finite, taken out.
uvec4 fetch_key(uint first_key, uint e) {
    uint column = 8u * (e % D8), key = min(first_key + KEY_AT(e / D8), end - 1u);
    if (HEAD_DIM < DIM && column >= HEAD_DIM) return uvec4(0u);
    return k_data[(k_base + K_PLACE(key) + column) >> 3];
}
uvec4 fetch_value(uint first_key, uint e) {
    uint column = 8u * (e % V8), key = min(first_key + e / V8, end - 1u);
    if (VALUE_DIM < VDIM && column >= VALUE_DIM) return uvec4(0u);
    return v_data[(v_base + V_PLACE(key) + column) >> 3];
}

#if STEPS
uint k_word, v_word;  // the thread's first word of the first tile
#define WORDS_OF(stride) uint(int(stride) >> 3)  // strides may be negative
void begin_steps() {
    k_word = (k_base + thread / D8 * pc.k_row >> 3) + thread % D8;
    v_word = (v_base + thread / V8 * pc.v_row >> 3) + thread % V8;
}
bool in_steps(uint first_key) { return !ANYWHERE && first_key + KEYS <= end; }
#define BEGIN_STEPS begin_steps();
#else
#define BEGIN_STEPS
#endif

void fetch_keys(uint first_key) {
#if STEPS
    if (in_steps(first_key)) {
        uint row = WORDS_OF(pc.k_row), at = k_word + first_key * row;
        [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
            held_k[n] = uvec4(0u);
            if (HEAD_DIM == DIM || thread % D8 < HEAD_DIM / 8) held_k[n] = k_data[at + n * (THREADS / D8) * row];
        }
        return;
    }
#endif
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        uint e = thread + n * THREADS;
        if ((KEYS * D8) % THREADS == 0 || e < KEYS * D8) held_k[n] = fetch_key(first_key, e);
    }
}
