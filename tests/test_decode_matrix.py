"""Decoding on matrix units (flash-decode-matrix), against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import leftout
from cases import Case, assert_as_accurate, check_bfloat16, expected, lse_magnitude, make_arrays, output_magnitude
from kernels import need, request, retiled

FAMILY = "flash-decode-matrix"
FACTS = {"align": 8, "head_dim": 128, "value_dim": 128, "masked": 0, "rows": 4}


def left_out(registry, item):
    """All but the few that need no such kernel."""
    if "choice" in item.fixturenames:
        return leftout.unserved(registry, request("attention-decode", "float16", FAMILY, **FACTS))
    return None


@pytest.fixture
def choice(backend):
    """The variant for heads of up to 128; skips, saying what the device lacks, where there is none."""
    return need(backend, "attention-decode", "float16", FAMILY, **FACTS)


def check(backend, case: Case, arrays=None):
    q, k, v, _ = arrays or make_arrays(case, np.float16)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, None)
    out, lse = backend.attention.flash_attention2(
        *(backend.tensor(a) for a in (q, k, v)), scale=case.scale, causal=case.causal, return_lse=True, kernel=FAMILY
    )
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, None))
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, q, k, plain_lse))


CASES = [
    *(Case(f"keys-{n}", heads=4, kv_heads=2, queries=1, keys=n) for n in (1, 7, 16, 17, 257, 1023)),
    *(Case(f"group-{n}", heads=2 * n, kv_heads=2, queries=1, keys=200) for n in (1, 3, 7, 8, 9, 13)),
    *(Case(f"dim-{n}", heads=3, kv_heads=1, queries=2, keys=100, dim=n) for n in (8, 16, 40, 64, 72, 80, 128)),
    *(Case(f"queries-{n}", heads=4, kv_heads=2, queries=n, keys=115) for n in (2, 5, 19)),
    Case("causal-one", heads=4, kv_heads=2, queries=1, keys=115, causal=True),
    Case("value-wider", heads=2, queries=3, keys=290, dim=32, value_dim=80),
    Case("value-narrower", heads=2, queries=3, keys=290, dim=96, value_dim=8),
    Case("scale", heads=2, queries=1, keys=290, scale=0.7),
    Case("scale-negative", heads=2, queries=1, keys=290, scale=-0.3),
    Case("scale-zero", heads=2, queries=1, keys=290, scale=0.0),
    Case("batch", batch=5, heads=2, queries=1, keys=290),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float16(backend, choice, case):
    check(backend, case)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_splits_and_workgroups(backend, choice, stages):
    size = choice.subgroup_size or backend.device.subgroup_sizes[0]
    case = Case("partition", heads=5, kv_heads=1, queries=2, keys=1030, dim=128)
    for rows, keys, subgroups in ((8, 64, 1), (5, 100000, 2), (3, 100, 4)):
        with retiled(backend, FAMILY, subgroups * size, stages=stages, ahead=0, rows=rows, keys=keys):
            check(backend, case)


@pytest.mark.parametrize("case", [c for c in CASES if c.dim in (40, 64, 80, 128)], ids=str)
def test_bfloat16(backend, choice, case):
    need(backend, "attention-decode", "bfloat16", FAMILY, **FACTS)
    check_bfloat16(backend, case, FAMILY)


def test_growing_and_large_scores(backend, choice):
    """Maxima that rise at every key, past what 16 bits hold."""
    case = Case("large", heads=4, kv_heads=2, queries=1, keys=300)
    q, k, v, mask = make_arrays(case, np.float16)
    check(backend, case, (q * 100, k * 100, v, mask))
    growing = (np.abs(k) * np.linspace(0.01, 8, 300)[:, None]).astype(np.float16)
    check(backend, case, (np.abs(q), growing, v, mask))
    check(backend, case, (-np.abs(q), growing, v, mask))


def test_nothing_past_the_keys_counts(backend, choice):
    case = Case("window", heads=4, kv_heads=2, queries=1, keys=300)
    q, k, v, _ = make_arrays(case, np.float16)
    run = backend.attention.flash_attention2
    want = run(q, np.ascontiguousarray(k[:, :, :275]), np.ascontiguousarray(v[:, :, :275]), kernel=FAMILY)
    k[:, :, 275:] = np.nan
    v[:, :, 275:] = np.inf
    got = run(backend.tensor(q), *(backend.tensor(a)[:, :, :275] for a in (k, v)), kernel=FAMILY).numpy()
    assert (got == want).all()


def test_repeats_are_equal_to_the_bit(backend, choice):
    arrays = make_arrays(Case("repeat", heads=8, kv_heads=2, queries=1, keys=600), np.float16)
    tensors = [backend.tensor(a) for a in arrays[:3]]
    first = backend.attention.flash_attention2(*tensors, kernel=FAMILY).numpy()
    for _ in range(20):
        assert (backend.attention.flash_attention2(*tensors, kernel=FAMILY).numpy() == first).all()


def test_dropout_is_refused_by_name(backend, choice):
    q, k, v, _ = make_arrays(Case("dropout", heads=2, queries=1, keys=100), np.float16)
    with pytest.raises(grilly.UnsupportedError, match="dropout"):
        backend.attention.flash_attention2(q, k, v, dropout_p=0.5, dropout_seed=1, kernel=FAMILY)
