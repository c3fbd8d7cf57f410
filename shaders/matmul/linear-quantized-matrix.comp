#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// What it computes: as linear-quantized.comp, on matrix units: y = activation(x W^T + b) + residual of few rows, W of a
//     quantized type, GATED. The levels of W are exact in float16 and the scales multiply float32 sums, so W is not rounded.
//     Whole numbers are float16's smallest: the bits of n are n * 2^-24, so that nothing is converted, and the scale takes
//     the power of two out again. What they are higher by than the level, or the minimum, is multiplied by sums of x, which
//     the matrix unit finds too.
// Shapes and layouts, bindings, push constants: as linear-quantized.comp.
// Specialization constants: HAS_BIAS, GATED, those of epilogue.glsl and quantized.glsl, and
//     TILES    16 rows of W of a workgroup; two where it is GATED, the gate's first
//     X_TILES  8 rows of x of a workgroup
// Workgroup (x, y) owns 16 TILES columns of y, GATED 16, and 8 X_TILES rows. Its subgroups divide the depth.
// Invocation: how a subgroup holds a matrix is known (below). W is the A factor: a lane has two of its rows, and of a unit
//     of 32 of the depth eight numbers of each. It reads the words of a unit of its own, four lanes four units in a row,
//     and finds its part of all four in shared memory. Which place of the depth a column of the factor
//     stands for does not matter as long as x's factor has the same order.
// Accumulation: float32; the matrix unit's for what has one scale, at most 32 products, then the invocation's, then
//     subgroups.
// Preconditions: subgroups of 32, full; offsets and strides of x are multiples of 8; TABLE is one that arithmetic replaces:
//     not those of IQ4_NL and NormalFloat.

#define MATRIX_ELEMENTS
#define HOLES 1
#include "elements.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int TILES = 1;
layout(constant_id = 2) const int X_TILES = 1;
layout(constant_id = 12) const int GATED = 0;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint a_offset, a_row, low_offset, low_row, high_offset, high_row, scales_offset, scales_row;
    uint c_offset, c_row, bias_offset, residual_offset, residual_row;
    uint rows, cols, depth;
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
} pc;

layout(set = 0, binding = 0, std430) restrict readonly buffer A { uvec4 a_data[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer Low { uvec4 low_data[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer High { uint high_data[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Scales { uint scales_data[]; };
#define SCALES_WORD(i) scales_data[i]
#define HALF_VALUE(bits) unpackHalf2x16(bits).x  // NVIDIA's is right, and keeps small numbers
layout(set = 0, binding = 4, std430) restrict writeonly buffer C { float16_t c_data[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Bias { float16_t bias_data[]; };
layout(set = 0, binding = 6, std430) restrict readonly buffer Residual { float16_t residual_data[]; };
#define FINISH_BINDING 7
#include "epilogue.glsl"
#include "quantized.glsl"

// NVIDIA's order: element e of lane L of a 16 x 8 sum is row L/4 + 8 (e/2), column 2 (L%4) + e%2; of a 16 x 8 B factor, row
// 2 (L%4) + e%2 + 8 (e/2), column L/4; a 16 x 16 A factor has the elements of two such sums side by side, row by row.
#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

const uint SUBGROUPS = 8u;
const int TOGETHER = 4;  // units that a subgroup takes at a time
const int LOW_COUNT = int(LOW);  // words of a unit
const int HIGH_COUNT = HIGH == 0u ? 1 : int(HIGH);

// Words of a row of four units in shared memory; with other strides lanes of a subgroup wait for each other.
const uint STRIDE = LOW == 8u ? 36u : LOW == 2u ? 12u : HIGH == 2u ? 28u : 20u;
const uint HIGH_AT = uint(TOGETHER) * LOW;

// Scales of a unit, and minima behind them.
const int PLACES = (ONE_SCALE ? 1 : 2) * (HAS_MINIMA ? 2 : 1);

// Units of each subgroup; at the end sums.
const uint SUMS_ROW = uint(8 * X_TILES + 1);
const uint SCRATCH_ROW = STRIDE > SUMS_ROW ? STRIDE : SUMS_ROW;
shared uint scratch[SUBGROUPS * 16u * SCRATCH_ROW];
shared vec4 scale_scratch[SUBGROUPS * 16u * uint(PLACES)];  // of four units

// The levels in the lower and upper halves of a word, as numbers of the factor.
uint levels(uint bits) {
    if (TABLE == TABLE_FP4) return (bits & 0x00070007u) << 9 | (bits & 0x00080008u) << 12;
    if (TABLE == TABLE_E4M3) return (bits & 0x007f007fu) << 7 | (bits & 0x00800080u) << 8;
    return HIGH == 0u ? bits ^ OFFSET * 0x00010001u : bits;  // where HIGH is 0 numbers with an offset are two's complements
}

void main() {
    const uint lane = gl_SubgroupInvocationID, quad = lane / 4u, own = lane % 4u;
    const int paired = GATED == 1 ? 2 : 1;
    const uint units = pc.depth / UNIT;
    const uint chunks = (units + uint(TOGETHER) - 1u) / uint(TOGETHER);
    const uint col_first = gl_WorkGroupID.x * uint(16 * TILES / paired);
    const uint row_first = gl_WorkGroupID.y * uint(8 * X_TILES);
    // Rows past the end are computed from the last one and not stored; so are columns.
    uint low_at[TILES * 2], high_at[TILES * 2], scales_at[TILES * 2], a_at[X_TILES];
    [[unroll]] for (int i = 0; i < TILES * 2; i++) {
        const uint col = col_first + uint(GATED == 1 ? 0 : 16 * (i / 2)) + uint(8 * (i % 2)) + quad;
        const uint row = min(col, pc.cols - 1u) + (GATED == 1 ? uint(i / 2) * pc.cols : 0u);
        low_at[i] = pc.low_offset + row * pc.low_row;
        high_at[i] = pc.high_offset + row * pc.high_row;
        scales_at[i] = pc.scales_offset + row * pc.scales_row;
    }
    [[unroll]] for (int j = 0; j < X_TILES; j++) {
        a_at[j] = (pc.a_offset + min(row_first + uint(8 * j) + quad, pc.rows - 1u) * pc.a_row) / 8u;
    }

    uint low[TILES * 2 * LOW_COUNT], high[TILES * 2 * HIGH_COUNT];
    uvec2 scale_words[TILES * 2];
#define FETCH(i, chunk) { \
    const uint unit = min((chunk) * uint(TOGETHER) + own, units - 1u); \
    if (LOW == 2u) { \
        const uvec4 both = low_data[low_at[i] + unit / 2u]; \
        low[(i) * LOW_COUNT] = unit % 2u == 0u ? both.x : both.z; \
        low[(i) * LOW_COUNT + 1] = unit % 2u == 0u ? both.y : both.w; \
    } else { \
        [[unroll]] for (int f = 0; f < LOW_COUNT / 4; f++) { \
            const uvec4 four = low_data[low_at[i] + unit * (LOW / 4u) + uint(f)]; \
            [[unroll]] for (int w = 0; w < 4; w++) low[(i) * LOW_COUNT + 4 * f + w] = four[w]; \
        } \
    } \
    if (HIGH != 0u) { \
        [[unroll]] for (int w = 0; w < HIGH_COUNT; w++) high[(i) * HIGH_COUNT + w] = high_data[high_at[i] + unit * HIGH + uint(w)]; \
    } \
    scale_words[i] = scale_words_of(scales_at[i], unit, units); \
}

    float sum[TILES * X_TILES * 4];
    [[unroll]] for (int i = 0; i < TILES * X_TILES * 4; i++) sum[i] = 0.0;
    // What sums of x are multiplied with: 1, or minus the offset.
    // The bit 31 is never set. Of a constant NVIDIA's compiler would make 0: it is below the least normal number.
    const FACTOR_A of_all = FACTOR_A(HAS_MINIMA ? float16_t(1.0) : unpackFloat2x16(0x8000u | OFFSET | pc.rows >> 31).x);
    const SUMS nothing = SUMS(0.0);
    [[unroll]] for (int i = 0; i < TILES * 2; i++) FETCH(i, gl_SubgroupID)
    const uint stage = gl_SubgroupID * 16u * STRIDE;
    // What a number of the factor is multiplied with.
    const float undo = TABLE == TABLE_FP4 ? 32768.0 : TABLE == TABLE_E4M3 ? 256.0 : 16777216.0;
    const uint own_scales = gl_SubgroupID * 16u * uint(PLACES);
    const int halves = ONE_SCALE ? 1 : 2;
    for (uint chunk = gl_SubgroupID; chunk < chunks; chunk += SUBGROUPS) {
        // Of each row the words of four units that this lane multiplies, and the scales of its own unit.
        uint words[TILES * 2 * TOGETHER * 2], more[TILES * 2 * TOGETHER * 2];
        vec4 scales[TILES * 2 * PLACES];
        [[unroll]] for (int tile = 0; tile < TILES; tile++) {
            subgroupBarrier();  // before what lanes still read is replaced
            [[unroll]] for (int r = 0; r < 2; r++) {
                const int i = 2 * tile + r;
                const uint at = stage + (quad + uint(8 * r)) * STRIDE;
                [[unroll]] for (int w = 0; w < LOW_COUNT; w++) scratch[at + own * LOW + uint(w)] = low[i * LOW_COUNT + w];
                if (HIGH != 0u) {
                    [[unroll]] for (int w = 0; w < HIGH_COUNT; w++) {
                        scratch[at + HIGH_AT + own * HIGH + uint(w)] = high[i * HIGH_COUNT + w];
                    }
                }
                const uint unit = chunk * uint(TOGETHER) + own;
                vec4 of_unit = unit < units ? scales_in(scale_words[i], min(unit, units - 1u)) : vec4(0.0);
                if (HAS_MINIMA && OFFSET != 0u) of_unit.zw -= float(OFFSET) * of_unit.xy;
                of_unit.xy *= undo;
                const uint scales_of_row = own_scales + (quad + uint(8 * r)) * uint(PLACES);
                [[unroll]] for (int place = 0; place < PLACES; place++) {
                    scale_scratch[scales_of_row + uint(place)][own] = of_unit[place < halves ? place : 2 + place - halves];
                }
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            [[unroll]] for (int r = 0; r < 2; r++) {
                [[unroll]] for (int place = 0; place < PLACES; place++) {
                    scales[(2 * tile + r) * PLACES + place] = scale_scratch[own_scales + (quad + uint(8 * r)) * uint(PLACES) + uint(place)];
                }
                [[unroll]] for (int u = 0; u < TOGETHER; u++) {
                    const int i = ((2 * tile + r) * TOGETHER + u) * 2;
                    const uint at = stage + (quad + uint(8 * r)) * STRIDE + uint(u) * LOW;
                    if (LOW == 8u || ONE_SCALE) {
                        words[i] = scratch[at + own * (LOW / 4u)];
                        if (LOW == 8u) words[i + 1] = scratch[at + 2u * own + 1u];
                    } else {
                        [[unroll]] for (int h = 0; h < 2; h++) words[i + h] = scratch[at + (LOW == 4u ? uint(2 * h) + (own & 1u) : uint(h))];
                    }
                    if (HIGH != 0u) {
                        [[unroll]] for (int w = 0; w < HIGH_COUNT; w++) {
                            more[i + w] = scratch[stage + (quad + uint(8 * r)) * STRIDE + HIGH_AT + uint(u) * HIGH + uint(w)];
                        }
                    }
                }
            }
        }
        const uint next = chunk + SUBGROUPS;
        if (next < chunks) {
            [[unroll]] for (int i = 0; i < TILES * 2; i++) FETCH(i, next)
        }
        [[unroll]] for (int u = 0; u < TOGETHER; u++) {
            const uint unit = chunk * uint(TOGETHER) + uint(u);
            FACTOR_B b[2 * X_TILES];
            SUMS of_x[2 * X_TILES];
            [[unroll]] for (int h = 0; h < 2; h++) {
                [[unroll]] for (int j = 0; j < X_TILES; j++) {
                    // Of x the numbers n and n + 4, n + 1 and n + 5 of eight; of four bytes n and n + 2.
                    const uint at = a_at[j] + min(unit, units - 1u) * (UNIT / 8u);
                    uint one, other;
                    if (ONE_SCALE) {
                        const uvec4 eight = a_data[at + own];
                        one = eight[LOW == 8u ? 2 * h : h];
                        other = eight[LOW == 8u ? 2 * h + 1 : 2 + h];
                    } else {
                        const uvec4 eight = a_data[at + uint(2 * h) + (own & 1u)];
                        one = own < 2u ? eight.x : eight.y;
                        other = own < 2u ? eight.z : eight.w;
                    }
                    if (unit >= units) one = other = 0u;  // not infinite
                    const f16vec2 first = unpackFloat2x16((one & 0xffffu) | other << 16);
                    const f16vec2 second = unpackFloat2x16(one >> 16 | (other & 0xffff0000u));
                    b[2 * j + h][0] = first.x;
                    b[2 * j + h][1] = first.y;
                    b[2 * j + h][2] = second.x;
                    b[2 * j + h][3] = second.y;
                }
            }
            [[unroll]] for (int j = 0; j < X_TILES; j++) {
                of_x[2 * j] = nothing;
                of_x[2 * j + 1] = nothing;
                if (HAS_MINIMA || OFFSET != 0u) {
                    of_x[2 * j] = coopMatMulAdd(of_all, b[2 * j], nothing);
                    if (ONE_SCALE) of_x[2 * j] = coopMatMulAdd(of_all, b[2 * j + 1], of_x[2 * j]);
                    else of_x[2 * j + 1] = coopMatMulAdd(of_all, b[2 * j + 1], nothing);
                }
            }
            SUMS part[TILES * X_TILES];
            [[unroll]] for (int h = 0; h < 2; h++) {
                const bool begins = !ONE_SCALE || h == 0, ends = !ONE_SCALE || h == 1;
                const int place = ONE_SCALE ? 0 : h;
                [[unroll]] for (int tile = 0; tile < TILES; tile++) {
                    FACTOR_A a;
                    [[unroll]] for (int r = 0; r < 2; r++) {
                        const int i = ((2 * tile + r) * TOGETHER + u) * 2;
                        [[unroll]] for (int p = 0; p < 2; p++) {
                            // The bits of these numbers of W.
                            const uint n = (ONE_SCALE ? uint(2 * h) : own & 2u) + uint(p);
                            uint bits;
                            if (LOW == 8u) {
                                bits = words[i + h] >> 8u * uint(p) & 0x00ff00ffu;
                            } else if (LOW == 4u) {
                                bits = words[i + (ONE_SCALE ? 0 : h)] >> 4u * n & 0x000f000fu;
                            } else {
                                const uint eight = words[i + h] >> 16u * (own & 1u) & 0xffffu;
                                bits = (eight | eight << 8) >> 2u * n & 0x00030003u;
                            }
                            if (HIGH == 1u) {
                                const uint eight = more[i] >> (ONE_SCALE ? 8u * own : 16u * uint(h) + 8u * (own & 1u)) & 0xffu;
                                bits |= ((eight | eight << 12) >> n & 0x00010001u) << LOW;
                            } else if (HIGH == 2u) {
                                const uint eight = more[i + h] >> 16u * (own & 1u) & 0xffffu;
                                bits |= ((eight | eight << 8) >> 2u * n & 0x00030003u) << LOW;
                            }
                            const f16vec2 pair = unpackFloat2x16(levels(bits));
                            a[4 * r + 2 * p] = pair.x;
                            a[4 * r + 2 * p + 1] = pair.y;
                        }
                    }
                    [[unroll]] for (int j = 0; j < X_TILES; j++) {
                        if (begins && HAS_MINIMA) part[tile * X_TILES + j] = nothing;
                        else if (begins) part[tile * X_TILES + j] = of_x[2 * j + place];
                        part[tile * X_TILES + j] = coopMatMulAdd(a, b[2 * j + h], part[tile * X_TILES + j]);
                    }
                    if (ends) {
                        [[unroll]] for (int r = 0; r < 2; r++) {
                            const int of_row = (2 * tile + r) * PLACES;
                            const float scale = scales[of_row + place][u], minimum = HAS_MINIMA ? scales[of_row + halves + place][u] : 0.0;
                            [[unroll]] for (int j = 0; j < X_TILES; j++) {
                                [[unroll]] for (int e = 2 * r; e < 2 * r + 2; e++) {
                                    const int at = (tile * X_TILES + j) * 4 + e;
                                    sum[at] += scale * part[tile * X_TILES + j][e];
                                    if (HAS_MINIMA) sum[at] += minimum * of_x[2 * j + place][e];
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    // The subgroups' sums make one, 16 columns of y at a time: an invocation has one of them, of one row of x.
    const uint column = gl_LocalInvocationIndex % 16u, row = gl_LocalInvocationIndex / 16u;
    const uint width = uint(8 * X_TILES);
    float total[TILES];
    [[unroll]] for (int tile = 0; tile < TILES; tile++) {
        barrier();
        [[unroll]] for (int j = 0; j < X_TILES; j++) {
            [[unroll]] for (int e = 0; e < 4; e++) {
                const uint at = (gl_SubgroupID * 16u + quad + uint(8 * (e / 2))) * SUMS_ROW;
                scratch[at + uint(8 * j) + 2u * own + uint(e % 2)] = floatBitsToUint(sum[(tile * X_TILES + j) * 4 + e]);
            }
        }
        barrier();
        total[tile] = 0.0;
        [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
            total[tile] += uintBitsToFloat(scratch[(s * 16u + column) * SUMS_ROW + min(row, width - 1u)]);
        }
    }
    if (row >= width || row_first + row >= pc.rows) return;
    [[unroll]] for (int tile = 0; tile < TILES / paired; tile++) {
        const uint col = col_first + uint(16 * tile) + column;
        if (col < pc.cols) {
            float other = GATED == 1 ? total[TILES - 1] : 1.0, value = total[tile];
            if (HAS_BIAS == 1) {
                value += float(bias_data[pc.bias_offset + col]);
                if (GATED == 1) other += float(bias_data[pc.bias_offset + pc.cols + col]);
            }
            value = activation(value);
            if (GATED == 1) value *= other;
            if (HAS_RESIDUAL == 1) value += float(residual_data[pc.residual_offset + (row_first + row) * pc.residual_row + col]);
            const uint at = pc.c_offset + (row_first + row) * pc.c_row + col;
            c_data[at] = behind(float16_t(value), at - pc.c_offset, col);
        }
    }
}
