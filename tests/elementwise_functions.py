"""Arrays, and functions of their elements, that several tests of ``grilly.elementwise`` take."""

import numpy as np

import grilly

RNG = np.random.default_rng(11)


def numbers(shape, dtype="float32"):
    """Random elements of a dtype."""
    if np.dtype(dtype).kind == "f":
        return (RNG.standard_normal(shape) * 2).astype(dtype)
    return RNG.integers(0, 2 if dtype == "bool" else 5, shape).astype(dtype)


@grilly.elementwise
def swish(x, beta):
    """x times its sigmoid."""
    return x / (1 + grilly.exp(-beta * x))


@grilly.elementwise
def of_all(a, b):
    return grilly.where(a > b, a - b, a * 2 + b)
