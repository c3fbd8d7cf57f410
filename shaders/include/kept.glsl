// Which attention weights dropout keeps. A generator's four words decide on sixteen keys of a row. The number of key 4 w + b of
// them has 16 bits: byte b of word w, which decides nearly always, and below it byte b of the next word, the first after the
// last. A weight is kept where its number is below a limit of at most 65,535.

#ifndef GRILLY_KEPT_GLSL
#define GRILLY_KEPT_GLSL

#include "philox.glsl"

// Of which keys dropout keeps the weights, a bit each: the four of a word, whose next word is `after`, and all sixteen.
uint kept_four(uint here, uint after, uint below) {
    uint even = here << 8 & 0xff00ff00u | after & 0x00ff00ffu, odd = here & 0xff00ff00u | after >> 8 & 0x00ff00ffu;
    return uint((even & 0xffffu) < below) | uint((odd & 0xffffu) < below) << 1
        | uint(even < below << 16) << 2 | uint(odd < below << 16) << 3;
}
uint kept_sixteen(uvec4 words, uint below) {
    return kept_four(words.x, words.y, below) | kept_four(words.y, words.z, below) << 4
        | kept_four(words.z, words.w, below) << 8 | kept_four(words.w, words.x, below) << 12;
}

#endif
