// q, k, v and o are 16-bit numbers, eight to a word.

#define PARTS 1
#define SLACK 8.0
#define LIFTED(top) (top)
#define ALLOWED(top) ((top) + SLACK)
#define SCORE_SCALE base2_scale

// What numbers-32.glsl has to do and this has not.
#define NOTE_FIRST_KEYS
#define NOTE_KEYS
#define NOTE_VALUES
#define NOTE_QUERIES
#define UNLIFT(share)
#define RESCALE(low, high)

uvec4 held_k[PER_THREAD(KEYS * D8)];
uvec4 held_v[HELD_VALUES];

// Eight columns of a row of the result, and for recompute.glsl two.
#ifdef SPLIT_KV
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
        if (MERGE != 0 && keep != 0.0) { \
            uvec4 old = o_data[(place + column) >> 3]; \
            low += keep * vec4(unpackFloat2x16(old.x), unpackFloat2x16(old.y)); \
            high += keep * vec4(unpackFloat2x16(old.z), unpackFloat2x16(old.w)); \
        } \
        o_data[(place + column) >> 3] = \
            uvec4(pack_pair(low.xy), pack_pair(low.zw), pack_pair(high.xy), pack_pair(high.zw)); \
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
