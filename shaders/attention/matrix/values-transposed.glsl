// Values with queries in columns (form-transposed.glsl): fetched by pairs of keys, stored transposed; and weights as factors.

// Lanes that hold the same elements of a factor.
uint factor_copies() {
    FACTOR_B any_factor;
    return uint(any_factor.length()) / ELEMENTS;
}
// Which of a fragment's keys lies in a row of shared memory.
uint held_at(uint row) { return factor_copies() == 1u ? row : 8u * (row % (MATRIX_M / 8)) + row / (MATRIX_M / 8); }

// Two keys an invocation and word of v, so that pairs of them can be stored as one word; neighbours take neighbouring keys,
// which lie in neighbouring banks of shared memory.
void fetch_values(uint first_key) {
    [[unroll]] for (uint n = 0u; n < HELD_VALUES / 2; ++n) {
        uint e = thread + n * THREADS, key = 2u * (e % (KEYS / 2)), word = e / (KEYS / 2);
        if (VALUE_PAIRS % THREADS == 0 || e < VALUE_PAIRS) {
            held_v[2u * n] = fetch_value(first_key, key * V8 + word);
            held_v[2u * n + 1u] = fetch_value(first_key, (key + 1u) * V8 + word);
        }
    }
}
void store_values(uint start, bool masked) {
    bool in_turns = factor_copies() != 1u;
    uvec4 carried = uvec4(0u);
    uint step = in_turns ? MATRIX_M / 8 : 1u;
    [[unroll]] for (uint n = 0u; n < HELD_VALUES / 2; ++n) {
        uint e = thread + n * THREADS, pair = e % (KEYS / 2), word = e / (KEYS / 2);
        if (VALUE_PAIRS % THREADS == 0 || e < VALUE_PAIRS) {
            uvec4 a = held_v[2u * n], b = held_v[2u * n + 1u];
            uint part = word % (MATRIX_M / 8), row = word / (MATRIX_M / 8) * MATRIX_M + (in_turns ? part : 8u * part);
            [[unroll]] for (uint c = 0u; c < 8u; ++c) {
                uint both = c % 2u == 0u ? a[c / 2u] & 0xffffu | b[c / 2u] << 16 : a[c / 2u] >> 16 | b[c / 2u] & 0xffff0000u;
                tile[start + (row + c * step) * V_STRIDE + pair / 4u][pair % 4u] = both;
            }
            if (masked) carried |= carried_exponents(a) | carried_exponents(b);
        }
    }
    if (masked && found_non_finite(carried)) poisoned = 1u;
}
FACTOR_A value_factor(uint start, uint f, uint c) {
    FACTOR_A v;
    coopMatLoad(v, tile, start + c * MATRIX_M * V_STRIDE + f * (MATRIX_K / 8), V_STRIDE, ROW_MAJOR);
    return v;
}

// The weights of an accumulator, by pairs, as a factor.
FACTOR_B weight_factor(uint pairs[ELEMENTS / 2]) {
    FACTOR_B p;
#if TURN_SHARED
    uint scratch = SCRATCH_START + subgroup * SCRATCH_VECTORS;
    tile[scratch + lane % MATRIX_N * Q_STRIDE + lane / MATRIX_N] = uvec4(pairs[0], pairs[1], pairs[2], pairs[3]);
    SYNC_SUBGROUP;
    coopMatLoad(p, tile, scratch, Q_STRIDE, COLUMN_MAJOR);
    SYNC_SUBGROUP;
#else
    if (factor_copies() == 1u) {
        [[unroll]] for (uint n = 0u; n < ELEMENTS / 2; ++n) {
            f16vec2 pair = unpackFloat2x16(pairs[n]);
            p[2u * n] = pair.x;
            p[2u * n + 1u] = pair.y;
        }
    } else {
        [[unroll]] for (uint n = 0u; n < ELEMENTS / 2; ++n) {
            uint other = subgroupShuffleXor(pairs[n], MATRIX_N);
            f16vec2 low = unpackFloat2x16(lane < MATRIX_N ? pairs[n] : other);
            f16vec2 high = unpackFloat2x16(lane < MATRIX_N ? other : pairs[n]);
            p[2u * n] = low.x;
            p[2u * n + 1u] = low.y;
            p[ELEMENTS + 2u * n] = high.x;
            p[ELEMENTS + 2u * n + 1u] = high.y;
        }
    }
#endif
    return p;
}
