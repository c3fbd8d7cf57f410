// Which elements of a row are rotated together: values of the specialization constant ROTARY. 0: nothing is rotated.

// Pairs are elements i and i + pairs, or 2 i and 2 i + 1.
// constants: rotary
const int ROTARY_HALVES = 1, ROTARY_INTERLEAVED = 2;
