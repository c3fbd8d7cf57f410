"""TransformerEncoderLayer and TransformerDecoderLayer on a device, against PyTorch's recorded results and gradients."""

import numpy as np
import pytest

import goldens
import grilly
from grilly import nn


def made(backend, case, **options):
    kind = nn.TransformerDecoderLayer if case.arguments["decoder"] else nn.TransformerEncoderLayer
    layer = kind(**case.arguments["module"], **options).to(backend)
    layer.load_state_dict(case.state)
    assert set(layer.state_dict()) == set(case.state)
    return layer


def call(layer, case, send=lambda array: array):
    options = {"mask": case.mask, "causal": case.arguments["causal"]}
    if case.arguments["decoder"]:
        return layer(send(case.x), send(case.memory), memory_mask=case.memory_mask, **options)
    return layer(send(case.x), **options)


def close(got, want, tolerance=5e-5):
    """Six float32 products and norms in a row, of numbers near 1."""
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max()))


@pytest.mark.parametrize("name", goldens.cases("transformer"))
def test_equals_torch_and_loads_its_state(backend, name):
    case = goldens.cases("transformer")[name]
    layer = made(backend, case)
    close(call(layer.eval(), case), case.output)
    tensor = call(layer, case, backend.tensor)
    assert isinstance(tensor, grilly.Tensor)
    close(tensor.numpy(), case.output)


@pytest.mark.parametrize("name", goldens.cases("transformer"))
def test_gradients_equal_torchs(backend, name):
    case = goldens.cases("transformer")[name]
    layer = made(backend, case).train()
    close(call(layer, case), case.output)
    found = layer.backward(case.grad_output)
    grad_x, *grad_memory = found if case.arguments["decoder"] else (found,)
    close(grad_x, case.grad_x)
    for grad in grad_memory:
        close(grad, case.grad_memory)
    for key, parameter in layer.named_parameters():
        want = getattr(case, f"grad/{key}")
        close(parameter.grad, want.reshape(parameter.shape))
    with pytest.raises(RuntimeError, match="train"):
        layer.backward(case.grad_output)


def test_one_sequence_alone(backend):
    case = goldens.cases("transformer")["encoder"]
    layer = made(backend, case).eval()
    close(layer(case.x[0]), case.output[0])


def test_captured(vulkan_backend):
    """A captured layer gives the bits of the layer."""
    case = goldens.cases("transformer")["encoder_first"]
    layer = made(vulkan_backend, case).eval()
    x, mask = vulkan_backend.tensor(case.x), vulkan_backend.tensor(case.mask)
    graph = vulkan_backend.capture(lambda x: layer(x, mask=mask), x)
    assert np.array_equal(graph(x).numpy(), layer(x, mask=mask).numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_sixteen_bits(backend, dtype):
    case = goldens.cases("transformer")["encoder"]
    layer = made(backend, case).to(dtype=dtype).eval()
    got = layer(case.x.astype(layer.linear1.weight.dtype))
    assert got.dtype == layer.linear1.weight.dtype
    epsilon = 2.0**-10 if dtype == "float16" else 2.0**-7
    assert np.abs(got.astype(np.float64) - case.output).max() < 16 * epsilon


def test_dropping(backend):
    case = goldens.cases("transformer")["encoder"]
    options = {**case.arguments["module"], "dropout": 0.5}
    layer = nn.TransformerEncoderLayer(**options).to(backend)
    layer.load_state_dict(case.state)
    grilly.manual_seed(1)
    first = layer.train()(case.x)
    assert layer.backward(case.grad_output).shape == case.x.shape
    grilly.manual_seed(1)
    assert np.array_equal(layer(case.x), first)
    assert not np.allclose(layer(case.x), first, atol=1e-3)
    close(layer.eval()(case.x), case.output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "swish"}, "activation is 'swish'; expected one of"),
        ({"nhead": 5}, "5"),
        ({"dropout": 2}, "p is"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        nn.TransformerEncoderLayer(**{"d_model": 12, "nhead": 3, **options})


def test_bad_input(backend):
    layer = nn.TransformerDecoderLayer(12, 3, 8, rng=0).to(backend).eval()
    x = np.zeros((2, 5, 12), np.float32)
    with pytest.raises(ValueError, match="12"):
        layer(x[..., :11], x)
    with pytest.raises(ValueError, match="must be equal"):
        layer(x, x[:1])
    with pytest.raises(TypeError, match="memory is a list"):
        layer(x, [1.0])


class Doubled(nn.Linear):
    """A layer of somebody's own."""

    def forward(self, input):
        return super().forward(input) * 2


class NoLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16, rng=3)

    def forward(self, input):
        return self.inner(input)


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("activation", nn.SiLU()), ("activation", nn.GELU("tanh")), ("activation", nn.Tanh()),
        ("linear1", Doubled(8, 16, rng=3)), ("linear1", NoLinear()), ("norm1", nn.RMSNorm(8)), ("norm2", nn.Identity()),
    ],
    ids=["silu", "gelu", "tanh", "subclass", "module", "rms", "identity"],
)  # fmt: skip
def test_another_part_is_used(vulkan_backend, decoder, name, part):
    """After eval() as after train()."""
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    layer = kind(8, 2, 16, dropout=0.0, rng=1).to(vulkan_backend).eval()
    x = np.random.default_rng(0).standard_normal((2, 5, 8), dtype=np.float32)
    arrays = (x, x[:, :3]) if decoder else (x,)
    plain = layer(*arrays)
    setattr(layer, name, part)
    found = layer.to(vulkan_backend).eval()(*arrays)
    np.testing.assert_allclose(found, layer.train()(*arrays), rtol=1e-5, atol=1e-5)
    assert np.abs(found - plain).max() > 1e-3


@pytest.mark.parametrize("name", ["dropout", "dropout1"])
def test_dropout_that_trains_in_a_layer_that_does_not(vulkan_backend, name):
    """As for estimates of uncertainty (Gal and Ghahramani 2016)."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, rng=1).to(vulkan_backend).eval()
    x = np.ones((1, 5, 8), np.float32)
    assert np.array_equal(layer(x), layer(x))
    getattr(layer, name).train()
    assert not np.array_equal(layer(x), layer(x))
