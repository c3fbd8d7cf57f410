// How kernels whose workgroups each have one range of the keys ("split") make one result: a workgroup leaves its rows in
// `parts`, and the last one to finish of a team, the workgroups with the same rows, makes o and lse of all splits:
//     with M the largest maximum, o = sum_s exp2(maximum_s - M) sums_s / sum_s exp2(maximum_s - M) total_s.
// Splits are taken in their own order, whichever workgroup does it, so results do not depend on who comes last.
// The grid may have more splits than the keys that there are fill (a captured step of decoding has as many as its cache
// needs when it is full): the workgroups of those leave at once, and nobody waits for them or reads them.
//
// Bindings, besides attention.glsl's: 8 parts (teams, splits, ROWS, VALUE_DIM + 4) float32, a row's sums, its maximum, its
//     total and two words unused; 9 arrived (teams), zero before the dispatch and after it.
//     A dispatch that uses the same two buffers must wait for this one.
// The including shader has ROWS, WIDE (elements of o that an invocation makes, 4 or 8), LOWEST, and
//     REACH   as include/last-of-team.glsl has it
//     ROUNDED4(x)  what makes conversions of x to o's type round to nearest
//     SUM_VECTORS  4-vectors of shared memory that it wants for itself, as `sums`, until the rows are left; or, where these
//                  lie elsewhere, PUT_SUM(at, sum) and GET_SUM(at), for THREADS (WIDE / 4 + 1) of them
// Specialization constant: 13 SPLIT_KEYS, the fewest keys that are worth a split.

#ifdef EXTRAS
#define OUTPUT_ROW(query) (row_start() + (query))
#else
#define OUTPUT_ROW(query) query
#endif
layout(constant_id = 13) const int SPLIT_KEYS = 256;
layout(set = 0, binding = 8, std430) coherent restrict buffer Parts { vec4 parts[]; };
layout(set = 0, binding = 9, std430) coherent restrict buffer Arrived { uint arrived[]; };

const int THREADS_ = int(gl_WorkGroupSize.x);
const int COMBINE_QUADS = WIDE / 4;
const int COMBINE_VECTORS = THREADS_ * (COMBINE_QUADS + 1);
const int RECORD = VALUE_DIM / 4 + 1;
const int COMBINE_WORDS = VALUE_DIM / WIDE;
const int UNITS = ROWS * COMBINE_WORDS;  // words of the team's rows: an invocation's task, or that of several, which share splits
const int HELPERS = UNITS < THREADS_ ? THREADS_ / UNITS : 1;
const int AHEAD = 8;  // splits that an invocation reads at a time

#ifndef PUT_SUM
shared vec4 sums[SUM_VECTORS > COMBINE_VECTORS ? SUM_VECTORS : COMBINE_VECTORS];
#define PUT_SUM(at, sum) sums[at] = sum
#define GET_SUM(at) sums[at]
#endif
shared uint is_last;
uint room;  // splits that the grid has, and each team room for in `parts`; how many have keys is for each team to say

// The keys of each split when so many are partitioned in whole trips of `trip`, and how many splits have some, at least one.
uint keys_per_split(uint keys, uint trip, inout uint splits) {
    room = splits;
    uint wanted = clamp((keys + uint(SPLIT_KEYS) - 1u) / uint(SPLIT_KEYS), 1u, splits);
    uint share = max((keys + wanted - 1u) / wanted, 1u);
    share = (share + trip - 1u) / trip * trip;
    splits = max((keys + share - 1u) / share, 1u);
    return share;
}

// Where row r of the workgroup's rows begins in `parts`.
uint part_of(uint team, uint split, uint r) {
    return ((team * room + split) * uint(ROWS) + r) * uint(RECORD);
}

#include "last-of-team.glsl"

// o and lse of the team's rows: those of key head and batch from first_row on.
void combine_splits(uint team, uint splits, uint batch, uint key_head, uint first_row) {
    uint me = gl_LocalInvocationIndex;
    for (uint base = 0u; base < uint(UNITS); base += uint(THREADS_)) {
        uint unit = HELPERS == 1 ? base + me : me % uint(UNITS);
        uint share = HELPERS == 1 ? 0u : me / uint(UNITS);
        uint r = unit / uint(COMBINE_WORDS);
        uint word = unit % uint(COMBINE_WORDS);
        uint row = first_row + r;
        bool mine = unit < uint(UNITS) && share < uint(HELPERS) && row < QUERIES * pc.group;
        float top = LOWEST;
        float total = 0.0;
        vec4 value[COMBINE_QUADS];
        [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) value[i] = vec4(0.0);
        for (uint s = share * uint(AHEAD); s < splits && mine; s += uint(HELPERS * AHEAD)) {
            vec2 told[AHEAD];
            vec4 held[AHEAD * COMBINE_QUADS];
            [[unroll]] for (int a = 0; a < AHEAD; a++) {
                uint at = part_of(team, min(s + uint(a), splits - 1u), r);
                told[a] = parts[at + uint(RECORD - 1)].xy;
                [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) {
                    held[a * COMBINE_QUADS + i] = parts[at + word * uint(COMBINE_QUADS) + uint(i)];
                }
            }
            float peak = top;
            [[unroll]] for (int a = 0; a < AHEAD; a++) peak = max(peak, told[a].x);
            float decay = exp2(top - peak);
            top = peak;
            total *= decay;
            [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) value[i] *= decay;
            [[unroll]] for (int a = 0; a < AHEAD; a++) {
                if (s + uint(a) < splits) {
                    float factor = exp2(told[a].x - top);
                    total += factor * told[a].y;
                    [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) value[i] += factor * held[a * COMBINE_QUADS + i];
                }
            }
        }
        if (HELPERS > 1) {
            uint at = me * uint(COMBINE_QUADS + 1);
            [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) PUT_SUM(at + uint(i), value[i]);
            PUT_SUM(at + uint(COMBINE_QUADS), vec4(top, total, 0.0, 0.0));
            barrier();
            for (int other = 1; other < HELPERS && share == 0u; other++) {
                at = (me + uint(other * UNITS)) * uint(COMBINE_QUADS + 1);
                vec2 its = GET_SUM(at + uint(COMBINE_QUADS)).xy;
                float peak = max(top, its.x);
                float decay = exp2(top - peak);
                float factor = exp2(its.x - peak);
                top = peak;
                total = total * decay + its.y * factor;
                [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) value[i] = value[i] * decay + GET_SUM(at + uint(i)) * factor;
            }
        }
        if (mine && share == 0u) {
            uint query = row / pc.group;
            uint head = key_head * pc.group + row % pc.group;
            uint at = o_index(batch, head, OUTPUT_ROW(query)) / 4u + word * uint(COMBINE_QUADS);
#ifdef EXTRAS
            if (on(LENGTHS) && int(query) >= x_rows_seeing) total = 0.0;
            if (on(SINKS)) {
                float decay;
                begin_extras(batch, head);
                add_sink(query, top, total, decay);
                [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) value[i] *= decay;
            }
#endif
            [[unroll]] for (int i = 0; i < COMBINE_QUADS; i++) {
                vec4 result = total == 0.0 ? vec4(0.0) : value[i] / total;
                o_data[at + uint(i)] = IO_STORE4(ROUNDED4(result));
            }
            if (LSE == 1 && word == 0u) lse_data[lse_index(batch, head, OUTPUT_ROW(query))] = row_lse(top, total);
        }
    }
}
