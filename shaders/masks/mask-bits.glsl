// Boolean masks, a byte an element, as bits.

// One bit for each byte that is not 0: a byte's lowest bit becomes whether it is, and a product moves the four together.
uint four_bits(uint bytes) {
    uint four = bytes | bytes >> 4;
    four |= four >> 2;
    four = (four | four >> 1) & 0x01010101u;
    return (four * 0x10204080u) >> 28;
}
