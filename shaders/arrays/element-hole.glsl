// What stands before elements that are written by an index, or added up by one: a hole, which an expression fills.
//
// HOLE_BINDING, a macro of who includes this: r's binding. Push constants: r_offset and r_0 to r_3, strides in elements.

layout(constant_id = 20) const uint BITS_X = 32u;
layout(constant_id = 21) const uint BITS_R = 0u;

layout(set = 0, binding = HOLE_BINDING, std430) readonly buffer R { uvec4 r_data[]; };
READER(r, r_data, BITS_R)

// 0, of which compilers know nothing: what holes round to float16 is kept rounded by it (expressions/body.py).
uint function_zero() { return pc.count >> 31; }

uvec2 hole_element(const in uvec2 x, const in uvec2 r, const in uvec4 n) { return x + r + n.xy + n.zw + function_zero(); }

uvec2 r_element(uvec4 i) {
    return BITS_R == 0u ? uvec2(0u) : r_raw(pc.r_offset + i.x * pc.r_0 + i.y * pc.r_1 + i.z * pc.r_2 + i.w * pc.r_3);
}
