// Where a workgroup of matmul-lanes.glsl and matmul-texels.glsl works, and its lanes: the first statements of main.
    const int rows = int(pc.rows);
    const int cols = int(pc.cols);
    const uint row_blocks = (pc.rows + uint(8 * R) - 1u) / uint(8 * R);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z;
    const int row_first = int(gl_WorkGroupID.y % row_blocks) * 8 * R;
    const int col_first = int(gl_WorkGroupID.x) * C;
    const uint a_first = pc.a_offset + batch * pc.a_batch + head * pc.a_head;
    const uint b_first = pc.b_offset + batch * pc.b_batch + (head / pc.group) * pc.b_head;
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const int lane = int(gl_SubgroupInvocationID);
