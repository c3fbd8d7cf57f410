// Where many options meet, what their parameters say and what follows from it would take more registers than there are. Both
// lie in shared memory then, and are read anew in every tile: nothing of them is held across products.
//
// For kernels that define HELD_OPTIONS, the options whose words registers have room for, and PARAMETER(n) as parameter_at(n).
// The including shader has q_base, k_base and v_base.

// A map of blocks and dropout take about as much as two others, a boolean mask as much as one.
#define OPTIONS_IN_SHARED \
    (bitCount(FEATURES) + bitCount(FEATURES & (BLOCKS | DROPOUT)) + int(MASK == MASK_BOOLEAN) > HELD_OPTIONS && FEATURES != 0)

shared uint held_parameters[PARAMETER_COUNT];
shared uvec4 found_words[5];

uint parameter_at(uint n) { return OPTIONS_IN_SHARED ? held_parameters[n] : extra_data[pc.extra + n]; }

// Before begin_extras(). `thread` is the invocation's number in the workgroup.
void copy_parameters(uint thread) {
    if (!OPTIONS_IN_SHARED) return;
    for (uint n = thread; n < PARAMETER_COUNT; n += THREADS) held_parameters[n] = extra_data[pc.extra + n];
    barrier();
}

// What the workgroup has found before its first tile.
void keep_words(uint thread) {
    if (!OPTIONS_IN_SHARED) return;
    if (thread == 0u) {
        found_words[0] = uvec4(x_batch, x_head, x_first_row, x_first_key);
        found_words[1] = uvec4(x_queries, x_keys, x_row_start, x_key_start);
        found_words[2] = uvec4(x_prefix, x_bias, x_shift, x_rows_seeing);
        found_words[3] = uvec4(x_left, x_right, floatBitsToUint(x_slope), floatBitsToUint(x_cap));
        found_words[4] = uvec4(q_base, k_base, v_base, 0u);
    }
    barrier();
}

// The same again; what a kernel does not use of it is not read.
void find_words() {
    if (!OPTIONS_IN_SHARED) return;
    uvec4 words = found_words[0];
    x_batch = words.x;
    x_head = words.y;
    x_first_row = words.z;
    x_first_key = words.w;
    words = found_words[1];
    x_queries = words.x;
    x_keys = words.y;
    x_row_start = words.z;
    x_key_start = words.w;
    words = found_words[2];
    x_prefix = words.x;
    x_bias = words.y;
    x_shift = int(words.z);
    x_rows_seeing = int(words.w);
    words = found_words[3];
    x_left = int(words.x);
    x_right = int(words.y);
    x_slope = uintBitsToFloat(words.z);
    x_cap = uintBitsToFloat(words.w);
    words = found_words[4];
    q_base = words.x;
    k_base = words.y;
    v_base = words.z;
}
