// The form's way to make weights and to multiply values by them.

#ifdef TRANSPOSED
#include "weights-transposed.glsl"
#elif defined(ORDER)
#include "weights-ordered.glsl"
#else
#include "weights-any.glsl"
#endif
