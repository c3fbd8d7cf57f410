// matmul.glsl for processors (llvmpipe), where invocations run as the lanes of vector instructions and loads from
// buffers are the scarce thing: a workgroup is one subgroup of 8 lanes without barriers or shared memory. It owns 8 R x C
// of c: lane l the rows row_first + 8 i + l (i < R), all in registers. A trip covers 4 of the depth: each lane loads
// those of its own rows of a, and with the others one vector of each of C / 8 (or 4 C / 32) groups of b, which shuffles
// with constant lanes then hand to all. Every element is loaded once a workgroup. A trip's products are added in pairs
// and fours: as many additions, a quarter of the rounding depth. With HALVES the two halves of the depth are summed by
// themselves. More blocks would round less still, but sums that pass through two nested loops cost 5 to 20 % here.
// Workgroup (x, y, z) as in matmul-tile.glsl. Requires subgroups of 8 (full) and C % 32 = 0, or C % 8 = 0 where
// B_ROWS_ARE_COLS.

#ifdef B_ROWS_ARE_COLS
const int LOADS_B = C / 8;
#else
const int LOADS_B = C / 8;  // 4 rows of C / 4 vectors, 8 lanes
#endif

layout(local_size_x = 8) in;

void main() {
#include "matmul-lanes-place.glsl"
    // The same for all lanes, so that none leaves the loop before the others have its vectors.
    const int depth = row_depth(min(row_first + 8 * R, rows) - 1);

    // Rows and columns past the end are computed from the last one and not stored: no test inside the loop.
#define ROW(i) (row_first + 8 * (i) + lane)
    uint a_row[R];
    [[unroll]] for (int i = 0; i < R; i++) a_row[i] = a_first + uint(min(ROW(i), rows - 1)) * pc.a_row;
    uint b_row[LOADS_B];
    int b_count[LOADS_B];
    [[unroll]] for (int l = 0; l < LOADS_B; l++) {
#ifdef B_ROWS_ARE_COLS
        b_row[l] = b_first + uint(min(col_first + 8 * l + lane, cols - 1)) * pc.b_row;
        b_count[l] = 4;
#else
        int col = col_first + 32 * (l / 4) + 4 * lane;
        b_count[l] = cols - col;
#if ALIGN == 4
        col = min(col, cols - 4);
#endif
        b_row[l] = b_first + uint(l % 4) * pc.b_row + uint(col);
#endif
    }
    float sum[R][C];
    [[unroll]] for (int i = 0; i < R; i++) {
        [[unroll]] for (int j = 0; j < C; j++) sum[i][j] = 0.0;
    }

#if ALIGN == 4
    // Depth and columns are multiples of 4, so that nothing need be tested in the loop, where tests are dear.
#define LOAD_A(i, k) A_LOAD4(a_data[(a_row[i] + uint(k)) >> 2])
#ifdef B_ROWS_ARE_COLS
#define LOAD_B(l, k) IO_LOAD4(b_data[(b_row[l] + uint(k)) >> 2])
#else
#define LOAD_B(l, k) IO_LOAD4(b_data[(b_row[l] + uint(k) * pc.b_row) >> 2])
#endif
#else
#define LOAD_A(i, k) load_a(a_row[i] + uint(k), depth - (k))
#ifdef B_ROWS_ARE_COLS
#define LOAD_B(l, k) load_b(b_row[l] + uint(k), depth - (k))
#else
#define LOAD_B(l, k) load_b(b_row[l] + uint(k) * pc.b_row, (k) + l % 4 < depth ? b_count[l] : 0)
#endif
#endif
    // b at column j and depth m of the trip
#ifdef B_ROWS_ARE_COLS
#define VALUE_B(j, m) subgroupShuffle(b[(j) / 8][m], uint((j) % 8))
#else
#define VALUE_B(j, m) subgroupShuffle(b[(j) / 32 * 4 + (m)][(j) % 4], uint((j) / 4 % 8))
#endif
#define TRIM(value, i, k) \
    (CAUSAL == 0 ? value : mix(vec4(0.0), value, lessThan(ivec4(0, 1, 2, 3), ivec4(row_depth(ROW(i)) - (k)))))
#define TRIPS(OWN, FIRST, END, PRODUCT) \
    for (int k = FIRST; k < END; k += 4) { \
        vec4 a[OWN]; \
        vec4 b[LOADS_B]; \
        [[unroll]] for (int i = 0; i < OWN; i++) a[i] = TRIM(LOAD_A(i, k), i, k); \
        [[unroll]] for (int l = 0; l < LOADS_B; l++) b[l] = LOAD_B(l, k); \
        [[unroll]] for (int j = 0; j < C; j++) { \
            float value[4]; \
            [[unroll]] for (int m = 0; m < 4; m++) value[m] = VALUE_B(j, m); \
            [[unroll]] for (int i = 0; i < OWN; i++) sum[i][j] += (PRODUCT(0) + PRODUCT(1)) + (PRODUCT(2) + PRODUCT(3)); \
        } \
    }

#define PLAIN(m) a[i][m] * value[m]
#if HALVES
    // Of the whole depth, also where causal rows end before it: a row's sum does not depend on its neighbours.
    int middle = min((int(pc.depth) / 2 + 3) & ~3, depth);
    TRIPS(R, 0, middle, PLAIN)
    float half_sum[R][C];
    [[unroll]] for (int i = 0; i < R; i++) {
        [[unroll]] for (int j = 0; j < C; j++) {
            half_sum[i][j] = sum[i][j];
            sum[i][j] = 0.0;
        }
    }
    TRIPS(R, middle, depth, PLAIN)
    [[unroll]] for (int i = 0; i < R; i++) {
        [[unroll]] for (int j = 0; j < C; j++) sum[i][j] += half_sum[i][j];
    }
#else
    TRIPS(R, 0, depth, PLAIN)
#endif
#ifdef WEIGHTS
    uint largest = 0u;  // exponent of the largest sum; all ones stand for NaN and infinity
    [[unroll]] for (int i = 0; i < R; i++) {
        [[unroll]] for (int j = 0; j < C; j++) largest = max(largest, floatBitsToUint(sum[i][j]) & 0x7f800000u);
    }
    if (subgroupAny(largest == 0x7f800000u)) {
        [[unroll]] for (int i = 0; i < R; i++) {
            [[unroll]] for (int j = 0; j < C; j++) sum[i][j] = 0.0;
        }
#define SELECTED(m) (a[i][m] == 0.0 ? 0.0 : a[i][m] * value[m])
        TRIPS(R, 0, depth, SELECTED)
    }
#endif

    // A load or store is a loop over the lanes to the driver, and takes it longer to compile than anything else. So there is one
    // place for those of all rows, in a loop that it cannot unroll; which sums they are, selections say.
    const int there = min(R, (rows - row_first + 7) / 8);
    for (int i = 0; i < there; i++) {
        const int row = ROW(i);
        [[unroll]] for (int j = 0; j < C; j += 4) {
            vec4 value = vec4(sum[0][j], sum[0][j + 1], sum[0][j + 2], sum[0][j + 3]);
            [[unroll]] for (int o = 1; o < R; o++) {
                value = mix(value, vec4(sum[o][j], sum[o][j + 1], sum[o][j + 2], sum[o][j + 3]), bvec4(i == o));
            }
            const int col = col_first + j;
            if (col < cols && row < rows) {
                value = finished(value * pc.scale + bias_at(col, cols), batch, head, row, col, cols);
                store_c(c_first + uint(row) * pc.c_row + uint(col), value, cols - col);
            }
        }
    }
}
