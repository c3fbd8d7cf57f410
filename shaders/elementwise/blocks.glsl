// Blocks of quantized numbers, as files of GGUF have them: their bits, and the scales of their parts.
// Specialization constants 8 STORED: how the scales of parts are stored; 9 PARTS_AT: the byte of a block at which they begin.
// The including shader declares the words `blocks`.

#ifndef GRILLY_BLOCKS_GLSL
#define GRILLY_BLOCKS_GLSL

// constants: stored
const uint STORED_NONE = 0u;        // the block's own scale, or scale and minimum, are those of a unit
const uint STORED_BYTES = 1u;       // 8 bits for 16 numbers
const uint STORED_SIXES = 2u;       // 8 scales and 8 minima of 6 bits (Q4_K)
const uint STORED_THREES = 3u;      // 16 scales of 6 bits, 32 above what they are (Q3_K)
const uint STORED_NON_LINEAR = 4u;  // 8 scales of 6 bits, upper ones first, 32 above what they are (IQ4_XS)
const uint STORED_EXPONENT = 5u;    // 8 bits for 32 numbers (MXFP4)
const uint STORED_FLOATS = 6u;      // floats of 8 bits for 16 numbers (NVFP4)

layout(constant_id = 8) const uint STORED = STORED_NONE;
layout(constant_id = 9) const uint PARTS_AT = 0u;

uint byte_at(uint place) { return blocks[place / 4u] >> 8u * (place % 4u) & 255u; }
// Two of them at an even place.
uint half_at(uint place) { return blocks[place / 4u] >> 8u * (place % 4u) & 0xffffu; }

// Four bytes at any place.
uint word_at(uint place) {
    const uint shift = 8u * (place % 4u), word = blocks[place / 4u] >> shift;
    return shift == 0u ? word : word | blocks[place / 4u + 1u] << (32u - shift);
}

// `bits` bits each of four neighbouring numbers, in a byte each. `number` is a multiple of 4.
uint four_at(uint at, uint bits, uint run, uint number) {
    const uint each = 8u / bits;
    if (run == 1u) {  // of one bit
        const uint four = byte_at(at + number / 8u) >> number % 8u & 15u;
        return four * 0x00204081u & 0x01010101u;
    }
    const uint place = number / (run * each) * run + number % run;
    return word_at(at + place) >> bits * (number / run % each) & ((1u << bits) - 1u) * 0x01010101u;
}

// The same numbers next to each other.
uint joined(uint four, uint bits) {
    if (bits == 8u) return four;
    const uint two = (four | four >> (8u - bits)) & ((1u << 2u * bits) - 1u) * 0x00010001u;
    return (two | two >> (16u - 2u * bits)) & (1u << 4u * bits) - 1u;
}

// The scale of a part of 16 numbers and the next one of a unit, 8 bits each; or those of a unit with the minimum above.
uint parts_of(uint block, uint unit) {
    const uint at = block + PARTS_AT;
    if (STORED == STORED_BYTES) return byte_at(at + 2u * unit) | byte_at(at + 2u * unit + 1u) << 8;
    if (STORED == STORED_EXPONENT) return byte_at(at) * 0x0101u;
    if (STORED == STORED_FLOATS) {
        uint both = 0u;
        [[unroll]] for (uint i = 0u; i < 2u; i++) {
            const uint found = byte_at(at + 2u * unit + i);
            both |= (found == 127u ? 0u : found & 127u) << 8u * i;  // 127 stands for no number
        }
        return both;
    }
    if (STORED == STORED_SIXES) {
        if (unit < 4u) return byte_at(at + unit) & 63u | (byte_at(at + unit + 4u) & 63u) << 8;
        const uint both = byte_at(at + unit + 4u), scale = byte_at(at + unit - 4u), minimum = byte_at(at + unit);
        return both & 15u | scale >> 6 << 4 | (both >> 4 | minimum >> 6 << 4) << 8;
    }
    if (STORED == STORED_THREES) {
        uint both = 0u;
        [[unroll]] for (uint i = 0u; i < 2u; i++) {
            const uint part = 2u * unit + i;
            const uint lower = byte_at(at + part % 8u) >> 4u * (part / 8u) & 15u;
            const uint upper = byte_at(at + 8u + part % 4u) >> 2u * (part / 4u) & 3u;
            both |= ((lower | upper << 4) - 32u & 255u) << 8u * i;
        }
        return both;
    }
    const uint upper = half_at(at) >> 2u * unit & 3u, lower = byte_at(at + 2u + unit / 2u) >> 4u * (unit % 2u) & 15u;
    return ((lower | upper << 4) - 32u & 255u) * 0x0101u;
}

#endif
