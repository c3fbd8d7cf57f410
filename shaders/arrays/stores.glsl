// One element of a buffer of words, among others that other workgroups write.

#define PUTTER(NAME, DATA) \
    void NAME##_put(uint to, uint bits, uvec2 x) { \
        if (bits == 64u) { \
            DATA[2u * to] = x.x; \
            DATA[2u * to + 1u] = x.y; \
        } else if (bits == 32u) { \
            DATA[to] = x.x; \
        } else { \
            uint each = 32u / min(bits, 16u), shift = to % each * bits; \
            atomicAnd(DATA[to / each], ~(bitfieldExtract(0xffffffffu, 0, int(bits)) << shift)); \
            atomicOr(DATA[to / each], x.x << shift); \
        } \
    }
