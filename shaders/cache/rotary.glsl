// Which elements of a row are turned together: values of the specialization constant ROTARY. 0: nothing is turned.

// Pairs are elements i and i + pairs, or 2 i and 2 i + 1.
// facts: rotary
const int ROTARY_HALVES = 1, ROTARY_INTERLEAVED = 2;
