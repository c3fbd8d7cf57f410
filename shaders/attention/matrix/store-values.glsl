// Store: a tile's words of v, from registers into shared memory; whether those that some query may not see are finite.

void store_values(uint start, bool masked) {
    uvec4 carried = uvec4(0u);
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        if (HAS_V(n)) {
            tile[start + V_WORD(n)] = held_v[n];
            if (masked) carried |= carried_exponents(held_v[n]);
        }
    }
    if (masked && found_non_finite(carried)) poisoned = 1u;
}
