#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: copies of up to eight arrays, each to a place of its own in one array.
// Shapes and layouts: of each array the elements lie side by side, and are counted in words of 32 bits, of which the last
//     may hold less than a word of them.
// Bindings: 0 a to 7 h, 8 y.
// Specialization constants: none.
// Push constants: a_offset to h_offset, where the arrays begin; a_place to h_place, where they go; a_words to h_words, how
//     long they are, 0 for those that are not there. All in words.
// Workgroup: CHUNK words of one array; the arrays' chunks are counted one after the other (x and y together count the
//     workgroups, STRIPE of them along x). Invocation: every THREADS-th vector of four words, or, of an array that begins at
//     no multiple of four words, every THREADS-th word.
// Accumulation: none.
// Defines: THREADS, CHUNK, STRIPE.
// Preconditions: fewer than 2^31 words. a_place to h_place are multiples of 4. y shares no memory with the others.

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint a_offset, b_offset, c_offset, d_offset, e_offset, f_offset, g_offset, h_offset;
    uint a_place, b_place, c_place, d_place, e_place, f_place, g_place, h_place;
    uint a_words, b_words, c_words, d_words, e_words, f_words, g_words, h_words;
} pc;

#define ARRAY(NAME, BINDING) \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words { uint NAME##_data[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Fours { uvec4 NAME##_fours[]; };

ARRAY(a, 0)
ARRAY(b, 1)
ARRAY(c, 2)
ARRAY(d, 3)
ARRAY(e, 4)
ARRAY(f, 5)
ARRAY(g, 6)
ARRAY(h, 7)
layout(set = 0, binding = 8, std430) writeonly buffer Words { uint y_data[]; };
layout(set = 0, binding = 8, std430) writeonly buffer Fours { uvec4 y_fours[]; };

#define COPY(NAME) \
    if (chunk < (pc.NAME##_words + uint(CHUNK) - 1u) / uint(CHUNK)) { \
        uint first = chunk * uint(CHUNK), end = min(first + uint(CHUNK), pc.NAME##_words); \
        if ((pc.NAME##_offset & 3u) == 0u) { \
            for (uint i = first + 4u * gl_LocalInvocationIndex; i + 4u <= end; i += 4u * uint(THREADS)) { \
                y_fours[(pc.NAME##_place + i) >> 2] = NAME##_fours[(pc.NAME##_offset + i) >> 2]; \
            } \
            first = end & ~3u; \
        } \
        for (uint i = first + gl_LocalInvocationIndex; i < end; i += uint(THREADS)) { \
            y_data[pc.NAME##_place + i] = NAME##_data[pc.NAME##_offset + i]; \
        } \
        return; \
    } \
    chunk -= (pc.NAME##_words + uint(CHUNK) - 1u) / uint(CHUNK);

void main() {
    uint chunk = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    COPY(a)
    COPY(b)
    COPY(c)
    COPY(d)
    COPY(e)
    COPY(f)
    COPY(g)
    COPY(h)
}
