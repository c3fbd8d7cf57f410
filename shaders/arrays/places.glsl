// Where the operands of elementwise kernels lie: flat as the result does, with strides e_0 to e_3 are the extents of, as
// one element (ALONE), or not at all. Of operands with strides, EACH neighbouring elements of the result may belong to
// neighbours (RUNS), or to one and the same (BROADCAST). AXES, a constant of who includes this: how many of the axes have more than
// one element.

#ifndef GRILLY_PLACES_GLSL
#define GRILLY_PLACES_GLSL

// constants: forms
const uint ABSENT = 0u, FLAT = 1u, STRIDED = 2u, RUNS = 3u, BROADCAST = 4u, ALONE = 5u;

bool has_strides(uint form) { return form == STRIDED || form == RUNS || form == BROADCAST; }

uvec4 coordinates(uint index) {
    uvec4 at = uvec4(0u);
    if (AXES > 1u) { at.w = index % pc.e_3; index /= pc.e_3; } else { at.w = index; return at; }
    if (AXES > 2u) { at.z = index % pc.e_2; index /= pc.e_2; } else { at.z = index; return at; }
    if (AXES > 3u) { at.y = index % pc.e_1; at.x = index / pc.e_1; } else { at.y = index; }
    return at;
}

void advance(inout uvec4 at) {
    at.w++;
    if (AXES > 1u && at.w == pc.e_3) {
        at.w = 0u;
        at.z++;
        if (AXES > 2u && at.z == pc.e_2) {
            at.z = 0u;
            at.y++;
            if (AXES > 3u && at.y == pc.e_1) { at.y = 0u; at.x++; }
        }
    }
}

uint along(uvec4 at, uint s0, uint s1, uint s2, uint s3) { return at.x * s0 + at.y * s1 + at.z * s2 + at.w * s3; }

// In elements, from the beginning of the binding.
#define PLACE_OF(NAME, at) (pc.NAME##_offset + along(at, pc.NAME##_0, pc.NAME##_1, pc.NAME##_2, pc.NAME##_3))

#endif
