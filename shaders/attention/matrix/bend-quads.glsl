// bend.glsl for NVIDIA's order, in which an invocation has pairs of neighbouring columns: what is added is read a pair at a
// time, before the products of the chunk that it is added to (with ADDED_LATE after them, which takes fewer registers), and what
// depends on the distance of query and key alone is found once for all scores that are as far apart. Bent scores are not base 2
// here: what is added needs no factor then, and the exponentials have theirs anyway.

#include "bend-one.glsl"

layout(set = 0, binding = 3, std430) readonly buffer MaskPairs { uvec2 mask_pairs[]; };
layout(set = 0, binding = 7, std430) readonly buffer BiasPairs { uvec2 bias_pairs[]; };
layout(set = 0, binding = 7, std430) readonly buffer BiasWords { uint bias_words[]; };
layout(set = 0, binding = 3, std430) readonly buffer MaskFours { uvec4 mask_fours[]; };
layout(set = 0, binding = 7, std430) readonly buffer BiasFours { uvec4 bias_fours[]; };

#define BENT_FACTOR LOG2_E
// Halves in pairs take few registers: those of the next chunk are under way while this one's weights are made. Under a causal
// mask that was slower (docs/benchmarks/features.md).
#define ADDED_AHEAD (on(BIAS) && on(BIAS_HALVES) && (FEATURES & (BIAS_PAIRS | ADDED_FOURS)) != 0 && !on(ADDED_LATE) && MASK != MASK_ADDED && CAUSAL == 0)
#define FETCH_ADDED(first_key) \
    if ((masked || BENT) && ADDS && !on(ADDED_LATE) && !ADDED_AHEAD) { \
        fetch_bias(first_key); \
        fetch_mask_numbers(first_key); \
    }
#define FETCH_AHEAD(first_key) { if (ADDED_AHEAD) fetch_halves(first_key); }
// Batches that have the same numbers added stand beside each other, so that these are read from memory once.
#define SHARE_ADDED \
    if ((on(BIAS) && word(BIAS_BATCH) == 0u) || (MASK == MASK_ADDED && pc.mask_batch == 0u)) { \
        uint place = batch * gl_NumWorkGroups.y + head; \
        head = place / gl_NumWorkGroups.z; \
        batch = place % gl_NumWorkGroups.z; \
    }

// The pairs of a chunk that an invocation has: pair n has elements 2 (n % 4) and the next of fragment n / 4.
#define PAIRS (RF * KF * 4)
#define PAIR_ROW(n) min(MY_ROW + (n) / (KF * 4) * MATRIX_M + PLACE_ROW(2u * ((n) % 4u)), QUERIES - 1u)
#define PAIR_KEY(n) (first_key + (n) / 4u % KF * MATRIX_N + PLACE_COLUMN(2u * ((n) % 4u)))

uvec2 held_bias[PAIRS];  // with BIAS_HALVES in pairs: both in the first word
uvec2 held_mask[PAIRS];

// The place of the first of a pair, and of the second. Keys past the end have the last one's.
#define FIRST_PLACE(base, row_step, n) (base + PAIR_ROW(n) * (row_step) + min(PAIR_KEY(n), (end - 1u) & ~1u))
// With ADDED_FOURS, of the first of four that pairs n and n + 1 are.
#define FOUR_PLACE(base, row_step, n) (base + PAIR_ROW(n) * (row_step) + min(PAIR_KEY(n), (end - 1u) & ~3u))
#define EACH_PLACE(base, row_step, key_step, n, c) (base + PAIR_ROW(n) * (row_step) + min(PAIR_KEY(n) + c, end - 1u) * (key_step))

uint bias_half(uint at) { return bias_words[at >> 1] >> (16u * (at & 1u)) & 0xffffu; }

// Have what is added to a chunk under way.
void fetch_halves(uint first_key) {
    uint row_step = word(BIAS_ROW);
    if (on(ADDED_FOURS)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; n += 2u) {
            uvec2 four = bias_pairs[FOUR_PLACE(x_bias, row_step, n) >> 2];
            held_bias[n].x = four.x;
            held_bias[n + 1u].x = four.y;
        }
    } else {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) held_bias[n].x = bias_words[FIRST_PLACE(x_bias, row_step, n) >> 1];
    }
}
void fetch_bias(uint first_key) {
    uint row_step = word(BIAS_ROW), key_step = word(BIAS_KEY);
    const bool singly = (FEATURES & (BIAS_PAIRS | ADDED_FOURS)) == 0;
    if (on(BIAS) && !singly && on(BIAS_HALVES)) fetch_halves(first_key);
    if (on(BIAS) && on(ADDED_FOURS) && !on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; n += 2u) {
            uvec4 four = bias_fours[FOUR_PLACE(x_bias, row_step, n) >> 2];
            held_bias[n] = four.xy;
            held_bias[n + 1u] = four.zw;
        }
    }
    if (on(BIAS) && on(BIAS_PAIRS) && !on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) held_bias[n] = bias_pairs[FIRST_PLACE(x_bias, row_step, n) >> 1];
    }
    if (on(BIAS) && singly && on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) {
            held_bias[n].x = bias_half(EACH_PLACE(x_bias, row_step, key_step, n, 0u));
            held_bias[n].x |= bias_half(EACH_PLACE(x_bias, row_step, key_step, n, 1u)) << 16;
        }
    }
    if (on(BIAS) && singly && !on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) {
            held_bias[n].x = bias_words[EACH_PLACE(x_bias, row_step, key_step, n, 0u)];
            held_bias[n].y = bias_words[EACH_PLACE(x_bias, row_step, key_step, n, 1u)];
        }
    }
}
void fetch_mask_numbers(uint first_key) {
    uint mask_base = mask_index(batch, head, 0u);
    if (MASK == MASK_ADDED && on(MASK_PAIRS)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) held_mask[n] = mask_pairs[FIRST_PLACE(mask_base, pc.mask_row, n) >> 1];
    }
    if (MASK == MASK_ADDED && on(ADDED_FOURS)) {
        [[unroll]] for (uint n = 0u; n < PAIRS; n += 2u) {
            uvec4 four = mask_fours[FOUR_PLACE(mask_base, pc.mask_row, n) >> 2];
            held_mask[n] = four.xy;
            held_mask[n + 1u] = four.zw;
        }
    }
    if (MASK == MASK_ADDED && (FEATURES & (MASK_PAIRS | ADDED_FOURS)) == 0) {
        [[unroll]] for (uint n = 0u; n < PAIRS; ++n) {
            held_mask[n].x = mask_data[EACH_PLACE(mask_base, pc.mask_row, pc.mask_key, n, 0u)];
            held_mask[n].y = mask_data[EACH_PLACE(mask_base, pc.mask_row, pc.mask_key, n, 1u)];
        }
    }
}

// Below it a sum could reach minus infinity once it is base 2.
#define LEAST_ADDED (MASK_FLOOR / LOG2_E)
#ifdef DTYPE_float16
// Halves are far from that.
#define FLOORED(bias, least) mix(max(bias, least), bias, on(BIAS_HALVES))
#else
#define FLOORED(bias, least) max(bias, least)
#endif

// Multiplies scores by a factor and adds a bias. Minus infinity hides the key, whatever its score; the lowest finite number
// does not, and NaN stays. No conditions in loops: see bend.glsl.
void add_bias(float factor) {
    float never = minus_infinity(), more[PAIRS * 2], least = LEAST_ADDED;
    if (!on(BIAS_HALVES)) {
        [[unroll]] for (uint n = 0u; n < PAIRS * 2; ++n) more[n] = uintBitsToFloat(held_bias[n / 2u][n % 2u]);
    } else {
#ifdef DTYPE_float16
        [[unroll]] for (uint n = 0u; n < PAIRS * 2; ++n) more[n] = unpackHalf2x16(held_bias[n / 2u].x)[n % 2u];
#else
        [[unroll]] for (uint n = 0u; n < PAIRS * 2; n += 2u) {
            more[n] = uintBitsToFloat(held_bias[n / 2u].x << 16);
            more[n + 1u] = uintBitsToFloat(held_bias[n / 2u].x & 0xffff0000u);
        }
#endif
    }
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float bias = more[(i * KF + f) * ELEMENTS + e];
                float bent = fma(s_frag[i][f][e], factor, FLOORED(bias, least));
                s_frag[i][f][e] = mix(bias, bent, bias > never);
            }
        }
    }
}

// The same of an additive mask, whose numbers below MASK_FLOOR hide keys: four times as much is minus infinity, and of NaN NaN.
// Not a selection of `least`, which NVIDIA's driver makes a maximum, and that is not NaN.
void add_mask(float factor) {
    float least = LEAST_ADDED;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                uint n = (i * KF + f) * ELEMENTS + e;
                float bias = uintBitsToFloat(held_mask[n / 2u][n % 2u]);
                float bent = fma(s_frag[i][f][e], factor, max(bias, least));
                s_frag[i][f][e] = mix(bias * 4.0, bent, bias >= MASK_FLOOR);
            }
        }
    }
}

// Not with ADDED_FOURS, whose keys lie otherwise.
// Columns and rows of a fragment that lie 8 apart move the distance by as much. Scores of distance number 2 (f - i) + h - s +
// 2 RF - 1 are those of half h of the columns of fragment f and half s of the rows of fragment i.
#define DISTANCES (2 * (KF + RF) - 1)
#define DISTANCE_OF(i, f, e) (2u * (f) + (e) / 2u % 2u + uint(2 * RF - 1) - 2u * (i) - (e) / 4u)
#define DEPENDS_ON_DISTANCE ((FEATURES & (ALIBI | T5)) != 0)

// What T5's table has for a distance.
float by_bucket(int distance, int reach) {
    uint bucket = extra_data[word(T5_BUCKETS) + uint(clamp(distance, -reach, reach) + reach)];
    return uintBitsToFloat(extra_data[word(T5_TABLE) + bucket * word(T5_ROW) + x_head]);
}

// Where nothing but the distance bends scores, a tile may lie on one side of the diagonal as a whole (T5: so far from it that
// the table has one number for all). What is added is then a part that a row's scores have in common, and with ALiBi one that
// a column's have. The row's moves its running maximum, once for all tiles on a side; to the column's the products are added.
// So such tiles are clear.
bool leans() {
    if (on(SOFT_CAP) || on(BIAS) || on(DROPOUT) || MASK == MASK_ADDED) return false;
    return on(ALIBI) != on(T5);
}
float level = 0.0;  // base 2, what the running maxima are short of: T5's number, or ALiBi's for each row of the workgroup
float level_left, level_right;  // what they may be short of, on either side
int lean_reach;  // keys from a row on which a side begins

void begin_leaning() {
    if (!leans()) return;
    lean_reach = on(ALIBI) ? 0 : int(word(T5_REACH));
    level_left = on(ALIBI) ? x_slope : by_bucket(-lean_reach, lean_reach) * LOG2_E;
    level_right = on(ALIBI) ? -x_slope : by_bucket(lean_reach, lean_reach) * LOG2_E;
    // What products are added to has to leave them their bits.
    bool gentle = abs(x_slope) <= 4.0 && base2_scale >= 1e-3 * abs(x_slope);
    if (on(ALIBI) && !gentle) level_left = level_right = -minus_infinity();
}

// Which side a tile lies on as a whole: -1 left, 1 right, 0 none, or one whose number is none to reckon with.
int lean_side(uint first_key) {
    int nearest = int(first_key) - int(first_row) - BASE_SHIFT;
    if (nearest + KEYS - 1 <= -lean_reach) return abs(level_left) < 1e30 ? -1 : 0;
    if (nearest - (ROWS - 1) >= lean_reach) return abs(level_right) < 1e30 ? 1 : 0;
    return 0;
}
bool leans_as_whole(uint first_key) { return lean_side(first_key) != 0; }

// Before a tile: maxima that are short of what a side's are, or of nothing.
void lean(int side) {
    float next = side == 0 ? 0.0 : side < 0 ? level_left : level_right;
    if (next == level) return;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) {
            float rows = on(ALIBI) ? -float(subgroup * ROWS_EACH + i * MATRIX_M + ROW_HELD(r)) : 1.0;
            top[i][r] = fma(level - next, rows, top[i][r]);
        }
    }
    level = next;
}

// The scores of a chunk of a clear tile before the products.
void lean_scores(uint first_key) {
    float each = level / SCORE_SCALE, from = each * float(int(first_key + PLACE_COLUMN(0u)) - int(first_row) - BASE_SHIFT);
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                s_frag[i][f][e] = fma(each, float(f * MATRIX_N + COLUMN_AFTER(e)), from);
            }
        }
    }
}
#define BEGIN_LEANING begin_leaning();
#define LEAN(first_key, clear) if (leans()) lean(clear ? lean_side(first_key) : 0);
#define MULTIPLY_SCORES(first_key, chunk, masked) \
    if (leans() && on(ALIBI) && !masked) lean_scores(first_key + chunk); \
    else begin_scores(); \
    add_scores(chunk);

// Multiplies scores by a factor and adds what depends on the distance. Most tiles lie far from the diagonal: there
// T5's table has one number for all.
void add_by_distance(uint first_key, float factor) {
    float near[DISTANCES * 2];
    int nearest = int(first_key + PLACE_COLUMN(0u)) - int(MY_ROW + PLACE_ROW(0u)) - BASE_SHIFT - 8 * (2 * RF - 1);
    int least = int(first_key) - int(MY_ROW) - BASE_SHIFT - (ROWS_EACH - 1), most = least + CHUNK + ROWS_EACH - 2;
    [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] = 0.0;
    if (on(ALIBI)) {
        // Whole numbers below 2^24, so exact.
        float from = float(nearest), slope = -x_slope / LOG2_E;
        [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] = slope * abs(from + float(n / 2u * 8u + n % 2u));
    }
    if (on(T5)) {
        int reach = int(word(T5_REACH));
        if (least >= reach || most <= -reach) {
            float one = by_bucket(least, reach);
            [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] += one;
        } else {
            [[unroll]] for (uint n = 0u; n < DISTANCES * 2; ++n) near[n] += by_bucket(nearest + int(n / 2u * 8u + n % 2u), reach);
        }
    }
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                s_frag[i][f][e] = fma(s_frag[i][f][e], factor, near[DISTANCE_OF(i, f, e) * 2u + e % 2u]);
            }
        }
    }
}

// cap tanh(score / cap), to 6e-7 of itself. Up to half of the cap, which is where nearly all scores are, it needs no exponential:
// a minimax fit of tanh(x) / x in x^2. Beyond, an exponential past the largest number is infinity, and its reciprocal zero.
#define NEAR_ZERO 0.5
float near_zero(float x, float cap) {
    float z = x * x;
    return x * fma(fma(fma(-0.04478947 * cap, z, 0.13206715 * cap), z, -0.33328265 * cap), z, cap);
}
// Up to a quarter a shorter fit serves, in even powers of the score itself. Its coefficients are numbers as long as what a score
// is multiplied by is not tiny.
#define NEARER_ZERO 0.25
void cap_scores(float factor) {
    float cap = x_cap / LOG2_E, inverse = factor / cap, most = 0.0;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) most = max(most, abs(s_frag[i][f][e]));
        }
    }
    most *= inverse;
    if (subgroupAll(most <= (inverse > 1e-6 ? NEARER_ZERO : 0.0))) {  // not so with NaN
        float square = inverse * inverse, cubic = -0.33321897 * factor * square, fifth = 0.12841434 * factor * square * square;
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                    float z = s_frag[i][f][e] * s_frag[i][f][e];
                    s_frag[i][f][e] *= fma(fma(fifth, z, cubic), z, factor);
                }
            }
        }
    } else if (subgroupAll(most <= NEAR_ZERO)) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) s_frag[i][f][e] = near_zero(s_frag[i][f][e] * inverse, cap);
            }
        }
    } else {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint f = 0u; f < KF; ++f) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                    float x = s_frag[i][f][e] * inverse;
                    float far = fma(-2.0 * cap, 1.0 / (exp2(2.0 * LOG2_E * x) + 1.0), cap);
                    s_frag[i][f][e] = mix(far, near_zero(x, cap), abs(x) <= NEAR_ZERO);
                }
            }
        }
    }
}

void bend_scores(uint first_key) {
    float factor = SCORE_SCALE / LOG2_E;  // that scores are still to be multiplied by
    if (on(SOFT_CAP)) {
        cap_scores(factor);
        factor = 1.0;
    }
    if (DEPENDS_ON_DISTANCE) {
        add_by_distance(first_key, factor);
        factor = 1.0;
    }
    if (on(BIAS)) {
        if (on(ADDED_LATE)) fetch_bias(first_key);
        add_bias(factor);
        factor = 1.0;
    }
    if (MASK == MASK_ADDED) {
        if (on(ADDED_LATE)) fetch_mask_numbers(first_key);
        add_mask(factor);
    }
}
