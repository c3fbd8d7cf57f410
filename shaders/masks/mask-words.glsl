// Reads a boolean mask 32 keys at a time. The including shader has mask_data (words), mask_fours (the same as uvec4), and
// pc.mask_key, the bytes from one key to the next.

#include "mask-bits.glsl"

uint bit_at(uint at) {
    return (mask_data[at >> 2] >> ((at & 3u) * 8u) & 0xffu) != 0u ? 1u : 0u;
}

// Bit n is whether the nth of `count` keys (1 to 32) is seen; the first one's byte is `at`.
uint mask_word(uint at, uint count) {
    uint result = 0u;
    if (pc.mask_key == 0u) {
        result = bit_at(at) != 0u ? 0xffffffffu : 0u;
    } else if (pc.mask_key == 1u && (at & 15u) == 0u && count == 32u) {
        uvec4 first = mask_fours[at >> 4], second = mask_fours[(at >> 4) + 1u];
        [[unroll]] for (uint n = 0u; n < 4u; ++n) result |= four_bits(first[n]) << (4u * n) | four_bits(second[n]) << (4u * n + 16u);
    } else if (pc.mask_key == 1u && (at & 3u) == 0u) {
        uint held[8];
        [[unroll]] for (uint n = 0u; n < 8u; ++n) held[n] = mask_data[(at >> 2) + min(n, (count - 1u) >> 2)];
        [[unroll]] for (uint n = 0u; n < 8u; ++n) result |= four_bits(held[n]) << (4u * n);
    } else {
        [[dont_unroll]] for (uint n = 0u; n < count; ++n) result |= bit_at(at + n * pc.mask_key) << n;
    }
    return result & (0xffffffffu >> (32u - count));
}
