"""Nodes of com.microsoft, and their inputs: tests/golden/make_fused.py gives them to ONNX Runtime, tests to grilly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

B, S, H, D = 2, 5, 4, 16
W = H * D
PAST = 3


class Case(NamedTuple):
    """A node: inputs are arrays, None for those left out; ``outputs``: whether each has a name.

    ``rows``: of each text so many rows of the first output are compared; the others are padding.
    """

    name: str
    inputs: tuple[np.ndarray | None, ...]
    outputs: tuple[bool, ...]
    attributes: dict[str, Any]
    rows: tuple[int, ...] = ()


def ints(*values, dtype=np.int32):
    return np.array(values, dtype)


def cases() -> dict[str, Case]:
    """All of them, by name; the numbers are the same on every machine."""
    random = np.random.RandomState(7)

    def f(*shape, scale=1.0):
        return ((random.random_sample(shape) * 2 - 1) * scale).astype(np.float32)

    found: dict[str, Case] = {}

    def case(label, name, *inputs, outputs=(True,), rows=(), **attributes):
        found[label] = Case(name, inputs, outputs, attributes, rows)

    case("gelu", "Gelu", f(3, 9, scale=4))
    case("bias-gelu", "BiasGelu", f(2, 3, 9, scale=4), f(9))
    case("fast-gelu", "FastGelu", f(3, 9, scale=4))
    case("fast-gelu-bias", "FastGelu", f(3, 9, scale=4), f(9))
    case("quick-gelu", "QuickGelu", f(3, 9, scale=4))
    case("quick-gelu-alpha", "QuickGelu", f(3, 9, scale=4), alpha=0.7)
    case("matmul", "FusedMatMul", f(2, 5, 3), f(2, 7, 5), transA=1, transB=1, alpha=0.25)
    case("matmul-vector", "FusedMatMul", f(2, 3, 5), f(5), alpha=2.0)
    def bits(*shape):
        return random.randint(0, 256, shape).astype(np.uint8)

    for n, depth, block in ((4, 32, 16), (4, 40, 16), (8, 40, 16)):
        blocks = -(-depth // block)
        sizes = {"K": depth, "N": 7, "bits": n, "block_size": block}
        a, b, scales = f(2, 3, depth), bits(7, blocks, block * n // 8), f(7 * blocks, scale=0.1)
        case(f"bits-{n}-{depth}", "MatMulNBits", a, b, scales, **sizes)
        case(f"bits-{n}-{depth}-zeros", "MatMulNBits", a, b, scales, bits(7 * -(-blocks * n // 8)), None, f(7), **sizes)
    three = (True, False, False, True)
    case("skip-norm", "SkipLayerNormalization", f(B, S, W), f(B, S, W), f(W), f(W), epsilon=1e-5)
    case("skip-norm-all", "SkipLayerNormalization", f(B, S, W), f(B, S, W), f(W), f(W), f(W), outputs=three)
    case("skip-norm-plain", "SkipLayerNormalization", f(B, S, W), f(1, S, W), f(W))
    case("skip-rms", "SkipSimplifiedLayerNormalization", f(B, S, W), f(B, S, W), f(W), outputs=three, epsilon=1e-6)
    case("skip-rms-bias", "SkipSimplifiedLayerNormalization", f(B, S, W), f(B, S, W), f(W), f(W))
    case("rms", "SimplifiedLayerNormalization", f(B, S, W), f(W), outputs=(True, True), axis=-1, epsilon=1e-6)
    ids, kinds = random.randint(0, 11, (B, S)).astype(np.int32), random.randint(0, 2, (B, S)).astype(np.int32)
    shown = ints([1] * 5, [1] * 3 + [0] * 2)
    tables = f(11, W), f(9, W), f(2, W), f(W), f(W)
    case("embed", "EmbedLayerNormalization", ids, kinds, *tables, shown, outputs=(True, True, True), mask_index_type=1)
    case("embed-plain", "EmbedLayerNormalization", ids, None, *tables[:2], None, *tables[3:], outputs=(True, True))
    case("embed-places", "EmbedLayerNormalization", ids, kinds, *tables, None, ints([4, 3, 2, 1, 0], [8] * 5),
         outputs=(True, True))  # fmt: skip

    x, w, b = f(B, S, W), f(W, 3 * W, scale=0.4), f(3 * W)
    case("attention", "Attention", x, w, b, num_heads=H)
    case("attention-lengths", "Attention", x, w, b, ints(5, 3), num_heads=H)
    case("attention-bounds", "Attention", x, w, b, ints(5, 4, 1, 0), num_heads=H)
    case("attention-mask", "Attention", x, w, b, shown, num_heads=H, scale=0.2)
    case("attention-rows", "Attention", x, w, b, np.tril(np.ones((B, S, S), np.int32)), num_heads=H)
    case("attention-bias", "Attention", x, w, b, None, None, f(1, H, S, S), num_heads=H)
    case("attention-widths", "Attention", x, f(W, 160, scale=0.4), f(160), num_heads=H, qkv_hidden_sizes=[64, 64, 32])
    case("attention-past", "Attention", x, w, b, ints([1] * 8, [0] * 2 + [1] * 6), f(2, B, H, PAST, D), num_heads=H,
         unidirectional=1, outputs=(True, True))  # fmt: skip

    q, k, v = f(B, S, W), f(B, 7, W), f(B, 7, W)
    case("heads", "MultiHeadAttention", q, k, v, num_heads=H)
    case("heads-bias", "MultiHeadAttention", q, k, v, f(3 * W), num_heads=H)
    case("heads-lengths", "MultiHeadAttention", q, k, v, None, ints(7, 2), num_heads=H)
    case("heads-mask", "MultiHeadAttention", q, k, v, None, ints([1] * 7, [0] * 3 + [1] * 4), f(B, H, S, 7),
         num_heads=H, scale=0.3)  # fmt: skip
    case("heads-cross", "MultiHeadAttention", q, f(B, H, 7, D), f(B, H, 7, D), num_heads=H)
    case("heads-past", "MultiHeadAttention", q, f(B, S, W), f(B, S, W), None, None, None, f(B, H, PAST, D),
         f(B, H, PAST, D), num_heads=H, unidirectional=1, outputs=(True, True, True))  # fmt: skip

    angles = np.outer(np.arange(16), 10000.0 ** (-np.arange(D // 2) / (D / 2)))
    turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    case("rotary", "RotaryEmbedding", f(B, S, W), ints([0, 1, 2, 3, 4], [3, 4, 5, 6, 7], dtype=np.int64), *turn)
    case("rotary-offset", "RotaryEmbedding", f(B, H, S, D), ints(6, dtype=np.int64), *turn, interleaved=1)
    case("rotary-part", "RotaryEmbedding", f(B, S, 2 * W), ints(2, dtype=np.int64), *turn, num_heads=H,
         rotary_embedding_dim=D)  # fmt: skip

    three, grouped = (True, True, True), {"num_heads": H, "kv_num_heads": 2}
    new = f(B, S, W), f(B, S, W // 2), f(B, S, W // 2)
    none = np.zeros((B, 2, 0, D), np.float32)
    case("groups", "GroupQueryAttention", *new, none, none, ints(4, 4), ints(5), outputs=three, **grouped)
    case("groups-padded", "GroupQueryAttention", *new, none, none, ints(4, 2), ints(5), *turn, outputs=three,
         rows=(5, 3), do_rotary=1, **grouped)  # fmt: skip
    past, one = (f(B, 2, 6, D), f(B, 2, 6, D)), (f(B, 1, W), f(B, 1, W // 2), f(B, 1, W // 2))
    case("groups-step", "GroupQueryAttention", *one, *past, ints(6, 6), ints(7), *turn, outputs=three, do_rotary=1,
         rotary_interleaved=1, **grouped)  # fmt: skip
    case("groups-ragged", "GroupQueryAttention", *one, *past, ints(6, 4), ints(7), *turn, outputs=three, do_rotary=1,
         **grouped)  # fmt: skip
    case("groups-room", "GroupQueryAttention", *one, *past, ints(3, 3), ints(4), outputs=three, **grouped)
    case("groups-window", "GroupQueryAttention", *one, *past, ints(6, 5), ints(7), outputs=three, local_window_size=3,
         softcap=2.0, scale=0.5, **grouped)  # fmt: skip
    case("groups-window-prompt", "GroupQueryAttention", *new, none, none, ints(4, 4), ints(5), outputs=three,
         local_window_size=2, **grouped)  # fmt: skip
    case("groups-packed", "GroupQueryAttention", f(B, S, 2 * W), None, None, none, none, ints(4, 4), ints(5),
         outputs=three, smooth_softmax=1, **grouped)  # fmt: skip
    case("groups-bias", "GroupQueryAttention", *one, *past, ints(6, 6), ints(7), None, None, None, f(B, 1, 1, 7),
         outputs=three, **grouped)  # fmt: skip
    case("groups-sinks", "GroupQueryAttention", *new, none, none, ints(4, 4), ints(5), None, None, None, None,
         f(H, scale=2), outputs=three, **grouped)  # fmt: skip
    case("groups-places", "GroupQueryAttention", *one, *past, ints(6, 6), ints(7), *turn,
         ints([9], [2], dtype=np.int64), outputs=three, do_rotary=1, **grouped)  # fmt: skip
    add_products(case)
    add_quantized(case)
    add_networks(case)
    return found


def add_products(case) -> None:
    """Matrices with turned batches, and packed ones with orders and zeros of each kind."""
    random = np.random.RandomState(8)

    def f(*shape, scale=1.0):
        return ((random.random_sample(shape) * 2 - 1) * scale).astype(np.float32)

    case("matmul-batch-a", "FusedMatMul", f(5, 2, 3), f(2, 3, 4), transBatchA=1)
    case("matmul-batch-both", "FusedMatMul", f(3, 2, 4, 5), f(7, 2, 4, 3), transBatchA=1, transBatchB=1, transA=1,
         transB=1, alpha=0.5)  # fmt: skip
    for n in (2, 4):  # of 8 bits ONNX Runtime lacks both
        sizes = {"K": 40, "N": 7, "bits": n, "block_size": 16}
        order = random.permutation(np.arange(48) // 16)[:40].astype(np.int32)
        packed = random.randint(0, 256, (7, 3, 2 * n)).astype(np.uint8)
        a, scales = f(2, 3, 40), f(7, 3, scale=0.1)
        if n == 4:  # with 2 bits, and with zeros, ONNX Runtime 1.32 does not go by its formula
            case("bits-4-order", "MatMulNBits", a, packed, scales, None, order, **sizes)
        case(f"bits-{n}-real", "MatMulNBits", a, packed, scales, f(7, 3, scale=2.0**n), None, f(7), **sizes)


def add_quantized(case) -> None:
    """Operators between a scale and a zero of what they take and give."""
    random = np.random.RandomState(9)

    def q(*shape, dtype=np.uint8):
        low = -128 if dtype == np.int8 else 0
        return random.randint(low, low + 256, shape).astype(dtype)

    def of(scale, zero, dtype=np.uint8):
        return np.array(scale, np.float32), np.array(zero, dtype)

    def f(*shape, scale=1.0):
        return ((random.random_sample(shape) * 2 - 1) * scale).astype(np.float32)

    a, b, c = of(0.031, 117), of(0.017, 90), of(0.053, 121)
    case("q-add", "QLinearAdd", q(2, 3, 5), *a, q(3, 1), *b, *c)
    case("q-mul", "QLinearMul", q(2, 3, 5, dtype=np.int8), *of(0.031, 7, np.int8), q(5, dtype=np.int8),
         *of(0.017, -9, np.int8), *of(0.03, -3, np.int8))  # fmt: skip
    case("q-sigmoid", "QLinearSigmoid", q(3, 7), *a, *of(1 / 256, 0))
    case("q-leaky", "QLinearLeakyRelu", q(3, 7), *a, *c, alpha=0.2)
    case("q-softmax", "QLinearSoftmax", q(3, 2, 7), *a, *of(1 / 256, 0), axis=1, opset=13)
    case("q-softmax-rows", "QLinearSoftmax", q(3, 2, 7), *a, *of(1 / 256, 0), axis=1, opset=12)
    case("q-concat", "QLinearConcat", *c, q(2, 3), *a, q(2, 4), *b, axis=-1)
    case("q-where", "QLinearWhere", random.randint(0, 2, (3, 1)).astype(bool), q(3, 5), *a, q(5), *b, *c)
    case("q-mean", "QLinearGlobalAveragePool", q(2, 3, 4, 5), *a, *b)
    case("q-mean-last", "QLinearGlobalAveragePool", q(2, 4, 5, 3), *a, *b, channels_last=1)
    case("q-pool", "QLinearAveragePool", q(2, 3, 6, 5), *a, *b, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])
    case("q-pool-last", "QLinearAveragePool", q(2, 6, 5, 3), *a, *b, kernel_shape=[3, 2], channels_last=1)
    case("q-largest", "NhwcMaxPool", q(2, 6, 5, 3), kernel_shape=[3, 2], pads=[1, 0, 1, 1])
    case("q-conv-last", "QLinearConv", q(1, 5, 4, 3), *a, q(2, 3, 3, 2, dtype=np.int8), f(2, scale=0.01),
         np.zeros(2, np.int8), *c, ints(300, -200), channels_last=1, pads=[1, 0, 1, 1])  # fmt: skip
    case("q-in", "QuantizeLinear", f(3, 5, scale=3), f(3, scale=0.1) ** 2 + np.float32(0.02), q(3), axis=0)
    case("q-out", "DequantizeLinear", q(3, 5).astype(np.uint16), np.float32([0.1, 0.2, 0.3]),
         np.array([1, 30000, 7], np.uint16), axis=0)  # fmt: skip
    columns = f(5, scale=0.01)
    case("q-product", "MatMulIntegerToFloat", q(2, 3, 8), q(8, 5, dtype=np.int8), a[0], columns, a[1],
         q(5, dtype=np.int8), f(5))  # fmt: skip
    case("q-product-plain", "MatMulIntegerToFloat", q(3, 8, dtype=np.int8), q(8, 5, dtype=np.int8), a[0], b[0])
    case("q-dynamic", "DynamicQuantizeMatMul", f(2, 3, 8), q(8, 5, dtype=np.int8), columns, q(5, dtype=np.int8), f(5))
    case("q-gemm", "QGemm", q(3, 8), *a, q(5, 8, dtype=np.int8), columns, np.zeros(5, np.int8), ints(5, -80, 300, 7, 0),
         *of(0.02, 128), transB=1)  # fmt: skip
    case("q-gemm-real", "QGemm", q(8, 3), *a, q(8, 5), *b, transA=1, alpha=0.5)
    heads = q(B, S, 16), q(16, 3 * 16, dtype=np.int8), f(48)
    small = of(0.002, 0)[0]
    case("q-attention", "QAttention", *heads, a[0], f(48, scale=0.002), ints(5, 3), a[1], np.zeros(48, np.int8),
         num_heads=2)  # fmt: skip
    case("q-attention-past", "QAttention", *heads, a[0], small, None, a[1], np.array(3, np.int8), f(2, B, 2, 3, 8),
         num_heads=2, unidirectional=1, outputs=(True, True))  # fmt: skip
    tables = q(11, 16), q(9, 16), q(2, 16), q(16), q(16)
    units = np.float32([0.01, 0.02, 0.03, 0.02, 0.01]), np.uint8([128, 120, 90, 100, 110])
    case("q-embed", "QEmbedLayerNormalization", random.randint(0, 11, (B, S)).astype(np.int32),
         random.randint(0, 2, (B, S)).astype(np.int32), *tables, ints([1] * 5, [1] * 3 + [0] * 2),
         *(np.array(each) for unit in units for each in unit), outputs=(True, True))  # fmt: skip
    case("conv-relu", "FusedConv", f(1, 3, 6, 5), f(4, 3, 3, 2), f(4), f(1, 4, 6, 5), activation="Relu",
         pads=[1, 0, 1, 1])  # fmt: skip
    case("conv-clip", "FusedConv", f(1, 3, 6, 5), f(4, 3, 3, 2), activation="Clip", activation_params=[-0.5, 0.75])
    case("gemm-leaky", "FusedGemm", f(3, 5), f(4, 5), f(4), activation="LeakyRelu", activation_alpha=0.2, transB=1)


def add_networks(case) -> None:
    """LSTMs of integers."""
    random = np.random.RandomState(10)

    def f(*shape, scale=1.0):
        return ((random.random_sample(shape) * 2 - 1) * scale).astype(np.float32)

    for label, ways, dtype, columns in (("", 1, np.int8, ()), ("-ways", 2, np.uint8, (4 * 6,))):
        low = -100 if dtype == np.int8 else 0
        w, r = (random.randint(low, low + 201, (ways, n, 4 * 6)).astype(dtype) for n in (5, 6))
        zeros = [np.full((ways, *columns), 3 if dtype == np.int8 else 110, dtype) for _ in range(2)]
        units = [np.abs(f(ways, *columns, scale=0.01)) + np.float32(0.002) for _ in range(2)]
        more = (f(ways, 48), ints(3, 2), f(ways, B, 6), f(ways, B, 6), f(ways, 18)) if columns else (None,) * 5
        way = "bidirectional" if columns else "forward"
        case(f"lstm{label}", "DynamicQuantizeLSTM", f(3, B, 5), w, r, *more, units[0], zeros[0], units[1], zeros[1],
             outputs=(True, True, True), hidden_size=6, direction=way)  # fmt: skip


def model(case: Case):
    """A model of the one node, and what it is fed."""
    from onnx import helper

    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if value is not None}
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(case.inputs)]
    results = [f"y{i}" if wanted else "" for i, wanted in enumerate(case.outputs)]
    plain = case.name == "SimplifiedLayerNormalization"
    node = helper.make_node(case.name, names, results, domain="" if plain else "com.microsoft", **case.attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in results if name]
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds
