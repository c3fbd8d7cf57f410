// What flash.glsl's macros may not say together. The first rule that is broken fails the build with its reason;
// tests/test_shader_macros.py breaks every one.

// The order of elements, and the matrices that have it.
#if MATRIX_M * MATRIX_N != 8 * SUBGROUP || MATRIX_N != 8 && MATRIX_N != 16
#error "an invocation holds eight elements of an accumulator, whose rows are 8 or 16 numbers long"
#elif MATRIX_K % 8
#error "rows of factors are whole words of 16 bytes"
#elif ORDER == 1 && (MATRIX_M != 16 || MATRIX_N != 16 || MATRIX_K != 16)
#error "NVIDIA's order is known of matrices of 16 x 16 x 16"
#elif ORDER == 2 && (MATRIX_M != 8 || MATRIX_N != 8 || MATRIX_K != 8)
#error "llvmpipe's order is known of matrices of 8 x 8 x 8"
#elif ORDER < 0 || ORDER > 3
#error "ORDER is 0 to 3"
#elif ORDER == 3 && (MATRIX_M != MATRIX_N || MATRIX_M != MATRIX_K)
#error "queries are columns of matrices whose sides are equal"
#elif TURN_SHARED && ORDER != 3
#error "TURN_SHARED is for queries in columns"

// Sizes.
#elif DIM % MATRIX_K || VDIM % MATRIX_N
#error "DIM and VDIM are whole fragments"
#elif KEYS % CHUNK || CHUNK % MATRIX_N || CHUNK % MATRIX_K
#error "a tile is whole chunks, and a chunk whole fragments of keys"
#elif Q_SHARED > QF
#error "Q_SHARED is at most the fragments of a row of q"

// What is offered, and of which numbers.
#elif OPTIONS < 0 || OPTIONS > 4
#error "OPTIONS is 0 to 4"
#elif (defined(FUNCTIONS) || APART || DRAWN_TOGETHER != 1) && !SCORE_MODS
#error "FUNCTIONS, APART and DRAWN_TOGETHER are for kernels with all options"
#elif SPLIT_KV && (OPTIONS || SPLIT)
#error "keys are split where numbers are of 16 bits and there are no options"
#elif SPLIT && (OPTIONS || ORDER == 3)
#error "float32 has neither options nor queries in columns"
#elif SPLIT && (Q_SHARED || SUM_ON_MATRIX)
#error "float32 has q in registers and sums in float32"
#elif SPLIT && BUFFERS != 1
#error "float32 has tiles of k and v, twice as large, take turns in one place"
#elif SPLIT && (KF % GROUP_K || VF % GROUP_V)
#error "GROUP_K and GROUP_V divide the fragments of keys and of columns"

// The schedule.
#elif BUFFERS < 1 || BUFFERS > 4
#error "BUFFERS is 1 to 4"
#elif BUFFERS > 2 && (SCORE_MODS || TILED)
#error "with classes of tiles BUFFERS is 1 or 2"
#elif CHUNK != KEYS && BUFFERS == 1
#error "the scores of part of a tile are held where v does not lie in the place of k"
#elif CHUNK != KEYS && ORDER != 1 && ORDER != 2
#error "the scores of part of a tile are held where the order of rows is known"
#elif SUM_ON_MATRIX && ORDER != 1
#error "SUM_ON_MATRIX is for NVIDIA's order"
#elif RETRY && (ORDER != 1 && ORDER != 2 || SUM_ON_MATRIX || SPLIT || SCORE_MODS)
#error "RETRY is for 16-bit rows of a known order, sums by lanes, and OPTIONS up to 3"
#elif STEPS && (SPLIT || ORDER == 3)
#error "STEPS is for 16-bit numbers and queries in rows"
#elif STEPS && (THREADS % D8 || THREADS % V8 || KEYS * D8 % THREADS || KEYS * V8 % THREADS)
#error "STEPS is for threads that take whole rows of k and v, and tiles of whole steps"
#elif STEPS && SCORE_MODS && (THREADS % (16 * D8) || THREADS % (16 * V8))
#error "STEPS is, with all options, for steps of whole fragments of keys"
#elif WHOLE_ROWS && (ORDER != 1 && ORDER != 2 || Q_SHARED)
#error "WHOLE_ROWS is for rows of a known order and q in registers"
#elif WHOLE_ROWS && (SPLIT || SPLIT_KV || SCORE_MODS || TILED)
#error "WHOLE_ROWS is for 16-bit results that lie where they are asked for"
#elif TILED && (ORDER != 1 && ORDER != 2 || KEYS % (4 * MATRIX_N))
#error "TILED is for rows of a known order, and units of four fragments of keys"
#elif COMPUTED && (!RETRY || ORDER != 1 || BUFFERS == 4)
#error "COMPUTED is for NVIDIA's order, RETRY, and a barrier after a tile's first half"

// Bits of keys that a row sees, and of weights that dropout keeps (visible-keys.glsl).
#elif SCORE_MODS && (KEYS % 16 || SUBGROUP > 32 || KEYS > SUBGROUP && KEYS % SUBGROUP)
#error "with all options a row's keys are whole words of 8, 16 or 32 bits, and whole sixteens"
#elif SCORE_MODS && RF * KEYS > 4 * MATRIX_N && RF * KEYS % (4 * MATRIX_N)
#error "with all options a subgroup has up to four fragments of scores, or multiples of four"
#elif DRAWN_TOGETHER > 1 && RF * KEYS > 2 * MATRIX_N * DRAWN_TOGETHER && RF * KEYS % (2 * MATRIX_N * DRAWN_TOGETHER)
#error "DRAWN_TOGETHER divides the generators of a lane, of which there is one for two fragments"
#endif
