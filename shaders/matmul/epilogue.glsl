// What a linear layer does with a sum, bias added, before its one rounding: activation(sum) + residual. Drivers leave
// nothing of what is not asked for. With HOLES an expression may stand behind that (finish.glsl).
// Specialization constants  10 ACTIVATION, of activations.glsl; 11 HAS_RESIDUAL
// Bindings  4 residual, of the result's shape and dtype: the including shader has it, and its strides

#include "activations.glsl"

layout(constant_id = 10) const uint ACTIVATION = 0u;
layout(constant_id = 11) const int HAS_RESIDUAL = 0;

#if defined(DTYPE_float32)
#define DIGITS 24u
#elif defined(DTYPE_bfloat16)
#define DIGITS 8u
#else
#define DIGITS 11u
#endif

float activation(float value) { return activated(ACTIVATION, value, DIGITS); }

vec4 activation(vec4 value) {
    if (ACTIVATION == ACTIVATION_NONE) return value;
    return vec4(activation(value.x), activation(value.y), activation(value.z), activation(value.w));
}

#if HOLES
#define FINISH_SMALL depth
#include "finish.glsl"
#if defined(DTYPE_float32) || !defined(MATRIX_ELEMENTS)
#if defined(DTYPE_float16)
#include "float16.glsl"
#endif

// What is stored for a result at a place of c, counted from c_offset, and in a column.
float behind(float value, uint place, uint col) {
    if (FINISHED == 0u) return value;
#if defined(DTYPE_float32)
    return uintBitsToFloat(finished_bits(floatBitsToUint(value), place, col));
#elif defined(DTYPE_bfloat16)
    return uintBitsToFloat(finished_bits(bfloat16_word(value), place, col) << 16);
#else
    return float16_value(finished_bits(float16_word(value), place, col));
#endif
}
#if defined(DTYPE_float32)
vec4 behind(vec4 value, uint place, uint col) { return uintBitsToFloat(finished_four(floatBitsToUint(value), place, col)); }
#endif
#endif
#endif
