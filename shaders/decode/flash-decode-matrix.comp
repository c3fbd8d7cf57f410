#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// What it computes: what flash-decode.comp does, on matrix units, without masks. Here a split's maximum is only within
//     SLACK of its largest score: it stays while weights fit 16 bits (the idea is FlashAttention-4's).
// Shapes and layouts, bindings, push constants, o and lse: as flash-decode.comp has them.
// Specialization constants: HEAD_DIM, VALUE_DIM, LSE, ROWS (1 to 16), THREADS and STAGES as there, and STAGES may be 3, which
//     is 2 without loads past a subgroup's last keys; the others unused: every row sees every key.
// Workgroup (x, y, z) owns key head y, batch z, split x / passes of the keys, and ROWS rows from ROWS * (x % passes) on.
// Invocation: how a subgroup holds a matrix is known (below), so keys and values go from memory to the registers of B
//     factors, 16 bytes at a time and without shared memory. Which column of k a row of the factor stands for does not
//     matter as long as q's factor agrees, and neither does which column of v a column of the factor stands for. So
//     an invocation keeps the eight columns of the word that it loaded.
//         across (0..7)  its column of a B factor: a key for k; a word of the row for v, of which each of the eight
//                        columns goes to another matrix
//         deep           the invocations of a column share its rows: words of k, keys of v
// Accumulation: float32, exponentials of base 2.
// Defines: DIM and VDIM, head dimensions rounded up to 64 or 128; CHUNKS, matrices' depths of keys in a trip.
// Preconditions: offsets, strides and dimensions of q, k and v are multiples of 8; HEAD_DIM <= DIM, VALUE_DIM <= VDIM.

#define O_ELEMENT IO_VECTOR
#include "attention/attention.glsl"

layout(constant_id = 6) const int ROWS = 1;
layout(constant_id = 11) const int STAGES = 1;
layout(local_size_x_id = 10) in;

// NVIDIA's order. Element e of lane L of a 16 x 8 sum is row L/4 + 8 (e/2), column 2 (L%4) + e%2; of a 16 x 8 B factor,
// row 2 (L%4) + e%2 + 8 (e/2), column L/4; a 16 x 16 A factor has two such sums' elements side by side, row by row.
// A matrix of 16 columns is two of 8: B_HALF(e) and B_HELD(e) say where element e of its B factor stands, AT its sums.
#define SUBGROUP 32
#define MATRIX_M 16
#define MATRIX_K 16
#define DEEP 4
#define HELD 4
#define ACROSS (lane / 4u)
#define MY_DEEP (lane % 4u)
#define B_ROW(e) (2u * (lane % 4u) + uint((e) & 1) + 8u * uint((e) >> 1))
#define SLOTS 2  // rows of a sum that an invocation holds elements of
#define SLOT(e) ((e) >> 1)
#define SLOT_FIRST(slot) (8 * (slot))
#define SLOT_ROW(slot) (lane / 4u + 8u * uint(slot))
#define COLUMN(e) (2u * (lane % 4u) + uint((e) & 1))
#define SPREAD 4  // invocations that hold a row
#define ELEMENTS 4  // of a sum of eight columns
#define MATRIX_N 16
#define WIDTH 2  // matrices of 8 columns in it
#define B_HALF(e) ((e) >> 2)
#define B_HELD(e) ((e) & 3)
#define AT(sums, i, e) sums[(i) / 2][((e) & 1) + 2 * ((i) & 1) + 4 * ((e) >> 1)]

#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define KEYS (CHUNKS * MATRIX_K)  // of a trip
#define TILES (KEYS / 8)
#define QF (DIM / MATRIX_K)
#define K_WORDS (DIM / 8 / DEEP)  // words of a key's row that an invocation loads
#define V_WORDS (VDIM / 64)
#define ROW_QUADS (VDIM / 4)

const int SUBGROUPS = int(gl_WorkGroupSize.x) / SUBGROUP;
const float LOWEST = -3.2e38;  // flash-decode.comp
const float SLACK = 8.0;

// Conversions to bfloat16 may cut (NVIDIA's do), so they are of numbers that fit; weights are not negative.
#if defined(DTYPE_bfloat16)
#define ROUNDED(weight) uintBitsToFloat((floatBitsToUint(weight) + 0x8000u) & 0xffff0000u)
#define ROUNDED4(x) uintBitsToFloat(bfloat16_words(x) << 16)
#else
#define ROUNDED(weight) (weight)
#define ROUNDED4(x) (x)
#endif
#define REACH gl_ScopeQueueFamily
#define WIDE 8
#define SUM_VECTORS (SUBGROUPS * ROWS * ROW_QUADS)
#include "flash-decode.glsl"

shared vec2 statistics[SUBGROUPS * ROWS];

uint lane;
uvec4 k_words[TILES * K_WORDS];
uvec4 v_words[CHUNKS * HELD * V_WORDS];

// Words past the row's end are read from its last one; zeros in q make nothing of those of k.
uint word_of(uint word, int dim) { return min(word, uint(dim / 8 - 1)); }

void load_keys(uint origin, uint stride, uint first, uint last) {
    [[unroll]] for (int f = 0; f < TILES; f++) {
        uint row = origin + min(first + uint(f * 8) + ACROSS, last) * stride;
        [[unroll]] for (int j = 0; j < K_WORDS; j++) {
            uint word = MY_DEEP + uint(DEEP * j);
            k_words[f * K_WORDS + j] = k_data[row + word_of(word, HEAD_DIM)];
            if (HEAD_DIM < DIM && word >= uint(HEAD_DIM / 8)) k_words[f * K_WORDS + j] = uvec4(0u);
        }
    }
}

void load_values(uint origin, uint stride, uint first, uint last) {
    [[unroll]] for (int c = 0; c < CHUNKS; c++) {
        [[unroll]] for (int e = 0; e < HELD; e++) {
            uint row = origin + min(first + uint(c * MATRIX_K) + B_ROW(e), last) * stride;
            [[unroll]] for (int j = 0; j < V_WORDS; j++) {
                v_words[(c * HELD + e) * V_WORDS + j] = v_data[row + word_of(ACROSS + uint(8 * j), VALUE_DIM)];
            }
        }
    }
}

float16_t element(uvec4 word, uint i) {
    f16vec2 pair = unpackFloat2x16(word[i / 2u]);
    return (i & 1u) == 0u ? pair.x : pair.y;
}

void main() {
    lane = gl_SubgroupInvocationID;
    uint rows = pc.queries * pc.group;
    uint passes = (rows + uint(ROWS) - 1u) / uint(ROWS);
    uint split = gl_WorkGroupID.x / passes;
    uint splits = gl_NumWorkGroups.x / passes;
    uint first_row = gl_WorkGroupID.x % passes * uint(ROWS);
    uint key_head = gl_WorkGroupID.y;
    uint batch = gl_WorkGroupID.z;
    uint team = (batch * gl_NumWorkGroups.y + key_head) * passes + gl_WorkGroupID.x % passes;

    // The split: equal shares, of whole trips of the workgroup.
    uint step = uint(KEYS * SUBGROUPS);
    uint share = (pc.keys + splits - 1u) / splits;
    share = (share + step - 1u) / step * step;
    uint end = min(split * share + share, pc.keys);
    uint first = split * share + gl_SubgroupID * uint(KEYS);
    uint last = end - 1u;
    uint k_origin = (pc.k_offset + batch * pc.k_batch + key_head * pc.k_head) / 8u;
    uint v_origin = (pc.v_offset + batch * pc.v_batch + key_head * pc.v_head) / 8u;
    uint k_stride = pc.k_row / 8u;
    uint v_stride = pc.v_row / 8u;
    if (STAGES != 1 && first < end) {
        load_keys(k_origin, k_stride, first, last);
        load_values(v_origin, v_stride, first, last);
    }

    FACTOR_A q[QF];
    [[unroll]] for (int c = 0; c < QF; c++) q[c] = FACTOR_A(0.0);
    [[unroll]] for (int j = 0; j < K_WORDS; j++) {
        uint word = MY_DEEP + uint(DEEP * j);
        [[unroll]] for (int r = 0; r < SLOTS; r++) {
            if (SLOT_FIRST(r) < ROWS) {
                uint row = min(first_row + min(SLOT_ROW(r), uint(ROWS - 1)), rows - 1u);
                uint origin = q_index(batch, key_head * pc.group + row % pc.group, row / pc.group) / 8u;
                uvec4 held = q_data[origin + word_of(word, HEAD_DIM)];
                if (HEAD_DIM < DIM && word >= uint(HEAD_DIM / 8)) held = uvec4(0u);
                [[unroll]] for (int e = 0; e < 8; e++) q[2 * j + e / HELD][HELD * r + e % HELD] = element(held, uint(e));
            }
        }
    }

    SUMS acc[V_WORDS * 8 / WIDTH];
    float maximum[SLOTS];
    float total[SLOTS];  // this invocation's part
    [[unroll]] for (int i = 0; i < V_WORDS * 8 / WIDTH; i++) acc[i] = SUMS(0.0);
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        maximum[r] = LOWEST;
        total[r] = 0.0;
    }
    float factor = pc.scale * LOG2_E;

    for (; first < end; first += step) {
        if (STAGES == 1) {
            load_keys(k_origin, k_stride, first, last);
            load_values(v_origin, v_stride, first, last);
        }
        SUMS scores[TILES / WIDTH];
        [[unroll]] for (int f = 0; f < TILES / WIDTH; f++) scores[f] = SUMS(0.0);
        [[unroll]] for (int c = 0; c < QF; c++) {
            [[unroll]] for (int f = 0; f < TILES / WIDTH; f++) {
                FACTOR_B k;
                [[unroll]] for (int e = 0; e < HELD * WIDTH; e++) {
                    uvec4 word = k_words[(f * WIDTH + B_HALF(e)) * K_WORDS + c / 2];
                    k[e] = element(word, uint(HELD * (c % 2) + B_HELD(e)));
                }
                scores[f] = coopMatMulAdd(q[c], k, scores[f]);
            }
        }
        if (STAGES == 2 || STAGES == 3 && first + step < end) load_keys(k_origin, k_stride, first + step, last);

        [[unroll]] for (int f = 0; f < TILES; f++) {
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) AT(scores, f, e) *= factor;
        }
        if (first + uint(KEYS) > end) {
            [[unroll]] for (int f = 0; f < TILES; f++) {
                [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                    if (first + uint(f * 8) + COLUMN(e) > last) AT(scores, f, e) = NEVER;
                }
            }
            // A key past the end stands for the last one, whose values may not be finite.
            [[unroll]] for (int c = 0; c < CHUNKS; c++) {
                [[unroll]] for (int e = 0; e < HELD; e++) {
                    if (first + uint(c * MATRIX_K) + B_ROW(e) > last) {
                        [[unroll]] for (int j = 0; j < V_WORDS; j++) v_words[(c * HELD + e) * V_WORDS + j] = uvec4(0u);
                    }
                }
            }
        }
        float most[SLOTS];
        bool grown = false;
        [[unroll]] for (int r = 0; r < SLOTS; r++) most[r] = LOWEST;
        [[unroll]] for (int f = 0; f < TILES; f++) {
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                if (SLOT_FIRST(SLOT(e)) < ROWS) most[SLOT(e)] = max(most[SLOT(e)], AT(scores, f, e));
            }
        }
        [[unroll]] for (int r = 0; r < SLOTS; r++) {
            if (SLOT_FIRST(r) < ROWS) grown = grown || most[r] > maximum[r] + SLACK;
        }
        if (subgroupAny(grown)) {
            float decay[SLOTS];
            [[unroll]] for (int r = 0; r < SLOTS; r++) {
                decay[r] = 1.0;
                if (SLOT_FIRST(r) < ROWS) {
                    [[unroll]] for (uint distance = 1u; distance < SPREAD; distance *= 2u) {
                        most[r] = max(most[r], subgroupShuffleXor(most[r], distance));
                    }
                    float top = max(maximum[r], most[r]);
                    decay[r] = exp2(maximum[r] - top);
                    maximum[r] = top;
                    total[r] *= decay[r];
                }
            }
            [[unroll]] for (int i = 0; i < V_WORDS * 8; i++) {
                [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                    if (SLOT_FIRST(SLOT(e)) < ROWS) AT(acc, i, e) *= decay[SLOT(e)];
                }
            }
        }
        [[unroll]] for (int f = 0; f < TILES; f++) {
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                if (SLOT_FIRST(SLOT(e)) < ROWS) {
                    float w = exp2(AT(scores, f, e) - maximum[SLOT(e)]);
                    AT(scores, f, e) = w;
                    total[SLOT(e)] += w;
                } else {
                    AT(scores, f, e) = 0.0;
                }
            }
        }
        [[unroll]] for (int c = 0; c < CHUNKS; c++) {
            FACTOR_A p;
            [[unroll]] for (int e = 0; e < 8; e++) {
                p[e] = float16_t(ROUNDED(AT(scores, 2 * c + ((e >> 1) & 1), (e & 1) + 2 * (e >> 2))));
            }
            [[unroll]] for (int i = 0; i < V_WORDS * 8; i += WIDTH) {
                FACTOR_B v;
                [[unroll]] for (int e = 0; e < HELD * WIDTH; e++) {
                    v[e] = element(v_words[(c * HELD + B_HELD(e)) * V_WORDS + i / 8], uint(i % 8 + B_HALF(e)));
                }
                acc[i / WIDTH] = coopMatMulAdd(p, v, acc[i / WIDTH]);
            }
        }
        if (STAGES == 2 || STAGES == 3 && first + step < end) load_values(v_origin, v_stride, first + step, last);
    }

    // One result of the workgroup's subgroups, through shared memory.
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        [[unroll]] for (uint distance = 1u; distance < SPREAD; distance *= 2u) {
            total[r] += subgroupShuffleXor(total[r], distance);
        }
        if (SLOT_ROW(r) < uint(ROWS) && lane % SPREAD == 0u) {
            statistics[gl_SubgroupID * uint(ROWS) + SLOT_ROW(r)] = vec2(maximum[r], total[r]);
        }
    }
    barrier();
    [[unroll]] for (int r = 0; r < SLOTS; r++) {
        if (SLOT_ROW(r) < uint(ROWS)) {
            float top = LOWEST;
            [[unroll]] for (int s = 0; s < SUBGROUPS; s++) top = max(top, statistics[uint(s * ROWS) + SLOT_ROW(r)].x);
            float keep = exp2(maximum[r] - top);
            uint row = (gl_SubgroupID * uint(ROWS) + SLOT_ROW(r)) * uint(ROW_QUADS);
            [[unroll]] for (int e = 0; e < ELEMENTS; e++) {
                if (SLOT(e) == r) {
                    [[unroll]] for (int i = 0; i < V_WORDS * 8; i += 4) {
                        vec4 value = vec4(AT(acc, i, e), AT(acc, i + 1, e), AT(acc, i + 2, e), AT(acc, i + 3, e));
                        sums[row + 2u * (COLUMN(e) + uint(i / 8 * 8)) + uint(i / 4 % 2)] = value * keep;
                    }
                }
            }
        }
    }
    barrier();
    const uint quads = uint(VALUE_DIM / 4);
    for (uint i = gl_LocalInvocationIndex; i < uint(ROWS) * quads; i += gl_WorkGroupSize.x) {
        uint r = i / quads;
        uint column = i % quads;
        vec4 value = vec4(0.0);
        [[unroll]] for (int s = 0; s < SUBGROUPS; s++) value += sums[(uint(s * ROWS) + r) * uint(ROW_QUADS) + column];
        uint at = part_of(team, splits, split, r);
        parts[at + column] = value;
        if (column == 0u) {
            float top = LOWEST;
            [[unroll]] for (int s = 0; s < SUBGROUPS; s++) top = max(top, statistics[uint(s * ROWS) + r].x);
            float sum = 0.0;
            [[unroll]] for (int s = 0; s < SUBGROUPS; s++) {
                vec2 part = statistics[uint(s * ROWS) + r];
                sum += part.y * exp2(part.x - top);
            }
            parts[at + uint(RECORD - 1)].xy = vec2(top, sum);
        }
    }
    if (last_of_team(team, splits)) join_splits(team, splits, batch, key_head, first_row);
}
