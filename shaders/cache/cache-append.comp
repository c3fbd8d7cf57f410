#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: rows of new keys or values copied to where they belong in a cache, or rows of queries copied to an
//     array of their own, either with rotary embedding by tables on the way (Su et al. 2021, arXiv:2104.09864).
// Shapes and layouts: x (B, H, rows, width). y a cache (B, H, capacity, width), or (pages, H, page_keys, width) with PAGED,
//     or with CACHE 0 like x. cosines and sines float32 (positions, pairs). Last axes contiguous, all other strides are
//     arguments. parameters: uint32, of which samples + 4 b + 3 is the number of keys of sample b with the new rows counted,
//     and pages + b pages_batch + n the page of its keys from n page_keys on.
// Bindings: 0 x, 1 parameters, 2 cosines, 3 sines, 4 y.
// Specialization constants: 0 ROTARY (rotary.glsl),
//     1 LENGTHS (1: sample b's first new key is at its number of keys less `fresh`, 0: at `start`), 2 PAGED, 3 CACHE.
// Push constants: see the block; offsets and strides in elements of the array they belong to.
// Workgroup: 32 pairs (or elements of the rest) of ROWS rows of one head (z = head + heads * batch). Invocation: one.
// Accumulation: float32.
// Preconditions: 2 * pairs <= width; all keys fit in the cache; the tables have a row for every position.

#include "elements.glsl"
#include "rotary.glsl"

layout(local_size_x = 32, local_size_y = ROWS) in;

layout(constant_id = 0) const int ROTARY = 0;
layout(constant_id = 1) const int LENGTHS = 0;
layout(constant_id = 2) const int PAGED = 0;
layout(constant_id = 3) const int CACHE = 1;

layout(push_constant, std430) uniform Push {
    uint x_offset, x_batch, x_head, x_row;
    uint y_offset, y_batch, y_head, y_row;
    uint y_page, page_keys;
    uint samples, pages, pages_batch;
    uint cos_offset, cos_row, sin_offset, sin_row;
    uint start, fresh;
    uint advance;  // 0: all rows of a sample are rotated as the first
    uint rows, pairs, width, heads;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Rows { IO_SCALAR x_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Parameters { uint parameters[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Cosines { float cosines[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Sines { float sines[]; };
layout(set = 0, binding = 4, std430) restrict writeonly buffer Cache { IO_SCALAR y_data[]; };

void main() {
    uint item = gl_GlobalInvocationID.x;
    uint row = gl_GlobalInvocationID.y;
    uint head = gl_WorkGroupID.z % pc.heads;
    uint batch = gl_WorkGroupID.z / pc.heads;
    uint pairs = ROTARY == 0 ? 0u : pc.pairs;
    if (item >= pc.width - pairs || row >= pc.rows) return;
    uint first_key = LENGTHS == 1 ? parameters[pc.samples + 4u * batch + 3u] - pc.fresh : pc.start;
    uint key = CACHE == 1 ? first_key + row : row;
    uint y_row = pc.y_offset + head * pc.y_head;
    if (PAGED == 1) {
        y_row += parameters[pc.pages + batch * pc.pages_batch + key / pc.page_keys] * pc.y_page + key % pc.page_keys * pc.y_row;
    } else {
        y_row += batch * pc.y_batch + key * pc.y_row;
    }
    uint x_row = pc.x_offset + batch * pc.x_batch + head * pc.x_head + row * pc.x_row;
    if (item >= pairs) {
        y_data[y_row + item + pairs] = x_data[x_row + item + pairs];
        return;
    }
    uint position = first_key + row * pc.advance;
    float c = cosines[pc.cos_offset + position * pc.cos_row + item];
    float s = sines[pc.sin_offset + position * pc.sin_row + item];
    uint first = ROTARY == ROTARY_INTERLEAVED ? 2u * item : item;
    uint second = ROTARY == ROTARY_INTERLEAVED ? first + 1u : item + pairs;
    float a = IO_LOAD(x_data[x_row + first]);
    float b = IO_LOAD(x_data[x_row + second]);
    y_data[y_row + first] = IO_STORE(a * c - b * s);
    y_data[y_row + second] = IO_STORE(b * c + a * s);
}
