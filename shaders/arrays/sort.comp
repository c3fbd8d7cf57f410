#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: the order of the elements of rows, step by step: BLOCKS of a row are sorted in shared memory; then of
//     sorted runs of a row two and two are MERGED, until there is one. And where elements would go in a sorted row
//     (SEARCH). Equal elements, and zeros of either sign, keep the order of their places; NaN is larger than all numbers.
// Shapes and layouts: x has rows over three axes and elements of a row along one, of any strides; or it is what another
//     dispatch wrote: records of two words (rank, place), of three for KIND LONG (its upper half, its lower one, place),
//     rows by `extent` of them. y has such rows, or int32 or int64 places.
// Bindings: 0 x, 1 values (SEARCH: what is looked for, contiguous, as KIND has numbers), 2 y.
// Specialization constants: OPERATION, FIRST_MAXIMUM always; TYPE_X (STATES: records), KIND; MODE; LENGTH of a block, a
//     power of two up to BLOCK; DESCENDING, 1 or 0 (SEARCH: 1 counts what is equal, too); PUTS, what y has.
// Push constants: see the block; offsets and strides in elements, y_offset in words. Of a block (BLOCKS)
//     or a row (MERGED) `keep` records go to y, if there are as many. `rows` are those values that are looked for.
// Workgroup: BLOCK places of blocks (x and y together count them, STRIPE along x), or THREADS records or values.
//     Invocation: four places, or one.
// Preconditions: fewer than 2^31 elements.
// Defines: THREADS, BLOCK (4 * THREADS), STRIPE.

const uint EACH = 4u, HALVES = 0u;  // (words.glsl)

#include "arrays/states.glsl"

layout(constant_id = 3) const uint MODE = 0u;
layout(constant_id = 4) const uint LENGTH = 1024u;
layout(constant_id = 5) const uint DESCENDING = 0u;
layout(constant_id = 6) const uint PUTS = 0u;

// constants: sorting
const uint BLOCKS = 0u, MERGED = 1u, SEARCH = 2u;
const uint RECORDS = 0u, INT32_PLACES = 1u, INT64_PLACES = 2u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint rows, rows_1, rows_2, x_offset, row_0, row_1, row_2, extent, stride, blocks, keep, kept, values_offset, y_offset;
} pc;

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer Values { uint values_data[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint y_data[]; };

READER(x, x_data, width_of(TYPE_X))

const uint WORDS = KIND == LONG ? 3u : 2u;

shared uint high[BLOCK], low[BLOCK], places[BLOCK];

// A record: the rank's upper and lower half, and the place. The order of records has no equals.
bool before(uvec3 a, uvec3 b) {
    if (a.x != b.x) return a.x < b.x;
    if (KIND == LONG && a.y != b.y) return a.y < b.y;
    return a.z < b.z;
}

uvec3 record_of(uvec2 number, uint place) {
    uvec2 rank = rank_of(number);
    if (DESCENDING == 1u && MODE != SEARCH) rank = ~rank;
    return uvec3(rank.y, rank.x, place);
}

uint base_of(uint row) {
    uint last = row % pc.rows_2, mid = row / pc.rows_2 % pc.rows_1, first = row / pc.rows_2 / pc.rows_1;
    return pc.x_offset + first * pc.row_0 + mid * pc.row_1 + last * pc.row_2;
}

uvec3 record_at(uint row, uint at) {
    if (TYPE_X != STATES) return record_of(number(KIND, TYPE_X, x_raw(base_of(row) + at * pc.stride)), at);
    uint from = pc.x_offset + (row * pc.extent + at) * WORDS;
    uint upper = x_word(from);
    return uvec3(upper, KIND == LONG ? x_word(from + 1u) : 0u, x_word(from + WORDS - 1u));
}

void put(uint to, uvec3 found) {
    if (PUTS == INT32_PLACES) {
        y_data[pc.y_offset + to] = found.z;
    } else if (PUTS == INT64_PLACES) {
        y_data[pc.y_offset + 2u * to] = found.z;
        y_data[pc.y_offset + 2u * to + 1u] = 0u;
    } else {
        y_data[pc.y_offset + to * WORDS] = found.x;
        if (KIND == LONG) y_data[pc.y_offset + to * WORDS + 1u] = found.y;
        y_data[pc.y_offset + to * WORDS + WORDS - 1u] = found.z;
    }
}

uvec3 held(uint at) { return uvec3(high[at], KIND == LONG ? low[at] : 0u, places[at]); }

void hold(uint at, uvec3 record) {
    high[at] = record.x;
    if (KIND == LONG) low[at] = record.y;
    places[at] = record.z;
}

void sort_blocks(uint group) {
    uint id = gl_LocalInvocationIndex;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint own = k * uint(THREADS) + id, block = group * (uint(BLOCK) / LENGTH) + own / LENGTH;
        uint row = block / pc.blocks, at = block % pc.blocks * LENGTH + own % LENGTH;
        // what there is not comes last
        hold(own, row < pc.rows && at < pc.extent ? record_at(row, at) : uvec3(0xffffffffu));
    }
    for (uint size = 2u; size <= LENGTH; size *= 2u) {
        for (uint reach = size / 2u; reach > 0u; reach /= 2u) {
            barrier();
            [[unroll]] for (uint k = 0u; k < 2u; k++) {
                uint pair = k * uint(THREADS) + id;
                uint first = 2u * pair - pair % reach, second = first + reach;
                uvec3 a = held(first), b = held(second);
                if (before(b, a) == ((first & size) == 0u || size == LENGTH)) {
                    hold(first, b);
                    hold(second, a);
                }
            }
        }
    }
    barrier();
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint own = k * uint(THREADS) + id, block = group * (uint(BLOCK) / LENGTH) + own / LENGTH;
        uint row = block / pc.blocks, which = block % pc.blocks, at = own % LENGTH;
        if (row < pc.rows && at < pc.keep && which * LENGTH + at < pc.extent) {
            put(row * pc.kept + which * pc.keep + at, held(own));
        }
    }
}

// How many records of a row from `begin` on, `many` that are sorted, come before one.
uint count_before(uint row, uint begin, uint many, uvec3 record) {
    uint least = 0u;
    while (many > 0u) {
        uint part = many / 2u;
        if (before(record_at(row, begin + least + part), record)) {
            least += part + 1u;
            many -= part + 1u;
        } else {
            many = part;
        }
    }
    return least;
}

void main() {
    uint group = gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x;
    if (MODE == BLOCKS) {
        sort_blocks(group);
        return;
    }
    uint id = group * uint(THREADS) + gl_LocalInvocationIndex;
    if (MODE == SEARCH) {
        if (id >= pc.rows) return;
        uint from = (pc.values_offset + id) * (KIND == LONG ? 2u : 1u);
        uvec2 value = uvec2(values_data[from], KIND == LONG ? values_data[from + 1u] : 0u);
        uint found = count_before(0u, 0u, pc.extent, record_of(value, DESCENDING == 1u ? 0xffffffffu : 0u));
        put(id, uvec3(0u, 0u, found));
        return;
    }
    uint row = id / pc.extent, at = id % pc.extent;
    if (row >= pc.rows) return;
    uint run = pc.blocks, other = (at / run ^ 1u) * run;  // `blocks` is the length of the runs
    uint many = other < pc.extent ? min(run, pc.extent - other) : 0u;
    uvec3 own = record_at(row, at);
    uint to = at / (2u * run) * 2u * run + at % run + count_before(row, other, many, own);
    if (to < pc.keep) put(row * pc.kept + to, own);
}
