// Four elements of texels of 16 bytes, as floats.

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
#if defined(DTYPE_float16)
    return vec4(unpackHalf2x16(pairs.x), unpackHalf2x16(pairs.y));
#else
    return uintBitsToFloat(uvec4(pairs.x << 16, pairs.x & 0xffff0000u, pairs.y << 16, pairs.y & 0xffff0000u));
#endif
#endif
}
