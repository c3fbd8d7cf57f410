// A tile's words of k and v, of 16 bits: from the arrays into the registers of the threads that will store them (fetch), and
// from there into shared memory (store). With queries in columns what becomes of v is in values-transposed.glsl.

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
#if ORDER != 3
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
#endif

// The highest bit of each 16 is set for a NaN or an infinity, whose exponent, all ones, carries there.
uvec4 carried_exponents(uvec4 words) { return (words & EXPONENTS) + EXPONENT_ONES; }
bool found_non_finite(uvec4 carried) { return ((carried.x | carried.y | carried.z | carried.w) & 0x80008000u) != 0u; }
// Where a thread stores the nth word it fetched, if it has one.
#ifndef KEY_PLACE
#define KEY_PLACE(key) (key)
#endif
// Of rows that `words` make up. Where what all threads fetch at once is whole fragments, no place is computed anew.
#define WORD_OF_STEP(n, words, stride) KEY_PLACE(thread / words) * stride + thread % words + (n) * (THREADS / words * stride)
#define WORD_OF_ANY(n, words, stride) KEY_PLACE((thread + (n) * THREADS) / words) * stride + (thread + (n) * THREADS) % words
#if STEPS || THREADS % (16 * D8) == 0
#define K_WORD(n) WORD_OF_STEP(n, D8, K_STRIDE)
#else
#define K_WORD(n) WORD_OF_ANY(n, D8, K_STRIDE)
#endif
#if STEPS || THREADS % (16 * V8) == 0
#define V_WORD(n) WORD_OF_STEP(n, V8, V_STRIDE)
#else
#define V_WORD(n) WORD_OF_ANY(n, V8, V_STRIDE)
#endif
void store_keys(uint start) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        if ((KEYS * D8) % THREADS == 0 || thread + n * THREADS < KEYS * D8) tile[start + K_WORD(n)] = held_k[n];
    }
}

#if ORDER == 3
#include "values-transposed.glsl"
#else
// `masked`: some query may not see some of the tile's keys, whose values must then be finite.
void store_values(uint start, bool masked) {
    uvec4 carried = uvec4(0u);
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        if ((KEYS * V8) % THREADS == 0 || thread + n * THREADS < KEYS * V8) {
            tile[start + V_WORD(n)] = held_v[n];
            if (masked) carried |= carried_exponents(held_v[n]);
        }
    }
    if (masked && found_non_finite(carried)) poisoned = 1u;
}
#endif
