// y[i] = x[count - 1 - i] + 1: every dispatch reads what other workgroups of the one before it wrote. Binding 1 is unused.
// Made by: glslangValidator --target-env vulkan1.1 -o reverse.spv reverse.comp
#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 2) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform Push { uint count; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) y[i] = x[count - 1 - i] + 1;
}
