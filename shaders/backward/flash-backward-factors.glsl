// What the kernels of attention's gradients on matrix units share (VK_KHR_cooperative_matrix): types of matrices, factors of
// 16 bits, and how results leave matrices.
//
// The including shader defines
//   MATRIX_M, MATRIX_N, MATRIX_K   the matrix shape
//   SUBGROUP, SUBGROUPS            invocations in a subgroup (full), subgroups in the workgroup
//   RF                             row fragments of a subgroup, of MATRIX_M rows
//   LOCKSTEP                       defined where a subgroup's invocations run in lockstep and subgroupBarrier must not be used
// and before STORE_SUMS the shared array `tile` of 16-byte words, SUBGROUPS * PASS_VECTORS or more, and these variables:
//   lane, subgroup                 the invocation's place
//   first_own                      the workgroup's first row, of OWNED

#include "subgroups.glsl"

#if MATRIX_M * MATRIX_N != 8 * SUBGROUP || MATRIX_N != MATRIX_K || MATRIX_K % 8
#error "an invocation holds eight elements of an accumulator, which becomes a first factor as it is"
#endif

#define OWN_EACH (MATRIX_M * RF)
#define OWN (SUBGROUPS * OWN_EACH)
#define MOST(a, b) ((a) > (b) ? (a) : (b))

// 16-byte words of the shared array through which a subgroup's fragments pass.
#define PASS_STRIDE (MATRIX_K / 8 + 1)
#define PASS_VECTORS MOST(MATRIX_M * PASS_STRIDE, MATRIX_M * MATRIX_N / 4)

// dS where it is stored: of a fragment, the elements of each invocation of a subgroup, whatever their order. So it can
// only be read as it was written, as a first factor. Fragments lie one after the other, by batch and head, fragment of
// keys and fragment of rows; of so many keys and rows that those of all tiles of both kernels have a place.
#define FRAGMENT SUBGROUP  // 16-byte words
#define FRAGMENTS(count) (((count) + STORED - 1u) / STORED * (STORED / MATRIX_M))

#define GRADIENTS
#include "attention/matrix/factors.glsl"
#if defined(DTYPE_bfloat16)
#define PACKED(a, b) (floatBitsToUint(float(a)) >> 16 | floatBitsToUint(float(b)) & 0xffff0000u)
#define UNPACKED(word) vec2(uintBitsToFloat((word) << 16), uintBitsToFloat((word) & 0xffff0000u))
#else
#define PACKED(a, b) packFloat2x16(f16vec2(a, b))
#define UNPACKED(word) unpackFloat2x16(word)
#endif

// With zeros for what is not finite.
uvec4 finite(uvec4 words) {
    uvec4 low = words & (EXPONENTS & 0xffffu), high = words & (EXPONENTS & 0xffff0000u);
    return words & mix(uvec4(0xffffu), uvec4(0u), equal(low, uvec4(EXPONENTS & 0xffffu)))
         | words & mix(uvec4(0xffff0000u), uvec4(0u), equal(high, uvec4(EXPONENTS & 0xffff0000u)));
}

// The results of the subgroup's own rows.
#define STORE_SUMS(SUM, COUNT, WIDTH, SCALE, STORE) \
    [[unroll]] for (uint i = 0u; i < RF; ++i) { \
        const uint words = MATRIX_N / 8; \
        uint own = first_own + subgroup * OWN_EACH + i * MATRIX_M + lane / words; \
        [[unroll]] for (uint c = 0u; c < COUNT; ++c) { \
            uint start = subgroup * PASS_VECTORS; \
            coopMatStore(SUM[i][c], tile, start, MATRIX_N / 4, ROW_MAJOR); \
            SYNC_SUBGROUP; \
            uint column = c * MATRIX_N + 8u * (lane % words); \
            if (lane < MATRIX_M * words && own < OWNED && column < WIDTH) { \
                vec4 low = uintBitsToFloat(tile[start + 2u * lane]) * SCALE; \
                vec4 high = uintBitsToFloat(tile[start + 2u * lane + 1u]) * SCALE; \
                STORE((result + own) * WIDTH + column, low, high); \
            } \
            SYNC_SUBGROUP; \
        } \
    }
