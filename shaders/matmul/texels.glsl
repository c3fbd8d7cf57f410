// Four elements of texels of 16 bytes, as floats.

#include "pairs.glsl"

#if defined(DTYPE_float32)
#define TEXEL(element) int((element) >> 2)
#else
#define TEXEL(element) int((element) >> 3)
#endif

// Elements element .. element + 3, of which the first is a multiple of 4, of the texel that has them.
vec4 four_of(uvec4 texel, uint element) {
#if defined(DTYPE_float32)
    return uintBitsToFloat(texel);
#else
    const uvec2 pairs = (element & 4u) != 0u ? texel.zw : texel.xy;
    return FLOATS_OF(pairs);
#endif
}
