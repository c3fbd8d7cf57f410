// A fragment of k as a factor.

KEY_FACTOR key_factor(uint start, uint f, uint d) {
    KEY_FACTOR k;
    coopMatLoad(k, tile, start + f * MATRIX_N * K_STRIDE + d * (MATRIX_K / 8), K_STRIDE, KEY_LAYOUT);
    return k;
}
