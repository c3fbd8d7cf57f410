// The push constants of linear layers of few rows, with an RMS norm before them (linear-push.glsl).

layout(push_constant, std430) uniform Push {
    uint a_offset, a_batch, a_head, a_row;
    uint b_offset, b_batch, b_head, b_row;
    uint c_offset, c_batch, c_head, c_row;
    uint bias_offset;
    uint rows, cols, depth, group;
    int shift;
    float scale;
    uint residual_offset, residual_batch, residual_head, residual_row;
    uint norm_offset;
    float norm_eps, norm_added;
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
} pc;
