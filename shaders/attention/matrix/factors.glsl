// The types of matrices, and 16-bit numbers: of kernels on matrix units that define MATRIX_M, MATRIX_N and MATRIX_K.

#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
const int ROW_MAJOR = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMN_MAJOR = gl_CooperativeMatrixLayoutColumnMajor;

// Loops over what a subgroup holds: fragments s_frag[i][f] of the scores of a chunk and their elements e; and the rows r of
// fragments i that an invocation holds statistics of, or elements.
#define EACH_FRAGMENT [[unroll]] for (uint i = 0u; i < RF; ++i) [[unroll]] for (uint f = 0u; f < KF; ++f)
#define EACH_SCORE EACH_FRAGMENT [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e)
#define EACH_SLOT [[unroll]] for (uint i = 0u; i < RF; ++i) [[unroll]] for (uint r = 0u; r < SLOTS; ++r)
#define EACH_HELD_ROW [[unroll]] for (uint i = 0u; i < RF; ++i) [[unroll]] for (uint r = 0u; r < HELD_ROWS; ++r)

// To the nearest 16-bit number. Conversions to bfloat16 may cut (NVIDIA's do), so they are of numbers that fit. Rounding by
// bits makes zero of NaN: where lanes sum weights their sum shows it, elsewhere min() keeps it, as weights are not negative;
// numbers of GRADIENTS may be.
#if defined(DTYPE_bfloat16)
#if ORDER && !SUM_ON_MATRIX || defined(GRADIENTS)
#define ROUNDED_BITS(weight) (floatBitsToUint(weight) + 0x8000u)
#else
#define ROUNDED_BITS(weight) min(floatBitsToUint(weight) + 0x8000u, 0x7fc00000u)
#endif
#define ROUNDED(weight) uintBitsToFloat(ROUNDED_BITS(weight) & 0xffff0000u)
uint pack_pair(vec2 x) { return bfloat16_word(x.x) | bfloat16_word(x.y) << 16; }
uint pack_weights(vec2 pair) { return ROUNDED_BITS(pair.x) >> 16 | ROUNDED_BITS(pair.y) & 0xffff0000u; }
#else
#define ROUNDED(weight) (weight)
uint pack_pair(vec2 x) { return packFloat2x16(f16vec2(x)); }
uint pack_weights(vec2 pair) { return pack_pair(pair); }
#endif

// Eight elements of a row of the result, where there is one (`keep`) added to what it holds.
#define STORE_SIXTEEN_BITS(low, high) \
    if (MERGE != 0 && keep != 0.0) { \
        uvec4 old = o_data[(place + column) >> 3]; \
        low += keep * vec4(unpackFloat2x16(old.x), unpackFloat2x16(old.y)); \
        high += keep * vec4(unpackFloat2x16(old.z), unpackFloat2x16(old.w)); \
    } \
    o_data[(place + column) >> 3] = \
        uvec4(pack_pair(low.xy), pack_pair(low.zw), pack_pair(high.xy), pack_pair(high.zw));

// Elements e and e + 1 of a factor become two weights.
#define SET_PAIR(factor, e, pair) { \
    f16vec2 both = unpackFloat2x16(pack_weights(pair)); \
    factor[e] = both.x; \
    factor[e + 1u] = both.y; \
}

// Of 16-bit numbers, two to a word: the bits of exponents, and their lowest ones.
#if defined(DTYPE_bfloat16)
const uint EXPONENTS = 0x7f807f80u;
#else
const uint EXPONENTS = 0x7c007c00u;
#endif
#if defined(GRADIENTS)
#elif defined(DTYPE_bfloat16)
const uint EXPONENT_ONES = 0x00800080u;
#else
const uint EXPONENT_ONES = 0x04000400u;
#endif
