// Cooperative matrices made of arrays, in the element orders of several devices, and a subgroup made of a workgroup:
// tests/internals/test_element_orders.py puts this into a copy of matrix/state.glsl, behind the shared array.
//   EMULATED                  which orders: below
//   A_ELEMENTS, B_ELEMENTS    what an invocation holds of a first and of a second factor. Where the two differ in order
//                             they must differ in number, as that is how functions tell them apart: one may be unused
#define IN_SEQUENCE 1  // RDNA 4: accumulator rows 8 h + e in column L % 16, h = L / 16; factors by sides, halves of K
#define IN_TURNS 2     // RDNA 3: rows 2 e + h. With 16 elements of a factor each half of the subgroup holds all of it
#define QUADS 3        // NVIDIA
#define SCRAMBLED 4    // nobody's, at any shape: for the form that assumes nothing

#if EMULATED == QUADS
#define SUM_ROW(lane, e) ((lane) / 4u + 8u * ((e) >> 2))
#define SUM_COLUMN(lane, e) (2u * ((lane) % 4u) + ((e) & 1u) + 8u * (((e) >> 1) & 1u))
#define A_ROW(lane, e) SUM_ROW(lane, e)
#define A_COLUMN(lane, e) SUM_COLUMN(lane, e)
#define B_ROW(lane, e) SUM_COLUMN(lane, e)
#define B_COLUMN(lane, e) SUM_ROW(lane, e)
#elif EMULATED == SCRAMBLED
#define SUM_ROW(lane, e) (((e) + 8u * ((lane) / MATRIX_N) + (lane)) % MATRIX_M)
#define SUM_COLUMN(lane, e) ((lane) % MATRIX_N)
#define A_ROW(lane, e) ((e) + 8u * ((lane) / MATRIX_K))
#define A_COLUMN(lane, e) (((lane) * 3u + (e)) % MATRIX_K)
#define B_ROW(lane, e) (((e) ^ 5u) + 8u * ((lane) / MATRIX_N))
#define B_COLUMN(lane, e) (MATRIX_N - 1u - (lane) % MATRIX_N)
#else
#define HALF (lane / 16u)
#define SUM_ROW(lane, e) (EMULATED == IN_TURNS ? 2u * (e) + HALF : 8u * HALF + (e))
#define SUM_COLUMN(lane, e) (lane % 16u)
#define PLACE(e) (A_ELEMENTS == 16 ? (e) : 8u * HALF + (e))
#define A_ROW(lane, e) (lane % 16u)
#define A_COLUMN(lane, e) PLACE(e)
#define B_ROW(lane, e) PLACE(e)
#define B_COLUMN(lane, e) (lane % 16u)
#endif

// Invocations that hold the same elements of a factor multiply what their own part of the subgroup holds.
#define COPIES (EMULATED <= IN_TURNS && A_ELEMENTS == 16 ? 2 : 1)
#define COPY (COPIES == 2 ? gl_LocalInvocationIndex / 16u : 0u)

// What invocations exchange has two places in turn, so that one barrier is enough: who writes to a place has met the others
// once more since they read from it. Each barrier more makes the compiler of llvmpipe slower than all else here.
shared float left[2][COPIES][MATRIX_M][MATRIX_K], right[2][COPIES][MATRIX_K][MATRIX_N];
shared uint exchanged[2][SUBGROUP];
uint turn = 0u;

void exchange(uint word) {
    turn ^= 1u;
    exchanged[turn][gl_LocalInvocationIndex] = word;
    barrier();
}
uint from_lane(uint word, uint other) {
    exchange(word);
    return exchanged[turn][other];
}
uint from_xor(uint word, uint bits) { return from_lane(word, gl_LocalInvocationIndex ^ bits); }
float from_xor(float x, uint bits) { return uintBitsToFloat(from_xor(floatBitsToUint(x), bits)); }
float from_one(float x, uint other) { return uintBitsToFloat(from_lane(floatBitsToUint(x), other)); }
uint or_lanes(uint word) {
    exchange(word);
    uint found = 0u;
    [[dont_unroll]] for (uint n = 0u; n < SUBGROUP; ++n) found |= exchanged[turn][n];
    return found;
}
uint add_lanes(uint word) {
    exchange(word);
    uint sum_ = 0u;
    [[dont_unroll]] for (uint n = 0u; n < SUBGROUP; ++n) sum_ += exchanged[turn][n];
    return sum_;
}
bool any_lane(bool x) { return or_lanes(uint(x)) != 0u; }

float[8] filled_sums(float x) { return float[8](x, x, x, x, x, x, x, x); }
FACTOR_B filled_factor(float x) {
    FACTOR_B b;
    [[dont_unroll]] for (uint e = 0u; e < B_ELEMENTS; ++e) b[e] = float16_t(x);
    return b;
}

// Places are words of 16 bytes, so a row is a whole number of them.
float16_t half_at(uint start, uint stride, uint row, uint column) {
    f16vec2 pair = unpackFloat2x16(tile[start + row * stride + column / 8u][column % 8u / 2u]);
    return column % 2u == 0u ? pair.x : pair.y;
}
void load(out FACTOR_A a, uint start, uint stride, int order) {
    uint lane = gl_LocalInvocationIndex;
    [[dont_unroll]] for (uint e = 0u; e < A_ELEMENTS; ++e) {
        uint row = A_ROW(lane, e), column = A_COLUMN(lane, e);
#if EMULATED <= IN_TURNS
        a[e] = half_at(start, stride, row, column);  // B by columns is the same as A by rows
#else
        a[e] = order == ROW_MAJOR ? half_at(start, stride, row, column) : half_at(start, stride, column, row);
#endif
    }
}
#if EMULATED > IN_TURNS
void load(out FACTOR_B b, uint start, uint stride, int order) {
    uint lane = gl_LocalInvocationIndex;
    [[dont_unroll]] for (uint e = 0u; e < MATRIX_K * MATRIX_N / SUBGROUP; ++e) {
        uint row = B_ROW(lane, e), column = B_COLUMN(lane, e);
        b[e] = order == ROW_MAJOR ? half_at(start, stride, row, column) : half_at(start, stride, column, row);
    }
}
#endif
void load(out SUMS sums, uint start, uint stride, int order) {
    uint lane = gl_LocalInvocationIndex;
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = SUM_ROW(lane, e), column = SUM_COLUMN(lane, e);
        sums[e] = uintBitsToFloat(tile[start + row * stride + column / 4u][column % 4u]);
    }
}
void store(SUMS sums, uint start, uint stride, int order) {
    uint lane = gl_LocalInvocationIndex;
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = SUM_ROW(lane, e), column = SUM_COLUMN(lane, e);
        tile[start + row * stride + column / 4u][column % 4u] = floatBitsToUint(sums[e]);
    }
}
// An accumulator of halves. Two of them share a word and may be another invocation's, so they meet in between.
void store(float16_t[8] halves, uint start, uint stride, int order) {
    uint lane = gl_LocalInvocationIndex;
    turn ^= 1u;
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) right[turn][0][SUM_ROW(lane, e)][SUM_COLUMN(lane, e)] = float(halves[e]);
    barrier();
    [[dont_unroll]] for (uint n = lane; n < MATRIX_M * MATRIX_N / 2; n += SUBGROUP) {
        uint row = n / (MATRIX_N / 2), column = n % (MATRIX_N / 2) * 2u;
        f16vec2 pair = f16vec2(right[turn][0][row][column], right[turn][0][row][column + 1u]);
        tile[start + row * stride + column / 8u][column % 8u / 2u] = packFloat2x16(pair);
    }
    barrier();
}

SUMS products(FACTOR_A a, FACTOR_B b, SUMS sums) {
    uint lane = gl_LocalInvocationIndex;
    turn ^= 1u;
    [[dont_unroll]] for (uint e = 0u; e < (COPIES == 2 ? 16u : MATRIX_M * MATRIX_K / SUBGROUP); ++e) {
        left[turn][COPY][A_ROW(lane, e)][A_COLUMN(lane, e)] = float(a[e]);
    }
    [[dont_unroll]] for (uint e = 0u; e < (COPIES == 2 ? 16u : MATRIX_K * MATRIX_N / SUBGROUP); ++e) {
        right[turn][COPY][B_ROW(lane, e)][B_COLUMN(lane, e)] = float(b[e]);
    }
    barrier();
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = SUM_ROW(lane, e), column = SUM_COLUMN(lane, e);
        [[dont_unroll]] for (uint k = 0u; k < MATRIX_K; ++k) sums[e] += left[turn][COPY][row][k] * right[turn][COPY][k][column];
    }
    return sums;
}

#define coopMatLoad(matrix, from, start, stride, order) load(matrix, start, stride, order)
#define coopMatStore(matrix, to, start, stride, order) store(matrix, start, stride, order)
#define coopMatMulAdd products
#define subgroupShuffleXor from_xor
#define subgroupShuffle from_one
#define subgroupAny any_lane
#define subgroupAll(each) (!any_lane(!(each)))
#define subgroupOr or_lanes
#define subgroupAdd add_lanes
#define subgroupBarrier barrier
