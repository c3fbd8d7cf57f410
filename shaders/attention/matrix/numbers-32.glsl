// q, k, v and o are float32, four to a word, and every factor is split into two float16 parts: flash-split.glsl.

#define PARTS 2
#define SLACK 4.0
#define LIFT 11  // weights are multiplied by 2^LIFT, so that few are too small for float16: 2^(SLACK + LIFT) at most
#define LIFTED(top) ((top) - float(LIFT))
#define ALLOWED(top) ((top) + (SLACK + float(LIFT)))

// The scale of scores, and what finds it and poisoned numbers: flash-split.glsl.
#define BEGIN_STEPS
#define NOTE_FIRST_KEYS if (end > 0u) note_keys();
#define NOTE_QUERIES if (bad_query) poisoned = 1u;
#define UNLIFT(share) share *= float(1 << LIFT);
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
