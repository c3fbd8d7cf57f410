// The keys of a tile of rows are shared out among several workgroups, in equal parts of whole tiles. Their results are
// float32, one behind the other as if there were more batches; attention-join.comp makes one of them.

uint begin;  // the first key of this workgroup's share; `end` is past its last one
#define BEGIN begin
#define ROW_TILES ((QUERIES + ROWS - 1u) / ROWS)
#define OUT_BATCH (batch + gl_WorkGroupID.x / ROW_TILES * gl_NumWorkGroups.z)
// Workgroups of a share follow each other: they read the same keys at the same time.
#define FIND_ROWS first_row = gl_WorkGroupID.x % ROW_TILES * ROWS;
#define TAKE_SHARE \
    uint shares = gl_NumWorkGroups.x / ROW_TILES, share = (end + shares - 1u) / shares; \
    share = (share + KEYS - 1u) / KEYS * KEYS; \
    begin = min(gl_WorkGroupID.x / ROW_TILES * share, end); \
    end = min(begin + share, end);
