"""The names of grilly.nn, its optimizers and gradients, as public_api.py has those of grilly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import grilly
from grilly import nn, optim

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]


class Block(nn.Module):
    """A model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, architecture="gpt", precision="high", rng=0)
        self.inner = nn.ModuleList([nn.Linear(64, 64, bias=False), nn.FlashAttention2(64, 4, causal=True)])
        self.gain = nn.Parameter(np.ones(64, np.float32))

    def forward(self, x: Floats) -> Floats:
        return self.attention(x, need_weights=False)[0]


def layers(q: Floats, half: Halves, tensor: grilly.Tensor, mask: NDArray[np.bool_]) -> None:
    block = Block().train().to(dtype=np.float32).eval()
    assert_type(block, Block)
    assert_type(block.load_state_dict(block.state_dict(), strict=False), nn.LoadResult)
    for parameter in block.parameters():
        assert_type(parameter, nn.Parameter)
        assert_type(parameter.grad, Floats | None)
        assert_type(parameter.grad_on(tensor.backend), grilly.Tensor | None)
        parameter.add_grad(tensor)
    assert_type(block.requires_grad_(False), Block)
    gelu = nn.GELU(approximate="tanh")
    assert_type(gelu(half), Halves)
    for layer in (nn.GLU(dim=1), nn.ReLU(), nn.Sigmoid(), nn.SiLU(), nn.Tanh()):
        assert_type(layer(tensor), grilly.Tensor)
    for bent in (
        nn.Hardsigmoid(), nn.Hardswish(), nn.LogSigmoid(), nn.Mish(), nn.ReLU6(), nn.SELU(), nn.Softsign(),
        nn.Tanhshrink(), nn.CELU(0.5), nn.ELU(alpha=2), nn.Hardshrink(0.1), nn.Hardtanh(-2, max_val=2.0),
        nn.LeakyReLU(negative_slope=0.1), nn.Softplus(2.0, threshold=9.0), nn.Softshrink(lambd=0.1),
    ):  # fmt: skip
        assert_type(bent(half), Halves)
    assert_type(nn.Hardtanh().min_val, float)
    assert_type(nn.GLU(dim=1).backward(q), Floats)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", norm_first=True, precision="high", rng=0)
    assert_type(encoder(half, mask=mask), Halves)
    assert_type(encoder(tensor, causal=True), grilly.Tensor)
    assert_type(encoder.backward(tensor), grilly.Tensor)
    decoder = nn.TransformerDecoderLayer(64, 4, 128, bias=False)
    assert_type(decoder(q, q, memory_mask=mask, causal=True), Floats)
    assert_type(decoder.backward(q), tuple[Floats, Floats])
    nn.TransformerEncoderLayer(64, 4, batch_first=True)  # type: ignore[call-arg]
    encoder(q, src_mask=mask)  # type: ignore[call-overload]
    decoder(q)  # type: ignore[call-overload]
    linear = nn.Linear(64, 64, precision="high", rng=np.random.default_rng(0))
    assert_type(linear(half), Halves)
    assert_type(linear(tensor), grilly.Tensor)
    assert_type(linear.forward(q), Floats)
    assert_type(linear.backward(q), Floats)
    attend = nn.MultiheadAttention(64, 4, kdim=32, vdim=32)
    assert_type(attend(q, q, q, mask=mask, causal=True), tuple[Floats, Floats | None])
    assert_type(attend(tensor, mask=mask, average_attn_weights=True), tuple[grilly.Tensor, grilly.Tensor | None])
    assert_type(attend.backward(tensor), tuple[grilly.Tensor | None, ...])
    assert_type(nn.FlashAttention2(64, 4)(q, q, q, mask=mask), Floats)
    assert_type(nn.FlashAttention3(64, 4, scale=1.0)(tensor, tensor, tensor), grilly.Tensor)
    assert_type(nn.FlashAttention2(64, 4).backward(q), tuple[Floats, Floats, Floats])
    plain = nn.FlashAttention(causal=True, dropout=0.1, flash=False)
    assert_type(plain(q, q, q, attn_bias=q), Floats)
    assert_type(plain.flash_attn(tensor, tensor, tensor, mask), grilly.Tensor)
    assert_type(plain.get_mask(3, 4), NDArray[np.bool_])
    turn = nn.RoPE(64, base=1e6, scaling={"type": "ntk", "factor": 2})
    assert_type(turn(q, offset=3), Floats)
    assert_type(turn(tensor, tensor, positions=[0, 1]), tuple[grilly.Tensor, grilly.Tensor])
    cache = nn.KVCache(2, 512, 4, 16, dtype="bfloat16")
    small = nn.KVCache(2, 512, 4, 64, dtype="q8_0")
    assert_type(small.nbytes, int)
    assert_type(cache.attend(q, q, q, softcap=30.0), grilly.Tensor)
    assert_type(cache.attend(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(attend.make_cache(2, 512), nn.KVCache)
    attend.fill_cache(attend.make_cache(2, 512), q, lengths=[3, 5])
    attend(q, need_weights=False, position_bias=attend)
    cache.truncate(3)
    cache.reorder([1, 0])
    assert_type(cache.positions(2), grilly.Tensor)
    assert_type(cache.attend(q, q, q, rotary=turn), grilly.Tensor)
    assert_type(cache.attend(q, q, q, rotary=(q, q), rotary_interleaved=True), grilly.Tensor)
    assert_type(cache.attend(q, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    cache.fill(q, tensor, lengths=[3, 4])
    assert_type(len(cache), int)
    cache.lengths = [3, 4]

    assert_type(nn.Dropout(0.1)(half), Halves)
    assert_type(nn.Dropout()(tensor), grilly.Tensor)
    loss = nn.CrossEntropyLoss(half, ignore_index=0, reduction="none", label_smoothing=0.1)
    assert_type(loss(half, [1, 2]), Halves)
    assert_type(loss(tensor, tensor), grilly.Tensor)
    loss.backward(2.0)
    image = nn.Conv2d(3, 8, (3, 5), padding="same", groups=1, bias=False, padding_mode="zeros", rng=0)
    assert_type(image(half), Halves)
    assert_type(nn.Conv1d(3, 8, 3, stride=2, precision="high")(tensor), grilly.Tensor)
    assert_type(image.backward(q), Floats)
    table = nn.Embedding(30, 8, padding_idx=0, rng=0)
    assert_type(table(tensor), grilly.Tensor)
    table([1, 2]).sum()
    table.backward(q)
    row = nn.Sequential(linear, nn.Identity(), nn.Sequential({"drop": nn.Dropout()}))
    assert_type(row[1:], nn.Sequential)
    assert_type(row[0], nn.Module)
    assert_type(row.append(linear).extend([linear]), nn.Sequential)
    assert_type(nn.ModuleList([linear]).insert(0, linear), nn.ModuleList)
    for module in row:
        assert_type(module, nn.Module)

    nn.CrossEntropyLoss(reduction="max")  # type: ignore[arg-type]
    nn.Conv1d(3, 8, 3, padding="full")  # type: ignore[arg-type]
    nn.Conv2d(3, 8)  # type: ignore[call-arg]
    image(mask)  # type: ignore[type-var]
    nn.Embedding(30)  # type: ignore[call-arg]
    table(q)  # type: ignore[arg-type]
    nn.Sequential(q)  # type: ignore[arg-type]
    nn.Dropout(probability=0.1)  # type: ignore[call-arg]
    nn.Dropout()(mask)  # type: ignore[type-var]
    nn.GELU(approximate="erf")  # type: ignore[arg-type]
    nn.ELU(beta=1.0)  # type: ignore[call-arg]
    nn.Mish(inplace=True)  # type: ignore[call-arg]
    nn.Linear(64, 64, biases=False)  # type: ignore[call-arg]
    nn.Linear(64, 64, precision="low")  # type: ignore[arg-type]
    linear(q, q)  # type: ignore[call-overload]
    linear(mask)  # type: ignore[type-var]
    linear(q).numpy()  # type: ignore[attr-defined]
    nn.MultiheadAttention(64, 4, dropout=0.1)  # type: ignore[call-arg]
    attend(q, attn_mask=mask)  # type: ignore[call-overload]
    nn.FlashAttention2(64, 4)(q, q)  # type: ignore[call-overload]
    nn.FlashAttention3(64, 4, heads=4)  # type: ignore[call-arg]
    plain(q, q, q, bias=q)  # type: ignore[call-overload]
    nn.RoPE(64, theta=1e6)  # type: ignore[call-arg]
    turn(q, start=3)  # type: ignore[call-overload]
    cache.attend(q, q, q, soft_cap=30.0)  # type: ignore[call-overload]
    nn.KVCache(2, 512, 4, 16, device=0)  # type: ignore[call-arg]
    nn.ModuleList([q])  # type: ignore[list-item]
    nn.Module().train("yes")  # type: ignore[arg-type]


def optimizers(model: nn.Module, grads: dict[str, grilly.Tensor], tensor: grilly.Tensor) -> None:
    schedule = optim.joined([optim.linear(0.0, 1e-3, 10), optim.cosine(1e-3, 90, end=1e-5)], [10])
    groups: list[dict[str, Any]] = [{"params": "*.bias", "weight_decay": 0.0}, {"params": lambda name: "norm" in name}]
    scale = optim.LossScale(1024.0, growth=2.0, backoff=0.5, interval=100)
    adam = optim.AdamW(lr=schedule, betas=(0.9, 0.95), weight_decay=0.1, groups=groups, loss_scale=scale)
    for other in (
        optim.SGD(0.1, momentum=0.9, nesterov=True, dampening=0), optim.Adam(max_grad_norm=1.0, eps=1e-6), optim.Lion(),
        optim.Adafactor(beta2_decay=-0.8, eps=(None, 1e-3), d=1.0), adam,
        optim.Muon(optim.warmup_cosine(0.02, 10, 100), params=["*.weight"], other=adam, ns_steps=5, ns_dtype="float32"),
    ):  # fmt: skip
        own: optim.Optimizer = other
        own.init(model, names=["weight"])
        own.update(model, grads)
        assert_type(own.update({"weight": tensor}, grads), dict[str, Any])
        own.load_state_dict(own.state_dict())
        assert_type(own.state_dict(), dict[str, NDArray[Any]])
        assert_type((own.steps, own.skipped, own.loss_scale, own.scale(tensor)), tuple[int, int, float, grilly.Tensor])
        own.lr = 1e-3
    assert_type(optim.clip_grad_norm(grads, 1.0), tuple[dict[str, grilly.Tensor], grilly.Tensor])
    average = optim.EMA(model, decay=0.99)
    average.update(model)
    average.copy_to(model)
    average.load_state_dict(average.state_dict())
    assert_type(average.averages(), dict[str, grilly.Tensor])
    optim.step_decay(optim.constant(0.1)(0), every=30, factor=0.1)
    optim.SGD()  # type: ignore[call-arg]
    optim.AdamW(amsgrad=True)  # type: ignore[call-arg]
    optim.SGD(0.1).update(model)  # type: ignore[call-overload]
    optim.clip_grad_norm(grads)  # type: ignore[call-arg]


def gradients(array: Floats, model: nn.Linear) -> None:
    def loss(model: nn.Linear, x: grilly.Tensor) -> Any:
        return grilly.mean(model(grilly.stop_gradient(x)) ** 2)

    grilly.grad(loss, has_aux=True)  # type: ignore[call-arg]
    value, gradients = grilly.value_and_grad(loss)(model, array)
    grilly.grad(loss, (0, 1))(model, array)
    result, pull = grilly.vjp(grilly.checkpoint(grilly.exp), array)
    assert_type(pull(result), tuple[Any, ...])
    with grilly.autocast("bfloat16"):
        raise grilly.GradientError
