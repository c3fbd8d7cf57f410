#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What it computes: a convolution without a matrix of windows, for groups of few channels and for few outputs:
//     y[n, i, j, o] = b[o] + sum over channels k of o's group and places (a, b) of the kernel of
//     x[n, group * own + k, h, w] * t[(a * kernel_w + b) * own + k, o], with h = i * stride_h - padding_h + a * dilation_h
//     where that is within x, and w alike; else the term is 0.
// Shapes and layouts: x (batch, channels, height, width), any strides; t contiguous, (places * own, 4 * quads), but of SHARED with
//     QUADS (places, 4, quads, own / 4, 4): channel 4 k + j of output 4 q + i at [place, j, q, k, i], as invocations that share
//     out the channels read those of different k together; y (batch, out_h, out_w, outputs), samples and outputs without gaps.
// Bindings: 0 x, 1 t (float32), 2 b, 3 y, 4 r, 5 p.
// Specialization constants: TYPE, of x and b, TYPE_Y (words.glsl); FORM: DEPTHWISE, one channel and one output a group;
//     SHARED, four outputs of a quad are of one group; APART, any groups; QUADS, whether x is read in fours along channels;
//     HAS_BIAS; TAPS, of a row of the kernel that are taken together, and NEAR, whether what these read of x is held (of
//     DEPTHWISE, and of SHARED with QUADS); STRIDE and DILATION along w, as they then are; KERNEL_W; PARTS, a power of two:
//     invocations that share out the channels, and WIDE, fours of outputs of an invocation, 1 or 2 (of SHARED with QUADS, else
//     1); PLANAR, whether x is read one channel at a time, by invocations that are neighbours along h (what calls this swaps
//     the axes of an image whose rows have no gaps); RUN; HALVES (words.glsl); those of finish.glsl: what stands behind.
// Push constants: see the block; offsets and strides in elements. own and per: channels and outputs of a group.
// Workgroup: THREADS / PARTS runs of a sample (z), of which a row has `line` (x and y together count the workgroups of a
//     sample, STRIPE of them along x). Invocation: WIDE fours of outputs of a run, RUN neighbours along w; of every PARTS-th
//     four channels. Invocations with the same channels are neighbours with PLANAR, else those with the same run.
// Accumulation: float32, rows of the kernel after one another, then the sums of the parts; rounded once.
// Preconditions: t_offset and y_offset are multiples of 4; where 4 does not divide `outputs` y is float32. With QUADS x_offset
//     and x's strides but that of channels, which is 1, are multiples of 4; so is own with SHARED.
// Defines: THREADS, STRIPE; TEXELS, 1 where x and t are read as texels of 16 bytes.

const uint EACH = 4u;  // (words.glsl)
layout(constant_id = 11) const uint HALVES = 0u;

#include "arrays/words.glsl"

layout(constant_id = 0) const uint TYPE = 8u;
layout(constant_id = 1) const uint TYPE_Y = 8u;
layout(constant_id = 2) const uint FORM = 0u;
layout(constant_id = 3) const uint QUADS = 1u;
layout(constant_id = 4) const uint HAS_BIAS = 0u;
layout(constant_id = 5) const uint TAPS = 3u;
layout(constant_id = 6) const uint NEAR = 1u;
layout(constant_id = 7) const uint STRIDE = 1u;
layout(constant_id = 8) const uint DILATION = 1u;
layout(constant_id = 9) const uint KERNEL_W = 1u;
layout(constant_id = 10) const uint PARTS = 1u;
layout(constant_id = 12) const uint WIDE = 1u;
layout(constant_id = 13) const uint PLANAR = 0u;
layout(constant_id = 14) const uint RUN = 4u;

// constants: convolution
const uint DEPTHWISE = 0u, SHARED = 1u, APART = 2u;
const uint RUN_FEW = 4u, RUN_MOST = 8u, TAPS_MOST = 8u, HELD = 20u, HELD_OF_ALL = 10u;

layout(local_size_x = THREADS) in;

layout(push_constant, std430) uniform Push {
    uint line, units, outputs, own, per;
    uint out_h, out_w, kernel_h, height, width;
    uint stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
    uint x_offset, x_batch, x_channel, x_h, x_w, t_offset, b_offset, y_offset, y_h, y_w;
    uint r_offset, p_offset, n_0, n_1, n_2, n_3;
} pc;

#if TEXELS
layout(set = 0, binding = 0) uniform usamplerBuffer x_data;
layout(set = 0, binding = 1) uniform usamplerBuffer t_data;
#define X_TEXEL(at) texelFetch(x_data, int(at))
#define T_TEXEL(at) texelFetch(t_data, int(at))
#else
layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x_data[]; };
layout(set = 0, binding = 0, std430) readonly buffer Pairs { uvec2 x_pairs[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer T { uvec4 t_data[]; };
#define X_TEXEL(at) x_data[at]
#define T_TEXEL(at) t_data[at]
#endif
layout(set = 0, binding = 2, std430) restrict readonly buffer Bias { uint b_data[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { uvec4 y_data[]; };
layout(set = 0, binding = 3, std430) writeonly buffer YPairs { uvec2 y_pairs[]; };
#define FINISH_BINDING 4
#define FINISH_SMALL outputs
#include "finish.glsl"

float float_of(uint bits) { return uintBitsToFloat(natural(TYPE, uvec2(bits, 0u)).x); }

vec4 x_four(uint i) {
    if (TYPE == FLOAT32) return uintBitsToFloat(X_TEXEL(i >> 2));
#if TEXELS
    uvec4 texel = X_TEXEL(i >> 3);
    uvec2 pairs = (i & 4u) != 0u ? texel.zw : texel.xy;
#else
    // half of the last sixteen bytes may be outside of the binding, where devices read zeros for all of them
    uvec2 pairs = x_pairs[i >> 2];
#endif
    return vec4(float_of(pairs.x & 0xffffu), float_of(pairs.x >> 16), float_of(pairs.y & 0xffffu), float_of(pairs.y >> 16));
}

float x_one(uint i) {
    if (TYPE == FLOAT32) return uintBitsToFloat(X_TEXEL(i >> 2)[i & 3u]);
    return float_of(X_TEXEL(i >> 3)[i >> 1 & 3u] >> (i & 1u) * 16u & 0xffffu);
}

float b_one(uint i) {
    if (TYPE == FLOAT32) return uintBitsToFloat(b_data[i]);
    return float_of(b_data[i >> 1] >> (i & 1u) * 16u & 0xffffu);
}

vec4 t_four(uint i) { return uintBitsToFloat(T_TEXEL((pc.t_offset >> 2) + i)); }

vec4 x_each(uint first[4], uint i) {
    return vec4(x_one(first[0] + i), x_one(first[1] + i), x_one(first[2] + i), x_one(first[3] + i));
}

// Of DEPTHWISE: four channels at a place along w, or 0 outside of x.
vec4 x_there(uint first[4], uint line, uint w, bool whole) {
    bool there = whole && w < pc.width;
    uint i = line + (there ? w : 0u) * pc.x_w;
    vec4 x;
    if (QUADS == 1u) x = x_four(first[0] + i); else x = x_each(first, i);
    return mix(vec4(0.0), x, bvec4(there));
}

// Four outputs of one place.
void store(uint i, uint o, vec4 found) {
    uvec4 bits;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        bits[k] = element(TYPE_Y, FLOATING, uvec2(floatBitsToUint(found[k]), 0u)).x;
        if (FINISHED == 1u) {
            uint own = min(k, pc.outputs - 1u - o);
            bits[k] = finished_bits(bits[k], i - pc.y_offset + own, o + own);
        }
    }
    if (pc.outputs % 4u != 0u) {
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            if (o + k < pc.outputs) y_data[i + k >> 2][i + k & 3u] = bits[k];
        }
    } else if (TYPE_Y == FLOAT32) {
        y_data[i >> 2] = bits;
    } else {
        y_pairs[i >> 2] = uvec2(bits.x | bits.y << 16, bits.z | bits.w << 16);
    }
}

#if !TEXELS
shared vec4 sums[PARTS > 1u ? RUN * uint(THREADS) : 1u];
#endif

// Of SHARED with QUADS: four channels from k on at a place.
vec4 x_channels(uint i, uint k) {
    if (PLANAR == 0u) return x_four(i + k);
    i += k * pc.x_channel;
    return vec4(x_one(i), x_one(i + pc.x_channel), x_one(i + 2u * pc.x_channel), x_one(i + 3u * pc.x_channel));
}

void main() {
    const uint quads = (pc.outputs + 3u) >> 2;
    const uint runs = uint(THREADS) / PARTS;
    uint id = gl_LocalInvocationIndex, part = PARTS == 1u ? 0u : PLANAR == 1u ? id / runs : id % PARTS;
    uint at = (gl_WorkGroupID.y * uint(STRIPE) + gl_WorkGroupID.x) * runs
        + (PARTS == 1u ? id : PLANAR == 1u ? id % runs : id / PARTS);
    const uint count = pc.line * pc.out_h;
    bool live = at < count;
    if (PARTS == 1u && !live) return;
    at = min(at, count - 1u);
    uint batch = gl_WorkGroupID.z, row;
    if (PLANAR == 1u) {
        uint column = at / pc.out_h;
        row = at - column * pc.out_h;
        at = column;
    } else {
        row = at / pc.line;
        at -= row * pc.line;
    }
    uint left = at / pc.units, quad = (at - left * pc.units) * WIDE, o = 4u * quad;
    left *= RUN;

    vec4 sum[2][RUN_MOST];
    [[unroll]] for (uint q = 0u; q < WIDE; q++) {
        vec4 bias = vec4(0.0);
        if (HAS_BIAS == 1u && part == 0u) {
            [[unroll]] for (uint k = 0u; k < 4u; k++) bias[k] = b_one(pc.b_offset + min(o + 4u * q + k, pc.outputs - 1u));
        }
        [[unroll]] for (uint r = 0u; r < RUN; r++) sum[q][r] = bias;
    }

    // of each of the four, the first of its group's channels
    uint first[4];
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint channel = min(o + k, pc.outputs - 1u);
        if (FORM != DEPTHWISE) channel = channel / pc.per * pc.own;
        first[k] = pc.x_offset + batch * pc.x_batch + channel * pc.x_channel;
    }
    uint begin = left * pc.stride_w - pc.padding_w;
    // What is outside of x is read from its beginning and dropped: branches are dear to processors, where lanes are masked.
    for (uint a = 0u; a < pc.kernel_h; a++) {
        uint up = row * pc.stride_h + a * pc.dilation_h - pc.padding_h;
        bool whole = up < pc.height;  // below 0 wraps to what is beyond any extent
        uint line = (whole ? up : 0u) * pc.x_h;
        if (FORM == DEPTHWISE) {
            for (uint b = 0u; b < KERNEL_W; b += TAPS) {
                vec4 held[HELD];
                if (NEAR == 1u) {
                    [[unroll]] for (uint s = 0u; s < HELD; s++) {
                        if (s <= (RUN - 1u) * STRIDE + (TAPS - 1u) * DILATION) {
                            held[s] = x_there(first, line, begin + b * DILATION + s, whole);
                        }
                    }
                }
                [[unroll]] for (uint c = 0u; c < TAPS_MOST; c++) {
                    if (c < TAPS) {
                        bool last = KERNEL_W % TAPS == 0u || b + c < KERNEL_W;
                        vec4 weight = t_four((a * KERNEL_W + (last ? b + c : 0u)) * quads + quad);
                        [[unroll]] for (uint r = 0u; r < RUN; r++) {
                            vec4 x;
                            if (NEAR == 1u) x = held[r * STRIDE + c * DILATION];
                            else x = x_there(first, line, begin + r * pc.stride_w + (b + c) * pc.dilation_w, whole);
                            sum[0][r] += mix(vec4(0.0), x * weight, bvec4(last));
                        }
                    }
                }
            }
        } else if (FORM == SHARED && QUADS == 1u) {
            const uint reach = (RUN - 1u) * STRIDE + (TAPS - 1u) * DILATION + 1u;  // what is held
            for (uint b = 0u; b < KERNEL_W; b += TAPS) {
                uint places[HELD_OF_ALL];
                bool there[HELD_OF_ALL];
                [[unroll]] for (uint s = 0u; s < HELD_OF_ALL; s++) {
                    uint w = begin + (NEAR == 1u ? b * DILATION + s : s * pc.stride_w + b * pc.dilation_w);
                    there[s] = whole && w < pc.width;
                    places[s] = first[0] + line + (there[s] ? w : 0u) * pc.x_w;
                }
                const uint fours = pc.own >> 2, beyond = quads * fours;
                for (uint k = 4u * part; k < pc.own; k += 4u * PARTS) {
                    vec4 held[HELD_OF_ALL];
                    [[unroll]] for (uint s = 0u; s < HELD_OF_ALL; s++) {
                        if (s < (NEAR == 1u ? reach : RUN)) {
                            held[s] = mix(vec4(0.0), x_channels(places[s], k), bvec4(there[s]));
                        }
                    }
                    [[unroll]] for (uint c = 0u; c < TAPS_MOST; c++) {
                        if (c < TAPS) {
                            bool last = KERNEL_W % TAPS == 0u || b + c < KERNEL_W;
                            uint tap = (a * KERNEL_W + b + (last ? c : 0u)) * 4u * beyond;
                            [[unroll]] for (uint q = 0u; q < WIDE; q++) {
                                uint from = tap + min(quad + q, quads - 1u) * fours + (k >> 2);
                                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                                    vec4 weight = t_four(from + j * beyond);
                                    weight = mix(vec4(0.0), weight, bvec4(last));
                                    [[unroll]] for (uint r = 0u; r < RUN; r++) {
                                        sum[q][r] += held[NEAR == 1u ? r * STRIDE + c * DILATION : r][j] * weight;
                                    }
                                }
                            }
                        }
                    }
                }
            }
        } else {
            for (uint b = 0u; b < KERNEL_W; b++) {
                uint places[RUN_MOST];
                bool there[RUN_MOST];
                [[unroll]] for (uint r = 0u; r < RUN; r++) {
                    uint w = begin + r * pc.stride_w + b * pc.dilation_w;
                    there[r] = whole && w < pc.width;
                    places[r] = line + (there[r] ? w : 0u) * pc.x_w;
                }
                uint tap = (a * KERNEL_W + b) * pc.own;
                for (uint k = 0u; k < pc.own; k++) {
                    vec4 weight = t_four((tap + k) * quads + quad);
                    [[unroll]] for (uint r = 0u; r < RUN; r++) {
                        uint i = places[r] + k * pc.x_channel;
                        vec4 x;
                        if (FORM == SHARED) x = vec4(x_one(first[0] + i));
                        else x = x_each(first, i);
                        sum[0][r] += mix(vec4(0.0), x, bvec4(there[r])) * weight;
                    }
                }
            }
        }
    }

    uint to = pc.y_offset + batch * pc.out_h * pc.out_w * pc.outputs + row * pc.y_h + left * pc.y_w + o;
    [[unroll]] for (uint q = 0u; q < WIDE; q++) {
        bool stored = live && quad + q < quads;
#if !TEXELS
        if (PARTS > 1u) {  // each invocation adds up the sums of some places, in turned order for different banks
            barrier();
            [[unroll]] for (uint r = 0u; r < RUN; r++) sums[r * uint(THREADS) + (id ^ r)] = sum[q][r];
            barrier();
            for (uint r = part; r < RUN; r += PARTS) {
                vec4 found = vec4(0.0);
                [[unroll]] for (uint p = 0u; p < PARTS; p++) {
                    uint its = PLANAR == 1u ? p * runs + id % runs : id - part + p;
                    found += sums[r * uint(THREADS) + (its ^ r)];
                }
                if (stored && left + r < pc.out_w) store(to + r * pc.y_w + 4u * q, o + 4u * q, found);
            }
        }
#endif
        [[unroll]] for (uint r = 0u; r < RUN; r++) {
            if (PARTS == 1u && stored && left + r < pc.out_w) store(to + r * pc.y_w + 4u * q, o + 4u * q, sum[q][r]);
        }
    }
}
