#version 450
#extension GL_EXT_control_flow_attributes : require
// What it computes: the class of every tile of ROWS queries and KEYS keys, from what masks pairs of them by data: a mask,
//     a map of blocks, segment ids. 0: no pair of the tile may be attended to. 2: every pair may be, and an additive
//     mask is zero on all of them. 1: anything else; also where no input masks the whole tile, and all together do.
// Shapes and layouts: the mask as in attention/attention.glsl; map and ids as in attention/extras.glsl, whose header's words
//     are push constants here; out uint (batches, heads, row tiles, key tiles) in C order.
// Compiled with CLASSES the map has classes of blocks, of a mask function (attention-function-blocks.comp).
// Bindings: 0 mask, 1 words of extras.glsl, 2 out.
// Specialization constants: 0 MASK as in attention/attention.glsl, 1 FEATURES of extras.glsl (SEGMENTS and BLOCKS count),
//     2 ROWS, 3 KEYS, 4 LANES.
// Push constants: see the block; offsets and strides in elements.
// Workgroup: THREADS / LANES neighbouring tiles of keys (x) of one tile of queries (y) of one head (z = head + heads *
//     batch). Invocation: every LANES-th part of a tile, LANES a power of two up to THREADS.
// Accumulation: none.
// Preconditions: the mask's binding spans whole words.

layout(local_size_x = THREADS) in;

layout(constant_id = 0) const int MASK = 0;
layout(constant_id = 1) const int FEATURES = 0;
layout(constant_id = 2) const uint ROWS = 64;
layout(constant_id = 3) const uint KEYS = 32;
layout(constant_id = 4) const uint LANES = 32;

// constants: features
const int SEGMENTS = 128, BLOCKS = 512;

// constants: tiles
const uint TILE_EMPTY = 0u, TILE_PARTIAL = 1u, TILE_FULL = 2u;

// constants: masks
const int MASK_BOOLEAN = 1;

// constants: numbers
const float MASK_FLOOR = -3.0e38;

layout(push_constant, std430) uniform Push {
    uint mask_offset, mask_batch, mask_head, mask_row, mask_key;
    uint queries, keys, heads, row_tiles, key_tiles;
    uint first_batch, first_head, first_row, first_key;  // of the whole call
    uint block_map, block_batch, block_head, block_row, block_q, block_kv;
    uint q_segments, q_segments_batch, k_segments, k_segments_batch;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Mask { uint mask_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Extra { uint extra_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer TileClasses { uint classes[]; };

// What was found in a tile: for the mask, then for the map, whether some pair is OPEN and whether some is not plainly so.
const uint OPEN = 1u, CLOSED = 2u, BLOCK_OPEN = 4u, BLOCK_CLOSED = 8u;
shared uint found[THREADS];
shared int least[2 * THREADS];  // ids of queries and of keys
shared int most[2 * THREADS];

// Four bytes of a boolean mask at once; `valid` has the highest bit of each byte that belongs to the tile.
uint bytes_found(uint word, uint valid) {
    uint open = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & valid;
    return (open != 0u ? OPEN : 0u) | (open != valid ? CLOSED : 0u);
}

uint value_found(uint at) {
    if (MASK == MASK_BOOLEAN) return (mask_data[at >> 2] >> ((at & 3u) * 8u) & 0xffu) != 0u ? OPEN : CLOSED;
    uint bits = mask_data[at];
    if ((bits << 1) == 0u) return OPEN;
    return uintBitsToFloat(bits) < MASK_FLOOR ? CLOSED : OPEN | CLOSED;
}

// Walks the tile's part of the mask along the axis that lies end to end in memory, a word at a time.
uint mask_found(uint lane, uint base, uint rows, uint keys) {
    if (pc.mask_row == 0u) rows = 1u;
    if (pc.mask_key == 0u) keys = 1u;
    bool along_rows = pc.mask_row == 1u && pc.mask_key != 1u;
    uint inner = along_rows ? rows : keys, outer = along_rows ? keys : rows;
    uint inner_stride = along_rows ? pc.mask_row : pc.mask_key, outer_stride = along_rows ? pc.mask_key : pc.mask_row;
    bool words = MASK == MASK_BOOLEAN && inner_stride == 1u;
    // A run of bytes lies in one word more where it may begin within one.
    uint steps = !words ? inner : ((base | outer_stride) & 3u) == 0u ? (inner + 3u) / 4u : (inner + 6u) / 4u;
    uint o = lane / steps, i = lane % steps, o_stride = LANES / steps, i_stride = LANES % steps;
    uint result = 0u;
    [[dont_unroll]] while (o < outer) {
        [[unroll]] for (uint n = 0u; n < 4u; ++n) {
            uint first = base + min(o, outer - 1u) * outer_stride;  // seeing a pair twice changes nothing
            if (words) {
                uint end = first + inner, at = min((first >> 2) + i, (end - 1u) >> 2);
                uint before = first > 4u * at ? first - 4u * at : 0u, after = 4u * at + 4u > end ? 4u * at + 4u - end : 0u;
                result |= bytes_found(mask_data[at], (0x80808080u << 8u * before) & (0x80808080u >> 8u * after));
            } else {
                result |= value_found(first + i * inner_stride);
            }
            o += o_stride;
            i += i_stride;
            if (i >= steps) {
                i -= steps;
                ++o;
            }
        }
        if (result == (OPEN | CLOSED)) break;  // the tile is mixed, whatever follows
    }
    return result;
}

uint blocks_found(uint lane, uint batch, uint head, uint row, uint rows, uint key, uint keys) {
    row += pc.first_row;
    key += pc.first_key;
    uint top = row / pc.block_q, left = key / pc.block_kv;
    uint high = (row + rows - 1u) / pc.block_q - top + 1u, wide = (key + keys - 1u) / pc.block_kv - left + 1u;
    uint base = (pc.first_batch + batch) * pc.block_batch + (pc.first_head + head) * pc.block_head + top * pc.block_row + left;
    uint result = 0u;
    [[dont_unroll]] for (uint n = lane; n < high * wide; n += LANES) {
        uint at = base + n / wide * pc.block_row + n % wide;
#ifdef CLASSES
        uint block = extra_data[pc.block_map + (at >> 2)] >> ((at & 3u) * 8u) & 0xffu;
        if (block != TILE_FULL) result |= BLOCK_CLOSED;
        if (block != TILE_EMPTY) result |= BLOCK_OPEN;
#else
        bool open = (extra_data[pc.block_map + (at >> 2)] >> ((at & 3u) * 8u) & 0xffu) != 0u;
        result |= open ? BLOCK_OPEN : BLOCK_CLOSED;
#endif
    }
    return result;
}

// The range of the ids of a tile's queries (side 0) or keys (side 1), into shared memory.
void range_ids(uint lane, uint place, uint first, uint count) {
    int low = 0x7fffffff, high = int(0x80000000u);
    [[dont_unroll]] for (uint n = lane; n < count; n += LANES) {
        int id = int(extra_data[first + n]);
        low = min(low, id);
        high = max(high, id);
    }
    atomicMin(least[place], low);
    atomicMax(most[place], high);
}

void main() {
    uint thread = gl_LocalInvocationIndex, lane = thread % LANES, slot = thread / LANES;
    uint head = gl_WorkGroupID.z % pc.heads, batch = gl_WorkGroupID.z / pc.heads;
    uint row_tile = gl_WorkGroupID.y, key_tile = gl_WorkGroupID.x * (THREADS / LANES) + slot;
    bool inside = key_tile < pc.key_tiles;
    found[thread] = 0u;
    least[thread] = least[THREADS + thread] = 0x7fffffff;
    most[thread] = most[THREADS + thread] = int(0x80000000u);
    barrier();
    if (inside) {
        uint row = row_tile * ROWS, key = key_tile * KEYS;
        uint rows = min(ROWS, pc.queries - row), keys = min(KEYS, pc.keys - key);
        uint result = 0u;
        if (MASK != 0) {
            uint base = pc.mask_offset + batch * pc.mask_batch + head * pc.mask_head;
            result = mask_found(lane, base + row * pc.mask_row + key * pc.mask_key, rows, keys);
        }
        if ((FEATURES & BLOCKS) != 0) result |= blocks_found(lane, batch, head, row, rows, key, keys);
        atomicOr(found[slot], result);
        if ((FEATURES & SEGMENTS) != 0) {
            uint whole = pc.first_batch + batch;
            range_ids(lane, slot, pc.q_segments + whole * pc.q_segments_batch + pc.first_row + row, rows);
            range_ids(lane, THREADS + slot, pc.k_segments + whole * pc.k_segments_batch + pc.first_key + key, keys);
        }
    }
    barrier();
    if (!inside || lane != 0u) return;
    uint result = found[slot];
    bool hidden = (MASK != 0 && (result & OPEN) == 0u) || ((FEATURES & BLOCKS) != 0 && (result & BLOCK_OPEN) == 0u);
    bool seen = (result & (CLOSED | BLOCK_CLOSED)) == 0u;
    if ((FEATURES & SEGMENTS) != 0) {
        int q_low = least[slot], q_high = most[slot], k_low = least[THREADS + slot], k_high = most[THREADS + slot];
        hidden = hidden || q_high < k_low || k_high < q_low;
        seen = seen && q_low == q_high && k_low == k_high && q_low == k_low;
    }
    uint at = (gl_WorkGroupID.z * pc.row_tiles + row_tile) * pc.key_tiles + key_tile;
    classes[at] = hidden ? TILE_EMPTY : seen ? TILE_FULL : TILE_PARTIAL;
}
