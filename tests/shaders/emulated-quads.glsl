// Matrices in the order of shaders/decode/quads.glsl made of arrays, and subgroups of 32 made of parts of a workgroup:
// tests/internals/test_emulated.py puts this into a copy of that file. Every function is called by the whole workgroup.

#define MATRICES 4  // subgroups of a workgroup at most
#define MY_MATRIX (gl_LocalInvocationIndex / 32u)

// What invocations exchange has two places in turn, so that one barrier is enough: who writes to a place has met the others
// once more since they read from it. Each barrier more makes the compiler of llvmpipe slower than all else here.
shared float left[2][MATRICES][16][16], right[2][MATRICES][16][16];
shared uint exchanged[2][MATRICES * 32];
uint turn = 0u;

void exchange(uint word) {
    turn ^= 1u;
    exchanged[turn][gl_LocalInvocationIndex] = word;
    barrier();
}
uint from_lane(uint word, uint other) {
    exchange(word);
    return exchanged[turn][MY_MATRIX * 32u + other];
}
float from_one(float x, uint other) { return uintBitsToFloat(from_lane(floatBitsToUint(x), other)); }
float from_xor(float x, uint bits) { return from_one(x, gl_LocalInvocationIndex % 32u ^ bits); }
// Of the workgroup: what is done where any needs it is right for those that do not, and barriers are met by all.
bool any_lane(bool x) {
    exchange(uint(x));
    bool found = false;
    [[dont_unroll]] for (uint n = 0u; n < gl_WorkGroupSize.x; ++n) found = found || exchanged[turn][n] != 0u;
    return found;
}

float[8] filled_sums(float x) { return float[8](x, x, x, x, x, x, x, x); }
float16_t[8] filled_factor(float x) {
    float16_t y = float16_t(x);
    return float16_t[8](y, y, y, y, y, y, y, y);
}

float[8] products(float16_t[8] a, float16_t[8] b, float[8] sums) {
    uint me = gl_LocalInvocationIndex % 32u;
    turn ^= 1u;
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = me / 4u + 8u * (e >> 2), column = 2u * (me % 4u) + (e & 1u);
        left[turn][MY_MATRIX][row][column + 8u * ((e >> 1) & 1u)] = float(a[e]);
        right[turn][MY_MATRIX][column + 8u * ((e >> 1) & 1u)][row] = float(b[e]);
    }
    barrier();
    [[dont_unroll]] for (uint e = 0u; e < 8u; ++e) {
        uint row = me / 4u + 8u * (e >> 2), column = 2u * (me % 4u) + (e & 1u) + 8u * ((e >> 1) & 1u);
        [[dont_unroll]] for (uint k = 0u; k < 16u; ++k) sums[e] += left[turn][MY_MATRIX][row][k] * right[turn][MY_MATRIX][k][column];
    }
    return sums;
}

#define coopMatMulAdd products
#define subgroupShuffleXor from_xor
#define subgroupShuffle from_one
#define subgroupAny any_lane
#define subgroupAll(each) (!any_lane(!(each)))
