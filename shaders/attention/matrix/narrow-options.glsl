// What attention/extras.glsl has, where an invocation holds one query and all scores of a chunk of keys: which of them it sees
// is one word of bits. What is read is under way before the products, what follows from indices is found after them.
//
// The including shader has `s`, scores of CHUNK keys (at most 32) in accumulators of ELEMENTS, my_row(), and team_row(), the
// subgroup's first row. score-mod.glsl changes the scores.

#include "tiles-options.glsl"

uint bit_row;    // where in tiles_data the bits of the invocation's row begin
uint block_row;  // where in extra_data, counted in bytes, the map has what the row sees

uint held_row() { return min(my_row(), QUERIES - 1u); }

void read_places() {
    if (MASK_IS_BITS) {
        bit_row = parameter(MASK_BITS) + batch * parameter(MASK_BITS_BATCH) + head * parameter(MASK_BITS_HEAD) + held_row() * parameter(MASK_BITS_ROW);
    }
    if (on(BLOCKS)) {
        block_row = 4u * parameter(BLOCK_MAP) + x_batch * parameter(BLOCK_BATCH) + x_head * parameter(BLOCK_HEAD)
                  + (x_first_row + held_row()) / parameter(BLOCK_Q) * parameter(BLOCK_ROW);
    }
}

// The block's byte in the map, for a key.
bool sees_block(uint key) {
    uint at = block_row + (x_first_key + key) / parameter(BLOCK_KV);
    return (extra_data[at >> 2] >> ((at & 3u) * 8u) & 0xffu) != 0u;
}

// Which keys of a chunk the invocation's row sees as far as a mask, segments and blocks say, a bit each.
uint read_bits(uint first_key) {
    uint bits = 0xffffffffu, last = end - 1u;
    if (MASK_IS_BITS) {
        uint key = min(first_key, last);
        bits = tiles_data[bit_row + key / 32u] >> key % 32u;
    }
    // As many words as a chunk has fours of keys, all under way at once.
    bool fours = false;
    uint mask_place = mask_index(batch, head, held_row());
    if (MASK == MASK_BOOLEAN && !MASK_IS_BITS) {
        fours = pc.mask_key == 1u && ((mask_index(batch, head, 0u) | pc.mask_row) & 3u) == 0u;
        if (fours) {
            uint held[CHUNK / 4];
            [[unroll]] for (uint n = 0u; n < CHUNK / 4u; ++n) {
                held[n] = mask_data[(mask_place + min(first_key + 4u * n, last & ~3u)) >> 2];
            }
            bits = 0u;
            [[unroll]] for (uint n = 0u; n < CHUNK / 4u; ++n) bits |= four_bits(held[n]) << 4u * n;
        }
    }
    bool by_key = MASK == MASK_BOOLEAN && !MASK_IS_BITS && !fours, by_block = on(BLOCKS);
    if (on(BLOCKS) && (parameter(BLOCK_KV) | x_first_key) % CHUNK == 0u) {
        by_block = false;
        if (!sees_block(min(first_key, last))) bits = 0u;
    }
    if (by_key || by_block || on(SEGMENTS)) {
        uint q_id = 0u, k_ids = 0u;
        if (on(SEGMENTS)) {
            q_id = extra_data[parameter(Q_SEGMENTS) + x_batch * parameter(Q_SEGMENTS_BATCH) + x_first_row + held_row()];
            k_ids = parameter(K_SEGMENTS) + x_batch * parameter(K_SEGMENTS_BATCH) + x_first_key;
        }
        uint hidden = 0u;
        [[dont_unroll]] for (uint n = 0u; n < CHUNK; n += 8u) {
            [[unroll]] for (uint c = 0u; c < 8u; ++c) {
                uint key = min(first_key + n + c, last), bit = 1u << n + c;
                if (on(SEGMENTS)) hidden |= extra_data[k_ids + key] != q_id ? bit : 0u;
                if (by_key) hidden |= mask_bias(mask_place + key * pc.mask_key) != 0.0 ? bit : 0u;
                if (by_block) hidden |= sees_block(key) ? 0u : bit;
            }
        }
        bits &= ~hidden;
    }
    return bits;
}

// The lowest `count` bits.
uint lowest(int count) { return count <= 0 ? 0u : 0xffffffffu >> uint(32 - min(count, 32)); }

// Which keys of a chunk a row sees as far as indices say.
uint range_bits(uint first_key) {
    int row = int(my_row()), last = int(end) - 1;
    if (CAUSAL != 0) last = min(last, row + SHIFT);
    uint bits = lowest(last + 1 - int(first_key));
    if (on(WINDOW)) bits &= ~lowest(row + BASE_SHIFT - x_left - int(first_key));
    if (on(PREFIX)) bits |= lowest(int(min(x_prefix, end)) - int(first_key));
    if (on(LENGTHS) && row >= x_rows_seeing) bits = 0u;
    return bits;
}

// Minus infinity for hidden keys, whatever their scores were.
void apply_mask_mod(uint bits) {
    [[unroll]] for (uint f = 0u; f < CHUNK / 8; ++f) {
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            uint kept = uint(bitfieldExtract(int(bits), int(8u * f + e), 1));
            s[f][e] = uintBitsToFloat(floatBitsToUint(s[f][e]) & kept | ~kept & 0xff800000u);
        }
    }
}

// Of which keys of a chunk dropout keeps the weights. A generator's words are those of sixteen keys of the call, of which
// a dispatch may begin with any.
uint find_kept(uint first_key) {
    uint whole = x_first_key + first_key, off = whole & 15u, kept = 0u;
    [[dont_unroll]] for (uint n = 0u; n < CHUNK + off; n += 16u) {
        uvec4 counter = drop_counter((whole + n) / 16u, my_row());
        uvec4 words = philox(counter, drop_seed());
        uint sixteen = 0u;
        [[dont_unroll]] for (uint w = 0u; w < 4u; ++w) {  // one after another: registers are few
            sixteen |= kept_four(words.x, words.y, parameter(KEEP_BELOW)) << 4u * w;
            words = words.yzwx;
        }
        kept |= n < off ? sixteen >> off : sixteen << n - off;
    }
    return kept;
}
