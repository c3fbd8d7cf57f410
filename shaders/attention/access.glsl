// The element access that attention's kernels and those of its gradients share. ALIGN: attention.glsl.

#include "elements.glsl"

#if ALIGN == 8
#define IO_ELEMENT uvec4
#elif ALIGN == 4
#define IO_ELEMENT IO_VECTOR
#else
#define IO_ELEMENT IO_SCALAR
#endif

// GRILLY_LOADS defines load_NAME4(element, count), which reads elements element .. element + 3 as floats; those at position
// `count` and later are neither read nor anything but zero. With ALIGN 4 a count is at least 4 or at most 0, dimensions being
// multiples. With ALIGN 8 the shader unpacks elements itself.
#if ALIGN == 8
#define GRILLY_LOADS(NAME, DATA)
#elif ALIGN == 4
#define GRILLY_LOADS(NAME, DATA) \
    vec4 load_##NAME##4(uint element, int count) { return count > 0 ? IO_LOAD4(DATA[element >> 2]) : vec4(0.0); } \
    float load_##NAME(uint element) { return IO_LOAD4(DATA[element >> 2])[element & 3u]; }
#else
#define GRILLY_LOADS(NAME, DATA) \
    vec4 load_##NAME##4(uint element, int count) { \
        vec4 value = vec4(0.0); \
        if (count > 0) value.x = IO_LOAD(DATA[element]); \
        if (count > 1) value.y = IO_LOAD(DATA[element + 1u]); \
        if (count > 2) value.z = IO_LOAD(DATA[element + 2u]); \
        if (count > 3) value.w = IO_LOAD(DATA[element + 3u]); \
        return value; \
    } \
    float load_##NAME(uint element) { return IO_LOAD(DATA[element]); }
#endif
