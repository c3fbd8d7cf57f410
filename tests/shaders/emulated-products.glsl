// Matrices of 16 x 16 and 16 x 8 in NVIDIA's order of elements made of arrays, and subgroups of 32 made of parts of a
// workgroup: tests/internals/test_quantized_kernels.py puts this into a copy of linear-quantized-matrix.comp. Every function is
// called by the whole workgroup.

shared float16_t left[8][16][16], right[8][16][8];
shared uint exchanged[256];

float[4] filled_sums(float x) { return float[4](x, x, x, x); }
float16_t[8] filled_factor(float16_t x) { return float16_t[8](x, x, x, x, x, x, x, x); }

float[4] products(float16_t[8] a, float16_t[4] b, float[4] sums) {
    const uint me = gl_LocalInvocationIndex % 32u, mine = gl_LocalInvocationIndex / 32u;
    barrier();
    [[dont_unroll]] for (uint e = 0u; e < 8u; e++) left[mine][me / 4u + 8u * (e / 4u)][2u * (me % 4u) + (e & 1u) + 8u * (e / 2u & 1u)] = a[e];
    [[dont_unroll]] for (uint e = 0u; e < 4u; e++) right[mine][2u * (me % 4u) + (e & 1u) + 8u * (e / 2u)][me / 4u] = b[e];
    barrier();
    [[dont_unroll]] for (uint e = 0u; e < 4u; e++) {
        [[dont_unroll]] for (uint k = 0u; k < 16u; k++) {
            sums[e] += float(left[mine][me / 4u + 8u * (e / 2u)][k]) * float(right[mine][k][2u * (me % 4u) + (e & 1u)]);
        }
    }
    return sums;
}
#define coopMatMulAdd products
