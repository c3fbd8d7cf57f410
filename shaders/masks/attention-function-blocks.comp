#version 450
#extension GL_GOOGLE_include_directive : require
// What it computes: the class of every block of ROWS queries and KEYS keys by a mask function of the user's, which fills the hole
//     hole_mask of attention/functions.glsl. 0: it hides every pair of the block. 2: it hides none. 1: it hides some.
// Shapes and layouts: out uint (batches, heads, row blocks, key blocks) in C order.
// Bindings: 0 words that the function reads, 1 out.
// Specialization constants: 0 ROWS, 1 KEYS.
// Push constants: words is the place of the words that say where tensors lie; the dispatch begins at block first_row_block.
// Workgroup: one block (x: of keys, y: of queries) of one head (z = head + heads * batch). Invocation: every THREADS-th pair.
// Accumulation: none.
// Preconditions: none.

layout(local_size_x = THREADS) in;

layout(constant_id = 0) const uint ROWS = 64;
layout(constant_id = 1) const uint KEYS = 64;

layout(push_constant, std430) uniform Push {
    uint words, queries, keys, heads, row_blocks, key_blocks, first_row_block;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Extra { uint extra_data[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer BlockClasses { uint classes[]; };

// What attention/functions.glsl asks for.
uint x_batch, x_head, x_first_row, x_first_key;
uint parameter(uint n) { return pc.words; }
#define WITHOUT_SCORES
#include "attention/functions.glsl"

// constants: tiles
const uint TILE_EMPTY = 0u, TILE_PARTIAL = 1u, TILE_FULL = 2u;

const uint SEEN = 1u, HIDDEN = 2u;
shared uint found;

void main() {
    uint row_block = pc.first_row_block + gl_WorkGroupID.y, key_block = gl_WorkGroupID.x;
    x_batch = gl_WorkGroupID.z / pc.heads;
    x_head = gl_WorkGroupID.z % pc.heads;
    x_first_row = row_block * ROWS;
    x_first_key = key_block * KEYS;
    if (gl_LocalInvocationIndex == 0u) found = 0u;
    barrier();
    uint rows = min(ROWS, pc.queries - x_first_row), keys = min(KEYS, pc.keys - x_first_key);
    uint own = 0u;
    for (uint n = gl_LocalInvocationIndex; n < rows * keys; n += THREADS) {
        own |= function_sees(n / keys, n % keys) ? SEEN : HIDDEN;
    }
    atomicOr(found, own);
    barrier();
    if (gl_LocalInvocationIndex != 0u) return;
    uint at = (gl_WorkGroupID.z * pc.row_blocks + row_block) * pc.key_blocks + key_block;
    classes[at] = found == SEEN ? TILE_FULL : found == HIDDEN ? TILE_EMPTY : TILE_PARTIAL;
}
