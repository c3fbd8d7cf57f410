// Attention on matrix units (VK_KHR_cooperative_matrix) with an online softmax.
//
// Computes, for each query row, o = softmax(scale q k^T + mask) v without storing the scores (Dao 2023,
// "FlashAttention-2", algorithm 1). Factors are 16-bit, sums, exponentials and the output until it is stored are float32.
// The running maximum is raised only when a tile exceeds it by SLACK powers of two (the idea is FlashAttention-4's): until
// then weights may reach 2^SLACK, which changes no relative precision.
//
// A workgroup of SUBGROUPS subgroups owns ROWS query rows; each subgroup owns RF row fragments of MATRIX_M rows and keeps
// their q, scores and output in cooperative matrices of MATRIX_M x MATRIX_N x MATRIX_K. Keys are taken in tiles of KEYS.
// k and v tiles lie in shared memory as 16-byte words, rows an odd number of words long against bank conflicts. What the
// next step needs is loaded into registers before the present one is computed, and stored after it.
//
// One file does one step. A step that can be done in several ways has a file for each, with the same functions and macros;
// what the including shader defines chooses among them. What may not stand together is in combinations.glsl.
//
// The form: which elements of a matrix an invocation holds.
//   ORDER          1: NVIDIA's order (form-quads.glsl), 2: llvmpipe's (form-columns.glsl). A row's statistics live in
//                  registers, its maximum travels by shuffles, and the weights become a factor element by element, as an
//                  accumulator and an A factor have the same order on these devices
//   TRANSPOSED     both products are transposed, so that a query is a column, in AMD's orders or llvmpipe's
//                  (form-transposed.glsl). What is said of rows elsewhere is then true of queries
//   TURN_SHARED    with TRANSPOSED: defined where weights become a factor through shared memory
//   none of these  nothing is assumed; weights and maxima go through shared memory (form-any.glsl)
//
// The numbers and options:
//   SPLIT          q, k, v and o are float32 and every factor is split into two float16 parts: flash-split.glsl. Otherwise
//                  they are 16-bit
//   GROUP_K, GROUP_V   with SPLIT: fragments of scores and of the output that are summed side by side (1)
//   EXTRAS         what attention/extras.glsl has is offered: tiles-options.glsl and the like
//   TILED          beside EXTRAS: classes of tiles and a mask are all that is offered: mask-mod-lanes.glsl and the like
//   FUNCTIONS      beside EXTRAS: functions of users are offered as well (function-mods.glsl)
//   ENDS           beside EXTRAS: sinks, each sample's own rows and keys, and a mask are all that is offered. As they do nothing
//                  to a score that every row sees, all else is as without EXTRAS: options-ends.glsl
//   COMPUTED       beside ENDS: the soft-cap and ALiBi are offered as well, which change scores by a rule: step-computed.glsl
//   SPLIT_KV       the keys of a tile of rows are split among several workgroups, whose results are float32 (split-kv.glsl),
//                  and its rows may be of several heads (packed-gqa.glsl). MERGE is 0
//
// The sizes:
//   MATRIX_M, MATRIX_N, MATRIX_K   the matrix shape
//   SUBGROUP, SUBGROUPS            invocations in a subgroup (full), subgroups in the workgroup
//   RF, KEYS                       row fragments of a subgroup, keys of a tile
//   DIM, VDIM                      head dimensions rounded up to whole fragments; HEAD_DIM <= DIM, VALUE_DIM <= VDIM
//   Q_SHARED                       trailing fragments of each q row kept in shared memory instead of registers
//
// The schedule:
//   BUFFERS                        1 (default): tiles of k and v take turns in one place, four barriers a tile; 2: each has
//                                  its own, two barriers, three with CHUNK; 3: the same, two barriers, both fetched while
//                                  the tile before is computed; 4: each has two, one barrier
//   CHUNK                          keys of a tile whose scores are held at once: KEYS (default), or less
//   SUM_COLUMNS                    0, or the columns of a matrix of ones that sums the weights on the matrix unit
//   SPLIT_LOOPS                    1: tiles without any masked key have a loop of their own
//   RETRY                          1: weights are made with the maximum as it is, without looking for the chunk's; where their
//                                  sums show that it must be raised, the chunk is done again (weights-retry.glsl)
//   STEPS                          1: what a thread fetches of a whole tile lies at equal steps from its first word, which
//                                  saves the arithmetic of places and tests
//   WHOLE_ROWS                     defined where rows of q and o pass through shared memory a whole row fragment at a time,
//                                  which takes SUBGROUPS MATRIX_M (DIM / 8 + 1) words of 16 bytes
//   LOCKSTEP                       defined where a subgroup's invocations run in lockstep and subgroupBarrier must not be used
//   APART                          rows that an additive mask mixes nearly everywhere may be of another dispatch
//   DRAWN_TOGETHER                 random generators that an invocation runs side by side for dropout (1)
//   RAISE_WHILE                    1: the rare branch is written as a loop that runs at most once: compilers place it elsewhere
// HEAD_DIM, VALUE_DIM, offsets and strides are multiples of 8 (ALIGN 8), with SPLIT of 4 (ALIGN 4).

// Options that change scores, and all that may mask keys.
#if defined(EXTRAS) && !defined(TILED) && !defined(ENDS)
#define SCORE_MODS
#endif

#include "sizes.glsl"
#include "combinations.glsl"
#include "places.glsl"
#include "factors.glsl"

// The form.
#ifdef TRANSPOSED
#include "form-transposed.glsl"
#elif ORDER == 1
#include "form-quads.glsl"
#elif ORDER == 2
#include "form-columns.glsl"
#else
#include "form-any.glsl"
#endif

// The numbers that q, k, v and o hold, and the options.
#ifdef SPLIT
#include "numbers-32.glsl"
#else
#include "numbers-16.glsl"
#endif
#if defined(ENDS)
#include "options-ends.glsl"
#elif defined(EXTRAS)
#include "options.glsl"
#else
#include "options-none.glsl"
#endif
#include "packed-gqa.glsl"
#include "state.glsl"

// Fetch and store tiles and queries (flash-split.glsl has its own).
#ifndef SPLIT
#include "fetch-keys.glsl"
#ifndef TRANSPOSED
#include "fetch-values.glsl"
#endif
#include "store-keys.glsl"
#ifdef TRANSPOSED
#include "values-transposed.glsl"
#else
#include "store-values.glsl"
#endif
#include "queries.glsl"
#endif

// mask_mod, and multiply queries by the others.
#include "key-factor.glsl"
#if defined(TILED)
#include "mask-mod-lanes.glsl"
#elif defined(SCORE_MODS)
#include "tiles-options.glsl"
#include "visible-keys.glsl"
#include "mask-mod-options.glsl"
#if ORDER == 1 && !defined(FUNCTIONS)
#include "score-mod-quads.glsl"
#else
#include "score-mod.glsl"
#endif
#else
#include "mask-mod.glsl"
#ifdef COMPUTED
#include "score-mod-computed.glsl"
#endif
#endif
#include "multiply.glsl"
#if !defined(EXTRAS) || defined(ENDS)
#include "mask.glsl"
#endif

// Raise the maximum.
#ifdef ORDER
#include "maximum-ordered.glsl"
#else
#include "maximum-any.glsl"
#endif

// Make weights, and multiply values by them.
#if RETRY
#include "weights-retry.glsl"
#elif !defined(SPLIT)
#define VALUES_NAME multiply_values
#define WEIGHTS_NAME make_weights
#include "weights.glsl"
#ifdef SCORE_MODS
#undef VALUES_NAME
#undef WEIGHTS_NAME
#define DROPPED
#define VALUES_NAME multiply_kept_values
#define WEIGHTS_NAME make_kept_weights
#include "weights.glsl"
#endif
#endif

// A chunk of a tile, a tile, and the loop over tiles.
#if defined(TILED)
#include "step-lanes.glsl"
#elif defined(SCORE_MODS)
#include "step-options.glsl"
#elif defined(COMPUTED)
#include "step-computed.glsl"
#else
#include "step-plain.glsl"
#endif
#if defined(COMPUTED)
#include "chunk-computed.glsl"
#elif RETRY
#include "chunk-retry.glsl"
#else
#include "chunk.glsl"
#endif
#if defined(TILED)
#include "tile-lanes.glsl"
#elif defined(SCORE_MODS)
#include "tile-options.glsl"
#else
#include "tile-plain.glsl"
#endif
#include "store.glsl"
#include "recompute.glsl"
#if defined(TILED)
#include "loop-lanes.glsl"
#elif defined(SCORE_MODS)
#include "loop-options.glsl"
#elif defined(COMPUTED)
#include "loop-computed.glsl"
#else
#include "loop-plain.glsl"
#endif
