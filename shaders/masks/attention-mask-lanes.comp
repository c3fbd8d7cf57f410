#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: a boolean mask, and with CAUSAL what causality masks beside it, as bits in the order in which lanes hold the
//     scores that an attention kernel masks, and which tiles are hidden as a whole.
// Shapes and layouts: the mask as in attention/attention.glsl; out uint, first a class for each tile, 0 hidden and 1 not, as
//     (batches, heads, row tiles, key tiles), then, from word pc.start on, (batches, heads, units of rows, units of keys, LANES)
//     in C order, of the batches and heads in which the mask differs (1 where it is broadcast). A unit is UNIT_ROWS rows and
//     UNIT_KEYS keys, four matrices side by side, of which a lane has a word. Rows past the last one are copies of it, keys past
//     the last one hidden.
// Bindings: 0 mask, 1 out.
// Specialization constants: 0 ROWS and 1 KEYS of a tile, multiples of a unit's. 2 CAUSAL: query i sees keys up to
//     i + causal_shift, of a mask whose rows differ.
// Defines: ORDER, as in matrix/flash.glsl. 1: element e of lane L is row L / 4 + 8 (e / 4), column
//     2 (L % 4) + e % 2 + 8 (e / 2 % 2) of a 16 x 16 matrix; in matrix n of a unit it is bit 8 (n / 2) + 16 (n % 2) + e. 2: row e,
//     column L of an 8 x 8 matrix; bit 8 n + e.
// Push constants: see the block; offset and strides in bytes. unit_rows and unit_keys count units, of the whole mask.
// Workgroup: a tile of keys (x) and rows (y) of one head (z = head + heads * batch). Invocation: the lanes that share rows.
// Accumulation: none.
// Preconditions: the mask's binding spans whole words.

layout(local_size_x = THREADS) in;

layout(constant_id = 0) const uint ROWS = 64;
layout(constant_id = 1) const uint KEYS = 64;
layout(constant_id = 2) const int CAUSAL = 0;

layout(push_constant, std430) uniform Push {
    uint mask_offset, mask_batch, mask_head, mask_row, mask_key;
    uint rows, keys, heads, unit_rows, unit_keys, start;
    int causal_shift;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer Mask { uint mask_data[]; };
layout(set = 0, binding = 0, std430) readonly buffer MaskFours { uvec4 mask_fours[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Words { uint words[]; };

#include "mask-words.glsl"

#if ORDER == 1
#define UNIT_ROWS 16u
#define UNIT_KEYS 64u
#define LANES 32u
#define SHARING 4u  // lanes that have the same rows
#define HELD 2u     // rows that a lane has
#else
#define UNIT_ROWS 8u
#define UNIT_KEYS 32u
#define LANES 8u
#define SHARING 8u
#define HELD 8u
#endif
#define GROUPS (LANES / SHARING)
#define ROW_WORDS (UNIT_KEYS / 32u)

shared uint open;

void main() {
    uint head = gl_WorkGroupID.z % pc.heads, batch = gl_WorkGroupID.z / pc.heads;
    uint base = pc.mask_offset + batch * pc.mask_batch + head * pc.mask_head;
    uint tile_unit_row = gl_WorkGroupID.y * (ROWS / UNIT_ROWS), tile_unit_key = gl_WorkGroupID.x * (KEYS / UNIT_KEYS);
    if (gl_LocalInvocationIndex == 0u) open = 0u;
    barrier();
    uint any_ = 0u;
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < ROWS / UNIT_ROWS * GROUPS * (KEYS / UNIT_KEYS); n += THREADS) {
        uint group = n % GROUPS, unit_key = tile_unit_key + n / GROUPS % (KEYS / UNIT_KEYS);
        uint unit_row = tile_unit_row + n / GROUPS / (KEYS / UNIT_KEYS);
        if (unit_row >= pc.unit_rows || unit_key >= pc.unit_keys) continue;
        uint bits[HELD * ROW_WORDS];
        [[unroll]] for (uint r = 0u; r < HELD; ++r) {
            uint row = min(unit_row * UNIT_ROWS + group + r * GROUPS, pc.rows - 1u);
            [[unroll]] for (uint w = 0u; w < ROW_WORDS; ++w) {
                uint key = unit_key * UNIT_KEYS + 32u * w, at = base + row * pc.mask_row + key * pc.mask_key;
                int end = CAUSAL == 0 ? int(pc.keys) : min(int(pc.keys), int(row) + pc.causal_shift + 1);
                int count = min(end - int(key), 32);  // leading keys of the word that there are and causality shows
                bits[r * ROW_WORDS + w] = count > 0 ? mask_word(at, uint(count)) : 0u;
                any_ |= bits[r * ROW_WORDS + w];
            }
        }
        uint to = pc.start + ((gl_WorkGroupID.z * pc.unit_rows + unit_row) * pc.unit_keys + unit_key) * LANES + group * SHARING;
        [[unroll]] for (uint c = 0u; c < SHARING; ++c) {
            uint result = 0u;
#if ORDER == 1
            // Two matrices lie side by side in a word of a row: their bits end up in its lower and its upper half.
            [[unroll]] for (uint r = 0u; r < HELD * ROW_WORDS; ++r) {
                uint from = bits[r] >> (2u * c);
                uint four = (from & 0x00030003u) | (from >> 6 & 0x000c000cu);
                result |= four << (4u * (r / ROW_WORDS) + 8u * (r % ROW_WORDS));
            }
#else
            [[unroll]] for (uint r = 0u; r < HELD; ++r) result |= (bits[r] >> c & 0x01010101u) << r;
#endif
            words[to + c] = result;
        }
    }
    if (any_ != 0u) atomicOr(open, 1u);
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
        words[(gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y) * gl_NumWorkGroups.x + gl_WorkGroupID.x] = open;
    }
}
