#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
// What it computes: layer norm, RMS norm, softmax and the logarithm of softmax of the rows of an array, and their
//     gradients (norms/found.glsl lists them). With ADDS of x + r, rounded as the elements are, which becomes s.
// Shapes and layouts: x, and r (what is added; of gradients the output's gradient), have rows over three axes and elements
//     of a row along one, of any strides; so have y, s and t, whose strides are the same. w and b have one number for each
//     element of a row, or for each channel: w_each channels of w_div elements in a row, of which w_groups follow each other.
// Bindings: 0 x, 1 r, 2 w, 3 b, 4 y, 5 s, 6 t (float32: what the gradient of w is the sum of), or with HOLES p.
// Specialization constants: OPERATION; LANES, invocations of a row, a power of two up to THREADS; COLUMNS, 1 where
//     neighbours in a workgroup have neighbouring rows, else the same row; QUADS, 1 where elements are read and written in
//     fours; HELD, fours of elements that an invocation holds; LONG, 1 where a row is more than its invocations hold; ADDS,
//     WEIGHT, BIAS, CHANNELS and TERMS (write t), 0 or 1; THREADS, of a workgroup; WHOLE, 1 where a row is exactly what its
//     invocations hold; LATE, 1 where registers are too few to fetch weights and biases before they are needed; HALVES
//     (words.glsl), 1 where packHalf2x16 rounds as it should.
// Push constants: see the block; offsets and strides in elements.
// Workgroup: THREADS / LANES rows (x and y together count the workgroups). Invocation: every LANES-th element or four of a
//     row. Held rows are read once; others once for what is found in them, and once more to write.
// Accumulation: float32, and where squares are beyond its range once more, scaled (found.glsl). What is found of a row's parts (found.glsl) is put together in an order that depends on the shape
//     and the subgroup's size alone.
// Preconditions: with QUADS every offset, stride of rows and `cols`, and with CHANNELS w_div, are multiples of four, and
//     elements of a row are neighbours. rows and cols are not 0.
// Defines: SUBGROUPS, 1 to exchange between invocations of a subgroup; TEXELS, 1 where x, r, w and b are read as texels of 16
//     bytes (docs/benchmarks/lavapipe.md) and elements in fours; HOLES, 1 where expressions stand before and behind
//     (norms/holes.glsl): then there are no gradients, CHANNELS or TEXELS, and ADDS says that the row's elements become s.

#include "elements.glsl"
#include "float16.glsl"
#include "pairs.glsl"
#include "norms/found.glsl"

layout(constant_id = 1) const uint LANES = 32u;
#if TEXELS
const uint COLUMNS = 0u, QUADS = 1u, LATE = 0u, HALVES = 0u;
#else
layout(constant_id = 2) const uint COLUMNS = 0u;
layout(constant_id = 3) const uint QUADS = 0u;
layout(constant_id = 13) const uint LATE = 0u;
layout(constant_id = 14) const uint HALVES = 0u;
#endif
layout(constant_id = 4) const uint HELD = 1u;
layout(constant_id = 5) const uint LONG = 0u;
layout(constant_id = 6) const uint ADDS = 0u;
layout(constant_id = 7) const uint WEIGHT = 0u;
layout(constant_id = 8) const uint BIAS = 0u;
#if HOLES
const uint CHANNELS = 0u, TERMS = 0u;
#else
layout(constant_id = 9) const uint CHANNELS = 0u;
layout(constant_id = 10) const uint TERMS = 0u;
#endif
layout(constant_id = 12) const uint WHOLE = 0u;
layout(local_size_x_id = 11) in;

layout(push_constant, std430) uniform Push {
    uint rows, e_1, e_2, cols;
    uint x_offset, x_0, x_1, x_2, x_stride;
    uint r_offset, r_0, r_1, r_2, r_stride;
    uint y_offset, y_0, y_1, y_2, y_stride;
    uint w_offset, b_offset, w_groups, w_each, w_div;
    float epsilon, w_add;
#if HOLES
    uint p_offset, p_0, p_1, p_2, p_stride, n_3;
#endif
} pc;

// Four 16-bit elements are read as two words: vectors of them some compilers take apart.
vec4 floats_of(uvec2 pairs) {
    return FLOATS_OF(pairs);
}

#if TEXELS
layout(set = 0, binding = 0) uniform usamplerBuffer x_texels;
layout(set = 0, binding = 1) uniform usamplerBuffer r_texels;
layout(set = 0, binding = 2) uniform usamplerBuffer w_texels;
layout(set = 0, binding = 3) uniform usamplerBuffer b_texels;

// The four elements from `at` on, a multiple of four.
vec4 four_of(usamplerBuffer array, uint at) {
#if defined(DTYPE_float32)
    return uintBitsToFloat(texelFetch(array, int(at >> 2)));
#else
    uvec4 word = texelFetch(array, int(at >> 3));
    return floats_of((at & 4u) != 0u ? word.zw : word.xy);
#endif
}
#define FOUR(NAME, AT) four_of(NAME##_texels, AT)
#define ONE(NAME, AT) four_of(NAME##_texels, (AT) & ~3u)[(AT) & 3u]
#else
#if defined(DTYPE_float32)
#define FOUR_ELEMENTS vec4
#define FOUR(NAME, AT) NAME##_fours[(AT) >> 2]
#else
#define FOUR_ELEMENTS uvec2
#define FOUR(NAME, AT) floats_of(NAME##_fours[(AT) >> 2])
#endif
#define ONE(NAME, AT) IO_LOAD(NAME##_data[AT])
#if HOLES
layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer R { uvec4 r_data[]; };
layout(set = 0, binding = 6, std430) readonly buffer P { uvec4 p_data[]; };
#else
layout(set = 0, binding = 0, std430) readonly buffer X { IO_SCALAR x_data[]; };
layout(set = 0, binding = 0, std430) readonly buffer XFours { FOUR_ELEMENTS x_fours[]; };
layout(set = 0, binding = 1, std430) readonly buffer R { IO_SCALAR r_data[]; };
layout(set = 0, binding = 1, std430) readonly buffer RFours { FOUR_ELEMENTS r_fours[]; };
#endif
layout(set = 0, binding = 2, std430) readonly buffer W { IO_SCALAR w_data[]; };
layout(set = 0, binding = 2, std430) readonly buffer WFours { FOUR_ELEMENTS w_fours[]; };
layout(set = 0, binding = 3, std430) readonly buffer B { IO_SCALAR b_data[]; };
layout(set = 0, binding = 3, std430) readonly buffer BFours { FOUR_ELEMENTS b_fours[]; };
#endif
layout(set = 0, binding = 4, std430) writeonly buffer Y { IO_SCALAR y_data[]; };
layout(set = 0, binding = 4, std430) writeonly buffer YVectors { IO_VECTOR y_vectors[]; };
layout(set = 0, binding = 4, std430) writeonly buffer YWords { uvec2 y_words[]; };
layout(set = 0, binding = 5, std430) writeonly buffer S { IO_SCALAR s_data[]; };
layout(set = 0, binding = 5, std430) writeonly buffer SVectors { IO_VECTOR s_vectors[]; };
layout(set = 0, binding = 5, std430) writeonly buffer SWords { uvec2 s_words[]; };
#if !HOLES
layout(set = 0, binding = 6, std430) writeonly buffer T { float t_data[]; };
layout(set = 0, binding = 6, std430) writeonly buffer TVectors { vec4 t_vectors[]; };
#endif

const uint THREADS = gl_WorkGroupSize.x;
const uint ROWS = THREADS / LANES;
const uint BLOCK = 4u * HELD * LANES;  // elements of a row that are held at once
#if HOLES
const bool HAS_R = false;
#else
const bool HAS_R = BACKWARD || ADDS == 1u;
#endif

shared vec4 shared_parts[2][THREADS];

uint lane, x_row, r_row, y_row, w_row;
bool mine;  // whether the row exists, and is not another's once more
float pivot;
float scale = 1.0;  // of what is held: a power of two
vec4 held[HELD], gradients[HELD];
// Few weights and biases are fetched with the row, and wait for what is found in it; not where they take more registers
// than the row.
#if defined(DTYPE_float32)
const bool EARLY = !BACKWARD && LONG == 0u && HELD <= 4u && LATE == 0u && BIAS == 0u;
#else
const bool EARLY = !BACKWARD && LONG == 0u && HELD <= 4u && LATE == 0u;
#endif
vec4 held_weights[HELD], held_biases[HELD];

// What a number of the elements' type comes to.
float stored(float x) {
#if defined(DTYPE_float16)
    return float16_value(float16_word(x));
#elif defined(DTYPE_bfloat16)
    return uintBitsToFloat(bfloat16_word(x) << 16);
#else
    return x;
#endif
}
vec4 stored(vec4 x) { return vec4(stored(x.x), stored(x.y), stored(x.z), stored(x.w)); }

// Where element k of the four `i` of a block lies in the row.
uint place(uint block, uint i, uint k) {
    return block + (QUADS == 1u ? 4u * (i * LANES + lane) + k : (4u * i + k) * LANES + lane);
}

bvec4 exist(uint block, uint i) {
    if (WHOLE == 1u) return bvec4(true);
    if (QUADS == 1u) return bvec4(place(block, i, 0u) < pc.cols);
    return bvec4(place(block, i, 0u) < pc.cols, place(block, i, 1u) < pc.cols, place(block, i, 2u) < pc.cols,
                 place(block, i, 3u) < pc.cols);
}

// The place, or that of the row's last so many elements.
uint bounded(uint at, uint count) { return WHOLE == 1u ? at : min(at, pc.cols - count); }

vec4 some(vec4 x, bvec4 which) { return mix(vec4(0.0), x, which); }
float sum_of(vec4 x) { return (x.x + x.y) + (x.z + x.w); }

#if defined(DTYPE_float32)
#define WRITE_FOUR(NAME, AT, VALUE) NAME##_vectors[AT] = VALUE;
#elif defined(DTYPE_bfloat16)
#define WRITE_FOUR(NAME, AT, VALUE) { \
    uvec4 words = bfloat16_words(VALUE); \
    NAME##_words[AT] = words.xz | words.yw << 16; \
}
#else
#define WRITE_FOUR(NAME, AT, VALUE) { \
    if (HALVES == 1u) NAME##_words[AT] = uvec2(packHalf2x16(VALUE.xy), packHalf2x16(VALUE.zw)); \
    else NAME##_vectors[AT] = IO_STORE4(VALUE); \
}
#endif
#define WRITE_FLOATS(NAME, AT, VALUE) NAME##_vectors[AT] = VALUE;
#define WRITE(NAME, ROW, BLOCK_AT, I, VALUE, STORE, STORE_FOUR) \
    if (mine) { \
        vec4 value = VALUE; \
        if (QUADS == 1u) { \
            uint at = place(BLOCK_AT, I, 0u); \
            if (WHOLE == 1u || at < pc.cols) { \
                at = (ROW + at) >> 2; \
                STORE_FOUR(NAME, at, value) \
            } \
        } else { \
            [[unroll]] for (uint k = 0u; k < 4u; k++) { \
                uint at = place(BLOCK_AT, I, k); \
                if (at < pc.cols) NAME##_data[ROW + at * pc.y_stride] = STORE(value[k]); \
            } \
        } \
    }

#if HOLES
#include "norms/holes.glsl"
#endif

// The elements of a block, as they are in memory. Beyond the row's end its last ones come again, so that all loads of an
// invocation can be under way at once. Sums are written where `writes`.
void load(uint block, bool writes) {
#if HOLES
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        held[i] = before(block, i);
        if (ADDS == 1u && writes) WRITE(s, y_row, block, i, held[i], IO_STORE, WRITE_FOUR)
    }
#else
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        if (QUADS == 1u) {
            uint at = bounded(place(block, i, 0u), 4u);
            held[i] = FOUR(x, x_row + at);
            if (HAS_R) gradients[i] = FOUR(r, r_row + at);
        } else {
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                uint at = bounded(place(block, i, k), 1u);
                held[i][k] = ONE(x, x_row + at * pc.x_stride);
                if (HAS_R) gradients[i][k] = ONE(r, r_row + at * pc.r_stride);
            }
        }
    }
    if (ADDS == 1u) {
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            held[i] = stored(held[i] + gradients[i]);
            if (writes) WRITE(s, y_row, block, i, held[i], IO_STORE, WRITE_FOUR)
        }
    }
#endif
#if MAY_LEAVE_RANGE
    if (SQUARES && scale != 1.0) {
        // One operation after the other: compilers may multiply differences after they were made.
        const float before = min(scale, 1.0), after = max(scale, 1.0);
        precise float from = pivot * before;
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            precise vec4 scaled = held[i] * before;
            scaled -= from;
            scaled *= after;
            held[i] = scaled;
        }
        return;
    }
#endif
    if (CENTRED) {
        [[unroll]] for (uint i = 0u; i < HELD; i++) held[i] -= pivot;
    }
    if (OPERATION == ATTENTION_SOFTMAX) {
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            held[i] = mix(held[i], vec4(minus_infinity()), lessThan(held[i], vec4(MASK_FLOOR)));
        }
    }
}

// Numbers of w or b for a four.
#define FACTORS(FUNCTION, NAME) \
    vec4 FUNCTION(uint block, uint i) { \
        if (CHANNELS == 1u) { \
            if (QUADS == 1u) return vec4(ONE(NAME, pc.NAME##_offset + w_row + bounded(place(block, i, 0u), 4u) / pc.w_div)); \
            vec4 found; \
            [[unroll]] for (uint k = 0u; k < 4u; k++) \
                found[k] = ONE(NAME, pc.NAME##_offset + w_row + bounded(place(block, i, k), 1u) / pc.w_div); \
            return found; \
        } \
        if (QUADS == 1u) return FOUR(NAME, pc.NAME##_offset + bounded(place(block, i, 0u), 4u)); \
        vec4 found; \
        [[unroll]] for (uint k = 0u; k < 4u; k++) \
            found[k] = ONE(NAME, pc.NAME##_offset + bounded(place(block, i, k), 1u)); \
        return found; \
    }
FACTORS(weights, w)
FACTORS(biases, b)

void fetch_factors() {
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        if (WEIGHT == 1u) held_weights[i] = weights(0u, i);
        if (BIAS == 1u) held_biases[i] = biases(0u, i);
    }
}

// The output's gradients times w.
vec4 weighted(uint block, uint i) {
    return WEIGHT == 1u ? gradients[i] * (weights(block, i) + pc.w_add) : gradients[i];
}

// What is found in the block that is held. Of softmax it then holds exponentials, but with LONG.
Found found_in(uint block) {
    Found own = nothing_found();
    vec4 sum = vec4(0.0), gradient = vec4(0.0), product = vec4(0.0);
    if (CENTRED) {
        vec4 count = vec4(0.0);
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            bvec4 is = exist(block, i);
            count += some(vec4(1.0), is);
            sum += some(held[i], is);
            if (BACKWARD) gradient += some(weighted(block, i), is);
        }
        own.count = sum_of(count);
        float each = 1.0 / max(own.count, 1.0);
        own.centre = sum_of(sum) * each;
        if (BACKWARD) own.gradient = sum_of(gradient) * each;
        sum = vec4(0.0);
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            vec4 apart = some(held[i] - own.centre, exist(block, i));
            sum += apart * apart;
            if (BACKWARD) product += apart * (weighted(block, i) - own.gradient);
        }
        own.sum = sum_of(sum);
        own.product = sum_of(product);
    } else if (EXPONENTIALS) {
        vec4 most = vec4(own.centre);
        [[unroll]] for (uint i = 0u; i < HELD; i++) most = max(most, mix(most, held[i], exist(block, i)));
        own.centre = max(max(most.x, most.y), max(most.z, most.w));
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            vec4 power = powers_of(held[i] - own.centre);
            sum += some(power, exist(block, i));
            if (WEIGHS) held[i] = power;
        }
        own.sum = sum_of(sum);
    } else {
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            bvec4 is = exist(block, i);
            if (OPERATION == RMS_NORM || OPERATION == RMS_NORM_BACKWARD) sum += some(held[i] * held[i], is);
            if (OPERATION == RMS_NORM_BACKWARD) product += some(held[i] * weighted(block, i), is);
            if (OPERATION == SOFTMAX_BACKWARD) product += some(held[i] * gradients[i], is);
            if (OPERATION == LOG_SOFTMAX_BACKWARD) product += some(gradients[i], is);
        }
        own.sum = sum_of(sum);
        own.product = sum_of(product);
    }
    return own;
}

// The sums over all invocations of the row of so many components, or the largest; each of them gets the same bits.
vec4 together(vec4 own, uint components, bool largest, uint array) {
    if (LANES == 1u) return own;
    uint id = gl_LocalInvocationIndex;
    uint near = 1u;  // invocations whose parts are together
    const uint next = COLUMNS == 1u ? ROWS : 1u;
#if SUBGROUPS
    if (COLUMNS == 0u) {
        near = min(LANES, gl_SubgroupSize);
        for (uint step = 1u; step < near; step *= 2u) {
            vec4 other = vec4(0.0);
            for (uint c = 0u; c < components; c++) other[c] = subgroupShuffleXor(own[c], step);
            own = largest ? max(own, other) : own + other;
        }
        if (near == LANES) return own;
    }
#endif
    if (lane % near == 0u) shared_parts[array][id] = own;
    uint parts = LANES / near;
    for (; parts > 8u; parts /= 2u) {
        barrier();
        if (lane < parts / 2u * near && lane % near == 0u) {
            vec4 other = shared_parts[array][id + parts / 2u * near * next];
            own = largest ? max(own, other) : own + other;
            shared_parts[array][id] = own;
        }
    }
    barrier();
    uint first = id - lane * next;
    own = shared_parts[array][first];
    for (uint part = 1u; part < parts; part++) {
        vec4 other = shared_parts[array][first + part * near * next];
        own = largest ? max(own, other) : own + other;
    }
    return own;
}

// What all invocations of the row have found; each of them gets the same. First what all need to know, then sums.
Found of_row(Found own) {
    if (CENTRED) {
        // All counts together are the row's elements.
        vec4 sums = together(vec4(own.count * own.centre, own.count * own.gradient, 0.0, 0.0), BACKWARD ? 2u : 1u, false, 0u);
        vec2 means = sums.xy / float(pc.cols);
        float apart = own.centre - means.x;
        own.product += own.count * apart * (own.gradient - means.y);
        own.sum += own.count * apart * apart;
        own.count = float(pc.cols);
        own.centre = means.x;
        own.gradient = means.y;
    } else if (EXPONENTIALS) {
        float most = together(vec4(own.centre, 0.0, 0.0, 0.0), 1u, true, 0u).x;
        own.sum *= power_of(own.centre - most);
        own.centre = most;
    }
    vec4 sums = together(vec4(own.sum, own.product, 0.0, 0.0), BACKWARD ? 2u : 1u, false, 1u);
    own.sum = sums.x;
    own.product = sums.y;
    return own;
}

#if MAY_LEAVE_RANGE
// What the row is to be multiplied by, so that squares and products of it that count are float32 numbers: mostly 1.
float scale_for(Found found) {
    if (non_finite(found.sum)) return 1.0 / SCALE;
    if (found.sum + pc.epsilon * float(pc.cols) < SMALL_SQUARES) return SCALE;
    if (!BACKWARD || !non_finite(found.product)) return 1.0;
    const int power = int(floatBitsToUint(found.sum) >> 23) - 127;
    return uintBitsToFloat(uint(127 - power / 2) << 23);
}

shared uint some_again;

// Whether the row is to be looked at again, or, where barriers are everyone's, some row of the workgroup.
bool is_again(bool own) {
    if (LANES == 1u) return own;
#if SUBGROUPS
    if (COLUMNS == 0u && LANES <= gl_SubgroupSize) return own;
#endif
    if (LANES == THREADS) {
        if (own) barrier();  // others may still read what together() has shared
        return own;
    }
    if (own) some_again = 1u;
    barrier();
    return some_again == 1u;
}
#endif

// What all of the row has found, its elements multiplied by `scale`; `top` is what this invocation's softmax began with.
Found found_of(bool writes, out float top) {
    // Blocks are put together in runs, so that roundings of a long row grow with the root of its length.
    Found found = nothing_found(), run = nothing_found();
    uint blocks = 0u;
    for (uint block = 0u; block == 0u || LONG == 1u && block < pc.cols; block += BLOCK) {
        if (EARLY) fetch_factors();
        load(block, writes);
        Found own = found_in(block);
        if (LONG == 1u) {
            run = combined(run, own);
            if (++blocks % 64u == 0u) {
                found = combined(found, run);
                run = nothing_found();
            }
        } else {
            found = own;
        }
    }
    if (LONG == 1u) found = combined(found, run);
    top = found.centre;
    return of_row(found);
}

// The row's results, from what is held.
void put(Found found, float own_top) {
    float factor = 1.0, less = 0.0, more = 0.0;
    float each = 1.0 / float(pc.cols);
    if (WEIGHS) {
        factor = (LONG == 1u ? 1.0 : power_of(own_top - found.centre)) / found.sum;
        if (found.sum == 0.0 || non_finite(found.sum)) factor = uintBitsToFloat(0x7fc00000u);
        if (OPERATION == ATTENTION_SOFTMAX && found.sum == 0.0) factor = 0.0;
    } else if (OPERATION == LOG_SOFTMAX) {
        less = log_accurate(found.sum);
        if (found.sum == 0.0 || non_finite(found.sum)) less = uintBitsToFloat(0x7fc00000u);
    } else if (HAS_SUM) {
        SCALED_EPSILON(added, pc.epsilon, scale)
        factor = inversesqrt(found.sum * each + added);
        more = found.product * each * factor;
    }
    for (uint block = 0u; block == 0u || LONG == 1u && block < pc.cols; block += BLOCK) {
        if (LONG == 1u) load(block, false);
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            vec4 y = held[i];
            if (OPERATION == LAYER_NORM || OPERATION == RMS_NORM) {
                if (CENTRED) y -= found.centre;
                y *= factor;
                if (WEIGHT == 1u) y *= (EARLY ? held_weights[i] : weights(block, i)) + pc.w_add;
                if (BIAS == 1u) y += EARLY ? held_biases[i] : biases(block, i);
            } else if (WEIGHS) {
                if (LONG == 1u) {
                    y = powers_of(y - found.centre);
                }
                y *= factor;
            } else if (OPERATION == LOG_SOFTMAX) {
                y = (y - found.centre) - less;
            } else if (OPERATION == SOFTMAX_BACKWARD) {
                y *= gradients[i] - found.product;
            } else if (OPERATION == LOG_SOFTMAX_BACKWARD) {
                y = gradients[i] - powers_of(y) * found.product;
            } else {
#if !HOLES
                if (CENTRED) y -= found.centre;
                y *= factor;
                if (TERMS == 1u) {
                    WRITE(t, y_row, block, i, y * gradients[i], float, WRITE_FLOATS)
                }
                y = (weighted(block, i) - found.gradient - y * more) * factor;
#if MAY_LEAVE_RANGE
                precise vec4 back = y * scale;
                y = back;
#endif
#endif
            }
#if HOLES
            if (AFTER == 1u) {
                if (mine) write_after(block, i, y);
                continue;
            }
#endif
            WRITE(y, y_row, block, i, y, IO_STORE, WRITE_FOUR)
        }
    }
}

void main() {
    uint id = gl_LocalInvocationIndex;
    lane = COLUMNS == 1u ? id / ROWS : id % LANES;
    uint row = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * ROWS
        + (COLUMNS == 1u ? id % ROWS : id / LANES);
    mine = row < pc.rows;
    row = min(row, pc.rows - 1u);
    uint last = row, middle = 0u, first = 0u;
    if (pc.e_2 < pc.rows) {  // most arrays have one axis of rows, and quotients are long
        last = row % pc.e_2;
        middle = row / pc.e_2 % pc.e_1;
        first = row / pc.e_2 / pc.e_1;
    }
    x_row = pc.x_offset + first * pc.x_0 + middle * pc.x_1 + last * pc.x_2;
    r_row = pc.r_offset + first * pc.r_0 + middle * pc.r_1 + last * pc.r_2;
    y_row = pc.y_offset + first * pc.y_0 + middle * pc.y_1 + last * pc.y_2;
    w_row = CHANNELS == 1u ? row % pc.w_groups * pc.w_each : 0u;
    // Differences from a number of the row are nearly exact, where the row's mean is large and its deviation small.
#if HOLES
    p_row = pc.p_offset + first * pc.p_0 + middle * pc.p_1 + last * pc.p_2;
    pivot = CENTRED ? first_before() : 0.0;
#else
    pivot = CENTRED ? ONE(x, x_row) : 0.0;
    if (CENTRED && ADDS == 1u) pivot = stored(pivot + ONE(r, r_row));
#endif

    float own_top;
#if MAY_LEAVE_RANGE
    // All that a turn finds is used in it: Mesa 22.3's CPU driver loses what invocations that leave a loop early take along.
    if (SQUARES && id == 0u) some_again = 0u;
    bool is_first = true, again;
    do {
        Found found = found_of(is_first, own_top);
        again = false;
        if (SQUARES && is_first) {
            const float own_scale = scale_for(found);
            again = is_again(own_scale != 1.0);
            if (again) scale = own_scale;
        }
        if (!again) put(found, own_top);
        is_first = false;
    } while (again);
#else
    put(found_of(true, own_top), own_top);
#endif
}
