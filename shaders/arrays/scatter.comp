#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: elements of an array replaced by those of another, or of one number.
// Shapes and layouts: four axes of any strides on both sides; x may repeat its elements. With an index, the place along
//     one more axis of y is read from it, y[..., index, ...] = x, or (READS) along one more axis of x, y = x[..., index].
// Bindings: 0 x, 1 index, 2 y; with HOLES 3 r.
// Specialization constants: BITS, of an element, or of elements side by side that are moved together; INDEX, 0 or the index's type (words.glsl); READS.
// Push constants: see the block; offsets and strides in elements. stride and extent are the axis that the index counts;
//     of its places the binding has `many` from `first` on, and nothing is written for others.
// Workgroup: THREADS elements (x and y together count the workgroups, STRIPE of them along x). Invocation: one.
// Accumulation: none. Where two elements go to one place, one of them arrives.
// Preconditions: fewer than 2^31 elements. Indices out of bounds write nothing, and read the element at the nearest end.
// Defines: THREADS, STRIPE; HOLES: what is written is what the hole "element" makes of elements of x and r, of BITS_X and BITS_R
//     (0 where there is no r), and of the words n_0 to n_3. It is written one by one.

const uint EACH = 4u, HALVES = 0u;  // (words.glsl)

#include "arrays/words.glsl"

layout(constant_id = 0) const uint BITS = 32u;
layout(constant_id = 1) const uint INDEX = 0u;
layout(constant_id = 2) const uint READS = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, x_offset, index_offset, y_offset, stride, extent, first, many;
    uint e_1, e_2, e_3;
    uint x_0, x_1, x_2, x_3;
    uint i_0, i_1, i_2, i_3;
    uint y_0, y_1, y_2, y_3;
#ifdef HOLES
    uint r_offset, r_0, r_1, r_2, r_3;
    uint n_0, n_1, n_2, n_3;
#endif
} pc;

#ifdef HOLES
#define HOLE_BINDING 3
#include "arrays/element-hole.glsl"
layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
READER(x, x_data, BITS_X)
#else
layout(set = 0, binding = 0, std430) readonly buffer X { uint x_data[]; };
layout(set = 0, binding = 0, std430) readonly buffer XFours { uvec4 x_fours[]; };
layout(set = 0, binding = 2, std430) writeonly buffer YFours { uvec4 y_fours[]; };
#endif
layout(set = 0, binding = 1, std430) readonly buffer Index { uvec4 index_data[]; };
layout(set = 0, binding = 2, std430) buffer Y { uint y_data[]; };

READER(index, index_data, width_of(INDEX))

void main() {
    uint at = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    if (at >= pc.count) return;
    uvec4 i;
    i.w = at % pc.e_3;
    at /= pc.e_3;
    i.z = at % pc.e_2;
    at /= pc.e_2;
    i.y = at % pc.e_1;
    i.x = at / pc.e_1;
    uint from = pc.x_offset + i.x * pc.x_0 + i.y * pc.x_1 + i.z * pc.x_2 + i.w * pc.x_3;
    uint to = pc.y_offset + i.x * pc.y_0 + i.y * pc.y_1 + i.z * pc.y_2 + i.w * pc.y_3;
    if (INDEX != 0u) {
        uvec2 place = natural(INDEX, index_raw(pc.index_offset + i.x * pc.i_0 + i.y * pc.i_1 + i.z * pc.i_2 + i.w * pc.i_3));
        if (minus64(place)) place = add64(place, uvec2(pc.extent, 0u));
        if (place.y != 0u || place.x >= pc.extent) {
            if (READS == 0u) return;
            place.x = minus64(place) ? 0u : pc.extent - 1u;
        }
        place.x -= pc.first;
        if (place.x >= pc.many) return;
        if (READS == 1u) from += place.x * pc.stride; else to += place.x * pc.stride;
    }
#ifdef HOLES
    const uvec2 own = hole_element(x_raw(from), r_element(i), uvec4(pc.n_0, pc.n_1, pc.n_2, pc.n_3));
    if (BITS == 64u) {
        y_data[2u * to] = own.x;
        y_data[2u * to + 1u] = own.y;
    } else if (BITS == 32u) {
        y_data[to] = own.x;
#else
    if (BITS == 128u) {
        y_fours[to] = x_fours[from];
    } else if (BITS == 64u) {
        y_data[2u * to] = x_data[2u * from];
        y_data[2u * to + 1u] = x_data[2u * from + 1u];
    } else if (BITS == 32u) {
        y_data[to] = x_data[from];
#endif
    } else {
        // the other elements of the word are other invocations', or are to stay
        uint each = 32u / BITS, mask = (1u << BITS) - 1u, shift = to % each * BITS, word = to / each;
#ifdef HOLES
        uint bits = own.x;
#else
        uint bits = x_data[from / each] >> from % each * BITS & mask;
#endif
        if (INDEX != 0u && READS == 0u) {  // another invocation may have the same place: one of both numbers arrives, whole
            uint before, now = y_data[word];
            do {
                before = now;
                now = atomicCompSwap(y_data[word], before, before & ~(mask << shift) | bits << shift);
            } while (now != before);
        } else {
            atomicAnd(y_data[word], ~(mask << shift));
            atomicOr(y_data[word], bits << shift);
        }
    }
}
