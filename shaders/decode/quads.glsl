// NVIDIA's order of elements, and matrices in it. Element e of lane L of a 16 x 8 sum is row L/4 + 8 (e/2), column
// 2 (L%4) + e%2; of a 16 x 8 B factor, row 2 (L%4) + e%2 + 8 (e/2), column L/4; a 16 x 16 A factor has two such sums'
// elements side by side, row by row. A matrix of 16 columns is two of 8: B_HALF(e) and B_HELD(e) say where element e of its
// B factor stands, AT its sums. `lane` is the including shader's.

#define SUBGROUP 32
#define MATRIX_M 16
#define MATRIX_K 16
#define DEEP 4
#define HELD 4
#define ACROSS (lane / 4u)
#define MY_DEEP (lane % 4u)
#define B_ROW(e) (2u * (lane % 4u) + uint((e) & 1) + 8u * uint((e) >> 1))
#define SLOTS 2  // rows of a sum that an invocation holds elements of
#define SLOT(e) ((e) >> 1)
#define SLOT_FIRST(slot) (8 * (slot))
#define SLOT_ROW(slot) (lane / 4u + 8u * uint(slot))
#define COLUMN(e) (2u * (lane % 4u) + uint((e) & 1))
#define ROW_HOLDER(column) ((lane & ~3u) | (column) % 8u / 2u)  // of the invocations with the same rows, who has a column
#define SPREAD 4  // invocations that hold a row
#define ELEMENTS 4  // of a sum of eight columns
#define MATRIX_N 16
#define WIDTH 2  // matrices of 8 columns in it
#define B_HALF(e) ((e) >> 2)
#define B_HELD(e) ((e) & 3)
#define AT(sums, i, e) sums[(i) / 2][((e) & 1) + 2 * ((i) & 1) + 4 * ((e) >> 1)]

#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
