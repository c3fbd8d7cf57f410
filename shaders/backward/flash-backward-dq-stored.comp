#version 450
#extension GL_GOOGLE_include_directive : require

// dq of the dS that the kernel for dk and dv has stored, on matrix units: dQ = scale dS K, one product in place of three.
//
// Shapes, layouts, bindings, specialization constants and push constants: backward/flash-backward.glsl. dS is stored as
// fragments of keys by rows (flash-backward-factors.glsl), in 16 bits, as which the other kernels multiply it.
//
// A workgroup of SUBGROUPS subgroups owns OWN rows of q; each subgroup owns RF fragments of MATRIX_M rows and keeps their
// sums. Keys are taken in tiles of WALK: k, and dS of the tile's keys by the owned rows, lie in shared memory as 16-byte
// words, rows an odd number of words long. dS is read by columns, as its rows are keys.
//
// What is hidden is zero in dS, and where a tile has hidden pairs, numbers of k that are not finite are read as zeros, as
// in flash-backward-matrix.glsl. Tiles that no row sees were not stored, and are passed over.
//
// Defines: those of flash-backward-factors.glsl, and
//   WALK       keys of a tile
//   DIM        the head dimension rounded up to whole fragments; HEAD_DIM <= DIM
//   AHEAD      tiles that are on their way into registers while one is multiplied: 1 or 2
// HEAD_DIM, offsets and strides are multiples of 8 (ALIGN 8).

#include "flash-backward.glsl"
#include "attention/longest-first.glsl"
#include "flash-backward-factors.glsl"

// What may not stand together: tests/test_shader_macros.py.
#if DIM % MATRIX_N || WALK % MATRIX_K
#error "DIM is whole fragments, and so are the keys of a tile"
#elif STORED % OWN || STORED % WALK
#error "dS is stored in whole tiles"
#elif AHEAD != 1 && AHEAD != 2
#error "one tile or two are on their way"
#endif

layout(set = 0, binding = 10, std430) restrict readonly buffer Stored { uvec4 stored_data[]; };

#define OWNED query_rows()
#define WF (WALK / MATRIX_K)
#define AF (DIM / MATRIX_N)
GRILLY_RESULT(dq, 9)

// 16-byte words of the shared array: k, then dS. Rows of the results pass through its start after the last tile.
#define K8 (DIM / 8)
#define K_STRIDE (K8 + 1)
#define S_STRIDE (OWN / 8 + 1)
#define S_START (WALK * K_STRIDE)
#define TILE_VECTORS MOST(S_START + WALK * S_STRIDE, SUBGROUPS * PASS_VECTORS)

shared uvec4 tile[TILE_VECTORS];

uint thread, lane, subgroup, batch, head, first_own, keys_at, stored_at, stored_rows;
SUMS sums[RF][AF];

// A tile on its way.
struct Held {
    uvec4 k[PER_THREAD(WALK * K8)];
    uvec4 s[WF][RF];
};

// Keys past the last one are read as copies of it, columns past the head are zeros.
void fetch(uint first, out Held held) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * K8); ++n) {
        uint e = thread + n * THREADS, column = 8u * (e % K8), key = min(first + e / K8, key_rows() - 1u);
        held.k[n] = uvec4(0u);
        if (e < WALK * K8 && column < HEAD_DIM) held.k[n] = k_data[(keys_at + key * pc.k_row + column) >> 3];
    }
    uint at = stored_at + ((first / MATRIX_M) * stored_rows + first_own / MATRIX_M + subgroup * RF) * FRAGMENT + lane;
    [[unroll]] for (uint f = 0u; f < WF; ++f) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) held.s[f][i] = stored_data[at + (f * stored_rows + i) * FRAGMENT];
    }
}

void store(bool some_hidden, Held held) {
    [[unroll]] for (uint n = 0u; n < PER_THREAD(WALK * K8); ++n) {
        uint e = thread + n * THREADS;
        if (some_hidden) held.k[n] = finite(held.k[n]);
        if (e < WALK * K8) tile[e / K8 * K_STRIDE + e % K8] = held.k[n];
    }
    [[unroll]] for (uint f = 0u; f < WF; ++f) {
        [[unroll]] for (uint i = 0u; i < RF; ++i) {
            FACTOR_A pulls;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; ++e) pulls[e] = float16_t(UNPACKED(held.s[f][i][e / 2u])[e % 2u]);
            uint column = (subgroup * OWN_EACH + i * MATRIX_M) / 8u;
            coopMatStore(pulls, tile, S_START + f * MATRIX_M * S_STRIDE + column, S_STRIDE, ROW_MAJOR);
        }
    }
}

bool has_masked(uint first) {
    uint last_own = first_own + OWN - 1u, last = first + WALK - 1u;
    if ((FEATURES & (SCORE_FUNCTION | MASK_FUNCTION)) != 0) return true;
    return MASK != 0 || on(BIAS) || last_own >= OWNED || !mask_is_full(first_own, last_own, first, last);
}

// Whether the kernel for dk and dv went through the tile: it walks the rows between these two, if there are any, for each
// key.
bool stored(uint first) {
    uint begin = first_seeing_row(first), end = seeing_rows(min(first + WALK, key_rows()) - 1u);
    return begin < min(end, first_own + OWN) && end > first_own;
}

// Multiplies the tile at `first`, and fetches the one AHEAD tiles on.
void step(uint first, uint end, inout Held held) {
    bool present = stored(first);
    if (present) store(has_masked(first), held);
    barrier();
    if (first + AHEAD * WALK < end) fetch(first + AHEAD * WALK, held);
    if (present) {
        [[unroll]] for (uint f = 0u; f < WF; ++f) {
            FACTOR_A pulls[RF];
            [[unroll]] for (uint i = 0u; i < RF; ++i) {
                uint column = (subgroup * OWN_EACH + i * MATRIX_M) / 8u;
                coopMatLoad(pulls[i], tile, S_START + f * MATRIX_K * S_STRIDE + column, S_STRIDE, COLUMN_MAJOR);
            }
            [[unroll]] for (uint c = 0u; c < AF; ++c) {
                FACTOR_B other;
                coopMatLoad(other, tile, f * MATRIX_K * K_STRIDE + c * (MATRIX_N / 8), K_STRIDE, ROW_MAJOR);
                [[unroll]] for (uint i = 0u; i < RF; ++i) sums[i][c] = coopMatMulAdd(pulls[i], other, sums[i][c]);
            }
        }
    }
    barrier();
}

void main() {
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    thread = subgroup * SUBGROUP + lane;
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
    uint block = gl_WorkGroupID.x;
    if (CAUSAL != 0) {
        uint bytes = pc.keys * (uint(HEAD_DIM) + OWN) * 2u;
        block = gl_NumWorkGroups.x - 1u - longest_first(bytes, 1u, head, batch);
    }
    first_own = block * OWN;
    begin_extras(batch, head);
    if (on(LENGTHS) && first_own >= OWNED) return;

    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        [[unroll]] for (uint c = 0u; c < AF; ++c) sums[i][c] = SUMS(0.0);
    }
    keys_at = k_base(batch, head / GROUP) + key_start() * pc.k_row;
    stored_rows = FRAGMENTS(pc.queries);
    stored_at = (batch * gl_NumWorkGroups.y + head) * FRAGMENTS(pc.keys) * stored_rows * FRAGMENT;
    uint begin = hidden_keys(first_own) / WALK * WALK;
    uint end = visible_keys(first_own, min(first_own + OWN, OWNED) - 1u);
    Held held;
    if (begin < end) fetch(begin, held);
#if AHEAD == 2
    Held after;
    if (begin + WALK < end) fetch(begin + WALK, after);
#endif
    [[dont_unroll]] for (uint first = begin; first < end; first += AHEAD * WALK) {
        step(first, end, held);
#if AHEAD == 2
        if (first + WALK < end) step(first + WALK, end, after);
#endif
    }

    uint result = out_row(batch, head) + row_start();
    STORE_SUMS(sums, AF, HEAD_DIM, pc.scale, store_dq8)
}
