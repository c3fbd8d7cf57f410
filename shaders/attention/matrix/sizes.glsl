// Counts and sizes that follow from what flash.glsl's defines choose.

#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require

#ifndef VDIM
#define VDIM DIM
#endif
#ifndef BUFFERS
#define BUFFERS 1
#endif
#ifndef CHUNK
#define CHUNK KEYS
#endif
#ifndef GROUP_K
#define GROUP_K 1
#endif
#ifndef GROUP_V
#define GROUP_V 1
#endif
#ifndef Q_SHARED
#define Q_SHARED 0
#endif
#ifndef DRAWN_TOGETHER
#define DRAWN_TOGETHER 1
#endif

#include "subgroups.glsl"

#define ROWS_EACH (MATRIX_M * RF)
#define ROWS (SUBGROUPS * ROWS_EACH)
#define QF (DIM / MATRIX_K)
#define VF (VDIM / MATRIX_N)
#define KF (CHUNK / MATRIX_N)
#define PF (CHUNK / MATRIX_K)
#define D8 (DIM / 8)
#define V8 (VDIM / 8)
#define MY_ROW (first_row + subgroup * ROWS_EACH)

#if RAISE_WHILE
#define RAISE while
#else
#define RAISE if
#endif

// What lies where in the shared array, in words of 16 bytes: tiles of k and v from the start on, then what is kept of q, then
// what the form adds (SCRATCH_START, SHARED_VECTORS).

#define K_STRIDE (D8 + 1)
#define K_VECTORS (KEYS * K_STRIDE)

// One subgroup's scratch holds a float32 matrix (2 ELEMENTS bytes a lane and float).
#define FACTOR_VECTORS (MATRIX_M * MATRIX_K / 8)
#define SCRATCH_VECTORS (MATRIX_M * MATRIX_N / 4)
#define Q_STRIDE (MATRIX_K / 8 + 1)
#define Q_VECTORS (MATRIX_M * Q_STRIDE)
#define Q_ROW (Q_SHARED * (MATRIX_K / 8) + 1)

// Where the present tiles of k and v begin.
#if BUFFERS == 1
#define K_AT 0u
#define V_AT 0u
#define TILE_END (PARTS * (K_VECTORS > V_VECTORS ? K_VECTORS : V_VECTORS))
#else
#define SIDE (K_VECTORS + V_VECTORS)
#define TILE_END (BUFFERS / 2 * SIDE)
#if BUFFERS == 4
uint tile_side = 0u;  // 0 or SIDE
#define K_AT tile_side
#define V_AT (tile_side + K_VECTORS)
#else
#define K_AT 0u
#define V_AT K_VECTORS
#endif
#endif

#define Q_START TILE_END
#define Q_END (Q_START + (Q_SHARED > 0 ? ROWS * Q_ROW : 0))
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define MY_SCRATCH (SCRATCH_START + subgroup * SCRATCH_VECTORS)
// With WHOLE_ROWS: rows of a fragment of q or o, that a subgroup exchanges.
#define WHOLE_STRIDE (MOST(D8, V8) + 1)
#define WHOLE_VECTORS (MATRIX_M * WHOLE_STRIDE)
