// Fetch: a tile's words of v, as fetch-keys.glsl those of k.

void fetch_values(uint first_key) {
#if STEPS
    if (in_steps(first_key)) {
        uint row = WORDS_OF(pc.v_row), at = v_word + first_key * row;
        [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
            held_v[n] = uvec4(0u);
            if (VALUE_DIM == VDIM || thread % V8 < VALUE_DIM / 8) held_v[n] = v_data[at + n * (THREADS / V8) * row];
        }
        return;
    }
#endif
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        uint e = thread + n * THREADS;
        if ((KEYS * V8) % THREADS == 0 || e < KEYS * V8) held_v[n] = fetch_value(first_key, e);
    }
}
