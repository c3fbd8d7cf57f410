#version 450
// Exact attention for Mesa's CPU driver (llvmpipe), one workgroup = one subgroup of 8 invocations.
//
// What decides the speed there, and hence the shape (docs/benchmarks/lavapipe.md has the measurements):
//   - Private arrays are registers only where every index is a constant, so all loops but the one over keys are
//     unrolled. HEAD_DIM and VALUE_DIM are specialization constants: the driver does the unrolling, and one binary
//     serves every dimension.
//   - A load of a storage buffer in a loop is a scalar loop over the 8 lanes, and on processors without AVX-512 each of
//     its elements waits for a store. A texel buffer is read by one call without a loop (TEXELS). Where there is none, keys
//     and values are fetched as 64-bit integers, 8 floats a lane, as a loop's cost grows with the number of components,
//     not with their size.
//   - What is fetched is handed round by shuffles with constant lanes. Each lane owns ROWS query rows and every fetched
//     float serves all of them. With cheap fetches two rows are enough, and a body of 25 KB stays in the first-level cache
//     of instructions; dear ones want eight, and 100 KB.
//   - A branch costs what it skips, only loops jump. Rescaling the output when the running maximum grows therefore sits
//     behind the end of the inner loop, and the maximum may lag by up to SLACK: weights are then at most e^SLACK,
//     which is exact in the same sense, as numerator and denominator share the factor.
//
// Compiled with ROWS, KEYS (keys in one trip of the inner loop), WIDTH (elements a lane fetches at once: 8 as 64-bit
// integers, 4 as 4-vectors; of texels, what 16 bytes hold), TEXELS (q, k and v are texel buffers) and UNALIGNED (1: rows
// start anywhere; a fetch reads the two pieces that hold its elements and shifts). UNALIGNED may read up to a piece past
// either end of an array, and relies on this driver's bounds checks, which are made for every component and give zero.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#if WIDTH == 8 && !defined(TEXELS)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
#ifdef TEXELS
#define ALIGN 8
#define O_ELEMENT IO_VECTOR
#else
#define ALIGN 4
#endif
#define EXTRAS
#ifdef FUNCTIONS
#define HOLDS_WORDS
#endif
#include "attention.glsl"

layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;

#define UNROLL [[unroll]]

// Keys whose weighted values are summed on their own, so that rounding does not grow with the number of keys.
const uint BLOCK = uint(128 * KEYS);
const float SLACK = 5.0;
// Columns of q and k whose products are summed on their own: rounding grows with RUN + HEAD_DIM / RUN.
const int RUN = 8;
// Below every score that counts and above NEVER, so that exp(NEVER - LOWEST) is 0.
const float LOWEST = -3.2e38;
// One comparison: of two joined by || the compiler makes a branch whose condition it leaves undefined.
#ifdef FUNCTIONS
#define HIDING (WINDOW | PREFIX | SEGMENTS | LENGTHS | BLOCKS | BIAS | DROPOUT | SCORE_FUNCTION | MASK_FUNCTION)
#else
#define HIDING (WINDOW | PREFIX | SEGMENTS | LENGTHS | BLOCKS | BIAS | DROPOUT)
#endif
#define SELECTIVE (MASK + CAUSAL + (FEATURES & HIDING) != 0)

// Whether a score may become NEVER in modified().
#ifdef FUNCTIONS
#define HIDES_SCORES ((FEATURES & (BIAS | SCORE_FUNCTION)) != 0)
#else
#define HIDES_SCORES on(BIAS)
#endif

// Chunks of WIDTH elements in a row, and fetches (of 8 chunks, one a lane) for the keys of one trip.
const int K_CHUNKS = (HEAD_DIM + WIDTH - 1) / WIDTH;
const int V_CHUNKS = (VALUE_DIM + WIDTH - 1) / WIDTH;
const int K_FETCHES = (KEYS * K_CHUNKS + 7) / 8;
// Columns of q and o that are loaded or stored at once, and how many times that is in a row.
const int GROUP = 32;
const int K_GROUPS = (HEAD_DIM + GROUP - 1) / GROUP;
const int V_GROUPS = (VALUE_DIM + GROUP - 1) / GROUP;
const int V_FETCHES = (KEYS * V_CHUNKS + 7) / 8;

// ---- WIDTH elements at once ----

#if defined(TEXELS)

#define PIECE(TO, AT, NAME, INDEX) { \
    uvec4 word = texelFetch(NAME##_data, int(INDEX)); \
    UNROLL for (int w = 0; w < 4; w++) SPLIT(TO, (AT) + w * WIDTH / 4, word[w]) }
#if defined(DTYPE_float32)
#define SPLIT(TO, AT, WORD) TO[AT] = uintBitsToFloat(WORD);
#elif defined(DTYPE_float16)
#define SPLIT(TO, AT, WORD) { vec2 pair = unpackHalf2x16(WORD); TO[AT] = pair.x; TO[(AT) + 1] = pair.y; }
#else
#define SPLIT(TO, AT, WORD) { \
    TO[AT] = uintBitsToFloat(WORD << 16); TO[(AT) + 1] = uintBitsToFloat(WORD & 0xffff0000u); }
#endif

#elif WIDTH == 8

#ifdef DTYPE_float16
#define WORDS u64vec2
#define PER_WORD 4
#else
#define WORDS u64vec4
#define PER_WORD 2
#endif
layout(set = 0, binding = 0, std430) restrict readonly buffer WideQueries { WORDS q_words[]; };
layout(set = 0, binding = 1, std430) restrict readonly buffer WideKeys { WORDS k_words[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer WideValues { WORDS v_words[]; };
layout(set = 0, binding = 4, std430) buffer WideOutput { WORDS o_words[]; };

#define PIECE(TO, AT, NAME, INDEX) { \
    WORDS words = NAME##_words[INDEX]; \
    UNROLL for (int w = 0; w < 8 / PER_WORD; w++) { \
        uvec2 halves = unpack32(words[w]); \
        SPLIT(TO, (AT) + w * PER_WORD) \
    } }
#ifdef DTYPE_float16
#define SPLIT(TO, AT) { \
    vec2 low = unpackHalf2x16(halves.x), high = unpackHalf2x16(halves.y); \
    TO[AT] = low.x; TO[(AT) + 1] = low.y; TO[(AT) + 2] = high.x; TO[(AT) + 3] = high.y; }
#else
#define SPLIT(TO, AT) { TO[AT] = uintBitsToFloat(halves.x); TO[(AT) + 1] = uintBitsToFloat(halves.y); }
#endif

#else

#define PIECE(TO, AT, NAME, INDEX) { \
    vec4 piece = IO_LOAD4(NAME##_data[INDEX]); \
    TO[AT] = piece.x; TO[(AT) + 1] = piece.y; TO[(AT) + 2] = piece.z; TO[(AT) + 3] = piece.w; }

#endif

#if UNALIGNED
layout(set = 0, binding = 4, std430) restrict buffer NarrowOutput { IO_SCALAR o_scalars[]; };
#define SLIDE(X, BY, STEP) \
    UNROLL for (int w = 0; w < WIDTH - 1 + STEP; w++) X[w] = (BY & uint(STEP)) != 0u ? X[w + STEP] : X[w];
#if WIDTH == 8
#define SLIDE_WIDE(X, BY) SLIDE(X, BY, 4)
#else
#define SLIDE_WIDE(X, BY)
#endif
#define FETCH(TO, AT, NAME, ELEMENT) { \
    uint element = ELEMENT; \
    float both[2 * WIDTH]; \
    PIECE(both, 0, NAME, element / uint(WIDTH)) \
    PIECE(both, WIDTH, NAME, element / uint(WIDTH) + 1u) \
    SLIDE_WIDE(both, element) SLIDE(both, element, 2) SLIDE(both, element, 1) \
    UNROLL for (int w = 0; w < WIDTH; w++) TO[(AT) + w] = both[w]; }
#else
#define FETCH(TO, AT, NAME, ELEMENT) PIECE(TO, AT, NAME, (ELEMENT) / uint(WIDTH))
#endif

// ---- numbers ----

// 2^x to a few units in the last place, 0 below -126.5, NaN for NaN. The driver's own has an error of its own choosing.
// The polynomial is a Chebyshev fit of 2^x on [-0.5, 0.5], relative error 2e-9 before rounding.
float power2(float x) {
    x = x < -127.0 ? -127.0 : x;
    float whole = roundEven(x);
    float part = x - whole;
    float p = 0.00015353362;
    p = p * part + 0.0013398875;
    p = p * part + 0.009618437;
    p = p * part + 0.055503324;
    p = p * part + 0.24022648;
    p = p * part + 0.6931472;
    p = p * part + 1.0;
    return p * intBitsToFloat((int(whole) + 127) << 23);
}

// e^x. The difference from the maximum is taken before the factor, so that the largest weights, whose argument is near
// 0, are the most accurate.
float power(float x) { return power2(x * LOG2_E); }

// The driver's logarithm has about 16 good bits; one Newton step with power2 makes it whole. x >= 2^-100.
float logarithm2(float x) {
    float y = log2(x);
    return y + (x * power2(-y) - 1.0) * LOG2_E;
}

// ---- what attention/extras.glsl does, with its loads out of the loops over rows and keys ----
// The driver compiles a load for a second and more where it is unrolled for every row and key, and runs it lane by lane.

// Parameters, and what the trip's keys and this lane's rows need again and again.
uint held_bias_key, held_block_map, held_t5_buckets, held_t5_table, held_t5_row;
int held_reach;
float held_cap, held_slope;
uint row_bias[ROWS], row_segment[ROWS], row_block[ROWS];
uint key_segment[KEYS], key_block[KEYS];

void hold_parameters() {
    if (FEATURES == 0) return;
    if (on(SOFT_CAP)) held_cap = number(CAP);
    if (on(ALIBI)) held_slope = uintBitsToFloat(extra_data[parameter(SLOPES) + x_batch * parameter(SLOPES_BATCH) + x_head]);
    if (on(BIAS)) held_bias_key = parameter(BIAS_KEY);
    if (on(BLOCKS)) held_block_map = parameter(BLOCK_MAP);
    if (on(T5)) {
        held_reach = int(parameter(T5_REACH));
        held_t5_buckets = parameter(T5_BUCKETS);
        held_t5_table = parameter(T5_TABLE) + x_head;
        held_t5_row = parameter(T5_ROW);
    }
#ifdef FUNCTIONS
    hold_function_words();
#endif
}

void hold_row(int r, uint row) {
    if (on(BIAS)) row_bias[r] = x_bias + row * parameter(BIAS_ROW);
    uint whole = x_first_row + row;
    if (on(SEGMENTS)) row_segment[r] = extra_data[parameter(Q_SEGMENTS) + x_batch * parameter(Q_SEGMENTS_BATCH) + whole];
    if (on(BLOCKS)) {
        row_block[r] = x_batch * parameter(BLOCK_BATCH) + x_head * parameter(BLOCK_HEAD) + whole / parameter(BLOCK_Q) * parameter(BLOCK_ROW);
    }
}

void hold_key(int j, uint key) {
    uint whole = x_first_key + key;
    if (on(SEGMENTS)) key_segment[j] = extra_data[parameter(K_SEGMENTS) + x_batch * parameter(K_SEGMENTS_BATCH) + whole];
    if (on(BLOCKS)) key_block[j] = whole / parameter(BLOCK_KV);
}

// Whether a row attends to a key, mask aside. `key` may be past the last one, not what hold_key was told.
bool attends(int r, int j, uint row, uint key, uint visible) {
    bool seen = CAUSAL == 0 || int(key) <= int(row) + SHIFT;
    if (on(WINDOW)) seen = seen && int(key) >= int(row) + BASE_SHIFT - x_left;
    if (on(PREFIX)) seen = seen || key < x_prefix;
    if (on(LENGTHS)) seen = seen && int(row) < x_rows_seeing;
    if (on(SEGMENTS)) seen = seen && row_segment[r] == key_segment[j];
    if (on(BLOCKS)) {
        uint at = row_block[r] + key_block[j];
        seen = seen && (extra_data[held_block_map + (at >> 2)] >> ((at & 3u) * 8u) & 0xffu) != 0u;
    }
#ifdef FUNCTIONS
    if (on(MASK_FUNCTION)) seen = seen && function_sees(row, key);
#endif
    return seen && key < visible;
}

float bias_at(int r, uint key) {
    // Minus infinity masks the key, the lowest finite number does not.
    float bias = bias_data[row_bias[r] + key * held_bias_key];
    return floatBitsToUint(bias) == 0xff800000u ? NEVER : floored(bias);
}

// A score in natural units after soft-cap and biases. `key` is a key in range.
float modified(float score, int r, uint row, uint key) {
#ifdef FUNCTIONS
    bool hidden = false;
    if (on(SCORE_FUNCTION)) {
        score = function_score(score, row, key);
        hidden = floatBitsToUint(score) == 0xff800000u;
    }
#endif
    if (on(SOFT_CAP)) score = held_cap * whole_tanh(score / held_cap);
    int distance = int(key) - int(row) - BASE_SHIFT;
    if (on(ALIBI)) score -= held_slope * float(abs(distance));
    if (on(T5)) {
        uint bucket = extra_data[held_t5_buckets + uint(clamp(distance, -held_reach, held_reach) + held_reach)];
        score += uintBitsToFloat(extra_data[held_t5_table + bucket * held_t5_row]);
    }
    if (on(BIAS)) {
        float bias = bias_at(r, key);
        score = bias <= NEVER ? NEVER : score + bias;
    }
#ifdef FUNCTIONS
    if (on(SCORE_FUNCTION)) score = hidden ? NEVER : floored(score);
#endif
    return score;
}

// What dropout multiplies the weights of a trip's keys by. They lie in two draws of sixteen keys at most.
void dropout_factors(uint row, uint key, out float factors[KEYS]) {
    uint whole = x_first_key + key, skip = whole % 16u;
    uvec4 counter = drop_counter(whole / 16u, row);
    uvec2 seed = drop_seed();
    uint below = parameter(KEEP_BELOW), kept = kept_sixteen(philox(counter, seed), below);
    if (skip + uint(KEYS) > 16u) {
        counter.x++;
        kept |= kept_sixteen(philox(counter, seed), below) << 16;
    }
    float share = number(KEEP_SCALE);
    UNROLL for (int j = 0; j < KEYS; j++) {
        factors[j] = (kept >> (skip + uint(j)) & 1u) != 0u ? share : 0.0;
    }
}

// The row's sink joins its maximum and sum, in natural units; returns what the output is scaled by.
float combine_sink(uint row, inout float maximum, inout float sum) {
    if (!on(SINKS) || parameter(SINK_HERE) == 0u || (on(LENGTHS) && int(row) >= x_rows_seeing)) return 1.0;
    float sink = uintBitsToFloat(extra_data[parameter(SINK) + x_head]);
    float raised = max(maximum, sink);
    float decay = sum == 0.0 ? 0.0 : power(maximum - raised);
    sum = sum * decay + power(sink - raised);
    maximum = raised;
    return decay;
}

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const uint batch = gl_WorkGroupID.z;
    const uint head = gl_WorkGroupID.y;
    const uint first_row = gl_WorkGroupID.x * uint(8 * ROWS);
    begin_extras(batch, head);
    hold_parameters();
    if (on(LENGTHS) && first_row >= QUERIES) return;
    const uint last_row = min(first_row + uint(8 * ROWS), QUERIES) - 1u;
    const uint visible = visible_keys(first_row, last_row);
    const uint first_key = hidden_keys(first_row) / uint(KEYS) * uint(KEYS);
    const uint last_key = max(visible, 1u) - 1u;
    const uint k_base = k_index(batch, head, key_start());
    const uint v_base = v_index(batch, head, key_start());

    // Which key of the trip and which chunk of its row this lane fetches.
    uint k_key[K_FETCHES], k_chunk[K_FETCHES], v_key[V_FETCHES], v_chunk[V_FETCHES];
    UNROLL for (int i = 0; i < K_FETCHES; i++) {
        uint chunk = uint(8 * i) + lane;
        k_key[i] = chunk / uint(K_CHUNKS);
        k_chunk[i] = k_base + chunk % uint(K_CHUNKS) * uint(WIDTH);
    }
    UNROLL for (int i = 0; i < V_FETCHES; i++) {
        uint chunk = uint(8 * i) + lane;
        v_key[i] = chunk / uint(V_CHUNKS);
        v_chunk[i] = v_base + chunk % uint(V_CHUNKS) * uint(WIDTH);
    }

    float q[ROWS * HEAD_DIM];
    float o[ROWS * VALUE_DIM], recent[ROWS * VALUE_DIM];  // the weighted values, and those of the last BLOCK keys
    float maximum[ROWS], top[ROWS];
    float total[ROWS], excess[ROWS];  // the sum of the weights is total - excess (compensated summation, Kahan 1965)
    uint mask_base[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int d = 0; d < HEAD_DIM; d++) q[r * HEAD_DIM + d] = 0.0;
        UNROLL for (int d = 0; d < VALUE_DIM; d++) {
            o[r * VALUE_DIM + d] = 0.0;
            recent[r * VALUE_DIM + d] = 0.0;
        }
        maximum[r] = LOWEST;
        total[r] = 0.0;
        excess[r] = 0.0;
        hold_row(r, min(first_row + uint(8 * r) + lane, last_row));
        if (MASK != 0) mask_base[r] = mask_index(batch, head, min(first_row + uint(8 * r) + lane, last_row));
    }
    // A loop with selections instead of all the loads: most of the driver's compile time is in loads and stores.
    for (int each = 0; each < ROWS * K_GROUPS; each++) {
        int start = each % K_GROUPS * GROUP;
        uint base = q_index(batch, head, row_start() + min(first_row + uint(8 * (each / K_GROUPS)) + lane, last_row));
        float x[GROUP];
        UNROLL for (int i = 0; i < GROUP; i += WIDTH)
            FETCH(x, i, q, base + uint(min(start + i, (K_CHUNKS - 1) * WIDTH)))
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int d = 0; d < HEAD_DIM; d++)
                q[r * HEAD_DIM + d] = each == r * K_GROUPS + d / GROUP ? x[d % GROUP] : q[r * HEAD_DIM + d];
    }

    bool bad = false;  // a value that is not finite was fetched by this lane
    uint key = first_key;
    do {
        uint stop = min(key + BLOCK, visible);
        do {
            float score[ROWS * KEYS];
            UNROLL for (int i = 0; i < ROWS * KEYS; i++) score[i] = 0.0;
            float kx[K_FETCHES * WIDTH];
            UNROLL for (int i = 0; i < K_FETCHES; i++)
                FETCH(kx, i * WIDTH, k, k_chunk[i] + min(key + k_key[i], last_key) * pc.k_row)
#ifdef TEXELS
            // Column by column, so that the few sums and what they need stay in registers.
            UNROLL for (int run = 0; run < HEAD_DIM; run += RUN) {
                float part[ROWS * KEYS];
                UNROLL for (int c = 0; c < RUN; c++) {
                    const int d = run + c;
                    if (d >= HEAD_DIM) continue;
                    float x[KEYS];
                    UNROLL for (int j = 0; j < KEYS; j++) {
                        int chunk = j * K_CHUNKS + d / WIDTH;
                        x[j] = subgroupShuffle(kx[chunk / 8 * WIDTH + d % WIDTH], uint(chunk % 8));
                    }
                    UNROLL for (int r = 0; r < ROWS; r++)
                        UNROLL for (int j = 0; j < KEYS; j++) {
                            float product = q[r * HEAD_DIM + d] * x[j];
                            part[r * KEYS + j] = c == 0 ? product : part[r * KEYS + j] + product;
                        }
                }
                UNROLL for (int i = 0; i < ROWS * KEYS; i++) score[i] += part[i];
            }
#else
            // Products are added in pairs, then fours: as many additions, a quarter of the rounding depth.
            UNROLL for (int d = 0; d < HEAD_DIM; d += 4) {
                float x[4 * KEYS];
                UNROLL for (int j = 0; j < KEYS; j++)
                    UNROLL for (int c = 0; c < 4; c++) {
                        int chunk = j * K_CHUNKS + (d + c) / WIDTH;
                        x[4 * j + c] = d + c < HEAD_DIM
                            ? subgroupShuffle(kx[chunk / 8 * WIDTH + (d + c) % WIDTH], uint(chunk % 8)) : 0.0;
                    }
                UNROLL for (int r = 0; r < ROWS; r++)
                    UNROLL for (int j = 0; j < KEYS; j++) {
                        int at = r * HEAD_DIM + d;
                        float sum = q[at] * x[4 * j];
                        if (d + 1 < HEAD_DIM) sum += q[at + 1] * x[4 * j + 1];
                        float more = 0.0;
                        if (d + 2 < HEAD_DIM) more = q[at + 2] * x[4 * j + 2];
                        if (d + 3 < HEAD_DIM) more += q[at + 3] * x[4 * j + 3];
                        if (d + 2 < HEAD_DIM) sum += more;
                        score[r * KEYS + j] += sum;
                    }
            }
#endif

            UNROLL for (int j = 0; j < KEYS; j++) hold_key(j, min(key + uint(j), last_key));
            bool grows = false;
            UNROLL for (int r = 0; r < ROWS; r++) {
                uint row = first_row + uint(8 * r) + lane;
                top[r] = LOWEST;
                UNROLL for (int j = 0; j < KEYS; j++) {
                    float x = score[r * KEYS + j] * pc.scale;
                    if (HAS_SCORE_MOD) x = modified(x, r, row, min(key + uint(j), last_key));
                    if (MASK != 0) {
                        float bias = mask_bias(mask_base[r] + min(key + uint(j), last_key) * pc.mask_key);
                        x = bias <= NEVER || (HIDES_SCORES && x <= NEVER) ? NEVER : x + bias;
                    }
                    x = attends(r, j, row, key + uint(j), visible) ? x : NEVER;
                    score[r * KEYS + j] = x;
                    top[r] = max(top[r], x);
                }
                grows = grows || top[r] > maximum[r] + SLACK;
            }
            if (subgroupAny(grows)) break;

            float vx[V_FETCHES * WIDTH];
            UNROLL for (int i = 0; i < V_FETCHES; i++) {
                FETCH(vx, i * WIDTH, v, v_chunk[i] + min(key + v_key[i], last_key) * pc.v_row)
                UNROLL for (int w = 0; w < WIDTH; w++) {
                    float x = vx[i * WIDTH + w];
                    // Weight 0 times infinity would be NaN: values past the range, and in masked attention all that
                    // are not finite (added after the loop where they belong), are left out.
                    bool skip = key + v_key[i] >= visible;
                    if (SELECTIVE) {
                        bool wild = non_finite(x) && !skip;
                        bad = bad || wild;
                        skip = skip || wild;
                    }
                    vx[i * WIDTH + w] = skip ? 0.0 : x;
                }
            }
            UNROLL for (int r = 0; r < ROWS; r++) {
                precise float sum = 0.0;
                UNROLL for (int j = 0; j < KEYS; j++) {
                    score[r * KEYS + j] = power(score[r * KEYS + j] - maximum[r]);
                    sum += score[r * KEYS + j];
                }
                precise float part = sum - excess[r];
                precise float next = total[r] + part;
                precise float over = (next - total[r]) - part;
                excess[r] = over;
                total[r] = next;
                if (on(DROPOUT)) {
                    uint row = first_row + uint(8 * r) + lane;
                    float factors[KEYS];
                    dropout_factors(row, key, factors);
                    UNROLL for (int j = 0; j < KEYS; j++) score[r * KEYS + j] *= factors[j];
                }
            }
            UNROLL for (int d = 0; d < VALUE_DIM; d++) {
                float x[KEYS];
                UNROLL for (int j = 0; j < KEYS; j++) {
                    int chunk = j * V_CHUNKS + d / WIDTH;
                    x[j] = subgroupShuffle(vx[chunk / 8 * WIDTH + d % WIDTH], uint(chunk % 8));
                }
                UNROLL for (int r = 0; r < ROWS; r++) {
                    float sum = score[r * KEYS] * x[0];
                    UNROLL for (int j = 1; j < KEYS; j++) sum += score[r * KEYS + j] * x[j];
                    recent[r * VALUE_DIM + d] += sum;
                }
            }
            key += uint(KEYS);
        } while (key < stop);

        UNROLL for (int r = 0; r < ROWS; r++) {
            float grown = max(maximum[r], top[r]);
            float shrink = power(maximum[r] - grown);
            maximum[r] = grown;
            total[r] *= shrink;
            excess[r] *= shrink;
            UNROLL for (int d = 0; d < VALUE_DIM; d++) {
                int at = r * VALUE_DIM + d;
                o[at] = (o[at] + recent[at]) * shrink;
                recent[at] = 0.0;
            }
        }
    } while (key < visible);

#ifndef FUNCTIONS
    if (SELECTIVE) {
        // Infinities and NaN among the values, for the rows that attend to them. One empty trip when there are none.
        key = subgroupAny(bad) ? first_key : visible;
        do {
            UNROLL for (int j = 0; j < KEYS; j++) {
                float vx[(V_CHUNKS + 7) / 8 * WIDTH];
                uint at = min(key + uint(j), last_key);
                UNROLL for (int i = 0; i < (V_CHUNKS + 7) / 8; i++) {
                    uint chunk = min(uint(8 * i) + lane, uint(V_CHUNKS) - 1u);
                    FETCH(vx, i * WIDTH, v, v_base + at * pc.v_row + chunk * uint(WIDTH))
                }
                bool attended[ROWS];
                hold_key(j, at);
                UNROLL for (int r = 0; r < ROWS; r++) {
                    uint row = first_row + uint(8 * r) + lane;
                    attended[r] = attends(r, j, row, key + uint(j), visible);
                    if (MASK != 0) attended[r] = attended[r] && mask_bias(mask_base[r] + at * pc.mask_key) > NEVER;
                    if (on(BIAS)) attended[r] = attended[r] && bias_at(r, at) > NEVER;
                    if (on(DROPOUT)) attended[r] = attended[r] && dropout_factor(row, at) != 0.0;
                }
                UNROLL for (int d = 0; d < VALUE_DIM; d++) {
                    int chunk = d / WIDTH;
                    float x = subgroupShuffle(vx[chunk / 8 * WIDTH + d % WIDTH], uint(chunk % 8));
                    x = non_finite(x) ? x : 0.0;
                    UNROLL for (int r = 0; r < ROWS; r++) o[r * VALUE_DIM + d] += attended[r] ? x : 0.0;
                }
            }
            key += uint(KEYS);
        } while (key < visible);
    }
#else
    if (SELECTIVE) {
        // The same, a key a trip: what a score function hides, its scores say, which are computed anew.
        key = subgroupAny(bad) ? first_key : visible;
        do {
            uint at = min(key, last_key);
            float vx[(V_CHUNKS + 7) / 8 * WIDTH], kx[(K_CHUNKS + 7) / 8 * WIDTH];
            UNROLL for (int i = 0; i < (V_CHUNKS + 7) / 8; i++) {
                uint chunk = min(uint(8 * i) + lane, uint(V_CHUNKS) - 1u);
                FETCH(vx, i * WIDTH, v, v_base + at * pc.v_row + chunk * uint(WIDTH))
            }
            UNROLL for (int i = 0; i < (K_CHUNKS + 7) / 8; i++) {
                uint chunk = min(uint(8 * i) + lane, uint(K_CHUNKS) - 1u);
                FETCH(kx, i * WIDTH, k, k_base + at * pc.k_row + chunk * uint(WIDTH))
            }
            bool attended[ROWS];
            float score[ROWS];
            UNROLL for (int r = 0; r < ROWS; r++) score[r] = 0.0;
            if (on(SCORE_FUNCTION)) {
                UNROLL for (int d = 0; d < HEAD_DIM; d++) {
                    int chunk = d / WIDTH;
                    float x = subgroupShuffle(kx[chunk / 8 * WIDTH + d % WIDTH], uint(chunk % 8));
                    UNROLL for (int r = 0; r < ROWS; r++) score[r] += q[r * HEAD_DIM + d] * x;
                }
            }
            hold_key(0, at);
            UNROLL for (int r = 0; r < ROWS; r++) {
                uint row = first_row + uint(8 * r) + lane;
                attended[r] = attends(r, 0, row, key, visible);
                if (MASK != 0) attended[r] = attended[r] && mask_bias(mask_base[r] + at * pc.mask_key) > NEVER;
                if (HIDES_SCORES) attended[r] = attended[r] && !(modified(score[r] * pc.scale, r, row, at) <= NEVER);
                if (on(DROPOUT)) attended[r] = attended[r] && dropout_factor(row, at) != 0.0;
            }
            UNROLL for (int d = 0; d < VALUE_DIM; d++) {
                int chunk = d / WIDTH;
                float x = subgroupShuffle(vx[chunk / 8 * WIDTH + d % WIDTH], uint(chunk % 8));
                x = non_finite(x) ? x : 0.0;
                UNROLL for (int r = 0; r < ROWS; r++) o[r * VALUE_DIM + d] += attended[r] ? x : 0.0;
            }
            key++;
        } while (key < visible);
    }
#endif

    for (int each = 0; each < ROWS * V_GROUPS; each++) {
        int start = each % V_GROUPS * GROUP;
        float sum = 0.0, highest = 0.0;
        float x[GROUP];
        UNROLL for (int i = 0; i < GROUP; i++) x[i] = 0.0;
        UNROLL for (int r = 0; r < ROWS; r++) {
            sum = each / V_GROUPS == r ? total[r] : sum;
            highest = each / V_GROUPS == r ? maximum[r] : highest;
            UNROLL for (int d = 0; d < VALUE_DIM; d++)
                x[d % GROUP] = each == r * V_GROUPS + d / GROUP ? o[r * VALUE_DIM + d] : x[d % GROUP];
        }
        uint row = first_row + uint(8 * (each / V_GROUPS)) + lane;
        if (row >= QUERIES) continue;

        float share = combine_sink(row, highest, sum);
        bool empty = sum == 0.0;
        float add = empty ? 0.0 : share / sum;
        float keep = 0.0;
        if (LSE != 0 || MERGE != 0) {
            uint at = lse_index(batch, head, row_start() + row);
            float lse = empty ? minus_infinity() : highest + logarithm2(sum) * LN_2;
            if (MERGE != 0) {
                float before = lse_data[at];
                bool none_before = before < MASK_FLOOR;
                if (empty) {
                    keep = none_before ? 0.0 : 1.0;
                    lse = before;
                } else if (!none_before) {
                    float larger = max(before, lse);
                    float a = power(before - larger), b = power(lse - larger);
                    keep = a / (a + b);
                    add *= b / (a + b);
                    lse = larger + logarithm2(a + b) * LN_2;
                }
            }
            // Every group of the row reads what was there before; the last one replaces it.
            if (start + GROUP >= VALUE_DIM) lse_data[at] = lse;
        }
        uint base = o_index(batch, head, row_start() + row) + uint(start);
        UNROLL for (int i = 0; i < GROUP; i++) x[i] *= add;
        UNROLL for (int i = 0; i < GROUP; i += WIDTH) {
            if (start + i < VALUE_DIM) {
                if (MERGE != 0) {
                    float old[WIDTH];
#ifdef TEXELS
                    UNROLL for (int w = 0; w < WIDTH; w += 4) {
                        vec4 piece = IO_LOAD4(o_data[(base + uint(i + w)) / 4u]);
                        UNROLL for (int n = 0; n < 4; n++) old[w + n] = piece[n];
                    }
#else
                    FETCH(old, 0, o, base + uint(i))
#endif
                    UNROLL for (int w = 0; w < WIDTH; w++) x[i + w] += keep == 0.0 ? 0.0 : old[w] * keep;
                }
#if UNALIGNED
                UNROLL for (int w = 0; w < WIDTH; w++)
                    if (start + i + w < VALUE_DIM) o_scalars[base + uint(i + w)] = IO_STORE(x[i + w]);
#elif WIDTH == 8 && !defined(TEXELS)
                WORDS words;
                UNROLL for (int w = 0; w < 8 / PER_WORD; w++) {
                    int d = i + w * PER_WORD;
#ifdef DTYPE_float16
                    uint low = packHalf2x16(vec2(x[d], x[d + 1]));
                    words[w] = pack64(uvec2(low, packHalf2x16(vec2(x[d + 2], x[d + 3]))));
#else
                    words[w] = pack64(uvec2(floatBitsToUint(x[d]), floatBitsToUint(x[d + 1])));
#endif
                }
                o_words[(base + uint(i)) / 8u] = words;
#else
                UNROLL for (int w = 0; w < WIDTH; w += 4)
                    o_data[(base + uint(i + w)) / 4u] =
                        IO_STORE4(vec4(x[i + w], x[i + w + 1], x[i + w + 2], x[i + w + 3]));
#endif
            }
        }
    }
}
