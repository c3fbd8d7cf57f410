// Where a workgroup of matmul-lanes.glsl and matmul-texels.glsl works, and its lanes: the first statements of main.
    const int rows = int(pc.rows);
    const int cols = int(pc.cols);
    const uint row_blocks = (pc.rows + uint(8 * R) - 1u) / uint(8 * R);
    const uint head = gl_WorkGroupID.y / row_blocks;
    // The driver gives each of its threads an equal share of the workgroups, one after the other. So those of the same
    // columns follow each other: a last block of few rows is then in all shares. Only eight blocks of rows at a time
    // take turns, whose part of a stays in the cache.
    const uint all_cols = gl_NumWorkGroups.x;
    const uint block = (gl_WorkGroupID.y % row_blocks) * all_cols + gl_WorkGroupID.x;
    const uint band = 8u * (block / (8u * all_cols));
    const uint band_rows = min(8u, row_blocks - band);
    const uint in_band = block - band * all_cols;
    const uint batch = gl_WorkGroupID.z;
    const int row_first = int(band + in_band % band_rows) * 8 * R;
    const int col_first = int(in_band / band_rows) * C;
    const uint a_first = pc.a_offset + batch * pc.a_batch + head * pc.a_head;
    const uint b_first = pc.b_offset + batch * pc.b_batch + (head / pc.group) * pc.b_head;
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const int lane = int(gl_SubgroupInvocationID);
