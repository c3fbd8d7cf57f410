"""Module and Parameter: registration, state dicts, text. Needs no device."""

import numpy as np
import pytest

from grilly import nn


def two_layers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 4, rng=0)
            self.rest = nn.ModuleList([nn.Linear(4, 2, bias=False, rng=1)])
            self.scale = nn.Parameter(np.ones(2, np.float32))

    return Net()


def test_names_and_order():
    net = two_layers()
    names = ["scale", "first.weight", "first.bias", "rest.0.weight"]
    assert [name for name, _ in net.named_parameters()] == list(net.state_dict()) == names
    assert [p.shape for p in net.parameters()] == [(2,), (4, 3), (4,), (2, 4)]
    assert [name for name, _ in net.named_modules()] == ["", "first", "rest", "rest.0"]
    assert [name for name, _ in net.named_children()] == ["first", "rest"]
    assert list(net.children()) == [net.first, net.rest]
    assert net.rest[0].in_features == 4 and len(net.rest) == 1


def test_a_shared_parameter_is_listed_once_and_saved_under_both_names():
    net = two_layers()
    net.tied = net.first
    assert len(list(net.parameters())) == 4
    assert {"first.weight", "tied.weight"} <= set(net.state_dict())
    net.load_state_dict(net.state_dict())


def test_state_goes_round():
    one, two = two_layers(), two_layers()
    two.first.weight.data = np.zeros((4, 3), np.float32)
    result = two.load_state_dict(one.state_dict())
    assert result == ([], [])
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(two.state_dict()[name], array)


def test_load_lists_every_misfit_and_changes_nothing():
    net = two_layers()
    before = net.state_dict()
    state = {**before, "first.weight": np.zeros((4, 9), np.float32), "extra": np.zeros(1), "scale": np.full(2, 7.0)}
    del state["first.bias"]
    with pytest.raises(ValueError) as error:
        net.load_state_dict(state)
    for words in ("missing: first.bias", "unexpected: extra", "first.weight has shape (4, 9), expected (4, 3)"):
        assert words in str(error.value)
    for name, array in net.state_dict().items():
        assert array is before[name]


def test_load_not_strict():
    net = two_layers()
    state = {"scale": np.full(2, 7.0), "extra": np.zeros(1)}  # float64 is cast
    result = net.load_state_dict(state, strict=False)
    assert result.missing_keys == ["first.weight", "first.bias", "rest.0.weight"]
    assert result.unexpected_keys == ["extra"]
    assert net.scale.dtype == np.float32 and (net.scale.numpy() == 7).all()
    with pytest.raises(ValueError, match="scale has shape"):
        net.load_state_dict({"scale": np.zeros(3)}, strict=False)
    with pytest.raises(TypeError, match="scale is int64; expected a floating"):
        net.load_state_dict({"scale": np.zeros(2, np.int64)}, strict=False)


def test_load_takes_torch_tensors_by_their_methods():
    class Like:
        """What load_state_dict may use of a torch.Tensor."""

        dtype = "torch.bfloat16"

        def detach(self):
            return self

        cpu = detach

        def float(self):
            return Array()

    class Array:
        def numpy(self):
            return np.full(2, 5, np.float32)

    net = two_layers()
    net.load_state_dict({"scale": Like()}, strict=False)
    assert (net.scale.numpy() == 5).all()


@pytest.mark.needs("torch")
def test_live_torch_state():
    torch = pytest.importorskip("torch", reason="torch is not installed; the recorded state dicts are used instead")
    source = torch.nn.MultiheadAttention(8, 2, dtype=torch.bfloat16)
    layer = nn.MultiheadAttention(8, 2)
    layer.load_state_dict(source.state_dict())
    np.testing.assert_array_equal(layer.in_proj_weight.numpy(), source.in_proj_weight.detach().float().numpy())
    state = source.state_dict() | {"in_proj_weight": source.in_proj_weight.to(torch.float8_e4m3fn)}
    with pytest.raises(TypeError, match=r"in_proj_weight is torch.float8_e4m3fn.*give in_proj_weight.float\(\)"):
        layer.load_state_dict(state)


def test_parameters_are_read_only_copies():
    source = np.ones((2, 2), np.float32)
    parameter = nn.Parameter(source)
    source[:] = 9
    assert (parameter.numpy() == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        parameter.data[0] = 3
    parameter.data = np.zeros(3, np.float32)
    assert parameter.shape == (3,) and parameter.dtype == np.float32
    parameter.data = np.ones(3, ">f4")
    assert parameter.numpy().tolist() == [1, 1, 1]
    assert np.asarray(nn.Parameter(np.zeros(3, np.float16))).dtype == np.float16
    with pytest.raises(TypeError, match="float64.*astype"):
        nn.Parameter(np.zeros(3))


@pytest.mark.parametrize("held", ["array", "Tensor"])
def test_a_step_in_float32_does_not_widen_a_parameter(vulkan_backend, held):
    half = np.ones(3, np.float16)
    parameter = nn.Parameter(vulkan_backend.tensor(half) if held == "Tensor" else half)
    parameter.grad = np.ones(3, np.float32)
    with pytest.raises(TypeError, match=r"data of dtype float32 for a parameter of float16; .*\.astype\(p.dtype\), or"):
        parameter.data = parameter.data - 0.5 * parameter.grad
    assert parameter.numpy().tolist() == [1, 1, 1]
    parameter.data = (parameter.data - 0.5 * parameter.grad).astype(parameter.dtype)
    assert parameter.dtype == np.float16 and parameter.numpy().tolist() == [0.5] * 3


def test_attributes():
    net = two_layers()
    with pytest.raises(TypeError, match="scale is a parameter; assign nn.Parameter"):
        net.scale = np.ones(2)
    with pytest.raises(TypeError, match="first is a module"):
        net.first = 3
    net.scale = None
    assert net.scale is None and "scale" not in net.state_dict()
    net.scale = nn.Parameter(np.ones(5, np.float32))
    assert net.state_dict()["scale"].shape == (5,)
    del net.first
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'first'"):
        net.first  # noqa: B018

    class Forgot(nn.Module):
        def __init__(self):
            self.x = 1

    with pytest.raises(AttributeError, match="super"):
        Forgot()
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()()


def test_train_and_eval_reach_every_module():
    net = two_layers()
    assert net.training and net.eval() is net
    assert not any(module.training for module in net.modules())
    assert all(module.training for module in net.train().modules())


def test_to_casts_and_checks():
    net = two_layers()
    assert net.to(dtype=np.float16) is net
    assert {p.dtype for p in net.parameters()} == {np.dtype(np.float16)}
    with pytest.raises(TypeError, match="float64"):
        net.to(dtype=np.float64)
    with pytest.raises(TypeError, match="expected a grilly.Compute, got str"):
        net.to("cuda")


def test_text():
    assert repr(two_layers()) == (
        "Net(\n"
        "  (first): Linear(in_features=3, out_features=4, bias=True)\n"
        "  (rest): ModuleList(\n"
        "    (0): Linear(in_features=4, out_features=2, bias=False)\n"
        "  )\n"
        ")"
    )
    assert repr(nn.FlashAttention2(8, 2)) == "FlashAttention2(embed_dim=8, num_heads=2, causal=False)"
    assert repr(nn.RoPE(8)) == "RoPE(dim=8, base=10000.0, interleaved=False)"
    assert "architecture='t5'" in repr(nn.MultiheadAttention(8, 2, architecture="t5"))


def test_first_weights_repeat_with_a_seed():
    one, two, other = (nn.Linear(30, 40, rng=seed) for seed in (3, np.random.default_rng(3), 4))
    np.testing.assert_array_equal(one.weight.numpy(), two.weight.numpy())
    assert (one.weight.numpy() != other.weight.numpy()).any()
    bound = 30**-0.5
    assert 0.9 * bound < np.abs(one.weight.numpy()).max() <= bound
    mha = nn.MultiheadAttention(16, 4, rng=0)
    assert (mha.in_proj_bias.numpy() == 0).all() and (mha.out_proj.bias.numpy() == 0).all()
    assert 0.9 < np.abs(mha.in_proj_weight.numpy()).max() / (6 / 64) ** 0.5 <= 1


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: nn.Linear(0, 3), "at least 1"),
        (lambda: nn.FlashAttention2(10, 4), "embed_dim is 10 and num_heads is 4"),
        (lambda: nn.FlashAttention3(8, 0), "FlashAttention3"),
        (lambda: nn.MultiheadAttention(10, 4), "embed_dim is 10 and num_heads is 4"),
        (lambda: nn.MultiheadAttention(8, 4, architecture="bert"), "architecture is 'bert'"),
        (lambda: nn.MultiheadAttention(8, 4, head_dim=3), "only architecture"),
        (lambda: nn.MultiheadAttention(8, 4, head_dim=0, architecture="t5"), "at least 1"),
        (lambda: nn.RoPE(7), "even"),
        (lambda: nn.RoPE(8, base=0), "positive"),
        (lambda: nn.RoPE(8, scaling={"type": "spiral", "factor": 2}), "spiral"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_every_public_name_has_a_docstring():
    for name in nn.__all__:
        thing = getattr(nn, name)
        assert thing.__doc__, name
        for attribute, value in vars(thing).items():
            if callable(value) and not attribute.startswith("_") and not isinstance(value, property):
                inherited = any(getattr(getattr(base, attribute, None), "__doc__", None) for base in thing.__mro__)
                assert inherited, f"{name}.{attribute}"


def test_another_child_stands_in_the_place_of_the_one_before():
    row = nn.Sequential({"up": nn.Linear(3, 3, rng=0), "act": nn.ReLU()})
    row.up = nn.Linear(3, 3, rng=1)
    assert [name for name, _ in row.named_children()] == ["up", "act"]
    layer = nn.Linear(3, 3, rng=0)
    layer.weight = nn.Parameter(np.zeros((3, 3), np.float32))
    assert list(layer.state_dict()) == ["weight", "bias"]
    layer.bias = nn.ReLU()  # another kind: it leaves the one home for the other
    assert list(layer.state_dict()) == ["weight"] and [name for name, _ in layer.named_children()] == ["bias"]


def test_a_slice_of_a_sequential_takes_more():
    tail = nn.Sequential(*(nn.ReLU() for _ in range(4)))[1:]
    tail.append(nn.ReLU()).append(nn.ReLU())
    assert [name for name, _ in tail.named_children()] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("dtype, most", [("float16", 65504.0), ("bfloat16", 3.3895e38), ("float32", 3.4028e38)])
def test_numbers_that_a_dtype_does_not_hold_are_refused(dtype, most):
    """Before anything is changed; what is infinite stays so."""
    layer = nn.Linear(4, 3, rng=0).to(dtype=dtype)
    before = layer.state_dict()
    state = {"weight": np.full((3, 4), 10 * most), "bias": np.zeros(3)}
    with pytest.raises(OverflowError, match=f"load_state_dict: weight: numbers past .*, which {dtype} does not hold"):
        layer.load_state_dict({"bias": state["bias"], "weight": state["weight"]})
    for name, array in layer.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    layer.load_state_dict({"weight": np.full((3, 4), np.inf), "bias": np.full(3, most)})
    assert np.isinf(layer.weight.numpy()).all() and np.isfinite(layer.bias.numpy()).all()


@pytest.mark.parametrize("held", ["array", "Tensor"])
def test_to_a_dtype_that_does_not_hold_the_numbers(vulkan_backend, held):
    layer = nn.Sequential(nn.Linear(4, 3, rng=0), nn.Linear(3, 2, rng=1))
    weight = np.full((2, 3), 1e6, np.float32)
    weight[0] = np.nan, np.inf, 1.0
    layer[1].weight = nn.Parameter(vulkan_backend.tensor(weight) if held == "Tensor" else weight)
    with pytest.raises(OverflowError, match=r"to: 1.weight: numbers past 65504, which float16 does not hold"):
        layer.to(dtype="float16")
    assert {p.dtype.name for p in layer.parameters()} == {"float32"}
    layer.to(dtype="bfloat16")
    with pytest.raises(OverflowError, match=r"1.weight: numbers past 65504"):
        layer.to(dtype="float16")
    weight[1] = 65504
    layer[1].weight = nn.Parameter(vulkan_backend.tensor(weight) if held == "Tensor" else weight)
    assert layer.to(dtype="float16")[1].weight.numpy()[1].tolist() == [65504.0] * 3


def test_names_of_parts_are_among_its_attributes():
    layer = nn.TransformerEncoderLayer(8, 2, 16, rng=0)
    assert {"self_attn", "linear1", "forward", "training"} <= set(dir(layer))
    assert {"weight", "bias"} <= set(dir(layer.linear1))


@pytest.mark.parametrize("state", [None, "weights.npz", [("weight", 1)]])
def test_a_state_that_is_no_mapping(state):
    with pytest.raises(TypeError, match="load_state_dict: state is a .*; expected names with arrays"):
        nn.Linear(2, 2).load_state_dict(state)
