// The keys of a tile of rows are split among several workgroups, in equal parts of whole tiles. Their results are
// float32, one behind the other as if there were more batches; attention-combine.comp makes one of them.

uint begin;  // the first key of this workgroup's split; `end` is past its last one
#define BEGIN begin
#define ROW_TILES ((QUERIES + ROWS - 1u) / ROWS)
#define OUT_BATCH (batch + gl_WorkGroupID.x / ROW_TILES * gl_NumWorkGroups.z)
// Workgroups of a split follow each other: they read the same keys at the same time.
#define FIND_ROWS first_row = gl_WorkGroupID.x % ROW_TILES * ROWS;
#define TAKE_SPLIT \
    uint splits = gl_NumWorkGroups.x / ROW_TILES, keys_each = (end + splits - 1u) / splits; \
    keys_each = (keys_each + KEYS - 1u) / KEYS * KEYS; \
    begin = min(gl_WorkGroupID.x / ROW_TILES * keys_each, end); \
    end = min(begin + keys_each, end);
