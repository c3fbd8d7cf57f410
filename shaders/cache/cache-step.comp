#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: what comes before attention with a cache, in one dispatch: new keys and values copied to where they
//     belong in it, and queries to an array of their own, keys and queries with rotary embedding by tables on the way (Su et
//     al. 2021, arXiv:2104.09864). cache-append does the same for one array at a time, whatever its extents.
// Shapes and layouts: k and v (B, KEY_HEADS, rows, WIDTH), q (B, HEADS, rows, WIDTH). k_cache and v_cache (B, KEY_HEADS,
//     capacity, WIDTH), or (pages, KEY_HEADS, PAGE_KEYS, WIDTH); rotated like q. cosines and sines float32 (positions, PAIRS).
//     Last axes contiguous, all other strides are arguments. parameters: uint32, of which samples + 4 b + 3 is the number of
//     keys of sample b with the new rows counted, and pages + b pages_batch + n the page of its keys from n PAGE_KEYS on.
// Bindings: 0 k, 1 v, 2 q, 3 parameters, 4 cosines, 5 sines, 6 k_cache, 7 v_cache, 8 rotated.
// Specialization constants: ROTARY (rotary.glsl), 0 for none; LENGTHS (1: sample b's first new key is at its number of keys
//     less `rows`, 0: at `start`); PAGE_KEYS, 0 for a cache without pages; ADVANCE, 0: all queries of a sample are rotated as
//     the first; WIDTH; PAIRS, 0 without ROTARY; KEY_HEADS; HEADS, 0 for no q.
// Push constants: see the block; offsets and strides in elements of the array they belong to. k_cache_batch and
//     v_cache_batch are those of a page where there are pages.
// Workgroup: 32 pairs (or elements of the rest) of ROWS rows of one head (z = head + (2 KEY_HEADS + HEADS) * batch; heads of
//     k, of v, of q). Invocation: one, and of v all that lie WIDTH - PAIRS apart.
// Accumulation: float32.
// Preconditions: 2 * PAIRS <= WIDTH; all keys fit in the cache; the tables have a row for every position.

#include "elements.glsl"
#include "rotary.glsl"

layout(local_size_x = 32, local_size_y = ROWS) in;

layout(constant_id = 0) const int ROTARY = 0;
layout(constant_id = 1) const int LENGTHS = 0;
layout(constant_id = 2) const uint PAGE_KEYS = 0u;
layout(constant_id = 3) const uint ADVANCE = 1u;
layout(constant_id = 4) const uint WIDTH = 64u;
layout(constant_id = 5) const uint PAIRS = 0u;
layout(constant_id = 6) const uint KEY_HEADS = 1u;
layout(constant_id = 7) const uint HEADS = 0u;

layout(push_constant, std430) uniform Push {
    uint k_offset, k_batch, k_head, k_row;
    uint v_offset, v_batch, v_head, v_row;
    uint q_offset, q_batch, q_head, q_row;
    uint k_cache_offset, k_cache_batch, k_cache_head, k_cache_row;
    uint v_cache_offset, v_cache_batch, v_cache_head, v_cache_row;
    uint rotated_offset, rotated_batch, rotated_head, rotated_row;
    uint cos_offset, sin_offset, table_row;
    uint samples, pages, pages_batch;
    uint start, rows;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Keys { IO_SCALAR k[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Values { IO_SCALAR v[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Queries { IO_SCALAR q[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Parameters { uint parameters[]; };
layout(set = 0, binding = 4, std430) restrict readonly buffer Cosines { float cosines[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Sines { float sines[]; };
layout(set = 0, binding = 6, std430) restrict writeonly buffer KeyCache { IO_SCALAR k_cache[]; };
layout(set = 0, binding = 7, std430) restrict writeonly buffer ValueCache { IO_SCALAR v_cache[]; };
layout(set = 0, binding = 8, std430) restrict writeonly buffer Rotated { IO_SCALAR rotated[]; };

// An element and its partner from X to Y, rotated by the angles c and s are of; beyond the pairs, elements as they are.
#define TURN(X, x_at, Y, y_at) \
    if (item >= PAIRS) { \
        Y[y_at + item + PAIRS] = X[x_at + item + PAIRS]; \
    } else { \
        float a = IO_LOAD(X[x_at + first]), b = IO_LOAD(X[x_at + second]); \
        Y[y_at + first] = IO_STORE(a * c - b * s); \
        Y[y_at + second] = IO_STORE(b * c + a * s); \
    }

void main() {
    uint item = gl_GlobalInvocationID.x, row = gl_GlobalInvocationID.y;
    uint head = gl_WorkGroupID.z % (2u * KEY_HEADS + HEADS), batch = gl_WorkGroupID.z / (2u * KEY_HEADS + HEADS);
    if (item >= WIDTH - PAIRS || row >= pc.rows) return;
    uint first_key = LENGTHS == 1 ? parameters[pc.samples + 4u * batch + 3u] - pc.rows : pc.start;
    bool of_q = head >= 2u * KEY_HEADS;
    uint key = first_key + row, page = batch, within = key;
    if (PAGE_KEYS != 0u && !of_q) {
        page = parameters[pc.pages + batch * pc.pages_batch + key / PAGE_KEYS];
        within = key % PAGE_KEYS;
    }
    if (!of_q && head >= KEY_HEADS) {
        head -= KEY_HEADS;
        uint from = pc.v_offset + batch * pc.v_batch + head * pc.v_head + row * pc.v_row;
        uint to = pc.v_cache_offset + page * pc.v_cache_batch + head * pc.v_cache_head + within * pc.v_cache_row;
        for (uint n = item; n < WIDTH; n += WIDTH - PAIRS) v_cache[to + n] = v[from + n];
        return;
    }
    float c = 1.0, s = 0.0;
    if (item < PAIRS) {
        uint position = of_q ? first_key + row * ADVANCE : key;
        c = cosines[pc.cos_offset + position * pc.table_row + item];
        s = sines[pc.sin_offset + position * pc.table_row + item];
    }
    uint first = ROTARY == ROTARY_INTERLEAVED ? 2u * item : item;
    uint second = ROTARY == ROTARY_INTERLEAVED ? first + 1u : item + PAIRS;
    if (of_q) {
        head -= 2u * KEY_HEADS;
        uint from = pc.q_offset + batch * pc.q_batch + head * pc.q_head + row * pc.q_row;
        uint to = pc.rotated_offset + batch * pc.rotated_batch + head * pc.rotated_head + row * pc.rotated_row;
        TURN(q, from, rotated, to)
    } else {
        uint from = pc.k_offset + batch * pc.k_batch + head * pc.k_head + row * pc.k_row;
        uint to = pc.k_cache_offset + page * pc.k_cache_batch + head * pc.k_cache_head + within * pc.k_cache_row;
        TURN(k, from, k_cache, to)
    }
}
