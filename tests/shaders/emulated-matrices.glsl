// Cooperative matrices made of arrays, in AMD's element orders, and a subgroup made of a workgroup of 32:
// tests/test_amd_orders.py puts this into a copy of include/flash-matrix.glsl, behind the shared array.
//   FACTOR_ELEMENTS   what an invocation holds of a factor: 16 where both halves of a subgroup hold all of it, else 8
//   IN_TURNS          1: accumulator rows are held by the halves in turns, 0: eight in sequence each

shared float left[2][16][16], right[2][16][16];
shared uint exchanged[32];

uint from_lane(uint word, uint other) {
    barrier();
    exchanged[gl_LocalInvocationIndex] = word;
    barrier();
    return exchanged[other];
}
uint from_xor(uint word, uint bits) { return from_lane(word, gl_LocalInvocationIndex ^ bits); }
float from_xor(float x, uint bits) { return uintBitsToFloat(from_xor(floatBitsToUint(x), bits)); }
float from_one(float x, uint other) { return uintBitsToFloat(from_lane(floatBitsToUint(x), other)); }
bool any_lane(bool x) {
    barrier();
    exchanged[gl_LocalInvocationIndex] = uint(x);
    barrier();
    uint found = 0u;
    for (uint n = 0u; n < 32u; ++n) found |= exchanged[n];
    return found != 0u;
}

float[8] zero_sums() { return float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0); }

// A first factor by rows, or a second one by columns: each side is in sequence in memory.
float16_t[FACTOR_ELEMENTS] loaded(uint start, uint stride) {
    float16_t factor[FACTOR_ELEMENTS];
    uint side = gl_LocalInvocationIndex % 16u, half_ = gl_LocalInvocationIndex / 16u;
    for (uint e = 0u; e < FACTOR_ELEMENTS; e += 2u) {
        uint place = FACTOR_ELEMENTS == 16 ? e : 8u * half_ + e;
        f16vec2 pair = unpackFloat2x16(tile[start + side * stride + place / 8u][place % 8u / 2u]);
        factor[e] = pair.x;
        factor[e + 1u] = pair.y;
    }
    return factor;
}

// Each half of the subgroup multiplies what its own invocations hold, where that is all.
float[8] products(float16_t[FACTOR_ELEMENTS] a, float16_t[FACTOR_ELEMENTS] b, float[8] sums) {
    uint side = gl_LocalInvocationIndex % 16u, half_ = gl_LocalInvocationIndex / 16u;
    barrier();
    for (uint e = 0u; e < FACTOR_ELEMENTS; ++e) {
        for (uint copy = 0u; copy < 2u; ++copy) {
            if (FACTOR_ELEMENTS == 16 && copy != half_) continue;
            uint place = FACTOR_ELEMENTS == 16 ? e : 8u * half_ + e;
            left[copy][side][place] = float(a[e]);
            right[copy][place][side] = float(b[e]);
        }
    }
    barrier();
    for (uint e = 0u; e < 8u; ++e) {
        uint row = IN_TURNS != 0 ? 2u * e + half_ : 8u * half_ + e;
        for (uint k = 0u; k < 16u; ++k) sums[e] += left[half_][row][k] * right[half_][k][side];
    }
    return sums;
}

#define coopMatLoad(matrix, from, start, stride, order) matrix = loaded(start, stride)
#define coopMatMulAdd products
#define subgroupShuffleXor from_xor
#define subgroupShuffle from_one
#define subgroupAny any_lane
#define subgroupBarrier barrier
