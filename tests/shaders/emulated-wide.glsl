// Matrices of attention/matrix/wide.glsl made of arrays, and its subgroups made of parts of a workgroup:
// tests/internals/test_emulated.py puts this into a copy of that file, behind the shared array. Every invocation has whole
// factors, and eight elements of a sum, in nobody's order. In invocations that a row of scores shares subgroups are the
// device's own.

#define SUM_ROW(lane, e) (((e) + 8u * ((lane) / 16u) + (lane)) % 16u)
#define SUM_COLUMN(lane, e) ((lane) % 16u)
#define MY_LANE (gl_LocalInvocationIndex % 32u)

float[8] filled_sums(float x) { return float[8](x, x, x, x, x, x, x, x); }

float16_t half_at(uint start, uint stride, uint row, uint column) {
    f16vec2 pair = unpackFloat2x16(tile[start + row * stride + column / 8u][column % 8u / 2u]);
    return column % 2u == 0u ? pair.x : pair.y;
}
void load(out FACTOR_A a, uint start, uint stride, int order) {
    [[dont_unroll]] for (uint n = 0u; n < 256u; ++n) a[n] = half_at(start, stride, n / 16u, n % 16u);
}
void load(out FACTOR_B b, uint start, uint stride, int order) {
    [[dont_unroll]] for (uint n = 0u; n < 256u; ++n) {
        b[n] = order == ROW_MAJOR ? half_at(start, stride, n / 16u, n % 16u) : half_at(start, stride, n % 16u, n / 16u);
    }
}
void load(out SUMS sums, uint start, uint stride, int order) {
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = SUM_ROW(MY_LANE, e), column = SUM_COLUMN(MY_LANE, e);
        sums[e] = uintBitsToFloat(tile[start + row * stride + column / 4u][column % 4u]);
    }
}
void store(SUMS sums, uint start, uint stride, int order) {
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = SUM_ROW(MY_LANE, e), column = SUM_COLUMN(MY_LANE, e);
        tile[start + row * stride + column / 4u][column % 4u] = floatBitsToUint(sums[e]);
    }
}
SUMS products(FACTOR_A a, FACTOR_B b, SUMS sums) {
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = SUM_ROW(MY_LANE, e), column = SUM_COLUMN(MY_LANE, e);
        [[dont_unroll]] for (uint k = 0u; k < 16u; ++k) sums[e] += float(a[row * 16u + k]) * float(b[k * 16u + column]);
    }
    return sums;
}

#define coopMatLoad(matrix, from, start, stride, order) load(matrix, start, stride, order)
#define coopMatStore(matrix, to, start, stride, order) store(matrix, start, stride, order)
#define coopMatMulAdd products
#define subgroupBarrier barrier
