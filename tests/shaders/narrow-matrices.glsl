// Intel's cooperative matrices made of arrays, for tests/internals/test_emulated.py: accumulators of eight rows in which an
// invocation holds a column, second factors the same with sixteen rows, first factors of words that lie as
// flash-attention-narrow.comp says. With 8 invocations a subgroup is one of the device's, which runs in lockstep; with 16 it
// is the workgroup.

#define A_ROW(e) (SUBGROUP == 8 ? (e) / 2u : lane / 8u + (e) / 2u * 2u)
#define A_COLUMN(e) (2u * (lane % 8u) + (e) % 2u)
#if SUBGROUP == 8
#define MEET subgroupMemoryBarrierShared()
#else
#define MEET barrier()
#endif

shared float left[SUBGROUPS][8][16], right[SUBGROUPS][16][SUBGROUP];

float[8] filled_sums(float x) { return float[8](x, x, x, x, x, x, x, x); }

SUMS products(FACTOR_A a, FACTOR_B b, SUMS sums) {
    MEET;
    for (uint e = 0u; e < 128 / SUBGROUP; ++e) left[subgroup][A_ROW(e)][A_COLUMN(e)] = float(a[e]);
    for (uint e = 0u; e < 16u; ++e) right[subgroup][e][lane] = float(b[e]);
    MEET;
    for (uint e = 0u; e < 8u; ++e) {
        for (uint k = 0u; k < 16u; ++k) sums[e] += left[subgroup][e][k] * right[subgroup][k][lane];
    }
    return sums;
}
#define coopMatMulAdd products

#if SUBGROUP == 16
shared uint exchanged[SUBGROUP];
uint from_lane(uint word, uint other) {
    barrier();
    exchanged[lane] = word;
    barrier();
    return exchanged[other];
}
float from_xor(float x, uint bits) { return uintBitsToFloat(from_lane(floatBitsToUint(x), lane ^ bits)); }
float from_one(float x, uint other) { return uintBitsToFloat(from_lane(floatBitsToUint(x), other)); }
uint or_lanes(uint x) {
    barrier();
    exchanged[lane] = x;
    barrier();
    uint found = 0u;
    for (uint n = 0u; n < SUBGROUP; ++n) found |= exchanged[n];
    return found;
}
bool any_lane(bool x) { return or_lanes(uint(x)) != 0u; }
#define subgroupOr or_lanes
#define subgroupShuffleXor from_xor
#define subgroupShuffle from_one
#define subgroupAny any_lane
#define subgroupAll(each) (!any_lane(!(each)))
#define subgroupBarrier barrier
#endif
