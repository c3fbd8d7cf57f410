// Store: a tile's words of k, from registers into shared memory; and what stores values.

// The highest bit of each 16 is set for a NaN or an infinity, whose exponent, all ones, carries there.
uvec4 carried_exponents(uvec4 words) { return (words & EXPONENTS) + EXPONENT_ONES; }
bool found_non_finite(uvec4 carried) { return ((carried.x | carried.y | carried.z | carried.w) & 0x80008000u) != 0u; }
// Where a thread stores the nth word it fetched, and whether it has one.
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
#define HAS_K(n) ((KEYS * D8) % THREADS == 0 || thread + (n) * THREADS < KEYS * D8)
#define HAS_V(n) ((KEYS * V8) % THREADS == 0 || thread + (n) * THREADS < KEYS * V8)
void store_keys(uint start) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        if (HAS_K(n)) tile[start + K_WORD(n)] = held_k[n];
    }
}
