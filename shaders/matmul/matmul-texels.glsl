// matmul.glsl for processors whose driver reads texel buffers by plain loads (llvmpipe): a and b, both of the dtype and
// B_ROWS_ARE_COLS, and the residual are texel buffers of 16 bytes a texel. As in matmul-lanes.glsl a workgroup is one
// subgroup of 8 lanes, which owns 8 R x C of c (C = 32).
// A trip covers 8 of the depth. Lane l loads those of rows 8 i + l of a (i < R) and of columns 8 q + l of b (q < C / 8),
// and b goes round the lanes: sum[i][8 q + r] of lane l is that of column 8 q + (l + r) % 8, until all are put in their
// places at the end. Such a rotation is one instruction; a broadcast of each column takes two. A trip's products are
// added before they meet the sum: an eighth of the roundings, and of the masked stores that a loop makes of each sum.
// The code of a trip (27 KB with R = 4 and C = 32) must stay within the instruction cache, which bounds R, C and the trip
// together: docs/benchmarks/lavapipe.md.
// Constants  1 EIGHTS  whether 8 divides the depth and the offsets and strides of a and b, not only 4
// Workgroup (x, y, z) as in matmul-tile.glsl. Requires subgroups of 8 (full).

layout(local_size_x = 8) in;
layout(constant_id = 1) const int EIGHTS = 0;

const int GROUPS = C / 8;

// Elements element .. element + 7 as two vectors; without `more`, which is the same for all lanes, the second is zero.
#if defined(DTYPE_float32)
#define FETCH(to, data, element, more) { \
        const int texel = TEXEL(element); \
        to[0] = four_of(texelFetch(data, texel), 0u); \
        to[1] = four_of(texelFetch(data, EIGHTS == 1 || more ? texel + 1 : texel), 0u); \
        if (EIGHTS == 0) to[1] = mix(vec4(0.0), to[1], bvec4(more)); \
    }
#else
#define FETCH(to, data, element, more) { \
        const uvec4 texel = texelFetch(data, TEXEL(element)); \
        if (EIGHTS == 1) { \
            to[0] = four_of(texel, 0u); \
            to[1] = four_of(texel, 4u); \
        } else { \
            const uint other = (element) + (more ? 4u : 0u); \
            to[0] = four_of(texel, element); \
            to[1] = mix(vec4(0.0), four_of(texelFetch(data, TEXEL(other)), other), bvec4(more)); \
        } \
    }
#endif

void main() {
#include "matmul-lanes-place.glsl"
    const int depth = int(pc.depth);

    // Rows and columns past the end are computed from the last one and not stored: no test inside the loop.
#define ROW(i) (row_first + 8 * (i) + lane)
    uint a_row[R];
    [[unroll]] for (int i = 0; i < R; i++) a_row[i] = a_first + uint(min(ROW(i), rows - 1)) * pc.a_row;
    uint b_row[GROUPS];
    [[unroll]] for (int q = 0; q < GROUPS; q++) {
        b_row[q] = b_first + uint(min(col_first + 8 * q + lane, cols - 1)) * pc.b_row;
    }
    float sum[R][C];
    [[unroll]] for (int i = 0; i < R; i++) {
        [[unroll]] for (int j = 0; j < C; j++) sum[i][j] = 0.0;
    }

#define PRODUCT(m) a[i][(m) / 4][(m) % 4] * value[m]
#define FOUR(m) ((PRODUCT(m) + PRODUCT(m + 1)) + (PRODUCT(m + 2) + PRODUCT(m + 3)))
#define TRIPS(OWN, END) \
    for (int k = 0; k < END; k += 8) { \
        const bool more = k + 4 < END; \
        vec4 a[OWN][2]; \
        vec4 b[GROUPS][2]; \
        [[unroll]] for (int i = 0; i < OWN; i++) FETCH(a[i], a_data, a_row[i] + uint(k), more) \
        [[unroll]] for (int q = 0; q < GROUPS; q++) FETCH(b[q], b_data, b_row[q] + uint(k), more) \
        [[unroll]] for (int q = 0; q < GROUPS; q++) { \
            [[unroll]] for (int r = 0; r < 8; r++) { \
                float value[8]; \
                [[unroll]] for (int m = 0; m < 8; m++) { \
                    value[m] = subgroupShuffle(b[q][m / 4][m % 4], uint((lane + r) % 8)); \
                } \
                [[unroll]] for (int i = 0; i < OWN; i++) sum[i][8 * q + r] += FOUR(0) + FOUR(4); \
            } \
        } \
    }

    // Of eight rows or fewer, the last of many, only the first of each lane is there: loops that make no trip are passed.
    const bool few = R > 1 && rows - row_first <= 8;
    TRIPS(R, (few ? 0 : depth))
#if R > 1
    TRIPS(1, (few ? depth : 0))
#endif

    // Columns to their places: lane l turns its eight sums by l, by the bits of l.
    [[unroll]] for (int i = 0; i < R; i++) {
        [[unroll]] for (int first = 0; first < C; first += 8) {
            [[unroll]] for (int bit = 0; bit < 3; bit++) {
                const bool turn = (lane >> bit & 1) != 0;
                float turned[8];
                [[unroll]] for (int j = 0; j < 8; j++) {
                    turned[j] = turn ? sum[i][first + (j - (1 << bit) & 7)] : sum[i][first + j];
                }
                [[unroll]] for (int j = 0; j < 8; j++) sum[i][first + j] = turned[j];
            }
        }
    }

    const vec4 own_bias = bias_at(col_first + 4 * lane, cols);  // a load for all columns: C is four times the lanes
    [[unroll]] for (int j = 0; j < C; j += 4) {
        vec4 bias = vec4(0.0);
        if (HAS_BIAS == 1) bias = subgroupShuffle(own_bias, uint(j / 4));
        int col = col_first + j;
        if (col < cols) {
            [[unroll]] for (int i = 0; i < R; i++) {
                vec4 value = vec4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
                if (ROW(i) < rows) {
                    value = finished(value * pc.scale + bias, batch, head, ROW(i), col, cols);
                    store_c(c_first + uint(ROW(i)) * pc.c_row + uint(col), value, cols - col);
                }
            }
        }
    }
}
