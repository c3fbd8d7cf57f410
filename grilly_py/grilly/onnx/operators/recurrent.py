"""Recurrent networks: RNN, GRU and LSTM, token by token."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ..table import OPERATORS, Call, operator, wide
from . import activations as _activations  # noqa: F401 whose operators these networks use
from .fused import fused
from .fused_quantized import product_of_numbers

Function = Callable[[Tensor], Tensor]


class Quantized(NamedTuple):
    """A matrix of integers, (inputs, outputs), with its scale and zero."""

    matrix: Tensor
    scale: Tensor
    zero: Tensor


Weight = Tensor | Quantized


def _linear(call: Call, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """A linear layer; of integers with x quantized too, by its extremes."""
    if isinstance(weight, Quantized):
        return product_of_numbers(call, x, *weight, bias)
    return F.linear(x, weight, bias)


def _affine(call: Call, x: Tensor) -> Tensor:
    return xp.add(xp.multiply(x, call.get("alpha", 1.0)), call.get("beta", 0.0))


def _scaled_tanh(call: Call, x: Tensor) -> Tensor:
    return xp.multiply(F.tanh(xp.multiply(x, call.get("beta", 1.0))), call.get("alpha", 1.0))


#: Activations by name, with how many of alpha and beta each takes.
_ACTIVATIONS: dict[str, tuple[Callable[[Call, Tensor], Tensor], int]] = {
    **{name.lower(): (OPERATORS[name].function, takes) for name, takes in {
        "Relu": 0, "Tanh": 0, "Sigmoid": 0, "Softsign": 0, "Softplus": 0, "LeakyRelu": 1, "ThresholdedRelu": 1,
        "Elu": 1, "HardSigmoid": 2,
    }.items()},
    "affine": (_affine, 2), "scaledtanh": (_scaled_tanh, 2),
}  # fmt: skip


def _functions(call: Call, default: list[str], directions: int) -> list[list[Function]]:
    """The activations of each direction. Alphas and betas go to those that take some, in order."""
    names = call.get("activations") or default * directions
    given = {"alpha": iter(call.get("activation_alpha", ())), "beta": iter(call.get("activation_beta", ()))}
    found = []
    for name in (name.decode() if isinstance(name, bytes) else name for name in names):
        if name.lower() not in _ACTIVATIONS:
            raise call.refuse(f"activation is {name!r}")
        function, takes = _ACTIVATIONS[name.lower()]
        named = {key: next(given[key], None) for key in ("alpha", "beta")[:takes]}
        attributes = {key: value for key, value in named.items() if value is not None}
        found.append(functools.partial(function, call._replace(attributes=attributes)))
    return [found[n * len(default) : (n + 1) * len(default)] for n in range(directions)]


def _rnn(call: Call, x: Tensor, state: list[Tensor], r: Tensor, b: Tensor | None, p: None, f: list[Function]) -> Any:
    return [f[0](_kept(call, xp.add(x, F.linear(state[0], r, b))))]


def _gru(call: Call, x: Tensor, state: list[Tensor], r: Tensor, b: Tensor | None, p: None, f: list[Function]) -> Any:
    (h,), size = state, state[0].shape[1]
    if call.get("linear_before_reset", 0):
        inner = F.linear(h, r, b)
        gates, last = inner[:, : 2 * size], inner[:, 2 * size :]
    else:
        gates, last = F.linear(h, r[: 2 * size], None if b is None else b[: 2 * size]), None
    both = f[0](_kept(call, xp.add(x[:, : 2 * size], gates)))
    update, reset = both[:, :size], both[:, size:]
    if last is None:
        last = F.linear(xp.multiply(reset, h), r[2 * size :], None if b is None else b[2 * size :])
    else:
        last = xp.multiply(reset, last)
    new = f[1](_kept(call, xp.add(x[:, 2 * size :], last)))
    return [xp.add(xp.multiply(update, xp.subtract(h, new)), new)]


def _lstm(
    call: Call, x: Tensor, state: list[Tensor], r: Weight, b: Tensor | None, p: Tensor | None, f: list[Function]
) -> Any:
    (h, c), size = state, state[0].shape[1]
    gates = xp.add(x, _linear(call, h, r, b))
    i, o, forget, cell = (gates[:, n * size : (n + 1) * size] for n in range(4))
    peepholes = [None] * 3 if p is None else [p[n * size : (n + 1) * size] for n in range(3)]
    i, forget = (g if w is None else xp.add(g, xp.multiply(w, c)) for g, w in zip((i, forget), peepholes[::2],
                                                                                 strict=True))  # fmt: skip
    i = f[0](_kept(call, i))
    forget = xp.subtract(1.0, i) if call.get("input_forget", 0) else f[0](_kept(call, forget))
    new = xp.add(xp.multiply(forget, c), xp.multiply(i, f[1](_kept(call, cell))))
    o = o if peepholes[1] is None else xp.add(o, xp.multiply(peepholes[1], new))
    return [xp.multiply(f[0](_kept(call, o)), f[2](new)), new]


def _kept(call: Call, x: Tensor) -> Tensor:
    """Within the bounds that ``clip`` sets to what activations are given."""
    bound = call.get("clip", 0.0)
    return xp.minimum(xp.maximum(x, -bound), bound) if bound else x


#: The step of each network, and its activations.
_STEPS: dict[str, tuple[Callable[..., list[Tensor]], list[str]]] = {
    "RNN": (_rnn, ["Tanh"]), "GRU": (_gru, ["Sigmoid", "Tanh"]), "LSTM": (_lstm, ["Sigmoid", "Tanh", "Tanh"]),
}  # fmt: skip


@operator("RNN", "GRU", "LSTM")
def network(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, p: Tensor | None = None,
) -> Any:  # fmt: skip
    """A recurrent network, with weights for each direction."""
    weights = [(wide(w)[n], wide(r)[n]) for n in range(r.shape[0])]
    return _through(call, x, weights, r.shape[2], b, lengths, [h, c] if call.name == "LSTM" else [h], p)


@fused("DynamicQuantizeLSTM")
def quantized_network(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None, h: Tensor | None,
    c: Tensor | None, p: Tensor | None, *units: Tensor,
) -> Any:  # fmt: skip
    """An LSTM with weights of integers, turned; what they are multiplied with is quantized at each token.

    ``units``: the scale and the zero of w, and those of r.
    """
    scale_w, zero_w, scale_r, zero_r = units
    call = call._replace(name="LSTM")
    weights = [
        (Quantized(w[n], scale_w[n], zero_w[n]), Quantized(r[n], scale_r[n], zero_r[n])) for n in range(r.shape[0])
    ]
    return _through(call, x, weights, r.shape[1], b, lengths, [h, c], p)


def _through(
    call: Call, x: Tensor, weights: Sequence[tuple[Weight, Weight]], size: int, b: Tensor | None,
    lengths: Tensor | None, first: Sequence[Tensor | None], p: Tensor | None,
) -> Any:  # fmt: skip
    """A recurrent network in one or both directions: all of its outputs, and its last states.

    Past its length a sample's outputs are zeros, and its state stays. A sample that is gone through from its end begins
    at its last token.
    """
    dtype, directions = x.dtype, len(weights)
    way = call.get("direction", "forward")
    if way not in ("forward", "reverse", "bidirectional") or directions != 1 + (way == "bidirectional"):
        raise call.refuse(f"direction is {way!r}, for weights of {directions}")
    batch_first = bool(call.get("layout", 0))
    x = xp.permute_dims(wide(x), (1, 0, 2)) if batch_first else wide(x)
    steps, batch, _ = x.shape
    step, default = _STEPS[call.name]
    states = [
        xp.zeros((directions, batch, size), dtype="float32", device=call.backend) if each is None
        else xp.permute_dims(wide(each), (1, 0, 2)) if batch_first else wide(each)
        for each in first
    ]  # fmt: skip
    outputs, ends = [], []
    for way_number, functions in enumerate(_functions(call, default, directions)):
        biases = [None, None]
        if b is not None:
            whole = wide(b)[way_number]
            biases = [whole[: whole.shape[0] // 2], whole[whole.shape[0] // 2 :]]
        of_inputs, of_states = weights[way_number]
        given = _linear(call, x, of_inputs, biases[0])
        peepholes = None if p is None else wide(p)[way_number]
        state, found = [each[way_number] for each in states], []
        backwards = way == "reverse" or way_number == 1
        for token in reversed(range(steps)) if backwards else range(steps):
            new = step(call, given[token], state, of_states, biases[1], peepholes, functions)
            if lengths is None:
                state, out = new, new[0]
            else:
                runs = xp.greater(lengths, token).reshape((batch, 1))
                state = [xp.where(runs, one, other) for one, other in zip(new, state, strict=True)]
                out = xp.where(runs, new[0], 0.0)
            found.append(out)
        if steps:
            outputs.append(xp.stack(found[::-1] if backwards else found, axis=0))
        else:
            outputs.append(xp.zeros((0, batch, size), dtype="float32", device=call.backend))
        ends.append(state)
    whole = xp.stack(outputs, axis=1)
    last = [xp.stack([end[n] for end in ends], axis=0) for n in range(len(states))]
    if batch_first:
        whole, last = xp.permute_dims(whole, (2, 0, 1, 3)), [xp.permute_dims(each, (1, 0, 2)) for each in last]
    return tuple(each.astype(dtype, copy=False) for each in (whole, *last))
