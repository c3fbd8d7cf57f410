"""The numeric check that a matrix-unit kernel must pass on a device before it is used there.

Drivers have offered matrix shapes that their hardware lacks and returned wrong products; some arrange elements in
another order than a kernel assumes. So the kernel runs on a few small problems, and its results are compared with
those of the kernels that use no matrix units, on the same device. The registry remembers the verdict.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from ..errors import ClosedError, DeviceLostError, GrillyError, OutOfDeviceMemoryError, UnsupportedError
from ..registry import Choice, Request
from .attention import backward, backward_stored, forward
from .attention.backward_plan import BackwardTerms
from .attention.options import OFF, Options
from .device.device import Device
from .device.dtypes import dtype_of
from .device.trial import pin, view_of, with_classes
from .products.linear import linear

NAIVE = "attention-naive"
#: Distance between neighbouring numbers at 1.
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
#: What float32 kernels on matrix units (split operands) may be off by, relative to the sum of their terms' magnitudes.
HIGH_BOUND = 1e-5
#: Scores of this spread (their standard deviation, natural base) make exp overflow or vanish under a wrong maximum.
SPREAD = 10.0


def prove(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Run a variant on small random problems and compare it with the kernels that need no proof.

    Parameters
    ----------
    device : Device
        Where to run.
    choice : Choice
        The variant; its operation is "attention", "attention-tiled", "attention-shares", "attention-decode",
        "attention-backward-..." or "linear".
    facts : mapping
        The request's; ``head_dim`` and ``value_dim`` are those of the problems.

    Returns
    -------
    str or None
        What was wrong, or None.

    Raises
    ------
    DeviceLostError
        When the device was lost to the check.
    OutOfDeviceMemoryError, ClosedError
        When it could not be made; that is no verdict.
    ShaderError
        When the binary is missing or damaged.
    """
    device.registry.manifest.binary(choice.variant)  # a damaged file says nothing of the device
    checks = {
        "attention": _attention, "attention-tiled": _tiled_attention, "attention-shares": _shares,
        "attention-decode": _decode, "linear": _linear,
        "attention-backward-dq": _backward, "attention-backward-dkv": _backward, backward_stored.OPERATION: _backward,
    }  # fmt: skip
    check = checks.get(choice.variant.operation)
    if check is None:
        return f"there is no self-check for {choice.variant.operation}"
    try:
        # For real, also in a captured function; and a wrong kernel's results are compared, whatever they are.
        with device.runtime.aside(), np.errstate(all="ignore"):
            return check(device, choice, facts)
    except (DeviceLostError, OutOfDeviceMemoryError, ClosedError):
        raise
    except GrillyError as error:
        if isinstance(error.__cause__, DeviceLostError):
            raise error.__cause__ from None
        return str(error)


def proven(device: Device, operation: str, dtype: str, facts: Mapping[str, int], family: str | None = None) -> Choice:
    """The best variant that needs no proof, to compare with. Raises UnsupportedError where there is none."""
    if family == NAIVE:
        # It has every option, and no use for classes of tiles and ways to read, which the request may ask for.
        facts = {name: fact for name, fact in facts.items() if name not in ("extras", "options")}
    request = Request(operation, dtype, facts=tuple(sorted(facts.items())), prefer=family)
    found = [v for v, reason in device.registry.explain(request) if reason is None and not v.unproven]
    if not found:
        raise UnsupportedError(f"there is no {family or 'other'} kernel for {dtype} to compare with")
    return device.registry.choice(min(found, key=lambda v: (-device.registry.rank(v), v.position)))


def difference(got: np.ndarray, expected: np.ndarray, bound: np.ndarray, dtype: str) -> str | None:
    """What sets two results apart, or None.

    Parameters
    ----------
    got, expected : numpy.ndarray
        ``(..., D)``. Rows with infinities must have them in the same places.
    bound : numpy.ndarray
        The largest difference that roundings explain, of each element.
    dtype : str
        For 16-bit types the root mean square is held to two roundings as well: sums of random terms come out far
        more alike than a bound on each element says, and a forgotten key shows only there.
    """
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]):
        return "wrong infinities"
    error = np.abs(got[finite] - expected[finite])
    bound = np.broadcast_to(bound, expected.shape)[finite]
    if not np.all(error <= bound):  # NaN too
        worst = np.nanargmax(np.where(np.isfinite(error), error / np.maximum(bound, 1e-300), np.inf))
        return f"error {error[worst]:.2g}, {bound[worst]:.2g} expected at most"
    size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    apart = np.sqrt(np.mean(error**2)) if finite.any() else 0.0
    if dtype != "float32" and apart > 2 * ROUNDING[dtype] * size:
        return f"root mean square error {apart / size:.2g} of the result's, {2 * ROUNDING[dtype]:.2g} expected at most"
    return None


# -- attention -------------------------------------------------------------------------------------------------------


def attention_bound(magnitude: np.ndarray, scores: float, dtype: str) -> np.ndarray:
    """The largest difference expected between two attention kernels.

    Parameters
    ----------
    magnitude : numpy.ndarray
        Attention over the absolute values of V: the sum of the magnitudes of each output's terms.
    scores : float
        The largest sum of magnitudes behind a score.
    dtype : str
        For a 16-bit type: half a rounding each of P, of the row sum made of it, and of both results, with as much to
        spare. For float32: HIGH_BOUND, and more in proportion where scores exceed those of unit normal inputs.
    """
    if dtype != "float32":
        return 4 * ROUNDING[dtype] * magnitude + 1e-6
    return HIGH_BOUND * max(1.0, scores / 8) * magnitude + 1e-7


def _longer(rng, shape, dtype, scale: float = 1.0) -> np.ndarray:
    """Random normal numbers ``(B, H, S + 8, D)``, the last 8 rows NaN: beyond what is attended to."""
    made = rng.standard_normal((*shape[:2], shape[2] + 8, shape[3])) * scale
    made[:, :, shape[2] :] = np.nan
    return made.astype(dtype)


def _run(device: Device, q, k, v, kernel: str = NAIVE, **options) -> list[np.ndarray]:
    """O, and the log-sum-exp if asked for, of arrays by ``_longer``."""
    tensors = [device.tensor(array)[:, :, :-8] for array in (q, k, v)]
    # Naming a family keeps the call from the kernels for decoding; which variant runs is pinned.
    result = forward.flash_attention("self-check", device, *tensors, kernel=kernel, **options)
    return [part.numpy() for part in (result if isinstance(result, tuple) else (result,))]


def _bent(rng, queries: int, keys: int) -> Options:
    """What changes scores, and what hides keys by their indices; for one sample and two heads."""
    bias = rng.standard_normal((1, 2, queries, keys)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    return Options(
        softcap=2.0,
        attn_bias=bias,
        alibi_slopes=np.float32([0.05, 0.01]),
        t5_table=rng.standard_normal((8, 2)).astype(np.float32),
        sinks=np.float32([1.5, -0.5]),
        window_size=(keys // 2, keys // 4),
        seqlens_q=np.int32([queries - 3]),
        seqlens_k=np.int32([keys - 9]),
    )


def _picky(rng, queries: int, keys: int) -> Options:
    """What hides keys by data, and dropout."""
    documents = [np.sort(rng.integers(0, 3, (1, count))).astype(np.int32) for count in (queries, keys)]
    return Options(
        segment_ids=tuple(documents),
        block_map=rng.random((1, 1, -(-queries // 24), -(-keys // 16))) < 0.7,
        block_size=(24, 16),
        window_size=(-1, keys // 8),
        prefix_len=np.int32([keys // 3]),
        dropout_p=0.2,
        dropout_seed=7,
    )


def _tiled(rng, seen: np.ndarray, rows: int, keys: int) -> Options:
    """What has classes of tiles: makes tiles of ``seen`` whole and hidden, and a map of blocks as wide as words."""
    seen[:, :, :rows, :keys] = True
    seen[:, :, :rows, keys : 2 * keys] = False
    blocks = rng.random((1, 1, -(-seen.shape[2] // 24), -(-seen.shape[3] // 32))) < 0.8
    return Options(block_map=blocks, block_size=(24, 32))


def _attention(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    naive = proven(device, "attention", variant.dtype, facts, NAIVE)
    trusted = pin(view_of(device), naive)
    queries, keys = 2 * variant.tile["rows"] + 5, 2 * variant.tile.get("keys", 64) + 67
    problems = [("plain", 1.0), ("causal", SPREAD), ("masked", SPREAD)]
    if variant.offers:
        problems += [("bent", 1.0), ("picky", SPREAD), ("tiled", SPREAD)]
    for name, spread in problems:
        rng = np.random.default_rng([dim, value_dim])
        q = _longer(rng, (1, 2, queries, dim), dtype, spread)
        k, v = (_longer(rng, (1, 1, keys, last), dtype) for last in (dim, value_dim))
        # The kernel compared with gets every problem as a mask, so that it is one program.
        seen = np.ones((1, 1, queries, keys), bool)
        options: dict = {}
        more = {"bent": _bent, "picky": _picky}[name](rng, queries, keys) if name in ("bent", "picky") else OFF
        tested = pin(with_classes(view_of(device)) if name == "tiled" else view_of(device), choice)
        if name == "causal":
            options["causal"], seen = True, np.tril(seen, keys - queries)
        elif name == "masked":
            seen = rng.random(seen.shape) < 0.7
            seen[:, :, 3] = False
            options.update(mask=seen, return_lse=True)
        elif name == "bent":
            options["return_lse"] = True
        elif name == "picky":
            seen = rng.random(seen.shape) < 0.9
            options.update(mask=seen, return_lse=True)
        elif name == "tiled":
            seen = rng.random(seen.shape) < 0.7
            more = _tiled(rng, seen, variant.tile["rows"], variant.tile.get("keys", 64))
            options.update(mask=seen, return_lse=True)
        got = _run(tested, q, k, v, options=more, **options)
        wrong = _wrong(name, trusted, got, variant.dtype, q, k, v, seen, more)
        if wrong is not None:
            return wrong
    return None


def _wrong(
    name: str, trusted: Device, got: list, dtype: str, q, k, v, seen: np.ndarray, options: Options = OFF
) -> str | None:
    """What sets O, and the log-sum-exp if there is one, apart from the trusted kernel's, and in which problem."""
    expected, expected_lse = _run(trusted, q, k, v, mask=seen, return_lse=True, options=options)
    magnitude = _run(trusted, q, k, np.abs(v), mask=seen, return_lse=True, options=options)[0].astype(np.float64)
    wide = [np.abs(array.astype(np.float64))[:, :, :-8] for array in (q, k)]
    scores = float(np.max(wide[0] @ wide[1].swapaxes(2, 3))) / q.shape[3] ** 0.5
    off = difference(got[0], expected, attention_bound(magnitude, scores, dtype), dtype)
    if off is None and len(got) > 1:
        lse_bound = (HIGH_BOUND if dtype == "float32" else ROUNDING[dtype]) * max(1.0, scores / 8)
        off = difference(got[1], expected_lse, np.float64(lse_bound), "float32")
        off = off and f"log-sum-exp, {off}"
    if off is None:
        return None
    queries, keys = (array.shape[2] - 8 for array in (q, k))
    return f"{name} attention of {queries} queries to {keys} keys, D = {q.shape[3]}, Dv = {v.shape[3]}: {off}"


def _tiled_attention(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """A mask, and a map of blocks: each with tiles that are hidden as a whole, and rows that see nothing."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    tested = pin(with_classes(view_of(device)), choice)
    trusted = pin(view_of(device), proven(device, "attention", variant.dtype, facts, NAIVE))
    rows, size = variant.tile["rows"], variant.tile["keys"]
    queries, keys = 2 * rows + 5, 3 * size + 3
    for name in ("masked", "block-sparse"):
        rng = np.random.default_rng([dim, value_dim])
        q = _longer(rng, (1, 2, queries, dim), dtype, SPREAD)
        k, v = (_longer(rng, (1, 1, keys, last), dtype) for last in (dim, value_dim))
        blocks = np.array([[1, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)[None, None]
        seen = blocks.repeat(rows, 2).repeat(size, 3)[:, :, :queries, :keys]
        options: dict = {"options": Options(block_map=blocks, block_size=(rows, size))}
        if name == "masked":
            seen = seen & (rng.random((1, 2, queries, keys)) < 0.6)
            seen[:, :, 3] = False
            options = {"mask": seen}
        got = _run(tested, q, k, v, kernel=variant.family, return_lse=True, **options)
        wrong = _wrong(name, trusted, got, variant.dtype, q, k, v, seen)
        if wrong is not None:
            return wrong
    return None


def _shares(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Two shares of the keys, plain and causal, with the log-sum-exp."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    tested = pin(view_of(device), choice)
    trusted = pin(view_of(device), proven(device, "attention", variant.dtype, facts, NAIVE))
    queries, keys = variant.tile["rows"] + 5, 3 * variant.tile["keys"] + 3
    for name in ("plain", "causal"):
        rng = np.random.default_rng([dim, value_dim])
        q = _longer(rng, (1, 2, queries, dim), dtype, SPREAD)
        k, v = (_longer(rng, (1, 1, keys, last), dtype) for last in (dim, value_dim))
        seen = np.ones((1, 1, queries, keys), bool)
        if name == "causal":
            seen = np.tril(seen, keys - queries)
        got = _run(tested, q, k, v, kernel=variant.family, return_lse=True, causal=name == "causal")
        wrong = _wrong(name, trusted, got, variant.dtype, q, k, v, seen)
        if wrong is not None:
            return wrong
    return None


def _backward(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Gradients of grouped heads over odd numbers of rows, some hidden ones NaN, against those of vector units."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    operation = variant.operation
    stored = operation == backward_stored.OPERATION
    trusted = proven(device, "attention-backward-dq" if stored else operation, variant.dtype, facts)
    queries, keys = 2 * variant.tile["rows"] + 77, 2 * variant.tile["rows"] + 101
    for name in ("plain", "causal", "masked"):
        rng = np.random.default_rng([dim, value_dim])
        q, g = (_longer(rng, (1, 4, queries, last), dtype) for last in (dim, value_dim))
        k, v = (_longer(rng, (1, 2, keys, last), dtype) for last in (dim, value_dim))
        options: dict = {"causal": name == "causal"}
        if name == "masked":
            options["mask"] = rng.random((1, 1, queries, keys)) < 0.7
            options["mask"][:, :, 3] = False
        out, lse = _run(device, q, k, v, return_lse=True, **options)
        tensors = [device.tensor(a)[:, :, :-8] for a in (q, k, v, g)] + [device.tensor(a) for a in (out, lse)]
        mask = options.get("mask")
        tensors += [None if mask is None else device.tensor(mask).broadcast_to((1, 4, queries, keys)), None]
        terms = BackwardTerms(options["causal"], dim**-0.5, keys - queries)
        both = [backward.gradients_by(device, kernel, tensors, terms) for kernel in (choice, trusted)]
        for got, expected in zip(*both, strict=True):
            got, expected = got.numpy(), expected.numpy()
            # The weights and dS are rounded to 16 bits before they multiply; terms are of like size.
            bound = 8 * ROUNDING[variant.dtype] * np.abs(expected.astype(np.float64)).max(initial=1e-3)
            off = difference(got, expected, np.float64(bound), variant.dtype)
            if off is not None:
                return f"gradients, {name}, of {queries} queries to {keys} keys, D = {dim}, Dv = {value_dim}: {off}"
    return None


def _decode(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """As ``_attention``, for kernels that are given few queries and split the keys."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    naive = proven(device, "attention", variant.dtype, facts, NAIVE)
    tested, trusted = pin(view_of(device), choice), pin(view_of(device), naive)
    keys = 2 * variant.tile["keys"] + 67
    ahead = copy.copy(choice)  # as for so many keys that they are loaded ahead
    ahead.tile = {**choice.tile, "ahead": 0}
    problems = [("plain", variant.tile["rows"] + 3, 1, 1.0, choice), ("plain", 3, 1, SPREAD, ahead)]
    if variant.offers:
        problems += [("causal", 4, 5, SPREAD, ahead), ("bent", 2, 9, 1.0, choice)]
    for name, group, queries, spread, how in problems:
        pin(tested, how)
        rng = np.random.default_rng([dim, value_dim])
        kv_heads = 1 if name == "bent" else 2
        q = _longer(rng, (1, kv_heads * group, queries, dim), dtype, spread)
        k, v = (_longer(rng, (1, kv_heads, keys, last), dtype) for last in (dim, value_dim))
        options: dict = {"causal": name == "causal", "options": _bent(rng, queries, keys) if name == "bent" else OFF}
        got, got_lse = _run(tested, q, k, v, kernel=variant.family, return_lse=True, **options)
        expected, expected_lse = _run(trusted, q, k, v, return_lse=True, **options)
        magnitude = _run(trusted, q, k, np.abs(v), **options)[0].astype(np.float64)
        wide = [np.abs(array.astype(np.float64))[:, :, :-8] for array in (q, np.repeat(k, group, 1))]
        scores = float(np.max(wide[0] @ wide[1].swapaxes(2, 3))) / dim**0.5
        off = difference(got, expected, attention_bound(magnitude, scores, variant.dtype), variant.dtype)
        if off is None:
            bound = np.float64(ROUNDING[variant.dtype] * max(1.0, scores / 8))
            off = difference(got_lse, expected_lse, bound, "float32")
            off = off and f"log-sum-exp, {off}"
        if off is not None:
            return f"{name} attention of {group} x {queries} rows to {keys} keys, D = {dim}, Dv = {value_dim}: {off}"
    return None


# -- linear ----------------------------------------------------------------------------------------------------------


def product_bound(result: np.ndarray, magnitude: np.ndarray, dtype: str) -> np.ndarray:
    """The largest difference expected between two kernels' products.

    ``result`` is the product, ``magnitude`` the product of the absolute values. For 16-bit types: a rounding of the
    result for each of the two, and float32's over the sum, where matrix units may truncate; for float32 HIGH_BOUND.
    """
    if dtype != "float32":
        return 2 * ROUNDING[dtype] * np.abs(result) + 2.0**-18 * magnitude + 1e-7
    return HIGH_BOUND * magnitude + 1e-7


def _linear(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    align, tile = variant.align, variant.tile
    step = max(align, variant.limits.get("depth_align", (1, 1))[0])  # of the depth
    odd_cols = align if align > 1 else 3
    block_rows, block_cols = 2 * tile["rows"], 2 * tile["cols"]
    odd = (block_rows + 5, block_cols + odd_cols, 193 // step * step)
    problems = [odd, (block_rows, block_cols, 256)]  # whole blocks may be another program
    if "fill" in tile:  # and so may a depth that subgroups and workgroups divide
        problems.append((tile["rows"] - 1, 16 + odd_cols, 4201 // step * step))
    for rows, cols, depth in problems:
        facts = {"align": align, "rows": rows, "cols": cols, "outputs": rows * cols, "high": 0}
        trusted = pin(view_of(device), proven(device, "linear", variant.dtype, facts))
        tested = pin(view_of(device), choice)
        rng = np.random.default_rng([rows, cols])
        x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, depth), (cols, depth), cols))
        bias = bias if (rows, cols, depth) == odd else None
        got, expected = (linear(where, x, weight, bias) for where in (tested, trusted))
        magnitude = np.abs(x.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T
        magnitude += 0 if bias is None else np.abs(bias.astype(np.float64))
        bound = product_bound(expected.astype(np.float64), magnitude, variant.dtype)
        off = difference(got, expected, bound, variant.dtype)
        if off is not None:
            return f"linear, {rows} x {cols} x {depth}: {off}"
    return None
