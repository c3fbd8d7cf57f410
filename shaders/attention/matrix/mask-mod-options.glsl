// mask_mod: keys by bits (visible-keys.glsl), by a function of users, and by indices.

#ifdef FUNCTIONS
void apply_mask_function(uint first_key);  // function-mods.glsl
#endif

// Minus infinity for hidden keys, whatever their scores were, so that the weight is zero whatever the maximum.
void apply_mask_mod(uint first_key, uint chunk, bool read) {
    bool look = HAS_MASK_MOD && read, inside = is_inside(first_key);
#ifdef FUNCTIONS
    if (on(MASK_FUNCTION) && !LOOKS_UP && read) apply_mask_function(first_key + chunk);
    look = look && (LOOKS_UP || MASK_IS_BITS);
#endif
    if (!look && inside) return;
    float never = minus_infinity();
    const uint words = (CHUNK + SPAN - 1) / SPAN;
    uint bits[RF * HELD_ROWS * words];
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
            [[unroll]] for (uint n = 0u; n < words; ++n) {
                uint w = chunk / SPAN + n, all = 0xffffffffu;
                if (MASK_IS_BITS && look) all = mask_keys[i][r][w];
                if (LOOKS_UP && look) all &= seen_keys[i][r][w];
                bits[(i * HELD_ROWS + r) * words + n] = all;
            }
        }
    }
    if (!inside) {
        [[unroll]] for (uint n = 0u; n < RF * HELD_ROWS * words; ++n) {
            uint row = MY_ROW + n / (HELD_ROWS * words) * MATRIX_M + ROW_HELD(n / words % HELD_ROWS);
            bits[n] &= range_bits(row, first_key + (chunk / SPAN + n % words) * SPAN);
        }
    }
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                uint at = chunk % SPAN + f * MATRIX_N;
                uint held = bits[(i * HELD_ROWS + HELD_ROW(e)) * words + at / SPAN] >> (COLUMN_HELD(HELD_ROW(e)) + at % SPAN);
                s_frag[i][f][e] = (held & (1u << COLUMN_PAST(e))) == 0u ? never : s_frag[i][f][e];
            }
        }
    }
}
