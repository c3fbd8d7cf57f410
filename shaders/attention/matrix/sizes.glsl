// Counts and sizes that follow from what flash.glsl's defines choose.

#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

#ifdef TRANSPOSED
#define ORDER 3  // a known one too
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
