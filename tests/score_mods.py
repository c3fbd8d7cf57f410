"""Score functions and mask functions that several tests give to attention.

Each is made of a namespace (grilly, NumPy or PyTorch) and of arrays: a score function and a mask function, or None.
"""


def causal(xp, **_):
    return None, lambda b, h, q, k: q >= k


def window(xp, **_):
    return None, lambda b, h, q, k: (q >= k) & (q - k < 9)


def alibi(xp, rate, **_):
    return lambda s, b, h, q, k: s - rate[h] * abs(q - k), None


def documents(xp, documents, **_):
    return None, lambda b, h, q, k: (documents[b, q] == documents[b, k]) & (k <= q)


def soft_cap(xp, **_):
    return lambda s, b, h, q, k: 3 * xp.tanh(s / 3), None


def relative(xp, table, **_):
    return lambda s, b, h, q, k: s + table[h, xp.clip(q - k, -64, 64) + 64], None
