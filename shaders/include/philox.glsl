// Philox4x32 with ten rounds: four words of 32 random bits for a counter and a key.
// J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3 and table 2.

#ifndef GRILLY_PHILOX_GLSL
#define GRILLY_PHILOX_GLSL

#extension GL_EXT_control_flow_attributes : require

// constants: philox
const uint PHILOX_MULTIPLIER_0 = 0xD2511F53u, PHILOX_MULTIPLIER_1 = 0xCD9E8D57u;
const uint PHILOX_WEYL_0 = 0x9E3779B9u, PHILOX_WEYL_1 = 0xBB67AE85u;
const int PHILOX_ROUNDS = 10;

uvec4 philox_round(uvec4 counter, uvec2 key) {
    uint high0, low0, high1, low1;
    umulExtended(PHILOX_MULTIPLIER_0, counter.x, high0, low0);
    umulExtended(PHILOX_MULTIPLIER_1, counter.z, high1, low1);
    return uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
}

uvec4 philox(uvec4 counter, uvec2 key) {
    [[unroll]] for (int turn = 0; turn < PHILOX_ROUNDS; turn++) {
        counter = philox_round(counter, key);
        key += uvec2(PHILOX_WEYL_0, PHILOX_WEYL_1);
    }
    return counter;
}

#endif
