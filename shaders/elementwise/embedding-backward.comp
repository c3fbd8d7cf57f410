#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the gradient of an embedding's weight: y[r] = sum of g[t] over the tokens t whose id is r.
// Shapes and layouts: ids (tokens), contiguous; g (tokens, D) contiguous; y (rows, D) contiguous float32.
// Bindings: 0 ids, 1 g, 2 y.
// Specialization constants: TYPE_IDS, TYPE_G (words.glsl); QUADS, whether rows of g begin at multiples of four elements;
//     FRESH, whether y begins as zeros, or as what it holds; HALVES (words.glsl).
// Push constants: see the block; offsets in elements. The dispatch has rows first to first + rows - 1 of the `extent`
//     that ids count, at y_offset. Row `skipped` gets nothing.
// Workgroup: `share` rows (x) and 4 * THREADS columns (y). It reads all ids, 4 * THREADS at a time, and goes through those
//     that name its rows, in their order. Invocation: four columns, whose sum stays in registers as long as the same row
//     follows.
// Accumulation: float32, in the order of the tokens: no atomic operation on numbers, so the same bits each time.
// Preconditions: THREADS is a multiple of 32.

const uint EACH = 4u;  // (words.glsl)
layout(constant_id = 4) const uint HALVES = 0u;

#include "elementwise/embedding.glsl"

layout(constant_id = 1) const uint TYPE_G = 8u;
layout(constant_id = 2) const uint QUADS = 0u;
layout(constant_id = 3) const uint FRESH = 1u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint tokens, columns, ids_offset, g_offset, y_offset, extent, first, rows, share, skipped;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer Ids { uvec4 ids_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer G { uvec4 g_data[]; };
layout(set = 0, binding = 2, std430) buffer Y { float y_data[]; };

READER(ids, ids_data, width_of(TYPE_IDS))
READER(g, g_data, width_of(TYPE_G))

const uint CHUNK = 4u * uint(THREADS);
const uint NONE = 0xffffffffu;
shared uint named[CHUNK];         // the rows that ids ask for, counted from `first`
shared uint found[CHUNK / 32u];   // a bit for each id that names a row of this workgroup

void main() {
    uint lane = gl_LocalInvocationIndex;
    uint low = gl_WorkGroupID.x * pc.share, high = min(low + pc.share, pc.rows);
    uint column = 4u * (gl_WorkGroupID.y * uint(THREADS) + lane);
    uint width = column < pc.columns ? min(4u, pc.columns - column) : 0u;
    if (FRESH == 1u) {
        for (uint row = low; row < high; row++) {
            for (uint k = 0u; k < width; k++) y_data[pc.y_offset + row * pc.columns + column + k] = 0.0;
        }
    }
    uint current = NONE;
    vec4 sum = vec4(0.0);
    for (uint base = 0u; base < pc.tokens; base += CHUNK) {
        barrier();  // before what others still read is replaced
        if (lane < CHUNK / 32u) found[lane] = 0u;
        barrier();
        [[unroll]] for (uint part = 0u; part < 4u; part++) {
            uint place = part * uint(THREADS) + lane, token = base + place;
            if (token < pc.tokens) {
                uint row = row_of(ids_raw(pc.ids_offset + token), pc.extent);
                uint own = row - pc.first;
                named[place] = own;
                if (own >= low && own < high && row != pc.skipped) atomicOr(found[place / 32u], 1u << place % 32u);
            }
        }
        barrier();
        for (uint word = 0u; word < CHUNK / 32u; word++) {
            for (uint bits = found[word]; bits != 0u; bits &= bits - 1u) {
                uint place = 32u * word + uint(findLSB(bits));
                uint row = named[place];
                if (row != current) {
                    for (uint k = 0u; k < width; k++) {
                        if (current != NONE) y_data[pc.y_offset + current * pc.columns + column + k] = sum[k];
                        sum[k] = y_data[pc.y_offset + row * pc.columns + column + k];
                    }
                    current = row;
                }
                uint at = pc.g_offset + (base + place) * pc.columns + column;
                if (QUADS == 1u) {
                    if (width == 4u) {
                        uvec2 raw[8];
                        g_run(at, at + 4u, raw);
                        [[unroll]] for (uint k = 0u; k < 4u; k++) {
                            sum[k] += uintBitsToFloat(natural(TYPE_G, raw[k]).x);
                        }
                    }
                } else {
                    for (uint k = 0u; k < width; k++) sum[k] += uintBitsToFloat(natural(TYPE_G, g_raw(at + k)).x);
                }
            }
        }
    }
    for (uint k = 0u; k < width; k++) {
        if (current != NONE) y_data[pc.y_offset + current * pc.columns + column + k] = sum[k];
    }
}
