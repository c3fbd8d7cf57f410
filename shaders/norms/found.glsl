// What has been found in a part of a row, and how what was found in two parts becomes that of both.
//
//   LAYER_NORM             count; centre, the mean; sum, of squared distances from it
//   ... BACKWARD           also gradient, the mean of weighted gradients; product, the sum of both's distances multiplied
//   RMS_NORM               sum, of squares; BACKWARD also product, the sum of elements times weighted gradients
//   SOFTMAX, LOG_SOFTMAX   centre, the largest element; sum, of exponentials of what elements are less than it
//   ATTENTION_SOFTMAX      as SOFTMAX; what is below MASK_FLOOR is minus infinity, and a row of nothing else becomes zeros
//   ... BACKWARD           product, the sum of gradients times outputs; of LOG_SOFTMAX the sum of gradients
//
// Means and sums of squared distances of two parts: T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a
// pairwise algorithm for computing sample variances", 1979. Softmax: M. Milakov and N. Gimelshein, arXiv:1805.02867.

#include "exponential.glsl"

layout(constant_id = 0) const uint OPERATION = 0u;

// constants: norms
const uint LAYER_NORM = 0u, RMS_NORM = 1u, SOFTMAX = 2u, LOG_SOFTMAX = 3u, ATTENTION_SOFTMAX = 4u;
const uint LAYER_NORM_BACKWARD = 5u, RMS_NORM_BACKWARD = 6u, SOFTMAX_BACKWARD = 7u, LOG_SOFTMAX_BACKWARD = 8u;

const bool BACKWARD = OPERATION >= LAYER_NORM_BACKWARD;
const bool CENTRED = OPERATION == LAYER_NORM || OPERATION == LAYER_NORM_BACKWARD;
const bool WEIGHS = OPERATION == SOFTMAX || OPERATION == ATTENTION_SOFTMAX;
const bool EXPONENTIALS = WEIGHS || OPERATION == LOG_SOFTMAX;
const bool HAS_SUM = OPERATION < SOFTMAX_BACKWARD;
const bool SQUARES = CENTRED || OPERATION == RMS_NORM || OPERATION == RMS_NORM_BACKWARD;

#include "square-range.glsl"

// Rows whose squares are beyond float32's range are looked at again, multiplied or divided by SCALE; float16's are not.
#if defined(DTYPE_float16)
#define MAY_LEAVE_RANGE 0
#else
#define MAY_LEAVE_RANGE 1
#endif

// Exponentials. Those of which the sum is rounded to 16 bits in the end are the device's own, off by less than 2^-15.
float power_of(float x) {
#if defined(DTYPE_float32)
    return exp_accurate(x);
#else
    return x < -87.0 ? 0.0 : non_finite(x) ? x : exp2(x * 1.44269504);
#endif
}
vec4 powers_of(vec4 x) { return vec4(power_of(x.x), power_of(x.y), power_of(x.z), power_of(x.w)); }

struct Found { float count, centre, sum, gradient, product; };

// The largest of no elements is the lowest finite number: what minus infinity is less than it is no NaN.
Found nothing_found() { return Found(0.0, EXPONENTIALS ? -3.40282347e38 : 0.0, 0.0, 0.0, 0.0); }

Found combined(Found a, Found b) {
    if (EXPONENTIALS) {
        float most = max(a.centre, b.centre);
        a.sum = a.sum * power_of(a.centre - most) + b.sum * power_of(b.centre - most);
        a.centre = most;
        return a;
    }
    if (CENTRED) {
        if (a.count == 0.0) return b;
        if (b.count == 0.0) return a;
        float count = a.count + b.count, share = b.count / count;
        float apart = b.centre - a.centre, gradient = b.gradient - a.gradient;
        a.centre += apart * share;
        a.gradient += gradient * share;
        a.product += b.product + apart * gradient * (a.count * share);
        a.sum += b.sum + apart * apart * (a.count * share);
        a.count = count;
        return a;
    }
    a.sum += b.sum;
    a.product += b.product;
    return a;
}
