// Batched matrix products, c = scale * a b, of which linear layers, scores and outputs are made; where BIASED is defined,
// activation(scale * a b + bias) + residual (epilogue.glsl).
//
// Shapes    a (batch, head, rows, depth)   c (batch, head, rows, cols)
//           b (batch, head / group, cols, depth)  where B_ROWS_ARE_COLS is defined (b is used transposed), else
//             (batch, head / group, depth, cols)
//           The last dimension of each is contiguous; all other strides are arguments (0 = broadcast).
// Bindings  0 a, 1 b, 2 c; where BIASED is defined 3 bias (cols), 4 residual, of c's shape; with HOLES 5 r, 6 p (finish.glsl)
// Constants 0 HAS_BIAS and those of epilogue.glsl, where BIASED is defined; there, in the shape for GPUs, 3 TRANSPOSED_A and
//           4 TRANSPOSED_B: a is (batch, head, depth, rows), b (batch, head / group, depth, cols)
// Push      see the block: offsets and strides in elements
// Compiled with DTYPE_* and ALIGN (elements.glsl), and
//   A_FLOAT, C_FLOAT   a, c are float32 whatever the dtype
//   WEIGHTS            a holds attention weights: a weight of exactly 0 keeps its row of b out of the result, whatever
//                      bits it holds. The product is computed plainly first; where that gave NaN or infinity, again
//                      with selection, so that the usual case costs nothing.
//   LANES_OWN_ROWS     the shape for CPUs (below) instead of the shape for GPUs
//   TEXELS             that shape with a, b and the residual, all of the dtype, read as texel buffers of 16 bytes a texel
//   SPAN, HALVES       how sums go in blocks: matmul-tile.glsl, matmul-lanes.glsl
// Accumulation float32.

#if defined(LANES_OWN_ROWS) || defined(TEXELS)
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#endif
#include "elements.glsl"

#ifdef A_FLOAT
#define A_SCALAR float
#define A_VECTOR vec4
#define A_LOAD(element) float(element)
#define A_LOAD4(vector) vec4(vector)
#else
#define A_SCALAR IO_SCALAR
#define A_VECTOR IO_VECTOR
#define A_LOAD IO_LOAD
#define A_LOAD4 IO_LOAD4
#endif
#ifdef C_FLOAT
#define C_SCALAR float
#define C_VECTOR vec4
#define C_STORE(value) float(value)
#define C_STORE4(value) vec4(value)
#else
#define C_SCALAR IO_SCALAR
#define C_VECTOR IO_VECTOR
#define C_STORE IO_STORE
#define C_STORE4 IO_STORE4
#endif
#if ALIGN == 4
#define A_ELEMENT A_VECTOR
#define B_ELEMENT IO_VECTOR
#define C_ELEMENT C_VECTOR
#else
#define A_ELEMENT A_SCALAR
#define B_ELEMENT IO_SCALAR
#define C_ELEMENT C_SCALAR
#endif

#ifndef BIASED
#define WITHOUT_RESIDUAL
#endif
#include "matmul/linear-push.glsl"

#ifdef TEXELS
layout(set = 0, binding = 0) uniform usamplerBuffer a_data;
layout(set = 0, binding = 1) uniform usamplerBuffer b_data;
#else
layout(set = 0, binding = 0, std430) restrict readonly buffer Left { A_ELEMENT a_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Right { B_ELEMENT b_data[]; };
#endif
#if defined(SPAN) && !defined(DTYPE_float32)
#undef SPAN  // the rounding of 16-bit elements is far above that of the sums
#define SPAN 0
#endif
layout(set = 0, binding = 2, std430) restrict writeonly buffer Result { C_ELEMENT c_data[]; };
#ifdef BIASED
layout(constant_id = 0) const int HAS_BIAS = 0;
#if !defined(TEXELS) && !defined(LANES_OWN_ROWS)
layout(constant_id = 3) const int TRANSPOSED_A = 0;
layout(constant_id = 4) const int TRANSPOSED_B = 0;
#endif
layout(set = 0, binding = 3, std430) restrict readonly buffer Bias { IO_SCALAR bias_data[]; };
#define FINISH_BINDING 5
#include "epilogue.glsl"
#ifdef TEXELS
layout(set = 0, binding = 4) uniform usamplerBuffer residual_data;
#else
layout(set = 0, binding = 4, std430) restrict readonly buffer Residual { C_ELEMENT residual_data[]; };
#endif
#endif

// load_*(element, count): elements element .. element + 3 as floats; those at position `count` and later are neither read
// nor anything but zero.
#if ALIGN == 4
#define GRILLY_LOAD(NAME, DATA, ONE, FOUR) \
    vec4 NAME(uint element, int count) { return count > 0 ? FOUR(DATA[element >> 2]) : vec4(0.0); }
#ifndef TEXELS
float load_a_one(uint element) { return A_LOAD4(a_data[element >> 2])[element & 3u]; }
#endif
void store_c(uint element, vec4 value, int count) {
    if (count > 0) c_data[element >> 2] = C_STORE4(value);
}
#else
float load_a_one(uint element) { return A_LOAD(a_data[element]); }
#define GRILLY_LOAD(NAME, DATA, ONE, FOUR) \
    vec4 NAME(uint element, int count) { \
        vec4 value = vec4(0.0); \
        if (count > 0) value.x = ONE(DATA[element]); \
        if (count > 1) value.y = ONE(DATA[element + 1u]); \
        if (count > 2) value.z = ONE(DATA[element + 2u]); \
        if (count > 3) value.w = ONE(DATA[element + 3u]); \
        return value; \
    }
void store_c(uint element, vec4 value, int count) {
    if (count > 0) c_data[element] = C_STORE(value.x);
    if (count > 1) c_data[element + 1u] = C_STORE(value.y);
    if (count > 2) c_data[element + 2u] = C_STORE(value.z);
    if (count > 3) c_data[element + 3u] = C_STORE(value.w);
}
#endif
#ifdef TEXELS
#include "texels.glsl"
vec4 load_residual(uint element, int count) { return four_of(texelFetch(residual_data, TEXEL(element)), element); }
#else
GRILLY_LOAD(load_a, a_data, A_LOAD, A_LOAD4)
GRILLY_LOAD(load_b, b_data, IO_LOAD, IO_LOAD4)
#ifdef BIASED
GRILLY_LOAD(load_residual, residual_data, IO_LOAD, IO_LOAD4)
#endif
#endif

#ifdef WEIGHTS
layout(constant_id = 0) const int CAUSAL = 0;  // row i uses no element of a and no row of b past i + shift
#else
const int CAUSAL = 0;
#endif

// The columns of a that `row` may use.
int row_depth(int row) { return CAUSAL == 0 ? int(pc.depth) : clamp(row + pc.shift + 1, 0, int(pc.depth)); }

vec4 bias_at(int col, int cols) {
    vec4 bias = vec4(0.0);
#ifdef BIASED
    if (HAS_BIAS == 1) {
        if (col < cols) bias.x = IO_LOAD(bias_data[pc.bias_offset + uint(col)]);
        if (col + 1 < cols) bias.y = IO_LOAD(bias_data[pc.bias_offset + uint(col + 1)]);
        if (col + 2 < cols) bias.z = IO_LOAD(bias_data[pc.bias_offset + uint(col + 2)]);
        if (col + 3 < cols) bias.w = IO_LOAD(bias_data[pc.bias_offset + uint(col + 3)]);
    }
#endif
    return bias;
}

// What comes of the sums of four columns from col on, their bias added.
vec4 finished(vec4 value, uint batch, uint head, int row, int col, int cols) {
#ifdef BIASED
    value = activation(value);
    if (HAS_RESIDUAL == 1) {
        const uint first = pc.residual_offset + batch * pc.residual_batch + head * pc.residual_head;
        value += load_residual(first + uint(row) * pc.residual_row + uint(col), cols - col);
    }
#if HOLES
    if (FINISHED == 1u) {
        const uint place = batch * pc.c_batch + head * pc.c_head + uint(row) * pc.c_row;
        [[unroll]] for (int e = 0; e < 4; e++) {
            const uint own = uint(min(col + e, cols - 1));
            value[e] = behind(value[e], place + own, own);
        }
    }
#endif
#endif
    return value;
}

#ifdef TEXELS
#include "matmul-texels.glsl"
#elif defined(LANES_OWN_ROWS)
#include "matmul-lanes.glsl"
#else
#include "matmul-tile.glsl"
#endif
