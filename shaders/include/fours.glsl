// Four elements of a word of 16 bytes as floats: the i-th four of 16-bit elements, or the word's own of float32.

#ifndef GRILLY_FOURS_GLSL
#define GRILLY_FOURS_GLSL

#include "pairs.glsl"

vec4 quad(uvec4 word, int i) {
#if defined(DTYPE_float32)
    return uintBitsToFloat(word);
#else
    uvec2 pairs = i == 0 ? word.xy : word.zw;
    return FLOATS_OF(pairs);
#endif
}

#endif
