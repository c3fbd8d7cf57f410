// What flash-matrix.glsl does otherwise where EXTRAS is defined: attention with what include/extras.glsl has.
//
// A tile of keys is hidden (and skipped), clear (all rows of the workgroup see all of its keys, no score is bent: the same
// code as without EXTRAS) or neither. In the last kind each subgroup finds, for each of its rows, which keys are seen, one
// bit each: what follows from indices alone is computed by the lanes that hold the row, and what is read (a boolean mask,
// segments, blocks) four keys a lane, gathered through the subgroup's scratch memory. Where a key is hidden its score
// becomes minus infinity once all else is done to it. Where a boolean mask has classes of tiles it also has been made bits
// already (attention-mask-bits.comp), and a map of blocks as wide as a word of bits needs one look a word. What dropout
// keeps are bits as well. Soft-cap and ALiBi change scores where they are; a bias, an additive mask and T5's table are read by the
// lanes that hold the elements, a chunk at a time, or where nobody knows who holds which through the scratch memory, a
// fragment at a time.

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

// Whether what is read hides keys, whether something is added to scores that must be read, and whether the scores of tiles
// that are not clear are scaled to base 2 before their maximum is taken.
#define HIDES (MASK == 1 || (FEATURES & (SEGMENTS | BLOCKS)) != 0)
#define MASK_IS_BITS (MASK == 1 && on(TILES))
#define ADDS (MASK == 2 || (FEATURES & (BIAS | T5)) != 0)
#define SCALED (MASK == 2 || BENDS)

#define MY_ROW (first_row + subgroup * ROWS_EACH)
#define MY_SCRATCH (SCRATCH_START + subgroup * SCRATCH_VECTORS)

#include "mask-bits.glsl"

// ---- tiles ----

uint clear_from, clear_to;        // every row of the workgroup sees all keys between, as far as indices say
#include "flash-matrix-tiles.glsl"

// The same where there may be no classes.
uint find_tile(uint first_key) {
    if (on(TILES)) return next_tile(first_key);
    next_seen = true;
    if (MASK != 0 || HIDES) next_seen = false;
    return first_key;
}

// Whether indices hide no key of a tile from any row of the workgroup.
bool is_inside(uint first_key) { return first_key >= clear_from && first_key + KEYS <= clear_to; }

bool is_clear(uint first_key) {
    if (BENDS || on(DROPOUT)) return false;
    return next_seen && is_inside(first_key);
}

// The number of leading keys that some row of the workgroup sees, and where tiles are clear.
void find_keys() {
    uint last_row = min(first_row + ROWS, QUERIES) - 1u;
    end = visible_keys(first_row, last_row);
    int from = on(WINDOW) ? int(last_row) + BASE_SHIFT - x_left : 0;
    int to = int(end);
    if (CAUSAL != 0) to = min(to, int(first_row) + SHIFT + 1);
    if (on(LENGTHS) && int(last_row) >= x_rows_seeing) to = 0;
    clear_from = uint(max(from, 0));
    clear_to = uint(max(to, 0));
}

// ---- bits ----

uint seen_keys[RF][HELD_ROWS][WORDS];  // which keys of a tile the lane's rows see, as far as is looked up
uint mask_keys[RF][HELD_ROWS][WORDS];  // as far as a mask made bits says
uint kept_keys[RF][HELD_ROWS][WORDS];  // which of their weights dropout keeps

uint bit_rows[RF][HELD_ROWS];    // where in tile_data the bits of the lane's rows begin
uint block_rows[RF][HELD_ROWS];  // where in extra_data, counted in bytes, the map has what the lane's rows see
uint block_columns;              // keys of a block

// Here and not for each tile: loads whose places follow from others could not begin before those are there.
void read_places() {
    if (MASK_IS_BITS) {
        uint head_bits = word(MASK_BITS) + batch * word(MASK_BITS_BATCH) + head * word(MASK_BITS_HEAD);
        FIND_PLACES
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
                uint row = min(MY_ROW + i * MATRIX_M + ROW_HELD(r), QUERIES - 1u);
                bit_rows[i][r] = head_bits + row * word(MASK_BITS_ROW);
            }
        }
    }
    if (on(BLOCKS)) {
        block_columns = word(BLOCK_KV);
        uint map = 4u * word(BLOCK_MAP) + x_batch * word(BLOCK_BATCH) + x_head * word(BLOCK_HEAD);
        FIND_PLACES
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
                uint row = x_first_row + min(MY_ROW + i * MATRIX_M + ROW_HELD(r), QUERIES - 1u);
                block_rows[i][r] = map + row / word(BLOCK_Q) * word(BLOCK_ROW);
            }
        }
    }
}

// Whether the keys of a word of bits lie in one block of the map, and nothing else has to be looked up for each.
bool blocks_are_words() {
    if (!on(BLOCKS) || on(SEGMENTS) || (MASK == 1 && !MASK_IS_BITS)) return false;
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
    if (MASK == 1 && (FEATURES & (SEGMENTS | BLOCKS)) == 0 && pc.mask_key == 1u && ((mask_place | pc.mask_row) & 3u) == 0u) {
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
                bool seen = row < QUERIES && key + c < end && sees(row, key + c);
                if (MASK == 1 && !MASK_IS_BITS && seen) seen = mask_bias(mask_place + row * pc.mask_row + (key + c) * pc.mask_key) == 0.0;
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
#define LOOKS_UP ((MASK == 1 && !MASK_IS_BITS) || (FEATURES & (SEGMENTS | BLOCKS)) != 0)

// Under way while keys are stored and multiplied.
void fetch_mask(uint first_key) {
    [[unroll]] for (uint w = 0u; w < WORDS; ++w) {
        uint key = first_key + w * SPAN, column = min(key, end - 1u) / 32u;
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
                mask_keys[i][r][w] = tile_data[bit_rows[i][r] + column];
                if (SPAN < 32) mask_keys[i][r][w] >>= key % 32u;
            }
        }
    }
}

// Looks up what hides keys of a tile, a mask made bits aside; whether any of the subgroup's rows may see any of its keys.
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
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
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
    }
    return subgroupAny(any_ != 0u) && seen;
}

// Finds kept_keys of a tile. A generator's four words are those of four keys of the call, of which a dispatch may begin
// with any.
void find_kept(uint first_key) {
    SYNC_SUBGROUP;
    uint off = x_first_key & 3u, stream = x_head + word(HEADS) * x_batch, offset = word(DROPOUT_OFFSET);
    uvec2 seed = uvec2(word(SEED_LOW), word(SEED_HIGH));
    uvec4 below = uvec4(word(KEEP_BELOW));
    uint turns = off == 0u ? 1u : 2u;
    [[dont_unroll]] for (uint n = 0u; n < ROUNDS; ++n) {
        uint row = x_first_row + ROUND_ROW(n), whole = (x_first_key + ROUND_KEY(n)) / 4u, four = 0u;
        [[dont_unroll]] for (uint turn = 0u; turn < turns; ++turn) {
            bvec4 kept = lessThan(philox(uvec4(whole + turn, row, stream, offset), seed), below);
            uvec4 bits = uvec4(kept) << uvec4(0u, 1u, 2u, 3u);
            four |= (bits.x | bits.y | bits.z | bits.w) << (4u * turn);
        }
        gather_bits(n, four >> off & 15u);
    }
    SYNC_SUBGROUP;
    FIND_PLACES
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r) {
            uint row = i * MATRIX_M + ROW_HELD(r);
            [[unroll]] for (uint w = 0u; w < WORDS; ++w) kept_keys[i][r][w] = BITS(row, w);
        }
    }
    SYNC_SUBGROUP;
}
// The bits of a row from the column of element e of a fragment on whose first key in the tile is `at`.
#define ELEMENT_BITS(list, i, at, e) (list[i][HELD_ROW(e)][(at) / SPAN] >> (PLACE_COLUMN(e) + (at) % SPAN))

// Minus infinity for hidden keys, whatever their scores were, so that the weight is zero whatever the maximum.
void hide_scores(uint first_key, uint chunk, bool read) {
    bool look = HIDES && read, inside = is_inside(first_key);
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

// ---- what bends scores ----

// cap tanh(score / cap), both base 2. By one exponential, to 1e-7 of the cap, where the cap is such that this does not show in
// weights of 16 bits; an exponential past the largest number is infinity, and its reciprocal zero.
#define SMALL_CAP 128.0
float softly_capped(float score, float turn) { return fma(-2.0 * x_cap, 1.0 / (exp2(score * turn) + 1.0), x_cap); }

// Else to 3e-7 of itself, the same way for all arguments: a minimax fit of x P(x^2) / Q(x^2) on |x| <= 8.5, beyond which 1 is
// as near. Comparisons, not min(), so that NaN stays.
float bounded_tanh(float x) {
    x = x > 8.5 ? 8.5 : x < -8.5 ? -8.5 : x;
    float z = x * x;
    float p = fma(fma(fma(fma(1.4269272e-08, z, 2.125108e-05), z, 0.0035340292), z, 0.13413249), z, 1.0);
    float q = fma(fma(fma(fma(8.1451424e-07, z, 0.00033488686), z, 0.02602276), z, 0.46746573), z, 1.0);
    return x * p / q;
}

void cap_scores() {
    float turn = 2.0 * LOG2_E / x_cap, inverse = 1.0 / x_cap;
    if (x_cap <= SMALL_CAP) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = softly_capped(s_frag[i][f][e], turn);
            }
        }
    } else {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = x_cap * bounded_tanh(s_frag[i][f][e] * inverse);
            }
        }
    }
}

// What is added to a score, base 2; minus infinity hides the key.
float added(uint row, uint key) {
    float sum_ = 0.0;
    if (on(BIAS)) {
        float bias = bias_data[x_bias + row * word(BIAS_ROW) + key * word(BIAS_KEY)];
        sum_ = floatBitsToUint(bias) == 0xff800000u ? bias : max(bias * LOG2_E, MASK_FLOOR);
        if (non_finite(bias)) sum_ = bias;  // NaN too, of which max() may make anything
    }
    if (on(T5)) {
        int reach = int(word(T5_REACH)), distance = int(key) - int(row) - BASE_SHIFT;
        uint bucket = extra_data[word(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)];
        sum_ += uintBitsToFloat(extra_data[word(T5_TABLE) + bucket * word(T5_ROW) + x_head]) * LOG2_E;
    }
    if (MASK == 2) {
        float bias = mask_bias(mask_index(batch, head, row) + key * pc.mask_key);
        if (bias <= NEVER) sum_ = minus_infinity();
        else sum_ += non_finite(bias) ? bias : max(bias * LOG2_E, MASK_FLOOR);
    }
    return sum_;
}

// A hidden key may have a score of any kind.
float with_added(float score, float one) { return one == minus_infinity() ? one : score + one; }

#ifdef ORDER
// All of a chunk's numbers are under way at once. They are floats first, not elements of matrices: the build tool does not
// unroll loops that hold conditions, and matrices that the driver finds in loops end in memory.
void add_biases(uint first_key) {
    float more[RF * KF * ELEMENTS];
    [[unroll]] for (uint n = 0u; n < RF * KF * ELEMENTS; ++n) {
        uint e = n % ELEMENTS, row = MY_ROW + n / (KF * ELEMENTS) * MATRIX_M + PLACE_ROW(e);
        uint key = first_key + n / ELEMENTS % KF * MATRIX_N + PLACE_COLUMN(e);
        more[n] = added(min(row, QUERIES - 1u), min(key, end - 1u));
    }
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                s_frag[i][f][e] = with_added(s_frag[i][f][e], more[(i * KF + f) * ELEMENTS + e]);
            }
        }
    }
}
#else
void add_biases(uint first_key) {
    [[dont_unroll]] for (uint n = 0u; n < RF * KF; ++n) {
        uint row0 = MY_ROW + n / KF * MATRIX_M, key0 = first_key + n % KF * MATRIX_N;
        SYNC_SUBGROUP;
        [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
            uint at = e * SUBGROUP + lane, row = row0 + at / MATRIX_N, key = key0 + at % MATRIX_N;
            float one = added(min(row, QUERIES - 1u), min(key, end - 1u));
            tile[MY_SCRATCH + at / 4u][at % 4u] = floatBitsToUint(one);
        }
        SYNC_SUBGROUP;
        SUMS more;
        coopMatLoad(more, tile, MY_SCRATCH, MATRIX_N / 4, ROW_MAJOR);
        // A matrix's registers must be known when compiling: one branch each.
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                if (n == i * KF + f) {
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = with_added(s_frag[i][f][e], more[e]);
                }
            }
        }
    }
}
#endif

void bend_scores(uint first_key) {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f] *= SCORE_SCALE;
    }
    if (on(SOFT_CAP)) cap_scores();
    if (on(ALIBI)) {
        FIND_PLACES
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                // Whole numbers below 2^24, so exact.
                float distance = float(int(first_key + PLACE_COLUMN(e)) - int(MY_ROW + i * MATRIX_M + PLACE_ROW(e)) - BASE_SHIFT);
                [[unroll]] for (uint f = 0u; f < KF; ++f) s_frag[i][f][e] -= x_slope * abs(distance + float(f * MATRIX_N));
            }
        }
    }
    if (ADDS) add_biases(first_key);
}
