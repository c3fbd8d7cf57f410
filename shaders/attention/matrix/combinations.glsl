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
#elif defined(TRANSPOSED) && (MATRIX_M != MATRIX_N || MATRIX_M != MATRIX_K)
#error "queries are columns of matrices whose sides are equal"
#elif defined(TURN_SHARED) && !defined(TRANSPOSED)
#error "TURN_SHARED is for queries in columns"

// Sizes.
#elif DIM % MATRIX_K || VDIM % MATRIX_N
#error "DIM and VDIM are whole fragments"
#elif KEYS % CHUNK || CHUNK % MATRIX_N || CHUNK % MATRIX_K
#error "a tile is whole chunks, and a chunk whole fragments of keys"
#elif Q_SHARED > QF
#error "Q_SHARED is at most the fragments of a row of q"

// What is offered, and of which numbers.
#elif !defined(EXTRAS) && (defined(TILED) || defined(ENDS) || defined(FUNCTIONS))
#error "what says which options there are stands beside EXTRAS"
#elif defined(TILED) && defined(ENDS) || defined(FUNCTIONS) && !defined(SCORE_MODS)
#error "TILED, ENDS and FUNCTIONS exclude each other"
#elif (defined(APART) || DRAWN_TOGETHER != 1) && !defined(SCORE_MODS)
#error "APART and DRAWN_TOGETHER are for kernels with all options"
#elif defined(COMPUTED) && !defined(ENDS)
#error "COMPUTED stands beside ENDS"
#elif defined(SPLIT_KV) && (defined(EXTRAS) || defined(SPLIT))
#error "keys are split where numbers are of 16 bits and there are no options"
#elif defined(SPLIT) && (defined(EXTRAS) || defined(TRANSPOSED))
#error "float32 has neither options nor queries in columns"
#elif defined(SPLIT) && (Q_SHARED || SUM_COLUMNS)
#error "float32 has q in registers and sums in float32"
#elif defined(SPLIT) && BUFFERS != 1
#error "float32 has tiles of k and v, twice as large, take turns in one place"
#elif defined(SPLIT) && (KF % GROUP_K || VF % GROUP_V)
#error "GROUP_K and GROUP_V divide the fragments of keys and of columns"

// The schedule.
#elif BUFFERS < 1 || BUFFERS > 4
#error "BUFFERS is 1 to 4"
#elif BUFFERS > 2 && (defined(SCORE_MODS) || defined(TILED))
#error "with classes of tiles BUFFERS is 1 or 2"
#elif CHUNK != KEYS && BUFFERS == 1
#error "the scores of part of a tile are held where v does not lie in the place of k"
#elif CHUNK != KEYS && ORDER != 1 && ORDER != 2
#error "the scores of part of a tile are held where the order of rows is known"
#elif SUM_COLUMNS && (ORDER != 1 || SUM_COLUMNS != MATRIX_N)
#error "matrix units sum weights in NVIDIA's order, by as many ones as a matrix has columns"
#elif RETRY && (ORDER != 1 && ORDER != 2 || SUM_COLUMNS || defined(SPLIT) || defined(SCORE_MODS))
#error "RETRY is for 16-bit rows of a known order, sums by lanes, and of options TILED and ENDS"
#elif STEPS && (defined(SPLIT) || defined(TRANSPOSED))
#error "STEPS is for 16-bit numbers and queries in rows"
#elif STEPS && (THREADS % D8 || THREADS % V8 || KEYS * D8 % THREADS || KEYS * V8 % THREADS)
#error "STEPS is for threads that take whole rows of k and v, and tiles of whole steps"
#elif STEPS && defined(SCORE_MODS) && (THREADS % (16 * D8) || THREADS % (16 * V8))
#error "STEPS is, with all options, for steps of whole fragments of keys"
#elif defined(WHOLE_ROWS) && (ORDER != 1 && ORDER != 2 || Q_SHARED)
#error "WHOLE_ROWS is for rows of a known order and q in registers"
#elif defined(WHOLE_ROWS) && (defined(SPLIT) || defined(SPLIT_KV) || defined(SCORE_MODS) || defined(TILED))
#error "WHOLE_ROWS is for 16-bit results that lie where they are asked for"
#elif defined(TILED) && (ORDER != 1 && ORDER != 2 || KEYS % (4 * MATRIX_N))
#error "TILED is for rows of a known order, and units of four fragments of keys"
#elif defined(COMPUTED) && (!RETRY || ORDER != 1 || BUFFERS == 4)
#error "COMPUTED is for NVIDIA's order, RETRY, and a barrier after a tile's first half"

// Bits of keys that a row sees, and of weights that dropout keeps (visible-keys.glsl).
#elif defined(SCORE_MODS) && (KEYS % 16 || SUBGROUP > 32 || KEYS > SUBGROUP && KEYS % SUBGROUP)
#error "with all options a row's keys are whole words of 8, 16 or 32 bits, and whole sixteens"
#elif defined(SCORE_MODS) && RF * KEYS > 4 * MATRIX_N && RF * KEYS % (4 * MATRIX_N)
#error "with all options a subgroup has up to four fragments of scores, or multiples of four"
#elif DRAWN_TOGETHER > 1 && RF * KEYS > 2 * MATRIX_N * DRAWN_TOGETHER && RF * KEYS % (2 * MATRIX_N * DRAWN_TOGETHER)
#error "DRAWN_TOGETHER divides the generators of a lane, of which there is one for two fragments"
#endif
