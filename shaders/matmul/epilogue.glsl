// What a linear layer does with a sum, bias added, before its one rounding: activation(sum) + residual. Drivers leave
// nothing of what is not asked for.
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
