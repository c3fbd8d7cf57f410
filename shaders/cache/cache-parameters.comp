#version 450
// What it computes: what attention/extras.glsl reads of a cache whose lengths or page table lie on the device: for every
//     sample (0, queries, 0, keys) and its pages, bounded so that nothing is read or written outside the cache.
// Shapes and layouts: lengths int32 (B), table int32 (B, columns), strided; parameters uint32. count int32 (B), contiguous.
// Bindings: 0 lengths, 1 table, 2 parameters, 3 count.
// Specialization constants: 0 PAGED: there is a table. 1 COUNTS: lengths are in `count`, and are to grow by the new keys.
// Push constants: see the block; offsets and strides in elements.
// Workgroup: THREADS elements. Invocation: one element of the table, and one sample.
// Preconditions: fresh <= capacity; pages > 0.

layout(local_size_x = THREADS) in;

layout(constant_id = 0) const int PAGED = 0;
layout(constant_id = 1) const int COUNTS = 0;

layout(push_constant, std430) uniform Push {
    uint lengths_offset, lengths_stride;
    uint table_offset, table_row, table_column;
    uint batch, columns, pages;     // samples; pages of a sample and of the cache
    uint queries, fresh, capacity;  // rows of q, new keys, and keys that a sample has room for
    uint samples_place, pages_place;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer Lengths { int lengths[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Table { int table[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Parameters { uint parameters[]; };
layout(set = 0, binding = 3, std430) restrict buffer Count { int count[]; };

void main() {
    uint n = gl_GlobalInvocationID.x;
    if (n < pc.batch) {
        int given = COUNTS == 1 ? count[n] : lengths[pc.lengths_offset + n * pc.lengths_stride];
        int held = clamp(given, 0, int(pc.capacity - pc.fresh));
        if (COUNTS == 1) count[n] = held + int(pc.fresh);
        uint at = pc.samples_place + 4u * n;
        parameters[at] = 0u;
        parameters[at + 1u] = pc.queries;
        parameters[at + 2u] = 0u;
        parameters[at + 3u] = uint(held) + pc.fresh;
    }
    if (PAGED == 1 && n < pc.batch * pc.columns) {
        int page = table[pc.table_offset + n / pc.columns * pc.table_row + n % pc.columns * pc.table_column];
        parameters[pc.pages_place + n] = uint(clamp(page, 0, int(pc.pages) - 1));
    }
}
