// The element type of the arrays that an operation reads and writes (attention.glsl has its own):
//   DTYPE_float32 or DTYPE_float16   float16 asks of the device 16-bit storage and nothing else; arithmetic is float32
//   ALIGN  1 (default) or 4          with 4, offsets, strides and dimensions are multiples of 4 elements

#ifndef GRILLY_IO_GLSL
#define GRILLY_IO_GLSL

#ifndef ALIGN
#define ALIGN 1
#endif

#if defined(DTYPE_float16)
#extension GL_EXT_shader_16bit_storage : require
#define IO_SCALAR float16_t
#define IO_VECTOR f16vec4
#elif defined(DTYPE_float32)
#define IO_SCALAR float
#define IO_VECTOR vec4
#else
#error "define DTYPE_float32 or DTYPE_float16"
#endif

float minus_infinity() { return uintBitsToFloat(0xff800000u); }

// True for NaN and both infinities. By bits, because compilers may assume that neither occurs.
bool non_finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u; }
bool non_finite(vec4 x) {
    return any(equal(floatBitsToUint(x) & uvec4(0x7f800000u), uvec4(0x7f800000u)));
}

// Scores below this are "never attend": minus infinity and the lowest float32 alike.
const float MASK_FLOOR = -3.0e38;

#endif
