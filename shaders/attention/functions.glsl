// Functions of users: what a score becomes (hole_score), and whether a query sees a key (hole_mask). compute/attention/functions.py
// fills the holes.
//
// The functions are given the bits of their arguments, and words that say where the tensors lie that they read: FUNCTION_WORDS is
// where these words are. Tensors lie among the other arrays of options, in 32-bit words; function_word() reads one.
// Batches, heads, queries and keys are of the whole call. With POSITIONS a query's number is its position among the keys.

// For kernels that define FUNCTIONS; extras.glsl includes it.

// Behind those of extras.glsl and matrix/next-tile.glsl.
// constants: parameters
const uint FUNCTION_WORDS = 51u;

#define WORDS_OF_FUNCTIONS \
    const in uvec4 w0, const in uvec4 w1, const in uvec4 w2, const in uvec4 w3, \
    const in uvec4 w4, const in uvec4 w5, const in uvec4 w6, const in uvec4 w7

uint function_word(const in uint at) { return extra_data[at]; }

// 0, of which compilers know nothing: what holes round to float16 is kept rounded by it (expressions/body.py).
uint function_zero() { return parameter(FUNCTION_WORDS) >> 31; }

uvec2 hole_mask(
    const in uvec2 batch, const in uvec2 head, const in uvec2 query, const in uvec2 key, WORDS_OF_FUNCTIONS
) {
    uvec4 words = w0 + w1 + w2 + w3 + w4 + w5 + w6 + w7;
    return batch + head + query + key + words.xy + words.zw + function_word(key.x) + function_zero();
}

#ifndef WITHOUT_SCORES
uvec2 hole_score(
    const in uvec2 score, const in uvec2 batch, const in uvec2 head, const in uvec2 query, const in uvec2 key, WORDS_OF_FUNCTIONS
) {
    return score + hole_mask(batch, head, query, key, w0, w1, w2, w3, w4, w5, w6, w7);
}
#endif

// A kernel that defines HOLDS_WORDS holds them, from hold_function_words() on; with WORDS_IN_SHARED in shared memory, after the
// next barrier, so that they take no registers between barriers.
uvec4 four_words(uint n) {
    uint at = parameter(FUNCTION_WORDS) + 4u * n;
    return uvec4(extra_data[at], extra_data[at + 1u], extra_data[at + 2u], extra_data[at + 3u]);
}
#ifdef WORDS_IN_SHARED
shared uvec4 held_words[8];
void hold_function_words() {
    if (gl_LocalInvocationIndex < 8u) held_words[gl_LocalInvocationIndex] = four_words(gl_LocalInvocationIndex);
}
#define FOUR_WORDS(n) held_words[n]
#elif defined(HOLDS_WORDS)
#extension GL_EXT_control_flow_attributes : require
uvec4 held_words[8];
void hold_function_words() {
    [[unroll]] for (uint n = 0u; n < 8u; ++n) held_words[n] = four_words(n);
}
#define FOUR_WORDS(n) held_words[n]
#else
#define FOUR_WORDS(n) four_words(n)
#endif
#ifdef WITHOUT_SCORES
uint query_number(uint row) { return x_first_row + row; }
#else
uint query_number(uint row) { return on(POSITIONS) ? uint(int(row) + BASE_SHIFT) + x_first_key : x_first_row + row; }
#endif
#define FUNCTION_ARGUMENTS(row, key) \
    uvec2(x_batch, 0u), uvec2(x_head, 0u), uvec2(query_number(row), 0u), uvec2(x_first_key + (key), 0u), \
    FOUR_WORDS(0u), FOUR_WORDS(1u), FOUR_WORDS(2u), FOUR_WORDS(3u), \
    FOUR_WORDS(4u), FOUR_WORDS(5u), FOUR_WORDS(6u), FOUR_WORDS(7u)

#ifdef DERIVATIVES
// Of gradients. hole_score gives, beside the score, its derivative by the score that it is given; hole_read the derivative by an
// element of a tensor that the function reads, and the place of that element in the tensor.
uvec2 hole_read(
    const in uvec2 score, const in uvec2 batch, const in uvec2 head, const in uvec2 query, const in uvec2 key, WORDS_OF_FUNCTIONS
) {
    return score + hole_mask(batch, head, query, key, w0, w1, w2, w3, w4, w5, w6, w7);
}
// Scores in natural units.
vec2 function_score(float score, uint row, uint key) {
    return uintBitsToFloat(hole_score(uvec2(floatBitsToUint(score), 0u), FUNCTION_ARGUMENTS(row, key)));
}
uvec2 function_read(float score, uint row, uint key) {
    return hole_read(uvec2(floatBitsToUint(score), 0u), FUNCTION_ARGUMENTS(row, key));
}
#elif !defined(WITHOUT_SCORES)
// In natural units.
float function_score(float score, uint row, uint key) {
    return uintBitsToFloat(hole_score(uvec2(floatBitsToUint(score), 0u), FUNCTION_ARGUMENTS(row, key)).x);
}
#endif
bool function_sees(uint row, uint key) { return hole_mask(FUNCTION_ARGUMENTS(row, key)).x != 0u; }
