// The types of matrices, and 16-bit numbers.

#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define ONES coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, SUM_COLUMNS, gl_MatrixUseB>
#define SUM_MATRIX coopmat<float, gl_ScopeSubgroup, MATRIX_M, SUM_COLUMNS, gl_MatrixUseAccumulator>
#define SUM_ELEMENTS (MATRIX_M * SUM_COLUMNS / SUBGROUP)
const int ROW_MAJOR = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMN_MAJOR = gl_CooperativeMatrixLayoutColumnMajor;

// To the nearest 16-bit number. Conversions to bfloat16 may cut (NVIDIA's do), so those of weights, which are not negative,
// are of numbers that fit. Rounding by bits makes zero of NaN: where lanes sum weights their sum shows it, elsewhere min()
// keeps it.
#if defined(DTYPE_bfloat16)
#if defined(ORDER) && !SUM_COLUMNS
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

// Elements e and e + 1 of a factor become two weights.
#define SET_PAIR(factor, e, pair) { \
    f16vec2 both = unpackFloat2x16(pack_weights(pair)); \
    factor[e] = both.x; \
    factor[e + 1u] = both.y; \
}

// Of 16-bit numbers, two to a word: the bits of exponents, and their lowest ones.
#if defined(DTYPE_bfloat16)
const uint EXPONENTS = 0x7f807f80u, EXPONENT_ONES = 0x00800080u;
#else
const uint EXPONENTS = 0x7c007c00u, EXPONENT_ONES = 0x04000400u;
#endif
