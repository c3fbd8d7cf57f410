#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
// What it computes: as reduce.comp, of rows that are neighbours in memory: the columns of a matrix.
// Shapes and layouts: as reduce.comp; row_1 is 1.
// Bindings: as reduce.comp, but parts are (parts, rows).
// Specialization constants: as reduce.comp, without LANES; RUNS, 1 where EACH rows lie together and begin at multiples of
//     EACH, all of them with strides that are such multiples; else EACH is 1.
// Push constants: see the block; offsets and strides in elements; with LAST 0 y_offset is in words.
// Workgroup: NEAR * EACH rows (x and z together count them, STRIPE along x), one part of each (y). Invocation: EACH rows,
//     of their part every THREADS / NEAR-th element.
// Accumulation: float32 sums of FEW elements, which are added up with what is lost in rounding; then the invocations of
//     a row. Integers wrap at 64 bits. The order depends on the shape alone.
// Preconditions: fewer than 2^31 elements; with RUNS inner_rows is a multiple of EACH.
// Defines: THREADS, NEAR, FEW, MANY (as FEW, for 16-bit floats), STRIPE.

#include "arrays/reduced.glsl"
#include "arrays/extremes.glsl"

layout(local_size_x = THREADS) in;

const uint LANES = uint(THREADS) / uint(NEAR);

shared uvec4 states[4 * THREADS];

void main() {
    uint id = gl_LocalInvocationIndex, lane = id / uint(NEAR);
    uint team = gl_WorkGroupID.z * uint(STRIPE) + gl_WorkGroupID.x;
    uint row = (team * uint(NEAR) + id % uint(NEAR)) * EACH, part = gl_WorkGroupID.y;
    int own[2] = int[2](ORDINARY, ORDINARY);
    want_nothing(id);
    do {
        // What an invocation finds in its part of its rows in this turn. No function: a driver keeps arrays that functions
        // share in memory.
        uvec4 found[8];
        float pivot[8];
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            found[k] = nothing_found();
            pivot[k] = k < EACH && row < pc.rows ? pivot_of(base_of(row + k)) : 0.0;
        }
        if (row < pc.rows) {
            uint base = base_of(row);
            uint begin = part * pc.part_length, end = min(begin + pc.part_length, pc.extent);
            uint at = begin + lane;
            // Sums of 16-bit floats, where all that is read counts.
            if (RUNS == 1u && adds_floats() && SIXTEEN_BIT_FLOATS) {
                for (; at + uint(MANY - 1) * LANES < end; at += uint(MANY) * LANES) {
                    uvec4 words[MANY];
                    [[unroll]] for (uint i = 0u; i < uint(MANY); i++) words[i] = x_data[base + place_of(at + i * LANES) >> 3];
                    [[unroll]] for (uint k = 0u; k < 8u; k++) {
                        float sum = 0.0;
                        [[unroll]] for (uint i = 0u; i < uint(MANY); i++) sum += term_of(words[i][k >> 1], k & 1u);
                        found[k] = with_sum(found[k], sum);
                    }
                }
            }
            if (RUNS == 1u && OPERATION == MOMENTS && SIXTEEN_BIT_FLOATS) {
                for (; at + 7u * LANES < end; at += 8u * LANES) {
                    uvec4 words[8];
                    [[unroll]] for (uint i = 0u; i < 8u; i++) {
                        uint from = base + place_of(at + i * LANES);
                        if (EACH == 8u) words[i] = x_data[from >> 3];
                        else words[i] = uvec4(x_word(from >> 1), x_word((from >> 1) + 1u), 0u, 0u);
                    }
                    [[unroll]] for (uint k = 0u; k < 8u; k++) {
                        if (k >= EACH) continue;
                        float numbers[8];
                        [[unroll]] for (uint i = 0u; i < 8u; i++) numbers[i] = in_turn(value_of(words[i][k >> 1], k & 1u));
                        found[k] = joined(found[k], moments_of(numbers, 8u, pivot[k]));
                    }
                }
            }
            if (RUNS == 1u && wants_extremes() && SIXTEEN_BIT_FLOATS) {
                // For places a rank, plus one, has below it how far its place is from the last one: of equal ones the first wins.
                const uint begun = at;
                uint best[8];
                [[unroll]] for (uint k = 0u; k < 8u; k++) best[k] = 0u;
                for (uint from_last = 0x1ffffu; at + uint(MANY - 1) * LANES < end; at += uint(MANY) * LANES) {
                    uvec4 words[MANY];
                    [[unroll]] for (uint i = 0u; i < uint(MANY); i++) words[i] = x_data[base + place_of(at + i * LANES) >> 3];
                    [[unroll]] for (uint i = 0u; i < uint(MANY); i++) {
                        [[unroll]] for (uint k = 0u; k < 8u; k++) {
                            uint word = words[i][k >> 1], bits = (k & 1u) == 0u ? word << 16 : word & 0xffff0000u;
                            best[k] = max(best[k], sixteen_bit_rank(bits) + (FINDS_PLACES ? from_last - i : 0u));
                        }
                    }
                    from_last -= uint(MANY);
                }
                [[unroll]] for (uint k = 0u; k < 8u; k++) {
                    uint place = FINDS_PLACES ? pc.first + begun + (0xffffu - (best[k] & 0xffffu)) * LANES : 0u;
                    uint rank = FINDS_PLACES ? (best[k] & 0xffff0000u) - 0x10000u : best[k];
                    if (at > begun) found[k] = found_in(uvec2(bits_of_rank(rank), 0u), place);
                }
            }
            for (; at < end; at += uint(FEW) * LANES) {
                uvec2 raw[FEW][8];
                [[unroll]] for (uint i = 0u; i < uint(FEW); i++) {
                    // what is read beyond the end is not counted
                    uint from = base + place_of(min(at + i * LANES, end - 1u));
                    if (RUNS == 1u) x_run(from, from + EACH, raw[i]);
                    else raw[i][0] = x_raw(from);
                }
                [[unroll]] for (uint k = 0u; k < 8u; k++) {
                    if (k >= EACH) continue;
                    float sum = 0.0, numbers[8];
                    uint many = 0u;
                    [[unroll]] for (uint i = 0u; i < uint(FEW); i++) {
                        uint place = at + i * LANES;
                        if (OPERATION == MOMENTS) {
                            numbers[i] = in_turn(of_bits(number(KIND, TYPE_X, raw[i][k]).x));
                            many += uint(place < end);
                        } else if (place < end) {
                            uvec4 more = found_in(raw[i][k], pc.first + place);
                            if (adds_floats()) sum += of_bits(more.x);
                            else found[k] = with_next(found[k], more);
                        }
                    }
                    if (adds_floats()) found[k] = with_sum(found[k], sum);
                    if (OPERATION == MOMENTS) found[k] = joined(found[k], moments_of(numbers, many, pivot[k]));
                }
            }
        }
        // What all invocations of rows have found goes to the memory. Four of the rows at a time: each is then one
        // invocation's.
        [[unroll]] for (uint first = 0u; first < 8u; first += 4u) {
            if (first >= EACH) continue;
            barrier();
            [[unroll]] for (uint k = 0u; k < 4u; k++) states[k * uint(THREADS) + id] = found[first + k];
            barrier();
            if (lane < min(EACH, 4u) && row < pc.rows) {
                uint near = id % uint(NEAR);
                uvec4 whole = states[lane * uint(THREADS) + near];
                for (uint k = 1u; k < LANES; k++) {
                    whole = combined(whole, states[lane * uint(THREADS) + k * uint(NEAR) + near]);
                }
                uint one = row + first + lane;
                if (may_leave_range()) {
                    settle(one, part, TOGETHER == 1u ? part * pc.rows + one : NO_PART, whole, own[first / 4u]);
                } else if (TOGETHER == 1u) {
                    parts[part * pc.rows + one] = whole;
                } else {
                    put_found(one, part, whole);
                }
            }
        }
    } while (may_leave_range() && begin_another(turns_of(own[0]) | turns_of(own[1]), 0u, false));
    if (TOGETHER == 1u && last_of_team(team, pc.parts)) {
        uint one = team * uint(NEAR) * EACH + id;
        int its = ORDINARY;
        begin_turn(ORDINARY);
        if (id < uint(NEAR) * EACH && one < pc.rows) {
            do {
                settle(one, part, NO_PART, found_together(one, 0u, 1u, pc.rows), its);
            } while (begin_another(turns_of(its), 1u, true));
        }
    }
}
