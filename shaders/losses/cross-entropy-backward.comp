#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the gradient of cross entropy by the logits: for row r with gradient g,
//     g ((1 - smoothing) w[t] (p[c] - [c = t]) + smoothing / classes (p[c] sum of w - w[c])).
// Shapes and layouts: x as in cross-entropy.comp; y (batch, classes, inner) contiguous. states: what cross-entropy.comp
//     left, `all_rows` of each kind. grad float32, one number, or one a row (grad_stride 1).
// Bindings: 0 x, 1 target, 2 weight, 3 states, 4 grad, 5 y.
// Specialization constants: TYPE_X, of x, weight and y, TYPE_T (words.glsl); WEIGHTED; SMOOTHED; FLAT, whether x lies as y
//     does, from a multiple of EACH elements on; HALVES (words.glsl); EACH (logits.glsl); ROWS, with FLAT where inner is 1 and
//     a row has EACH classes at least, so that a run is in two rows at most.
// Push constants: see the block; offsets and strides in elements. The dispatch has `count` elements, from the beginning of
//     row first_row on where inner is 1, else of a batch.
// Workgroup: THREADS runs of EACH elements (x and y together count the workgroups, STRIPE of them along x). Invocation: one.
// Accumulation: float32, rounded once.
// Preconditions: fewer than 2^31 elements; y_offset is a multiple of EACH. Words of y that hold an element are written whole.

#include "losses/logits.glsl"

layout(constant_id = 3) const uint SMOOTHED = 0u;
layout(constant_id = 4) const uint FLAT = 0u;
layout(constant_id = 7) const uint ROWS = 0u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint count, all_rows, first_row, inner, classes;
    uint x_offset, x_batch, x_class, x_inner;
    uint target_offset, weight_offset, states_offset, grad_offset, grad_stride, y_offset;
    uint ignored_low, ignored_high;
    float smoothing;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Target { uvec4 target_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { uvec4 weight_data[]; };
layout(set = 0, binding = 3, std430) readonly buffer States { float states_data[]; };
layout(set = 0, binding = 4, std430) readonly buffer Grad { float grad_data[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Y { uvec4 y_data[]; };

READER(x, x_data, width_of(TYPE_X))
READER(target, target_data, width_of(TYPE_T))
READER(weight, weight_data, width_of(TYPE_X))
WRITER(y, y_data, width_of(TYPE_X))

// What a row's elements share. kind: 0 the row does not count, 1 it does, 2 its target is no class.
struct Row { uint kind, target; float g, own, top, portion, weights; };

Row row_at(uint row) {
    uint at = pc.first_row + row, state = pc.states_offset + at;
    uvec2 target = natural(TYPE_T, target_raw(pc.target_offset + at));
    Row found;
    found.kind = target == uvec2(pc.ignored_low, pc.ignored_high) ? 0u
        : target.y != 0u || target.x >= pc.classes ? 2u : 1u;
    found.target = target.x;
    found.g = grad_data[pc.grad_offset + at * pc.grad_stride];
    found.own = states_data[state + pc.all_rows];
    found.top = states_data[state + 2u * pc.all_rows];
    found.portion = states_data[state + 3u * pc.all_rows];
    found.weights = SMOOTHED == 1u ? states_data[state + 4u * pc.all_rows] : 0.0;
    return found;
}

// The bits of an element of the gradient: of class c, whose logit is x.
uvec2 gradient(Row row, uint c, float x) {
    float p = share_of(x - row.top) * row.portion;
    float found = row.own * (c == row.target ? p - 1.0 : p);
    if (SMOOTHED == 1u) {
        float w = WEIGHTED == 1u ? uintBitsToFloat(natural(TYPE_X, weight_raw(pc.weight_offset + c)).x) : 1.0;
        found = (1.0 - pc.smoothing) * found + pc.smoothing * ((p * row.weights - w) / float(pc.classes));
    }
    found = row.kind == 1u ? row.g * found : row.kind == 0u ? 0.0 : of_bits(NAN);
    return element(TYPE_X, FLOATING, uvec2(floatBitsToUint(found), 0u));
}

float number_of(uvec2 raw) { return uintBitsToFloat(natural(TYPE_X, raw).x); }

void main() {
    uint i = EACH * ((gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * uint(THREADS) + gl_LocalInvocationIndex);
    if (i >= pc.count) return;
    uvec2 raw[8], made[8];
    if (FLAT == 1u) x_run(pc.x_offset + i, pc.x_offset + pc.count, raw);
    if (ROWS == 1u) {
        uint current = i / pc.classes, c = i - current * pc.classes;
        Row row = row_at(current);
        [[unroll]] for (uint k = 0u; k < EACH; k++) made[k] = gradient(row, c + k, number_of(raw[k]));
        if (c + EACH > pc.classes && i + EACH - 1u < pc.count) {
            row = row_at(current + 1u);
            [[unroll]] for (uint k = 0u; k < EACH; k++) {
                if (c + k >= pc.classes) made[k] = gradient(row, c + k - pc.classes, number_of(raw[k]));
            }
        }
        y_run(pc.y_offset + i, pc.y_offset + pc.count, made);
        return;
    }
    uint place = i % pc.inner, rest = i / pc.inner;
    uint c = rest % pc.classes, batch = rest / pc.classes;
    uint current = batch * pc.inner + place;
    Row row = row_at(current);
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        if (i + k < pc.count) {
            if (FLAT == 0u) raw[k] = x_raw(pc.x_offset + batch * pc.x_batch + c * pc.x_class + place * pc.x_inner);
            if (batch * pc.inner + place != current) {
                current = batch * pc.inner + place;
                row = row_at(current);
            }
            made[k] = gradient(row, c, number_of(raw[k]));
        }
        place++;
        if (place == pc.inner) {
            place = 0u;
            c++;
            if (c == pc.classes) { c = 0u; batch++; }
        }
    }
    y_run(pc.y_offset + i, pc.y_offset + pc.count, made);
}
