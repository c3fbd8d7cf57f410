// mask_mod: which keys of a tile each row sees, and of which dropout keeps the weight, a bit each.

// Bits of rows: SPAN keys a word, WORDS words a row.
#if KEYS < SUBGROUP
#define SPAN KEYS
#else
#define SPAN SUBGROUP
#endif
#define WORDS (KEYS / SPAN)
#define QUARTERS (KEYS / 4)  // groups of four keys of a row
#define ROUNDS (ROWS_EACH * QUARTERS / SUBGROUP)
#define AT_ONCE (ROUNDS < 8 ? ROUNDS : 8)
#if SPAN == 32
#define GATHER_STEPS 3u
#elif SPAN == 16
#define GATHER_STEPS 2u
#else
#define GATHER_STEPS 1u
#endif

uint seen_keys[RF][HELD_ROWS][WORDS];  // which keys of a tile the lane's rows see, as far as is looked up
uint mask_keys[RF][HELD_ROWS][WORDS];  // as far as a mask made bits says
uint kept_keys[RF][HELD_ROWS][WORDS];  // which of their weights dropout keeps

uint bit_rows[RF][HELD_ROWS];    // where in tiles_data the bits of the lane's rows begin
uint block_rows[RF][HELD_ROWS];  // where in extra_data, counted in bytes, the map has what the lane's rows see
uint block_columns;              // keys of a block

// Here and not for each tile: loads whose places follow from others could not begin before those are there.
void read_places() {
    if (MASK_IS_BITS) {
        uint head_bits = parameter(MASK_BITS) + batch * parameter(MASK_BITS_BATCH) + head * parameter(MASK_BITS_HEAD);
        FIND_PLACES
        EACH_HELD_ROW {
            uint row = min(MY_ROW + i * MATRIX_M + ROW_HELD(r), QUERIES - 1u);
            bit_rows[i][r] = head_bits + row * parameter(MASK_BITS_ROW);
        }
    }
    if (on(BLOCKS)) {
        block_columns = parameter(BLOCK_KV);
        uint map = 4u * parameter(BLOCK_MAP) + x_batch * parameter(BLOCK_BATCH) + x_head * parameter(BLOCK_HEAD);
        FIND_PLACES
        EACH_HELD_ROW {
            uint row = x_first_row + min(MY_ROW + i * MATRIX_M + ROW_HELD(r), QUERIES - 1u);
            block_rows[i][r] = map + row / parameter(BLOCK_Q) * parameter(BLOCK_ROW);
        }
    }
}

// Whether the keys of a word of bits lie in one block of the map, and nothing else has to be looked up for each.
bool blocks_are_words() {
#ifdef FUNCTIONS
    if (on(MASK_FUNCTION)) return false;
#endif
    if (!on(BLOCKS) || on(SEGMENTS) || (MASK == MASK_BOOLEAN && !MASK_IS_BITS)) return false;
    return (block_columns | x_first_key) % SPAN == 0u;
}

// Four bits of each lane, for lanes that follow each other in a row, become the row's words in the scratch memory.
void gather_bits(uint round, uint four) {
    uint bits = four << (4u * (lane % (SPAN / 4)));
    [[unroll]] for (uint n = 0u; n < GATHER_STEPS; ++n) bits |= subgroupShuffleXor(bits, 1u << n);
    uint at = (round * SUBGROUP + lane) / (SPAN / 4);
    if (lane % (SPAN / 4) == 0u) tile[MY_SCRATCH + at / 4u][at % 4u] = bits;
}
#define ROUND_ROW(round) (MY_ROW + ((round) * SUBGROUP + lane) / QUARTERS)
#define ROUND_KEY(round) (first_key + 4u * (((round) * SUBGROUP + lane) % QUARTERS))
// The word of the bits of row `row` of the subgroup.
#define BITS(row, w) tile[MY_SCRATCH + ((row) * WORDS + (w)) / 4u][((row) * WORDS + (w)) % 4u]

// Which keys of a tile the rows see as far as it is read.
void read_bits(uint first_key) {
    SYNC_SUBGROUP;
    uint mask_place = mask_index(batch, head, 0u);
    if (MASK == MASK_BOOLEAN && (FEATURES & BY_KEY) == 0 && pc.mask_key == 1u
        && ((mask_place | pc.mask_row) & 3u) == 0u) {
        // Four keys are a word. AT_ONCE are under way before the first is looked at.
        [[unroll]] for (uint round = 0u; round < ROUNDS / AT_ONCE; ++round) {
            uint held[AT_ONCE];
            [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) {
                uint row = min(ROUND_ROW(round * AT_ONCE + n), QUERIES - 1u);
                uint key = min(ROUND_KEY(round * AT_ONCE + n), (end - 1u) & ~3u);
                held[n] = mask_data[(mask_place + row * pc.mask_row + key) >> 2];
            }
            [[unroll]] for (uint n = 0u; n < AT_ONCE; ++n) {
                gather_bits(round * AT_ONCE + n, four_bits(held[n]));
            }
        }
    } else {
        [[dont_unroll]] for (uint n = 0u; n < ROUNDS; ++n) {
            uint row = ROUND_ROW(n), key = ROUND_KEY(n), four = 0u;
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                bool seen = row < QUERIES && key + c < end && mask_mod(row, key + c);
                if (MASK == MASK_BOOLEAN && !MASK_IS_BITS && seen) {
                    seen = mask_bias(mask_place + row * pc.mask_row + (key + c) * pc.mask_key) == 0.0;
                }
                four |= seen ? 1u << c : 0u;
            }
            gather_bits(n, four);
        }
    }
    SYNC_SUBGROUP;
}

// The lowest `count` bits, of SPAN.
uint lowest(int count) {
    return count <= 0 ? 0u : 0xffffffffu >> uint(32 - min(count, SPAN));
}

// Which of SPAN keys from `first_key` on a row sees as far as indices say.
uint range_bits(uint row, uint first_key) {
    int last = int(end) - 1;
    if (CAUSAL != 0) last = min(last, int(row) + SHIFT);
    uint bits = lowest(last + 1 - int(first_key));
    if (on(WINDOW)) bits &= ~lowest(int(row) + BASE_SHIFT - x_left - int(first_key));
    if (on(PREFIX)) bits |= lowest(int(min(x_prefix, end)) - int(first_key));
    if (on(LENGTHS) && int(row) >= x_rows_seeing) bits = 0u;
    return bits;
}

// What is read of a tile is looked up before its products, what follows from indices is computed after them: registers are
// few in between.
#define LOOKS_UP ((MASK == MASK_BOOLEAN && !MASK_IS_BITS) || (FEATURES & (SEGMENTS | BLOCKS)) != 0)

// Under way while keys are stored and multiplied.
void fetch_mask(uint first_key) {
    [[unroll]] for (uint w = 0u; w < WORDS; ++w) {
        uint key = first_key + w * SPAN, column = min(key, end - 1u) / 32u;
        EACH_HELD_ROW {
            mask_keys[i][r][w] = tiles_data[bit_rows[i][r] + column];
            if (SPAN < 32) mask_keys[i][r][w] >>= key % 32u;
        }
    }
}

// Looks up what masks keys of a tile, a mask made bits aside; whether any of the subgroup's rows may see any of its keys.
bool find_seen(uint first_key, bool read) {
    int from = int(MY_ROW), to = int(MY_ROW + ROWS_EACH) - 1;
    bool seen = CAUSAL == 0 || int(first_key) <= to + SHIFT;
    if (on(WINDOW)) seen = seen && int(first_key) + KEYS > from + BASE_SHIFT - x_left;
    if (on(PREFIX)) seen = seen || first_key < x_prefix;
    if (on(LENGTHS)) seen = seen && from < x_rows_seeing;
    if (!LOOKS_UP || !read) return seen;
    FIND_PLACES
    bool by_words = blocks_are_words();
    uint any_ = 0u;
    if (!by_words) read_bits(first_key);
    [[unroll]] for (uint w = 0u; w < WORDS; ++w) {
        uint column = 0u;
        if (by_words) column = (x_first_key + min(first_key + w * SPAN, end - 1u)) / block_columns;
        EACH_HELD_ROW {
            uint bits;
            if (by_words) {
                uint at = block_rows[i][r] + column;
                bits = (extra_data[at >> 2] >> ((at & 3u) * 8u) & 0xffu) != 0u ? 0xffffffffu : 0u;
            } else {
                bits = BITS(i * MATRIX_M + ROW_HELD(r), w);
            }
            seen_keys[i][r][w] = bits;
            any_ |= bits;
        }
    }
    return subgroupAny(any_ != 0u) && seen;
}

// Generators of a tile, one for sixteen keys of a row, and those that a lane runs side by side, as each is a chain of operations
// that wait for each other.
#define SIXTEENTHS (KEYS / 16)
#define DRAWN (ROWS_EACH * SIXTEENTHS)
#define DRAWS ((DRAWN + SUBGROUP - 1) / SUBGROUP)
#define DRAWN_AT_ONCE (DRAWS < DRAWN_TOGETHER ? DRAWS : DRAWN_TOGETHER)

// Finds kept_keys of a tile. A generator's words are those of sixteen keys of the call, of which a dispatch may begin with any.
void find_kept(uint first_key) {
    SYNC_SUBGROUP;
    uint off = x_first_key & 15u, below = parameter(KEEP_BELOW);
    uvec4 counter = drop_counter(0u, 0u);
    uvec2 seed = drop_seed();
    [[dont_unroll]] for (uint n = 0u; n < DRAWS; n += DRAWN_AT_ONCE) {
        uint sixteen[DRAWN_AT_ONCE];
        [[unroll]] for (uint c = 0u; c < DRAWN_AT_ONCE; ++c) sixteen[c] = 0u;
        [[dont_unroll]] for (uint turn = 0u; turn <= min(off, 1u); ++turn) {
            uvec4 words[DRAWN_AT_ONCE];
            uvec2 key = seed;
            [[unroll]] for (uint c = 0u; c < DRAWN_AT_ONCE; ++c) {
                uint at = (n + c) * SUBGROUP + lane, first = x_first_key + first_key + at % SIXTEENTHS * 16u;
                words[c] = uvec4(first / 16u + turn, counter.y + MY_ROW + at / SIXTEENTHS, counter.zw);
            }
            [[dont_unroll]] for (int round = 0; round < PHILOX_ROUNDS; ++round) {
                [[unroll]] for (uint c = 0u; c < DRAWN_AT_ONCE; ++c) words[c] = philox_round(words[c], key);
                key += uvec2(PHILOX_WEYL_0, PHILOX_WEYL_1);
            }
            [[unroll]] for (uint c = 0u; c < DRAWN_AT_ONCE; ++c) sixteen[c] |= kept_sixteen(words[c], below) << 16u * turn;
        }
        [[unroll]] for (uint c = 0u; c < DRAWN_AT_ONCE; ++c) {
            uint at = (n + c) * SUBGROUP + lane, bits = sixteen[c] >> off & 0xffffu;
#if SPAN == 32
            bits <<= 16u * (lane & 1u);
            bits |= subgroupShuffleXor(bits, 1u);
#endif
            if (DRAWN % SUBGROUP == 0 || at < DRAWN) {
#if SPAN == 32
                if ((lane & 1u) == 0u) tile[MY_SCRATCH + at / 8u][at / 2u % 4u] = bits;
#elif SPAN == 16
                tile[MY_SCRATCH + at / 4u][at % 4u] = bits;
#else
                tile[MY_SCRATCH + at / 2u][2u * at % 4u] = bits & 255u;
                tile[MY_SCRATCH + at / 2u][2u * at % 4u + 1u] = bits >> 8;
#endif
            }
        }
    }
    SYNC_SUBGROUP;
    FIND_PLACES
    EACH_HELD_ROW {
        uint row = i * MATRIX_M + ROW_HELD(r);
        [[unroll]] for (uint w = 0u; w < WORDS; ++w) kept_keys[i][r][w] = BITS(row, w);
    }
    SYNC_SUBGROUP;
}
// The bits of a row from the column of element e of a fragment on whose first key in the tile is `at`.
#define ELEMENT_BITS(list, i, at, e) (list[i][HELD_ROW(e)][(at) / SPAN] >> (PLACE_COLUMN(e) + (at) % SPAN))

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
    EACH_SCORE {
        uint at = chunk % SPAN + f * MATRIX_N;
        uint held = bits[(i * HELD_ROWS + HELD_ROW(e)) * words + at / SPAN] >> (COLUMN_HELD(HELD_ROW(e)) + at % SPAN);
        s_frag[i][f][e] = (held & (1u << COLUMN_PAST(e))) == 0u ? never : s_frag[i][f][e];
    }
}
