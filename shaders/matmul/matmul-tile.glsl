// matmul.glsl for GPUs. A workgroup owns BM x BN of c, an invocation TM x TN of it in groups of 4 x 4 that lie BM / (TM/4)
// rows and BN / (TN/4) columns apart (so that neighbours read neighbouring shared memory). Panels of BK of the depth
// pass through shared memory, depth-major; the next panel is loaded into registers while this one is used. SPAN of the
// depth is summed by itself, so that rounding grows with SPAN and with depth / SPAN; 0: all of it, where registers are few.
// Workgroup (x, y, z): columns x * BN, then y = row block + row blocks * head (in this order, so that neither exceeds
// the guaranteed count), z batch. Requires BK % 4 = TM % 4 = TN % 4 = SPAN % BK = 0 and panels that divide evenly over THREADS.

#define THREADS ((BM / TM) * (BN / TN))
const int GM = TM / 4;
const int GN = TN / 4;
const int LOADS_A = BM * BK / 4 / THREADS;
const int LOADS_B = BN * BK / 4 / THREADS;
const int STRIDE_A = BM / 4 + 1;
const int STRIDE_B = BN / 4 + 1;

layout(local_size_x = THREADS) in;

shared vec4 panel_a[BK * STRIDE_A];
shared vec4 panel_b[BK * STRIDE_B];

void main() {
    const int rows = int(pc.rows);
    const int cols = int(pc.cols);
    const uint row_blocks = (pc.rows + uint(BM) - 1u) / uint(BM);
    const uint head = gl_WorkGroupID.y / row_blocks;
    const uint batch = gl_WorkGroupID.z;
    const int row_first = int(gl_WorkGroupID.y % row_blocks) * BM;
    const int col_first = int(gl_WorkGroupID.x) * BN;
    const uint a_first = pc.a_offset + batch * pc.a_batch + head * pc.a_head;
    const uint b_first = pc.b_offset + batch * pc.b_batch + (head / pc.group) * pc.b_head;
    const uint c_first = pc.c_offset + batch * pc.c_batch + head * pc.c_head;
    const int thread = int(gl_LocalInvocationIndex);
    const int tx = thread % (BN / TN);
    const int ty = thread / (BN / TN);
    // No row of this block reaches further.
    const int depth = row_depth(min(row_first + BM, rows) - 1);

    vec4 sum[TM][GN];
    [[unroll]] for (int i = 0; i < TM; i++) {
        [[unroll]] for (int j = 0; j < GN; j++) sum[i][j] = vec4(0.0);
    }
#if SPAN
    vec4 total[TM][GN];
    [[unroll]] for (int i = 0; i < TM; i++) {
        [[unroll]] for (int j = 0; j < GN; j++) total[i][j] = vec4(0.0);
    }
#endif
    vec4 next_a[LOADS_A];
    vec4 next_b[LOADS_B];

#define FETCH(k_first) { \
    [[unroll]] for (int l = 0; l < LOADS_A; l++) { \
        int index = thread + l * THREADS; \
        IN_ORDER_A(FETCH_A_ALONG(k_first), FETCH_A_ACROSS(k_first)) \
    } \
    [[unroll]] for (int l = 0; l < LOADS_B; l++) { \
        int index = thread + l * THREADS; \
        IN_ORDER_B(FETCH_B_ALONG(k_first), FETCH_B_ACROSS(k_first)) \
    } \
}
    // Four neighbours along the depth, of a row of a or a column of b; and across it, where the depth's rows are contiguous.
#define FETCH_A_ALONG(k_first) { \
        int k = (k_first) + index % (BK / 4) * 4; \
        int row = row_first + index / (BK / 4); \
        next_a[l] = row < rows ? load_a(a_first + uint(row) * pc.a_row + uint(k), A_DEPTH(row) - k) : vec4(0.0); \
        TRIM_A(next_a[l], row, k) \
    }
#define FETCH_B_ALONG(k_first) { \
        int k = (k_first) + index % (BK / 4) * 4; \
        int col = col_first + index / (BK / 4); \
        next_b[l] = col < cols ? load_b(b_first + uint(col) * pc.b_row + uint(k), depth - k) : vec4(0.0); \
    }
#define FETCH_A_ACROSS(k_first) { \
        int k = (k_first) + index / (BM / 4); \
        int row = row_first + index % (BM / 4) * 4; \
        next_a[l] = k < depth ? load_a(a_first + uint(k) * pc.a_row + uint(row), rows - row) : vec4(0.0); \
    }
#define FETCH_B_ACROSS(k_first) { \
        int k = (k_first) + index / (BN / 4); \
        int col = col_first + index % (BN / 4) * 4; \
        next_b[l] = k < depth ? load_b(b_first + uint(k) * pc.b_row + uint(col), cols - col) : vec4(0.0); \
    }
#define STORE_ALONG(panel, STRIDE, value) { \
        int k = index % (BK / 4) * 4; \
        int at = index / (BK / 4); \
        [[unroll]] for (int i = 0; i < 4; i++) panel[(k + i) * STRIDE + at / 4][at % 4] = value[i]; \
    }
#define STORE_ACROSS(panel, STRIDE, WIDE, value) panel[index / (WIDE / 4) * STRIDE + index % (WIDE / 4)] = value;
#if defined(BIASED)
#define IN_ORDER_A(along, across) if (TRANSPOSED_A != 0) { across } else { along }
#define IN_ORDER_B(along, across) if (TRANSPOSED_B != 0) { across } else { along }
#elif defined(B_ROWS_ARE_COLS)
#define IN_ORDER_A(along, across) along
#define IN_ORDER_B(along, across) along
#else
#define IN_ORDER_A(along, across) along
#define IN_ORDER_B(along, across) across
#endif
#if ALIGN == 4
    // A vector may straddle the row's end: what lies past it is dropped.
#define A_DEPTH(row) depth
#define TRIM_A(value, row, k) { \
        int left = row_depth(row) - (k); \
        if (CAUSAL != 0) value = mix(vec4(0.0), value, lessThan(ivec4(0, 1, 2, 3), ivec4(left))); \
    }
#else
#define A_DEPTH(row) row_depth(row)
#define TRIM_A(value, row, k)
#endif

    FETCH(0)
    for (int k_first = 0; k_first < depth; k_first += BK) {
        barrier();
        [[unroll]] for (int l = 0; l < LOADS_A; l++) {
            int index = thread + l * THREADS;
            IN_ORDER_A(STORE_ALONG(panel_a, STRIDE_A, next_a[l]), STORE_ACROSS(panel_a, STRIDE_A, BM, next_a[l]))
        }
        [[unroll]] for (int l = 0; l < LOADS_B; l++) {
            int index = thread + l * THREADS;
            IN_ORDER_B(STORE_ALONG(panel_b, STRIDE_B, next_b[l]), STORE_ACROSS(panel_b, STRIDE_B, BN, next_b[l]))
        }
        barrier();
        if (k_first + BK < depth) FETCH(k_first + BK)
        [[unroll]] for (int k = 0; k < BK; k++) {
            vec4 b[GN];
            [[unroll]] for (int j = 0; j < GN; j++) b[j] = panel_b[k * STRIDE_B + j * (BN / TN) + tx];
            [[unroll]] for (int g = 0; g < GM; g++) {
                vec4 a = panel_a[k * STRIDE_A + g * (BM / TM) + ty];
                [[unroll]] for (int i = 0; i < 4; i++) {
                    [[unroll]] for (int j = 0; j < GN; j++) sum[4 * g + i][j] = fma(vec4(a[i]), b[j], sum[4 * g + i][j]);
                }
            }
        }
#if SPAN
        if ((k_first + BK) % SPAN == 0) {
            [[unroll]] for (int i = 0; i < TM; i++) {
                [[unroll]] for (int j = 0; j < GN; j++) {
                    total[i][j] += sum[i][j];
                    sum[i][j] = vec4(0.0);
                }
            }
        }
#endif
    }
#if SPAN
    [[unroll]] for (int i = 0; i < TM; i++) {
        [[unroll]] for (int j = 0; j < GN; j++) sum[i][j] += total[i][j];
    }
#endif

#define ROW(i) (row_first + (i) / 4 * (BM / GM) + ty * 4 + (i) % 4)
#define COL(j) (col_first + (j) * (BN / GN) + tx * 4)
    uint doubtful = 0u;  // one bit for each sum[i][j] that holds NaN or infinity
    [[unroll]] for (int j = 0; j < GN; j++) {
        vec4 bias = bias_at(COL(j), cols);
        [[unroll]] for (int i = 0; i < TM; i++) {
            if (ROW(i) < rows && COL(j) < cols) {
                vec4 value = finished(sum[i][j] * pc.scale + bias, batch, head, ROW(i), COL(j), cols);
                store_c(c_first + uint(ROW(i)) * pc.c_row + uint(COL(j)), value, cols - COL(j));
                if (non_finite(sum[i][j])) doubtful |= 1u << (GN * i + j);
            }
        }
    }
#ifdef WEIGHTS
    // Those again, in one loop over the keys: some drivers count the trips of all loops together.
    if (doubtful != 0u) {
        [[unroll]] for (int i = 0; i < TM; i++) {
            [[unroll]] for (int j = 0; j < GN; j++) sum[i][j] = vec4(0.0);
        }
        for (int k = 0; k < depth; k++) {
            [[unroll]] for (int i = 0; i < TM; i++) {
                if ((doubtful >> GN * i & (1u << GN) - 1u) == 0u || k >= row_depth(ROW(i))) continue;
                float a = load_a_one(a_first + uint(ROW(i)) * pc.a_row + uint(k));
                if (a == 0.0) continue;
                [[unroll]] for (int j = 0; j < GN; j++) {
                    if ((doubtful >> GN * i + j & 1u) == 0u) continue;
                    sum[i][j] += a * load_b(b_first + uint(COL(j)) + uint(k) * pc.b_row, cols - COL(j));
                }
            }
        }
        [[unroll]] for (int i = 0; i < TM; i++) {
            [[unroll]] for (int j = 0; j < GN; j++) {
                if ((doubtful >> GN * i + j & 1u) == 0u) continue;
                store_c(c_first + uint(ROW(i)) * pc.c_row + uint(COL(j)), sum[i][j] * pc.scale, cols - COL(j));
            }
        }
    }
#endif
}
