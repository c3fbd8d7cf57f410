// Four 16-bit elements of DTYPE_float16 or DTYPE_bfloat16, two in each word of a uvec2, as floats.

#ifndef GRILLY_PAIRS_GLSL
#define GRILLY_PAIRS_GLSL

#if defined(DTYPE_float16)
#define FLOATS_OF(PAIRS) vec4(unpackHalf2x16(PAIRS.x), unpackHalf2x16(PAIRS.y))
#else
#define FLOATS_OF(PAIRS) \
    uintBitsToFloat(uvec4(PAIRS.x << 16, PAIRS.x & 0xffff0000u, PAIRS.y << 16, PAIRS.y & 0xffff0000u))
#endif

#endif
