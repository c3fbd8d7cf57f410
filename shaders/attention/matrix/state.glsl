// What a workgroup shares and what an invocation holds.

shared uvec4 tile[SHARED_VECTORS];
// Raised once a value that some query may not see holds a NaN or an infinity, with SPLIT a key or a query too, with TILED once
// an output is NaN; never lowered.
shared uint poisoned;

uint thread, lane, subgroup, batch, head, first_row, end, q_base, k_base, v_base;
float base2_scale;
QUERY_FACTOR q_frag[RF][QF];
SUMS s_frag[RF][KF];
SUMS o_frag[RF][VF];

#if SPLIT_KV
// The keys of a tile of rows are split among several workgroups, in equal parts of whole tiles. Their results are
// float32, one behind the other as if there were more batches; attention-combine.comp makes one of them.
uint begin;  // the first key of this workgroup's split; `end` is past its last one
#define BEGIN begin
#define ROW_TILES ((QUERIES + ROWS - 1u) / ROWS)
#define OUT_BATCH (batch + gl_WorkGroupID.x / ROW_TILES * gl_NumWorkGroups.z)
// Workgroups of a split follow each other: they read the same keys at the same time.
#define FIND_ROWS first_row = gl_WorkGroupID.x % ROW_TILES * ROWS;
#else
#define BEGIN 0u
#define OUT_BATCH batch
// Under a causal mask later rows see more keys: the longest workgroups start first.
#if ORDER == 1 || ORDER == 2
#include "../longest-first.glsl"
void find_rows() {
    uint tile_ = gl_WorkGroupID.x;
    if (CAUSAL != 0) {
        uint bytes = pc.keys * uint(HEAD_DIM + VALUE_DIM) * (2u * PARTS);
        tile_ = gl_NumWorkGroups.x - 1u - longest_first(bytes, pc.group, head, batch);
    }
    first_row = tile_ * ROWS;
}
#define FIND_ROWS find_rows();
#else
#define FIND_ROWS \
    first_row = (CAUSAL != 0 ? gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x : gl_WorkGroupID.x) * ROWS;
#endif
#endif
