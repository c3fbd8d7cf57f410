"""Checks of the arguments that the steps of unfused attention share."""

from __future__ import annotations

from ..device.arguments import FLOAT32, check_float


def check_pair(operation: str, names, first, second) -> None:
    """Raise ValueError unless two arrays have the same rank from 2 to 4, batches that agree and heads that divide."""
    shapes = tuple(first.shape), tuple(second.shape)
    rank = len(shapes[0])
    if rank not in (2, 3, 4):
        raise ValueError(
            f"{operation}: {names[0]} has shape {shapes[0]}; expected (B, H, ., .), (H, ., .) or (., .)"
        )
    if len(shapes[1]) != rank:
        raise ValueError(
            f"{operation}: {names[1]} has {len(shapes[1])} axes and {names[0]} has {rank}; give them the same number"
        )
    (batch, heads), (other_batch, other_heads) = (((1,) * (4 - rank) + shape)[:2] for shape in shapes)
    if batch != other_batch:
        raise ValueError(
            f"{operation}: {names[1]} has batch {other_batch} and {names[0]} has {batch}; they must be equal"
        )
    if other_heads != heads and (other_heads == 0 or heads % other_heads):
        raise ValueError(
            f"{operation}: {names[1]} has {other_heads} heads and {names[0]} has {heads}; "
            f"{names[0]}'s must be a multiple"
        )


def check_float32(operation: str, **arrays) -> None:
    """Raise TypeError unless the named arrays are float32."""
    for name, array in arrays.items():
        if check_float(operation, **{name: array}) != FLOAT32:
            raise TypeError(
                f"{operation}: {name} is {array.dtype}; expected float32; cast with {name}.astype(numpy.float32)"
            )


def check_scores(operation: str, scores, name: str = "scores") -> None:
    """Raise TypeError unless scores or weights are float32, and ValueError unless they have two to four axes."""
    check_float32(operation, **{name: scores})
    if len(scores.shape) not in (2, 3, 4):
        raise ValueError(
            f"{operation}: {name} has shape {tuple(scores.shape)}; expected (B, H, Sq, Sk), (H, Sq, Sk) or (Sq, Sk)"
        )


def full_shape(shape) -> tuple[int, ...]:
    """A shape of up to four axes with extents of 1 put before it."""
    return (1,) * (4 - len(shape)) + tuple(shape)
