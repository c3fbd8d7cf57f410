#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: y[t] = weight[ids[t]], whole rows as bits.
// Shapes and layouts: ids (tokens), contiguous; weight (rows, D), rows any distance apart; y (tokens, D) contiguous.
// Bindings: 0 weight, 1 ids, 2 y.
// Specialization constants: TYPE_IDS (words.glsl); WORDS, of 32 bits in a unit: 4 or 1.
// Push constants: see the block. w_offset, w_row and y_offset count units; `units` are in a row. The dispatch has rows
//     first to first + rows - 1 of the `extent` that ids count, at w_offset, and writes what asks for these.
// Workgroup: THREADS units of y (x and y together count the workgroups, STRIPE of them along x). Invocation: one unit.
// Accumulation: none.
// Preconditions: fewer than 2^31 units. Rows of weight and y begin at multiples of a unit and have whole units.

const uint EACH = 4u, HALVES = 0u;  // (words.glsl)

#include "elementwise/embedding.glsl"

layout(constant_id = 1) const uint WORDS = 4u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, units, ids_offset, w_offset, w_row, y_offset, extent, first, rows;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer Weight { uvec4 weight_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Ids { uvec4 ids_data[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(ids, ids_data, width_of(TYPE_IDS))

void main() {
    uint at = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex;
    if (at >= pc.count) return;
    uint row = row_of(ids_raw(pc.ids_offset + at / pc.units), pc.extent) - pc.first;
    if (row >= pc.rows) return;
    uint from = pc.w_offset + row * pc.w_row + at % pc.units, to = pc.y_offset + at;
    if (WORDS == 4u) y_data[to] = weight_data[from];
    else y_data[to >> 2][to & 3u] = weight_data[from >> 2][from & 3u];
}
