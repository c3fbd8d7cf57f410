"""What the interfaces to other libraries hold: tasks of Dask, names of ONNX, operators of PyTorch, copied layers."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import pickle

import numpy as np
import pytest

import grilly
from grilly import nn, reference
from grilly.compute.attention.options import OFF
from grilly.compute.attention.t5 import bucket_starts
from grilly.reference import sums
from test_nn_copies import pickled
from test_onnx_names import info, node, proto_of, siblings
from test_torch import compare, leaves

if importlib.util.find_spec("torch"):
    import torch

    import grilly.torch
    from grilly.torch.attention import _NO_ARRAYS, _NO_TERMS, _ORDER, AttentionOptions


def test_a_backend_is_kept_by_copies_alone(vulkan_backend):
    layer = nn.Linear(3, 2, rng=0).to(vulkan_backend)
    assert copy.deepcopy(layer)._backend is copy.copy(layer)._backend is vulkan_backend
    assert pickled(layer)._backend is None


def test_it_is_lazy(monkeypatch):
    """Making the graph opens no device and reads no chunk."""
    grilly_dask, da = pytest.importorskip("grilly.dask"), pytest.importorskip("dask.array")

    def fail(*arguments, **options):
        raise AssertionError("touched")

    monkeypatch.setattr(grilly_dask, "default_backend", fail)
    array = da.map_blocks(fail, chunks=((1,), (2,), (50, 50), (32,)), dtype=np.float32, meta=np.empty((0,) * 4, "f4"))
    assert grilly_dask.flash_attention(array, array, array, causal=True).shape == (1, 2, 100, 32)


def test_tasks_can_be_sent():
    """What a task holds is pickled by name: no lock and no open device goes with it."""
    grilly_dask = pytest.importorskip("grilly.dask")
    for function in (grilly_dask._attend_chunk, grilly_dask.join, grilly_dask._output_of):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.needs("onnx", "ml_dtypes")
def test_names_become_unique_and_follow_their_owners():
    from grilly.onnx import names

    found = names.unique(siblings())
    owned = [name for graph in names.graphs(found.graph) for name in names._owned(graph)]
    assert len(owned) == len(set(owned))
    assert [each.name for each in found.graph.output] == ["y"]
    plain = proto_of([node("Neg", ["x"], ["y"])], [info("x", 1, [2])], ["y"])
    assert names.unique(plain) is plain  # weights are copied only where they must be


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("default")
def test_memory_is_shared_and_strides_are_kept():
    base = torch.randn(2, 5, 3, 16)
    array = grilly.torch.arrays.array_of(base.transpose(1, 2))
    assert array.ctypes.data == base.data_ptr() and array.shape == (2, 3, 5, 16)
    narrow = base.bfloat16()
    assert grilly.torch.arrays.array_of(narrow).ctypes.data == narrow.data_ptr()
    q = base.transpose(1, 2).requires_grad_()
    compare([q, q.detach(), q.detach()], {})


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("default")
def test_every_option_is_there():
    """An option of the functions on arrays is an argument here, with its default; but a seed is drawn.

    Functions are those of flex_attention.
    """
    given = inspect.signature(grilly.torch.attention).parameters
    for name, default in vars(OFF).items():
        if name in ("score_mod", "mask_mod"):
            continue
        assert given[name].default == (None if name == "dropout_seed" else default), name
    keywords = {name for name, one in given.items() if one.kind is one.KEYWORD_ONLY}
    assert keywords - {"return_lse"} == set(AttentionOptions.__annotations__)


def call(**given):
    options = {**_NO_ARRAYS, **_NO_TERMS, **given}
    return [options[name] for name in _ORDER]


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("default")
def test_the_operators_are_registered_right(count):
    q, k, v = leaves((2, 2, 5, 16), (2, 1, 7, 16), (2, 1, 7, 8))
    (bias,) = leaves((1, 2, 5, 7))
    (sinks,) = leaves((2,))
    calls = [
        (q, k, v, *call(attn_bias=bias, sinks=sinks, scale=0.25)),
        (q.detach(), k.detach(), v.detach(), *call(mask=torch.rand(5, 7) > 0.3, scale=0.25, causal=True)),
    ]
    arguments = [x.detach() if torch.is_tensor(x) else x for x in calls[0]]
    out, lse = torch.ops.grilly.attention(*arguments)
    backward = [
        (torch.randn_like(out), grad_lse, out, lse, *arguments[:-2], True, False, True)
        for grad_lse in (None, torch.randn_like(lse))
    ]
    checked = {"attention": calls, "attention_backward": backward}
    names = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("grilly::")}
    assert names == set(checked)
    numbers = {"operators": len(checked), "calls": 0, "checks of torch.library.opcheck passed": 0}
    for name, given in checked.items():
        for arguments in given:
            result = torch.library.opcheck(getattr(torch.ops.grilly, name).default, arguments)
            assert set(result.values()) == {"SUCCESS"}, result
            numbers["calls"] += 1
            numbers["checks of torch.library.opcheck passed"] += len(result)
    count(f"PyTorch's operators, torch {torch.__version__}", numbers)


# -- grilly.reference -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exp", "log", "tanh"])
def test_portable_functions_are_rounded_once(name):
    x = np.linspace(0.01, 20, 1001, dtype=np.float32)
    with reference.portable():
        got = getattr(sums, name)(x)
    np.testing.assert_array_equal(got, getattr(np, name)(x.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("buckets, max_distance", [(16, 128), (8, 20), (16, 17), (32, 5000), (3, 4)])
def test_bucket_starts(buckets, max_distance):
    exact = buckets // 2
    starts = bucket_starts(buckets, max_distance)
    distance = np.arange(exact, 2 * max_distance)
    want = reference.t5_bucket(-distance, False, buckets, max_distance)
    assert (exact + np.searchsorted(starts, distance, side="right") - 1 == want).all()
