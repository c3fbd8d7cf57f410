// What q, k, v and o hold: float32 numbers, four to a word, of which every factor is split into two float16 parts
// (flash-split.glsl), or 16-bit numbers, eight to a word.

#if SPLIT
#define PARTS 2
#define SLACK 4.0
#define LIFT 11  // weights are multiplied by 2^LIFT, so that few are too small for float16: 2^(SLACK + LIFT) at most
#define LIFTED(top) ((top) - float(LIFT))
#define ALLOWED(top) ((top) + (SLACK + float(LIFT)))

#define RESCALE(low, high) \
    low *= power_of_two(o_exponent); \
    high *= power_of_two(o_exponent);

// Eight columns of a row of the result.
#define STORE_EIGHT(low, high) \
    [[unroll]] for (uint n = 0u; n < 2u; ++n) { \
        if (row < QUERIES && column + 4u * n < VALUE_DIM) { \
            uint at = ((place + column) >> 2) + n; \
            vec4 result = n == 0u ? low : high; \
            if (MERGE != 0 && keep != 0.0) result += keep * o_data[at]; \
            o_data[at] = result; \
        } \
    }

// For recompute.glsl: a row of q times a key, and two neighbouring columns of v and o, the first even.
#define PAIR(data, at) vec2(data[(at) >> 2][(at) % 4u], data[(at) >> 2][(at) % 4u + 1u])
#define ADD_DOT(sum) \
    [[dont_unroll]] for (uint d = 0u; d < HEAD_DIM; d += 4u) { \
        sum += dot(q_data[(q_place + d) >> 2], k_data[(k_base + key * pc.k_row + d) >> 2]); \
    }
#define ADD_VALUES(sum) sum += share * PAIR(v_data, place + column);
#define STORE_PAIR(result) \
    if (MERGE != 0 && keep != 0.0) result += keep * PAIR(o_data, place + column); \
    o_data[(place + column) >> 2][column % 4u] = result.x; \
    o_data[(place + column) >> 2][column % 4u + 1u] = result.y;
#else
#define PARTS 1
#define SLACK 8.0
#define LIFTED(top) (top)
#define ALLOWED(top) ((top) + SLACK)
#define SCORE_SCALE base2_scale

#define RESCALE(low, high)

uvec4 held_k[PER_THREAD(KEYS * D8)];
uvec4 held_v[HELD_VALUES];

// Eight columns of a row of the result, and for recompute.glsl two.
#if SPLIT_KV
#define STORE_EIGHT(low, high) \
    if (row < QUERIES && column < VALUE_DIM) { \
        o_data[(place + column) >> 2] = floatBitsToUint(low); \
        o_data[((place + column) >> 2) + 1u] = floatBitsToUint(high); \
    }
#define STORE_PAIR(result) \
    o_data[(place + column) >> 2][column % 4u] = floatBitsToUint(result.x); \
    o_data[(place + column) >> 2][column % 4u + 1u] = floatBitsToUint(result.y);
#else
#define STORE_EIGHT(low, high) \
    if (row < QUERIES && column < VALUE_DIM) { \
        STORE_SIXTEEN_BITS(low, high) \
    }
#define STORE_PAIR(result) \
    if (MERGE != 0 && keep != 0.0) { \
        uint old = o_data[(place + column) >> 3][column / 2u % 4u]; \
        result += keep * vec2(unpackFloat2x16(old)); \
    } \
    o_data[(place + column) >> 3][column / 2u % 4u] = pack_pair(result);
#endif

// For recompute.glsl: a row of q times a key, and two neighbouring columns of v.
#define ADD_DOT(sum) \
    [[dont_unroll]] for (uint d = 0u; d < HEAD_DIM; d += 8u) { \
        uvec4 a = q_data[(q_place + d) >> 3], b = k_data[(k_base + K_PLACE(key) + d) >> 3]; \
        [[unroll]] for (uint w = 0u; w < 4u; ++w) { \
            vec2 x = vec2(unpackFloat2x16(a[w])), y = vec2(unpackFloat2x16(b[w])); \
            sum += x.x * y.x + x.y * y.y; \
        } \
    }
#define ADD_VALUES(sum) \
    uint word = v_data[(place + column) >> 3][column / 2u % 4u]; \
    sum += share * vec2(unpackFloat2x16(word));
#endif
