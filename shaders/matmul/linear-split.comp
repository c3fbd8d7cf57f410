#version 450
#extension GL_EXT_control_flow_attributes : require
// What it computes: each row of a float32 matrix as two 16-bit parts and an exponent, for products on matrix units with
//     float16 factors: x = 2^e (high + low), up to 2^-23 of x and 2^-38 of the row's largest element.
// Shapes and layouts: x (B, H, M, K), its last axis contiguous; the result (B, H, M, R), packed, R = 4 (K' / 4 + 8)
//     words with K' = K rounded up to 32. A row is, for every 8 elements, 8 high and then 8 low parts, 16 bytes each, zeros
//     past K; then 128 bytes that begin with e as an int.
// e makes the row's largest finite element lie between 2^14 and 2^15, so that nothing overflows a float16. Infinity
//     and NaN stay what they are, in the high part.
// Accumulation: none.
// Workgroup x owns rows x, x + count, ...

#define THREADS 128u
layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint x_offset, x_batch, x_head, x_row;
    uint split_offset;
    uint batches, heads, rows, depth;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer Source { float x_data[]; };
layout(set = 0, binding = 0, std430) readonly buffer SourceVectors { vec4 x_vectors[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Split { uvec4 split_data[]; };

shared uint maxima[THREADS];

// Elements k .. k + 3 of the row at `first`, zeros past the depth.
vec4 load(uint first, uint k, bool vectors) {
    if (vectors) return k < pc.depth ? x_vectors[(first + k) / 4u] : vec4(0.0);
    vec4 value = vec4(0.0);
    [[unroll]] for (uint e = 0u; e < 4u; e++) if (k + e < pc.depth) value[e] = x_data[first + k + e];
    return value;
}

uint finite_bits(float x) {
    uint bits = floatBitsToUint(x) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0u;
}

// The nearest number of 11 binary digits, as a float16 has. By bits, because a compiler may take conversion to 16 bits and
// back for nothing, and drivers differ in how they round.
float rounded(float x) {
    uint bits = floatBitsToUint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : uintBitsToFloat((bits + 0x1000u) & 0xffffe000u);
}

void main() {
    const uint thread = gl_LocalInvocationID.x;
    const uint groups = (pc.depth + 31u) / 32u * 4u;  // of 8 elements
    const bool vectors = ((pc.x_offset | pc.x_batch | pc.x_head | pc.x_row | pc.depth) & 3u) == 0u;
    for (uint row = gl_WorkGroupID.x; row < pc.batches * pc.heads * pc.rows; row += gl_NumWorkGroups.x) {
        const uint first = pc.x_offset + row / (pc.heads * pc.rows) * pc.x_batch + row / pc.rows % pc.heads * pc.x_head
            + row % pc.rows * pc.x_row;
        const uint to = pc.split_offset / 4u + row * (2u * groups + 8u);
        uint own = 0u;
        for (uint k = 4u * thread; k < pc.depth; k += 4u * THREADS) {
            vec4 value = load(first, k, vectors);
            [[unroll]] for (int e = 0; e < 4; e++) own = max(own, finite_bits(value[e]));
        }
        barrier();  // the row before is done with them
        maxima[thread] = own;
        [[unroll]] for (uint left = THREADS / 2u; left > 0u; left /= 2u) {
            barrier();
            if (thread < left) maxima[thread] = max(maxima[thread], maxima[thread + left]);
        }
        barrier();
        const uint largest = maxima[0];
        // At most 2^126 is multiplied by; a row so small keeps full precision all the same.
        const int power = max(int(largest >> 23) - 127 - 14, -126);
        const float factor = uintBitsToFloat(uint(127 - power) << 23);
        for (uint group = thread; group < groups; group += THREADS) {
            uvec4 high, low;
            [[unroll]] for (uint half_group = 0u; half_group < 2u; half_group++) {
                const vec4 value = load(first, 8u * group + 4u * half_group, vectors) * factor;
                vec4 top, rest;
                [[unroll]] for (int e = 0; e < 4; e++) {
                    top[e] = rounded(value[e]);
                    rest[e] = finite_bits(value[e]) > 0u ? rounded(value[e] - top[e]) : 0.0;
                }
                high[2u * half_group] = packHalf2x16(top.xy);
                high[2u * half_group + 1u] = packHalf2x16(top.zw);
                low[2u * half_group] = packHalf2x16(rest.xy);
                low[2u * half_group + 1u] = packHalf2x16(rest.zw);
            }
            split_data[to + 2u * group] = high;
            split_data[to + 2u * group + 1u] = low;
        }
        if (thread == 0u) split_data[to + 2u * groups] = uvec4(uint(power), 0u, 0u, 0u);
    }
}
