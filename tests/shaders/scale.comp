// y[i] = factor * x[i] + y[i] + OFFSET + 100 * EXTRA, for i < count. Made by: glslangValidator --target-env vulkan1.1 -o scale.spv scale.comp
#version 450
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint OFFSET = 0;
layout(constant_id = 2) const uint EXTRA = 3;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Push { uint count; float factor; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) y[i] = factor * x[i] + y[i] + float(OFFSET) + 100.0 * float(EXTRA);
}
