// float32 attention on matrix units: what attention/matrix/flash.glsl does otherwise with SPLIT.
//
// Every factor x is split into float16 parts, x = (hi + lo) 2^e, and a product is hi hi + hi lo + lo hi (Ootomo and Yokota
// 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance").
// One e serves a tile of k, a tile of v and a subgroup's rows of q: it brings their largest number to 2^14 ... 2^15, so
// that no finite input overflows, and a number 2^-16 times as large as that still keeps the 22 bits of two parts.
// Weights lie between 0 and 2^15 as they are.
//
// Matrix units truncate the sums they keep. Sums are therefore kept there over one head dimension (scores) or one tile
// (values) only, those of the small products by themselves, and added in ordinary float32.
//
// A tile's largest number is found by the invocations that fetched it, before a barrier that is there anyway, and scales it
// on its way to shared memory. `poisoned` is raised, which sends the workgroup's rows to vector units, where parts will not do:
//   for a NaN or an infinity: its parts would be NaN
//   where scores might pass 2^20: a product's error beside the largest is then no longer small beside 1, and a score's own
//   rounding is as large as a weight's exponent
//   where four neighbours of v are below 2^-14 of the tile's largest number, and not zeros: they would keep too few bits
#extension GL_KHR_shader_subgroup_arithmetic : require

#define SCORE_SCALE tile_scale
#define INFINITE 0x7f800000u
#define LOWEST -126

shared uint largest[2 * SUBGROUPS];  // of k by subgroups, then of v: bits of an absolute value
vec4 held_k[2 * PER_THREAD(KEYS * D8)];
vec4 held_v[2 * PER_THREAD(KEYS * V8)];
FACTOR_A q_low[RF][QF];
uint least_v;  // bits of the smallest of the largest of four neighbours, less one: zeros become the largest
bool bad_query;  // whether this subgroup's rows of q hold a NaN or an infinity
int q_exponent;
int o_exponent = LOWEST;  // the output's sums are these times 2^o_exponent; the largest e of a tile of v
float tile_scale;  // of the present tile's scores
float tile_share;  // of its products with v

// A mask may make maxima as large as it likes. Where their neighbours are further apart than 1 nothing is added to them.
#undef LIFTED
#undef ALLOWED
#define LIFTED(most) (abs(most) < 8388608.0 ? (most) - float(LIFT) : (most))
#define ALLOWED(top) (abs(top) < 8388608.0 ? (top) + (SLACK + float(LIFT)) : (top))

float power_of_two(int exponent) { return uintBitsToFloat(uint(exponent + 127) << 23); }

uint largest_of(uint most, vec4 x) {
    uvec4 bits = floatBitsToUint(x) & 0x7fffffffu;
    return max(max(max(bits.x, bits.y), max(bits.z, bits.w)), most);
}
// The e of numbers whose largest has these bits, so that 2^e and 2^-e are normal numbers.
int exponent_of(uint most) { return max(min(int(most >> 23), 254) - 127 - 14, LOWEST); }

// x rounded to 11 significant bits. By bits: compilers may take float(float16_t(x)) for x.
float high_part(float x) { return uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & 0xffffe000u); }
vec4 high_part(vec4 x) { return uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & 0xffffe000u); }
uvec4 as_halves(vec4 a, vec4 b) {
    return uvec4(packFloat2x16(f16vec2(a.xy)), packFloat2x16(f16vec2(a.zw)),
                 packFloat2x16(f16vec2(b.xy)), packFloat2x16(f16vec2(b.zw)));
}
void store_parts(uint place, uint low_place, vec4 a, vec4 b) {
    vec4 a_high = high_part(a), b_high = high_part(b);
    tile[place] = as_halves(a_high, b_high);
    tile[low_place] = as_halves(a - a_high, b - b_high);
}

// Rows past the last one are read as copies of it, columns past the head are zeros (attention/matrix/flash.glsl).
vec4 fetch_key(uint first_key, uint e, uint n) {
    uint column = 8u * (e % D8) + 4u * n, key = min(first_key + e / D8, end - 1u);
    if (HEAD_DIM < DIM && column >= HEAD_DIM) return vec4(0.0);
    return k_data[(k_base + key * pc.k_row + column) >> 2];
}
vec4 fetch_value(uint first_key, uint e, uint n) {
    uint column = 8u * (e % V8) + 4u * n, key = min(first_key + e / V8, end - 1u);
    if (VALUE_DIM < VDIM && column >= VALUE_DIM) return vec4(0.0);
    return v_data[(v_base + key * pc.v_row + column) >> 2];
}
void fetch_keys(uint first_key) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        uint e = min(thread + n * THREADS, KEYS * D8 - 1u);
        held_k[2u * n] = fetch_key(first_key, e, 0u);
        held_k[2u * n + 1u] = fetch_key(first_key, e, 1u);
    }
}
void fetch_values(uint first_key) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        uint e = min(thread + n * THREADS, KEYS * V8 - 1u);
        held_v[2u * n] = fetch_value(first_key, e, 0u);
        held_v[2u * n + 1u] = fetch_value(first_key, e, 1u);
    }
}

// Before a barrier: the largest number of what this subgroup fetched. After it: the e of the tile.
void note(uint place, uint most) {
    most = subgroupMax(most);
    if (lane == 0u) largest[place + subgroup] = most;
}
void note_keys() {
    uint most = 0u;
    [[unroll]] for (uint n = 0u; n < 2 * PER_THREAD(KEYS * D8); ++n) most = largest_of(most, held_k[n]);
    note(0u, most);
}
void note_values() {
    uint most = 0u;
    least_v = ~0u;
    [[unroll]] for (uint n = 0u; n < 2 * PER_THREAD(KEYS * V8); ++n) {
        uint largest_here = largest_of(0u, held_v[n]);
        most = max(most, largest_here);
        least_v = min(least_v, largest_here - 1u);
    }
    note(SUBGROUPS, most);
}
int tile_exponent(uint place) {
    uint most = 0u;
    [[unroll]] for (uint n = 0u; n < SUBGROUPS; ++n) most = max(most, largest[place + n]);
    if (most >= INFINITE) poisoned = 1u;
    return exponent_of(most);
}
void store_keys(uint start) {
    int e2 = tile_exponent(0u);
    float shrink = power_of_two(-e2);
    // In two steps, as 2^(e of q and k) may be too large or too small; not zero, as it multiplies minus infinities.
    int e = e2 + q_exponent;
    tile_scale = clamp(base2_scale * power_of_two(e / 2) * power_of_two(e - e / 2), 1e-37, 3e38);
    // A score is at most DIM * 2^30 * tile_scale.
    if (tile_scale * float(DIM) > 1.0 / 1024.0) poisoned = 1u;
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * D8); ++n) {
        uint e = thread + n * THREADS, place = e / D8 * K_STRIDE + e % D8;
        if ((KEYS * D8) % THREADS == 0 || e < KEYS * D8) {
            store_parts(place, place + K_VECTORS, held_k[2u * n] * shrink, held_k[2u * n + 1u] * shrink);
        }
    }
}
void store_values(uint start, bool masked) {
    int e2 = tile_exponent(SUBGROUPS);
    float shrink = power_of_two(-e2);
    if (least_v < uint(e2 + 127) << 23) poisoned = 1u;
    if (e2 > o_exponent) {
        float decay = power_of_two(max(o_exponent - e2, LOWEST));
        o_exponent = e2;
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint c = 0u; c < VF; ++c) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) o_frag[i][c][e] *= decay;
            }
        }
    }
    tile_share = power_of_two(max(e2 - o_exponent - LIFT, LOWEST));
    [[unroll]] for (uint n = 0u; n < PER_THREAD(KEYS * V8); ++n) {
        uint e = thread + n * THREADS, place = e / V8 * V_STRIDE + e % V8;
        if ((KEYS * V8) % THREADS == 0 || e < KEYS * V8) {
            store_parts(place, place + V_VECTORS, held_v[2u * n] * shrink, held_v[2u * n + 1u] * shrink);
        }
    }
}

vec4 fetch_query(uint i, uint d, uint n) {
    const uint words = MATRIX_K / 8;
    uint row = min(first_row + subgroup * ROWS_EACH + i * MATRIX_M + lane / words, pc.queries - 1u);
    uint column = d * MATRIX_K + 8u * (lane % words) + 4u * n;
    if (lane >= FACTOR_VECTORS || column >= HEAD_DIM) return vec4(0.0);
    return q_data[(q_base + row * pc.q_row + column) >> 2];
}

// The subgroup's rows of q as factors, read twice: for their e, and to be split. With a negative scale they change sign.
void load_queries() {
    const uint words = MATRIX_K / 8;
    uint most = 0u;
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            most = largest_of(largest_of(most, fetch_query(i, d, 0u)), fetch_query(i, d, 1u));
        }
    }
    most = subgroupMax(most);
    bad_query = most >= INFINITE;
    q_exponent = exponent_of(most);
    float shrink = pc.scale < 0.0 ? -power_of_two(-q_exponent) : power_of_two(-q_exponent);
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            uint start = subgroup * 2u * Q_VECTORS, place = start + lane / words * Q_STRIDE + lane % words;
            vec4 a = fetch_query(i, d, 0u) * shrink, b = fetch_query(i, d, 1u) * shrink;
            if (lane < FACTOR_VECTORS) store_parts(place, place + Q_VECTORS, a, b);
            SYNC_SUBGROUP;
            coopMatLoad(q_frag[i][d], tile, start, Q_STRIDE, ROW_MAJOR);
            coopMatLoad(q_low[i][d], tile, start + Q_VECTORS, Q_STRIDE, ROW_MAJOR);
            SYNC_SUBGROUP;
        }
    }
}

void multiply_scores(uint chunk) {
    begin_scores();
    [[unroll]] for (uint g = 0u; g < KF / GROUP_K; ++g) {
        SUMS small[RF][GROUP_K];
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint n = 0u; n < GROUP_K; ++n) small[i][n] = SUMS(0.0);
        }
        [[unroll]] for (uint d = 0u; d < QF; ++d) {
            [[unroll]] for (uint n = 0u; n < GROUP_K; ++n) {
                uint f = g * GROUP_K + n;
                FACTOR_B k = key_factor(0u, f, d);
                [[unroll]] for (uint i = 0u; i < RF; ++i) {
                    small[i][n] = coopMatMulAdd(q_low[i][d], k, small[i][n]);
                    s_frag[i][f] = coopMatMulAdd(q_frag[i][d], k, s_frag[i][f]);
                }
                FACTOR_B k_low = key_factor(K_VECTORS, f, d);
                [[unroll]] for (uint i = 0u; i < RF; ++i) small[i][n] = coopMatMulAdd(q_frag[i][d], k_low, small[i][n]);
            }
        }
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint n = 0u; n < GROUP_K; ++n) s_frag[i][g * GROUP_K + n] = s_frag[i][g * GROUP_K + n] + small[i][n];
        }
    }
}

FACTOR_B value_factor(uint start, uint f, uint c);

#if ORDER
void make_weights(float factor, out FACTOR_A p[RF][PF], out FACTOR_A p_low[RF][PF]) {
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        float part[SLOTS];
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) part[r] = 0.0;
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float weight_ = exp2(fma(s_frag[i][f][e], factor, -top[i][SLOT(e)]));
                float high = high_part(weight_);
                part[SLOT(e)] += weight_;
                p[i][f][e] = float16_t(high);
                p_low[i][f][e] = float16_t(weight_ - high);
            }
        }
        [[unroll]] for (uint r = 0u; r < SLOTS; ++r) sum[i][r] += part[r];
    }
}
#else
// Through shared memory, the high parts first; the low ones wait in s_frag.
void make_weights(float factor, out FACTOR_A p[RF][PF], out FACTOR_A p_low[RF][PF]) {
    uint start = P_START + subgroup * P_VECTORS;
    FACTOR_B ones = FACTOR_B(1.0);
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        SUMS part = SUMS(0.0);
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> store;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                float weight_ = exp2(fma(s_frag[i][f][e], factor, -top[i][e]));
                float high = high_part(weight_);
                store[e] = float16_t(high);
                s_frag[i][f][e] = weight_ - high;
            }
            coopMatStore(store, tile, start + f * (MATRIX_N / 8), P_STRIDE, ROW_MAJOR);
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            coopMatLoad(p[i][f], tile, start + f * (MATRIX_K / 8), P_STRIDE, ROW_MAJOR);
            part = coopMatMulAdd(p[i][f], ones, part);
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint f = 0u; f < KF; ++f) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> store;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) store[e] = float16_t(s_frag[i][f][e]);
            coopMatStore(store, tile, start + f * (MATRIX_N / 8), P_STRIDE, ROW_MAJOR);
        }
        SYNC_SUBGROUP;
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            coopMatLoad(p_low[i][f], tile, start + f * (MATRIX_K / 8), P_STRIDE, ROW_MAJOR);
            part = coopMatMulAdd(p_low[i][f], ones, part);
        }
        SYNC_SUBGROUP;
        sum[i] = sum[i] + part;
    }
}
#endif

void multiply_values(uint chunk, float factor) {
    FACTOR_A p[RF][PF];
    FACTOR_A p_low[RF][PF];
    make_weights(factor, p, p_low);
    [[unroll]] for (uint g = 0u; g < VF / GROUP_V; ++g) {
        SUMS part[RF][GROUP_V];
        SUMS small[RF][GROUP_V];
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint n = 0u; n < GROUP_V; ++n) part[i][n] = small[i][n] = SUMS(0.0);
        }
        [[unroll]] for (uint f = 0u; f < PF; ++f) {
            [[unroll]] for (uint n = 0u; n < GROUP_V; ++n) {
                FACTOR_B v = value_factor(0u, f, g * GROUP_V + n);
                [[unroll]] for (uint i = 0u; i < RF; ++i) {
                    small[i][n] = coopMatMulAdd(p_low[i][f], v, small[i][n]);
                    part[i][n] = coopMatMulAdd(p[i][f], v, part[i][n]);
                }
                FACTOR_B v_low = value_factor(V_VECTORS, f, g * GROUP_V + n);
                [[unroll]] for (uint i = 0u; i < RF; ++i) small[i][n] = coopMatMulAdd(p[i][f], v_low, small[i][n]);
            }
        }
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            [[unroll]] for (uint n = 0u; n < GROUP_V; ++n) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) {
                    o_frag[i][g * GROUP_V + n][e] = fma(part[i][n][e] + small[i][n][e], tile_share, o_frag[i][g * GROUP_V + n][e]);
                }
            }
        }
    }
}
