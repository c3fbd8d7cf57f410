// Sums of squares beyond float32's range, and those of so small numbers that squares below it are lost: both are made again
// of the numbers times a power of two.

#ifndef GRILLY_SQUARE_RANGE_GLSL
#define GRILLY_SQUARE_RANGE_GLSL

const float SCALE = 19342813113834066795298816.0;          // 2^84: large numbers are divided by it, and small ones multiplied
const float SMALL_SQUARES = 1.0 / 18446744073709551616.0;  // 2^-64: what sums below it are made of may be lost

// What a norm adds to the mean of such squares: its epsilon times the power of two squared, one factor after the other, as
// their product is no float32.
#define SCALED_EPSILON(added, epsilon, power) \
    precise float added = (epsilon) * (power); \
    added *= (power);

#endif
