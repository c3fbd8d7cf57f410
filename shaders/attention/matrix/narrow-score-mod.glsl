// score-mod.glsl where an invocation holds one query: a fragment is a subgroup's queries by the eight keys of an accumulator. That
// gives MATRIX_M and MATRIX_N another meaning than the types of matrices, so this comes after all that names such a type.

#undef MATRIX_M
#undef MATRIX_N
#define MATRIX_M SUBGROUP
#define MATRIX_N 8
#define RF 1
#define KF (CHUNK / 8)
#define FIND_PLACES
#define PLACE_ROW(e) lane
#define PLACE_COLUMN(e) (e)
#define MY_ROW team_row()
#include "score-mod.glsl"
