// The push constants of products: offsets and strides in elements (matmul.glsl). WITHOUT_RESIDUAL: of what is no linear layer.
// HOLES: see finish.glsl. NORMALISED: of layers that may normalise x on their way. Only the last members may be left out.

layout(push_constant, std430) uniform Push {
    uint a_offset, a_batch, a_head, a_row;
    uint b_offset, b_batch, b_head, b_row;
    uint c_offset, c_batch, c_head, c_row;
    uint bias_offset;
    uint rows, cols, depth, group;
    int shift;
    float scale;
#ifndef WITHOUT_RESIDUAL
    uint residual_offset, residual_batch, residual_head, residual_row;
#endif
#if HOLES
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
#endif
#ifdef NORMALISED
    uint norm_offset;
    float norm_eps, norm_added;
#endif
} pc;
