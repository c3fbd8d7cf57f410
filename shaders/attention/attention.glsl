// What every attention kernel shares: bindings, push constants, specialization constants, element access, masks.
//
// Shapes (docs/kernels.md has the contract)
//   q (B, H, queries, HEAD_DIM)   k (B, H / group, keys, HEAD_DIM)   v (B, H / group, keys, VALUE_DIM)
//   o (B, H, queries, VALUE_DIM)  lse (B, H, queries)                mask broadcast to (B, H, queries, keys)
// Offsets and strides are in elements of the array they belong to (bytes for a boolean mask).
//
// The including shader is compiled with
//   DTYPE_float32, DTYPE_float16 or DTYPE_bfloat16   element type of q, k, v and o (include/elements.glsl)
//   ALIGN  1 (default) or 4          with 4, every offset, stride, HEAD_DIM and VALUE_DIM is a multiple of 4 elements,
//                                    q, k, v and o are seen as arrays of 4-vectors, and element indices given to the
//                                    4-wide functions must be multiples of 4
//          8                         the same with 8 for 16-bit types: q, k, v and o are seen as arrays of 16-byte words,
//                                    and the shader unpacks them itself
//   TEXELS                           defined with ALIGN 8: q, k and v are texel buffers of such words
//   O_ELEMENT, K_ELEMENT             what o, and k and v, are seen as arrays of, where that is something else
//   EXTRAS                           defined where the kernel offers what attention/extras.glsl has
// and must enable GL_GOOGLE_include_directive.

#ifndef GRILLY_ATTENTION_GLSL
#define GRILLY_ATTENTION_GLSL

#include "access.glsl"

layout(constant_id = 0) const int HEAD_DIM = 64;
layout(constant_id = 1) const int VALUE_DIM = 64;
layout(constant_id = 2) const int MASK = 0;    // constants "masks" of include/elements.glsl
layout(constant_id = 3) const int CAUSAL = 0;  // 1: query i sees key j when j <= i + causal_shift
layout(constant_id = 4) const int LSE = 0;     // 1: write the log-sum-exp
layout(constant_id = 5) const int MERGE = 0;   // 1: o and lse hold the result over other keys; combine with it

layout(push_constant, std430) uniform Push {
    uint q_offset, q_batch, q_head, q_row;
    uint k_offset, k_batch, k_head, k_row;
    uint v_offset, v_batch, v_head, v_row;
    uint o_offset, o_batch, o_head, o_row;
    uint mask_offset, mask_batch, mask_head, mask_row, mask_key;
    uint lse_offset, lse_batch, lse_head;
    uint queries, keys, group;
    int causal_shift;
    float scale;
#ifdef EXTRAS
    uint extra;
#endif
} pc;

#ifndef O_ELEMENT
#define O_ELEMENT IO_ELEMENT
#endif
#ifndef K_ELEMENT
#define K_ELEMENT IO_ELEMENT
#endif

#ifdef TEXELS
layout(set = 0, binding = 0) uniform usamplerBuffer q_data;
layout(set = 0, binding = 1) uniform usamplerBuffer k_data;
layout(set = 0, binding = 2) uniform usamplerBuffer v_data;
#else
layout(set = 0, binding = 0, std430) restrict readonly buffer Queries { IO_ELEMENT q_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Keys { K_ELEMENT k_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Values { K_ELEMENT v_data[]; };
#endif
// Words, whatever the mask's type: bytes are cut out of them, so that no 8-bit feature is needed. The binding must
// therefore span whole words: its length is rounded up to a multiple of 4 bytes.
layout(set = 0, binding = 3, std430) restrict readonly buffer Mask { uint mask_data[]; };
layout(set = 0, binding = 4, std430) restrict buffer Output { O_ELEMENT o_data[]; };
layout(set = 0, binding = 5, std430) restrict buffer LogSumExp { float lse_data[]; };

// ---- numbers ----

const float LOG2_E = 1.44269504088896340736;
const float LN_2 = 0.69314718055994530942;
// A score that stands for "never attend". It is finite, because Vulkan lets a device lack infinities; no real score
// comes near it: additive values below MASK_FLOOR are read as "never", and kernels keep base-2 scores above it.
// constants: numbers
const float NEVER = -3.4e38;

// ---- element access ----

#if ALIGN == 8
#elif ALIGN == 4

void store_o4(uint element, vec4 value, int count) {
    if (count > 0) o_data[element >> 2] = IO_STORE4(value);
}

#else

void store_o4(uint element, vec4 value, int count) {
    if (count > 0) o_data[element] = IO_STORE(value.x);
    if (count > 1) o_data[element + 1u] = IO_STORE(value.y);
    if (count > 2) o_data[element + 2u] = IO_STORE(value.z);
    if (count > 3) o_data[element + 3u] = IO_STORE(value.w);
}

#endif

GRILLY_LOADS(q, q_data)
GRILLY_LOADS(k, k_data)
GRILLY_LOADS(v, v_data)
GRILLY_LOADS(o, o_data)

// Element index of column 0 of a row. `head` is the query head everywhere.
uint q_index(uint batch, uint head, uint row) {
    return pc.q_offset + batch * pc.q_batch + head * pc.q_head + row * pc.q_row;
}
uint k_index(uint batch, uint head, uint key) {
    return pc.k_offset + batch * pc.k_batch + (head / pc.group) * pc.k_head + key * pc.k_row;
}
uint v_index(uint batch, uint head, uint key) {
    return pc.v_offset + batch * pc.v_batch + (head / pc.group) * pc.v_head + key * pc.v_row;
}
uint o_index(uint batch, uint head, uint row) {
    return pc.o_offset + batch * pc.o_batch + head * pc.o_head + row * pc.o_row;
}
uint lse_index(uint batch, uint head, uint row) {
    return pc.lse_offset + batch * pc.lse_batch + head * pc.lse_head + row;
}
uint mask_index(uint batch, uint head, uint row) {
    return pc.mask_offset + batch * pc.mask_batch + head * pc.mask_head + row * pc.mask_row;
}

// ---- masks ----

// What the mask adds to the scaled score at `index` (mask_index(...) + key * pc.mask_key), in natural units:
// 0 for True, NEVER for False and for additive values below MASK_FLOOR. Call it only for rows and keys in range.
float mask_bias(uint index) {
    if (MASK == MASK_BOOLEAN) {
        return ((mask_data[index >> 2] >> ((index & 3u) * 8u)) & 0xffu) != 0u ? 0.0 : NEVER;
    }
    if (MASK == MASK_ADDED) {
        float bias = uintBitsToFloat(mask_data[index]);
        return bias < MASK_FLOOR ? NEVER : bias;
    }
    return 0.0;
}

// A base-2 score (product of rows times scale times LOG2_E) under a bias from mask_bias. Selected, not added, where
// the bias says never: the score of such a slot may be NaN. The product is bounded so that it cannot become NEVER.
float biased_score(float score, float bias) {
    return bias <= NEVER ? NEVER : score + floored(bias * LOG2_E);
}

// exp2(score - maximum), and 0 for NEVER whatever the maximum.
float weight(float score, float maximum) { return score <= NEVER ? 0.0 : exp2(score - maximum); }

#ifdef EXTRAS
#include "extras.glsl"
#else
#define QUERIES pc.queries

bool causal_allows(uint row, uint key) { return CAUSAL == 0 || int(key) <= int(row) + pc.causal_shift; }

// The number of leading keys that any row up to `last_row` may see.
uint visible_keys(uint last_row) {
    if (CAUSAL == 0) return pc.keys;
    return uint(clamp(int(last_row) + pc.causal_shift + 1, 0, int(pc.keys)));
}
#endif

// ---- the result of a row ----

// Log-sum-exp in natural units from a base-2 maximum and the sum of exp2(score - maximum).
float row_lse(float maximum, float sum) { return sum == 0.0 ? minus_infinity() : (maximum + log2(sum)) * LN_2; }

// How to combine this dispatch's row with what o and lse already hold. `keep` multiplies the old output (0: do not read
// it), `add` the new normalised one, `lse` is the new log-sum-exp.
void merge_weights(float lse_old, float lse_new, out float keep, out float add, out float lse) {
    bool no_old = lse_old < MASK_FLOOR;
    bool no_new = lse_new < MASK_FLOOR;
    if (no_old || no_new) {
        keep = no_old ? 0.0 : 1.0;
        add = no_new ? 0.0 : 1.0;
        lse = no_old ? lse_new : lse_old;
        return;
    }
    float top = max(lse_old, lse_new);
    float a = exp(lse_old - top);
    float b = exp(lse_new - top);
    float total = a + b;
    keep = a / total;
    add = b / total;
    lse = top + log(total);
}

#endif
