"""backward() is of the forward() that ran, whatever a layer's weights and settings are by then."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from grilly import nn

X = np.random.default_rng(0).standard_normal((2, 4, 8), dtype=np.float32)
ROPE = {"rope_type": "linear", "factor": 2.0}


def _doubled(module):
    for parameter in module.parameters():
        parameter.data = parameter.numpy() * 2


def _set(**settings):
    def change(module):
        for name, value in settings.items():
            setattr(module, name, value)

    return change


LAYERS = [
    (lambda: nn.Linear(8, 8, rng=0), _doubled),
    (lambda: nn.Linear(8, 8, rng=0), _set(precision="high")),
    (lambda: nn.LayerNorm(8), _doubled), (lambda: nn.LayerNorm(8), _set(eps=3.0)),
    (lambda: nn.RMSNorm(8), _doubled), (lambda: nn.RMSNorm(8), _set(weight_offset=3.0)),
    (lambda: nn.GroupNorm(2, 4), _doubled), (lambda: nn.GroupNorm(2, 4), _set(eps=3.0, num_groups=4)),
    (lambda: nn.Conv1d(4, 4, 3, padding=1, rng=0), _doubled),
    (lambda: nn.Conv1d(4, 4, 3, padding=1, rng=0), _set(padding=(0,))),
    (lambda: nn.MultiheadAttention(8, 2, rng=0), _doubled),
    (lambda: nn.MultiheadAttention(8, 2, kdim=8, vdim=8, architecture="t5", rng=0), _doubled),
    (lambda: nn.MultiheadAttention(8, 2, rng=0), _set(num_heads=4)),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, rng=0), _doubled),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, rng=0), _set(norm_first=True)),
    (lambda: nn.Dropout(0.5), _set(p=0.1)),
    (lambda: nn.GELU(), _set(approximate="tanh")), (lambda: nn.Softmax(), _set(dim=1)),
    (lambda: nn.LogSoftmax(), _set(dim=1)), (lambda: nn.GLU(), _set(dim=1)),
    (lambda: nn.RoPE(8), _set(base=10.0, interleaved=True, scaling=ROPE, dim=4)),
    (lambda: nn.Sequential(nn.Linear(8, 8, rng=0), nn.SiLU()), lambda m: m.append(nn.ReLU())),
    (lambda: nn.Sequential(nn.Linear(8, 8, rng=0), nn.SiLU()), lambda m: m.__setitem__(1, nn.ReLU())),
    (lambda: nn.Sequential(nn.Linear(8, 8, rng=0), nn.SiLU()), _doubled),
]  # fmt: skip


def _gradients(module, *change):
    grilly.manual_seed(0)
    module.train()
    y = module(X)
    y = y[0] if isinstance(y, tuple) else y
    for each in change:
        each(module)
    found = module.backward(np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape))
    found = found if isinstance(found, tuple) else (found,)
    return [each for each in (*found, *(p.grad for p in module.parameters())) if each is not None]


@pytest.mark.parametrize("make, change", LAYERS)
def test_gradients_are_of_the_forward_that_ran(default, make, change):
    wanted, found = _gradients(make()), _gradients(make(), change)
    changed = make()
    change(changed)
    other = _gradients(changed)
    assert isinstance(changed, nn.Linear) or any(
        a.shape != b.shape or not np.array_equal(a, b) for a, b in zip(wanted, other, strict=True)
    ), "the change matters"
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_table_of_embeddings_loses_no_padding(default):
    table = nn.Embedding(5, 3, padding_idx=1, rng=0).train()
    y = table(np.array([0, 1, 2]))
    table.padding_idx, table.num_embeddings = None, 9
    table.backward(np.ones_like(y))
    assert table.weight.grad.shape == (5, 3) and not table.weight.grad[1].any()


def test_a_loss_is_that_of_forward(default):
    target, weight = np.array([0, 3, 1, 7]), np.linspace(1, 2, 8, dtype=np.float32)
    loss = nn.CrossEntropyLoss(weight.copy()).train()
    loss(X[0], target)
    wanted = loss.backward(np.ones((), np.float32))
    loss(X[0], target)
    loss.weight[:] = 5.0
    loss.reduction, loss.label_smoothing, loss.ignore_index = "sum", 0.5, 3
    np.testing.assert_array_equal(loss.backward(np.ones((), np.float32)), wanted)


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(8, 8, rng=0), lambda: nn.LayerNorm(8), lambda: nn.RMSNorm(8), lambda: nn.GroupNorm(2, 4),
     lambda: nn.Conv1d(4, 4, 1, rng=0), lambda: nn.MultiheadAttention(8, 2, rng=0),
     lambda: nn.MultiheadAttention(8, 2, kdim=8, vdim=8, architecture="t5", rng=0)],
)  # fmt: skip
def test_a_weight_that_is_written_to_is_refused(default, make):
    """Of Tensors nobody has what they were."""
    module = make()
    for parameter in module.parameters():
        parameter.data = default.tensor(parameter.numpy())
    _gradients(module)
    weight = next(module.parameters()).data

    def write(module):
        nonlocal weight
        weight *= 100

    with pytest.raises(RuntimeError, match="or had as a weight was changed in place"):
        _gradients(module, write)


def test_a_mask_or_bias_that_is_written_to_is_refused(default):
    layer, mask = nn.MultiheadAttention(8, 2, rng=0).train(), default.tensor(np.ones((4, 4), bool))
    y, _ = layer(X, X, X, mask=mask, need_weights=False)
    mask[0] = False
    with pytest.raises(RuntimeError, match="changed in place"):
        layer.backward(y)
