// The element type of the arrays that an operation reads and writes; arithmetic is float32 whatever it is.
//   DTYPE_float32, DTYPE_float16 or DTYPE_bfloat16   16-bit types ask of the device 16-bit storage and nothing else
//   MATRIX_ELEMENTS   a kernel that gives the arrays to matrix units: bfloat16 is then written float16_t, and
//                     tools/shaderbuild/bfloat16.py makes bfloat16 of it. Otherwise bfloat16 elements are 16-bit words.
//   ALIGN  1 (default) or 4, or what the including shader says; with 4, offsets, strides and dimensions are multiples of
//          4 elements
// IO_SCALAR and IO_VECTOR are what an array holds. IO_LOAD and IO_LOAD4 make floats of it, IO_STORE and IO_STORE4 the
// reverse, rounded to nearest, ties to even; they are macros because a type of 16-bit storage cannot be an argument.

#ifndef GRILLY_ELEMENTS_GLSL
#define GRILLY_ELEMENTS_GLSL

#ifndef ALIGN
#define ALIGN 1
#endif

#if defined(DTYPE_float16) || defined(DTYPE_bfloat16) && defined(MATRIX_ELEMENTS)
#extension GL_EXT_shader_16bit_storage : require
#define IO_SCALAR float16_t
#define IO_VECTOR f16vec4
#elif defined(DTYPE_bfloat16)
#extension GL_EXT_shader_16bit_storage : require
#define IO_SCALAR uint16_t
#define IO_VECTOR u16vec4
#define IO_LOAD(element) uintBitsToFloat(uint(element) << 16)
#define IO_LOAD4(vector) uintBitsToFloat(uvec4(vector) << 16)
#define IO_STORE(value) uint16_t(bfloat16_word(value))
#define IO_STORE4(value) u16vec4(bfloat16_words(value))
#elif defined(DTYPE_float32)
#define IO_SCALAR float
#define IO_VECTOR vec4
#else
#error "define DTYPE_float32, DTYPE_float16 or DTYPE_bfloat16"
#endif
#ifndef IO_LOAD
#define IO_LOAD(element) float(element)
#define IO_LOAD4(vector) vec4(vector)
#define IO_STORE(value) IO_SCALAR(value)
#define IO_STORE4(value) IO_VECTOR(value)
#endif

float minus_infinity() { return uintBitsToFloat(0xff800000u); }

// True for NaN and both infinities. By bits, because compilers may assume that neither occurs.
bool non_finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u; }
bool non_finite(vec4 x) {
    return any(equal(floatBitsToUint(x) & uvec4(0x7f800000u), uvec4(0x7f800000u)));
}

// The bfloat16 nearest to x, in the lower half of a word. NaN gets a bit that the upper half keeps, or it might become
// infinity.
uint bfloat16_word(float x) {
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
uvec4 bfloat16_words(vec4 x) {
    return uvec4(bfloat16_word(x.x), bfloat16_word(x.y), bfloat16_word(x.z), bfloat16_word(x.w));
}

// What a mask is, as the specialization constant MASK says: none, bytes that are not 0 where a query attends, or float32
// numbers added to the scores.
// constants: masks
const int MASK_NONE = 0, MASK_BOOLEAN = 1, MASK_ADDED = 2;

// Scores below this are "never attend": minus infinity and the lowest float32 alike.
// constants: numbers
const float MASK_FLOOR = -3.0e38;

// The larger of x and MASK_FLOOR. NaN stays NaN: of that max() may make anything.
float floored(float x) {
    uint bits = floatBitsToUint(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? x : max(x, MASK_FLOOR);
}

#endif
