// Which block of a head's y a workgroup takes: workgroups go down a band of BAND row blocks before they go to the next column,
// so that those that run together find each other's panels in the cache. x counts columns of blocks, y rows of all heads.
// FIND_BAND: of the blocks from row `band` on, `band_rows` high, the workgroup's is number `turn`.
#define FIND_BAND(row_blocks) \
    const uint number = gl_WorkGroupID.y % row_blocks * gl_NumWorkGroups.x + gl_WorkGroupID.x; \
    const uint band = number / (BAND * gl_NumWorkGroups.x) * BAND; \
    const uint band_rows = min(row_blocks - band, BAND); \
    const uint turn = number - band * gl_NumWorkGroups.x;
