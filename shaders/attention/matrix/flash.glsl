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
// One file does one step. Where it can be done in several ways, what the including shader defines chooses among them. What may
// not stand together is in combinations.glsl. A macro that is left out is 0, but for those with another default in brackets.
//
//   ORDER          the form: which elements of a matrix an invocation holds
//                  0: nothing is assumed; weights and maxima go through shared memory (form-any.glsl)
//                  1: NVIDIA's order (quads.glsl); 2: llvmpipe's (form-columns.glsl). A row's statistics live in registers, its
//                  maximum travels by shuffles, and the weights become a factor element by element, as an accumulator and an A
//                  factor have the same order on these devices
//                  3: both products are transposed, so that a query is a column, in AMD's orders or llvmpipe's
//                  (form-transposed.glsl). What is said of rows elsewhere is then true of queries
//   TURN_SHARED    with ORDER 3, 1: weights become a factor through shared memory
//
//   DTYPE_...      q, k, v and o are 16-bit; or float32, and every factor is split into two float16 parts (flash-split.glsl)
//   GROUP_K, GROUP_V   of float32: fragments of scores and of the output that are summed side by side (1)
//   OPTIONS        what of attention/extras.glsl is offered, beside a mask
//                  0: nothing
//                  1: sinks, and each sample's own rows and keys (ENDS). As they do nothing to a score that every row sees, all
//                  else is as without them (options-ends.glsl)
//                  2: these, and the soft-cap and ALiBi, which change scores by a rule (COMPUTED: chunk-computed.glsl)
//                  3: classes of tiles (TILED: mask-mod-lanes.glsl)
//                  4: all (SCORE_MODS: tiles-options.glsl, visible-keys.glsl)
//   FUNCTIONS      defined where functions of users are offered beside all (function-mods.glsl)
//   SPLIT_KV       1: the keys of a tile of rows are split among several workgroups, whose results are float32 (state.glsl), and
//                  its rows may be of several heads (packed-gqa.glsl). The specialization constant MERGE is 0
//
//   MATRIX_M, MATRIX_N, MATRIX_K   the matrix shape
//   SUBGROUP, SUBGROUPS            invocations in a subgroup (full), subgroups in the workgroup
//   RF, KEYS                       row fragments of a subgroup, keys of a tile
//   DIM, VDIM                      head dimensions rounded up to whole fragments (DIM); HEAD_DIM <= DIM, VALUE_DIM <= VDIM
//   Q_SHARED                       trailing fragments of each q row kept in shared memory instead of registers
//
//   BUFFERS        1: tiles of k and v take turns in one place, four barriers a tile; 2: each has its own, two barriers, three
//                  with CHUNK; 3: the same, two barriers, both fetched while the tile before is computed; 4: each has two, one
//                  barrier (1)
//   CHUNK          keys of a tile whose scores are held at once (KEYS)
//   SUM_ON_MATRIX  1: a matrix of ones sums the weights on the matrix unit
//   SPLIT_LOOPS    1: tiles without any masked key have a loop of their own
//   RETRY          1: weights are made with the maximum as it is, without looking for the chunk's; where their sums show that it
//                  must be raised, the chunk is done again (weights-retry.glsl)
//   STEPS          1: what a thread fetches of a whole tile lies at equal steps from its first word, which saves the arithmetic
//                  of places and tests
//   WHOLE_ROWS     1: rows of q and o pass through shared memory a whole row fragment at a time, which takes
//                  SUBGROUPS MATRIX_M (DIM / 8 + 1) words of 16 bytes
//   LOCKSTEP       defined where a subgroup's invocations run in lockstep and subgroupBarrier must not be used
//   APART          1: rows that an additive mask mixes nearly everywhere may be of another dispatch
//   DRAWN_TOGETHER random generators that an invocation runs side by side for dropout (1)
//   RAISE_WHILE    1: the rare branch is written as a loop that runs at most once: compilers place it elsewhere
// HEAD_DIM, VALUE_DIM, offsets and strides are multiples of 8 (ALIGN 8), of float32 of 4 (ALIGN 4).

#define ENDS (OPTIONS == 1 || OPTIONS == 2)
#define COMPUTED (OPTIONS == 2)
#define TILED (OPTIONS == 3)
#define SCORE_MODS (OPTIONS == 4)
#if OPTIONS
#define EXTRAS
#endif
#ifdef FUNCTIONS
#define HOLDS_WORDS
#endif
#ifdef DTYPE_float32
#define SPLIT 1
#endif
#include "attention/attention.glsl"

#include "sizes.glsl"
#include "combinations.glsl"
#include "factors.glsl"

// The form.
#if ORDER == 1
#include "quads.glsl"
#elif ORDER == 2
#include "form-columns.glsl"
#elif ORDER == 3
#include "form-transposed.glsl"
#else
#include "form-any.glsl"
#endif
#if ORDER != 3
#include "rows.glsl"
#endif
#if ORDER
#include "ordered.glsl"
#endif

// The numbers and the options.
#include "numbers.glsl"
#if TILED || SCORE_MODS
#include "options.glsl"
#else
#include "options-ends.glsl"
#endif
#include "packed-gqa.glsl"
#include "state.glsl"

// Fetch and store tiles and queries (flash-split.glsl has its own).
#if !SPLIT
#include "tiles.glsl"
#endif
#include "queries.glsl"

// mask_mod and score_mod, and multiply queries by keys.
#if TILED
#include "mask-mod-lanes.glsl"
#elif SCORE_MODS
#include "tiles-options.glsl"
#include "visible-keys.glsl"
#if ORDER == 1 && !defined(FUNCTIONS)
#include "score-mod-quads.glsl"
#else
#include "score-mod.glsl"
#endif
#else
#include "mask-mod.glsl"
#if COMPUTED
#include "score-mod-computed.glsl"
#endif
#endif
#include "multiply.glsl"
#if !TILED && !SCORE_MODS
#include "mask.glsl"
#endif

// Raise the maximum, make weights, and multiply values by them.
#include "maximum.glsl"
#if RETRY
#include "weights-retry.glsl"
#elif !SPLIT
#define VALUES_NAME multiply_values
#define WEIGHTS_NAME make_weights
#include "weights.glsl"
#if SCORE_MODS
#undef VALUES_NAME
#undef WEIGHTS_NAME
#define DROPPED
#define VALUES_NAME multiply_kept_values
#define WEIGHTS_NAME make_kept_weights
#include "weights.glsl"
#endif
#endif

// A chunk of a tile, a tile, and the loop over tiles.
#if COMPUTED
#include "chunk-computed.glsl"
#else
#include "chunk.glsl"
#endif
#include "tile.glsl"
#include "store.glsl"
#include "recompute.glsl"
#include "loop.glsl"
