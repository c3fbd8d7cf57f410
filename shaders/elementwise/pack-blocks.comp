#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: rows of a quantized matrix in the order of quantized.glsl, from blocks as files of GGUF have them.
// Shapes and layouts: blocks (rows, row_bytes), bytes; low, high and scales as quantization/packing.py says.
// Bindings: 0 blocks, 1 low, 2 high, 3 scales.
// Specialization constants: those of quantized.glsl, and of a block
//     BLOCK                numbers
//     BYTES                bytes
//     LOW_AT, LOW_RUN      byte at which the lower bits of the numbers begin; numbers whose bits lie in a byte each, before
//                          those with the next higher bits of the same bytes
//     HIGH_AT, HIGH_RUN    the same of the upper bits
//     SCALE_AT, MINIMUM_AT byte at which the float16 is that scales are multiplied with, or is the scale; and for minima
//     STORED, PARTS_AT     how the scales of parts are stored, and the byte at which they begin
// Push constants: see the block. row_bytes counts bytes, the other offsets and rows words.
// Workgroup: THREADS pairs of units; x and y together count the workgroups, STRIPE of them along x.
// Invocation: two units of 32 numbers of a row, and their scales.
// Preconditions: rows begin at multiples of 4 bytes in low, high and scales; low and high are no arrays of others.

#define SCALES_WORD(i) 0u
#include "quantized.glsl"

layout(constant_id = 0) const uint BLOCK = 32u;
layout(constant_id = 1) const uint BYTES = 18u;
layout(constant_id = 2) const uint LOW_AT = 2u;
layout(constant_id = 3) const uint LOW_RUN = 16u;
layout(constant_id = 4) const uint HIGH_AT = 0u;
layout(constant_id = 5) const uint HIGH_RUN = 1u;
layout(constant_id = 6) const uint SCALE_AT = 0u;
layout(constant_id = 7) const uint MINIMUM_AT = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, units, blocks_offset, row_bytes;
    uint low_offset, low_row, high_offset, high_row, scales_offset, scales_row;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Blocks { uint blocks[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Low { uint low_data[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer High { uint high_data[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Scales { uint scales_data[]; };

#include "elementwise/blocks.glsl"

void main() {
    const uint pairs = (pc.units + 1u) / 2u;
    const uint all = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    if (all >= pc.rows * pairs) return;
    const uint row = all / pairs, pair = all % pairs, per_block = BLOCK / UNIT;
    const uint from = 4u * pc.blocks_offset + row * pc.row_bytes, scales_at = pc.scales_offset + row * pc.scales_row;
    uint of_units[2];
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        const uint unit = 2u * pair + i;
        of_units[i] = 0u;
        if (unit < pc.units) {
            const uint block = from + unit / per_block * BYTES, own = unit % per_block;
            uint low = 0u, high = 0u;
            [[unroll]] for (uint quad = 0u; quad < 8u; quad++) {
                low |= joined(four_at(block + LOW_AT, LOW, LOW_RUN, own * UNIT + 4u * quad), LOW) << 4u * LOW * quad % 32u;
                if ((quad + 1u) * LOW % 8u == 0u) {
                    if (OFFSET != 0u && HIGH == 0u && LOW < 8u) low ^= OFFSET * (0xffffffffu / ((1u << LOW) - 1u));
                    low_data[pc.low_offset + row * pc.low_row + unit * LOW + quad * LOW / 8u] = low;
                    low = 0u;
                }
                if (HIGH != 0u) {
                    high |= joined(four_at(block + HIGH_AT, HIGH, HIGH_RUN, own * UNIT + 4u * quad), HIGH) << 4u * HIGH * quad % 32u;
                    if ((quad + 1u) * HIGH % 8u == 0u) {
                        high_data[pc.high_offset + row * pc.high_row + unit * HIGH + quad * HIGH / 8u] = high;
                        high = 0u;
                    }
                }
            }
            if (SCALES == SCALES_HALVES_MINIMA) {
                scales_data[scales_at + unit] = half_at(block + SCALE_AT) | half_at(block + MINIMUM_AT) << 16;
            }
            of_units[i] = SCALES == SCALES_HALVES ? half_at(block + SCALE_AT) : STORED == STORED_NONE ? 0u : parts_of(block, own);
        }
    }
    if (SCALES == SCALES_HALVES_MINIMA) return;
    uint before = 0u;
    const uint blocks_of_row = pc.units / 8u, block = pair / 4u;  // of 256 numbers
    if (SCALES == SCALES_BYTES_MINIMA || SCALES == SCALES_NIBBLES_MINIMA) {
        before = blocks_of_row;
        const uint at = from + block * BYTES;
        if (pair % 4u == 0u) scales_data[scales_at + block] = half_at(at + SCALE_AT) | half_at(at + MINIMUM_AT) << 16;
    } else if (SCALES == SCALES_BYTES) {
        before = (blocks_of_row + 1u) / 2u;
        if (pair % 8u == 0u) {
            const uint at = from + block * BYTES + SCALE_AT;
            scales_data[scales_at + block / 2u] = half_at(at) | (block + 1u < blocks_of_row ? half_at(at + BYTES) << 16 : 0u);
        }
    }
    scales_data[scales_at + before + pair] = of_units[0] | of_units[1] << 16;
}
