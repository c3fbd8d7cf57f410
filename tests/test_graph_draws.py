"""What a captured function draws without a seed: each replay draws anew, as the function would, called in its place."""

import threading

import numpy as np
import pytest

import goldens
import grilly
import grilly.functional as F
from graphs import default, equal, random
from grilly import models, nn, optim, reference
from model_folders import change, write_folder

CASES = goldens.cases("models")
P = 0.3


def attention(backend, *shape):
    return [backend.tensor(random(*shape, seed=number)) for number in range(3)]


def stored(q, k, v):
    return nn.FlashAttention(dropout=P, flash=False).to(q.backend).train()(q, k, v)


def fused(q, k, v):
    return nn.FlashAttention(dropout=P, causal=True).to(q.backend).train()(q, k, v)


def joined(q, k, v):
    flat = [a.transpose(0, 2, 1, 3).reshape(2, 37, 24) for a in (q, k, v)]
    return F.flash_attention3(*flat, num_heads=3, dropout_p=P, return_lse=True)


def packed(q, k, v):
    rows = [a[0].transpose(1, 0, 2) for a in (q, k, v)]
    places = np.array([0, 20, 37])
    return F.flash_attention_varlen(*rows, places, places, 20, 20, dropout_p=P)


def hidden(q, k, v):
    """With arrays among the parameters: lengths from the host, slopes from the device."""
    return F.flash_attention2(q, k, v, dropout_p=P, seqlens_k=[5, 37], alibi_slopes=q[0, :, 0, 0])


def numbers(q, k, v):
    return grilly.random.normal((5, 7)), grilly.random.uniform((3,)), grilly.random.integers(0, 100, (9,))


CALLS = {
    "elements": lambda q, k, v: (F.dropout(q, P), nn.Dropout(0.5).train()(k[:, 1:, ::3]), F.dropout(v, 1.0)),
    "half": lambda q, k, v: F.dropout(q.astype("float16"), P),
    "pytorch's": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P),
    "an offset": lambda q, k, v: F.flash_attention2(q, k, v, dropout_p=P, dropout_offset=3),
    "stored": stored, "fused": fused, "joined": joined, "packed": packed, "hidden": hidden, "numbers": numbers,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_replays_draw_what_calls_do(vulkan_backend, name):
    """Bit by bit, from the place where the sequence is, which both leave at the same place."""
    function = CALLS[name]
    given = attention(vulkan_backend, 2, 3, 37, 8)
    with default(vulkan_backend):
        graph = vulkan_backend.capture(function, *given)
        grilly.manual_seed(2**40 + 5)
        found = [*map(listed, (graph(*given), graph(*given), function(*given), graph(*given)))]
        grilly.manual_seed(2**40 + 5)
        for one in found:
            equal(one, listed(function(*given)))
        grilly.manual_seed(9)
        other = listed(graph(*given))
    if name != "an offset":  # the offset is what goes on
        assert (found[0][0].numpy() != found[1][0].numpy()).any()
    assert (found[0][0].numpy() != other[0].numpy()).any()


def listed(found):
    return [found] if isinstance(found, grilly.Tensor) else list(found)


def test_the_share_that_replays_drop(vulkan_backend):
    x = vulkan_backend.tensor(np.ones((400, 100), np.float32))
    graph = vulkan_backend.capture(lambda x: F.dropout(x, P), x)
    grilly.manual_seed(0)
    kept = np.stack([graph(x).numpy() != 0 for _ in range(10)])
    spread = (P * (1 - P) / kept.size) ** 0.5
    assert abs(kept.mean() - (1 - P)) < 5 * spread
    both = (kept[:-1] & kept[1:]).mean()  # replays are independent
    assert abs(both - (1 - P) ** 2) < 5 * spread


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_drop_what_was_dropped(vulkan_backend, checkpointed):
    """Held against float64, with the masks that seeds and offsets tell."""
    arrays = [random(2, 3, 37, 8, seed=number) for number in range(3)]

    def block(q, k, v):
        return F.dropout(F.flash_attention2(F.dropout(q, 0.2), k, v, dropout_p=P, causal=True), 0.4)

    block = grilly.checkpoint(block) if checkpointed else block

    def step(q, k, v):
        return grilly.value_and_grad(lambda *qkv: grilly.sum(block(*qkv) * 0.5) + grilly.sum(block(*qkv)), (0, 1, 2))(
            q, k, v
        )

    with default(vulkan_backend):
        graph = vulkan_backend.capture(step, *arrays)
        grilly.manual_seed(77)
        found = [graph(*arrays) for _ in range(3)]
        grilly.manual_seed(77)
        plain = [step(*arrays) for _ in range(3)]
    for (loss, gradients), (same, wanted) in zip(found, plain, strict=True):
        assert float(loss) == float(same)
        equal(gradients, wanted)
    for replay, (_, gradients) in enumerate(found):
        parts = [of_block(arrays, offset, share) for offset, share in ((6 * replay, 0.5), (6 * replay + 3, 1.0))]
        for gradient, first, second in zip(gradients, *parts, strict=True):
            wanted = first + second
            np.testing.assert_allclose(gradient.numpy(), wanted, atol=2e-5 * np.abs(wanted).max())


def of_block(arrays, offset, share):
    """Gradients of ``share`` times the sum of the block's elements, in float64."""
    q, k, v = (a.astype(np.float64) for a in arrays)
    before = reference.dropout(np.ones_like(q), 0.2, seed=77, offset=offset)
    weights = reference.dropout_mask((2, 3, 37, 37), P, seed=77, offset=offset + 1) / (1 - P)
    after = share * reference.dropout(np.ones_like(q), 0.4, seed=77, offset=offset + 2)
    scores = np.where(np.tri(37, dtype=bool), (q * before) @ k.swapaxes(-1, -2) / 8**0.5, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    of_shares = after @ v.swapaxes(-1, -2) * weights
    of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdims=True)) / 8**0.5
    of_keys, of_values = of_scores.swapaxes(-1, -2) @ (q * before), (shares * weights).swapaxes(-1, -2) @ after
    return of_scores @ k * before, of_keys, of_values


def test_gradients_that_are_taken_outside(vulkan_backend):
    """Of a function that is computed again: what the last replay dropped is dropped."""
    x, pulls = vulkan_backend.tensor(np.ones(200, np.float32)), []

    def step(x):
        y, pull = grilly.vjp(grilly.checkpoint(lambda x: F.dropout(F.dropout(x * 2.0, P), P)), x)
        pulls.append(pull)
        return y

    graph = vulkan_backend.capture(step, x)
    for _ in range(2):
        y = graph(x)
        F.dropout(x)
        equal(pulls[0](x), y)


def test_many_draws_in_one_function(vulkan_backend):
    """More than one block of seeds has, some of them drawn again."""
    x = vulkan_backend.tensor(np.ones((3, 5), np.float32))

    def several(x):
        for _ in range(150):
            x = F.dropout(x, 0.1)
        return x

    def step(x):
        return grilly.grad(lambda x: grilly.sum(grilly.checkpoint(several)(grilly.checkpoint(several)(x))))(x)

    graph = vulkan_backend.capture(step, x)
    grilly.manual_seed(3)
    found = [graph(x), graph(x), F.dropout(x, 0.5)]
    grilly.manual_seed(3)
    equal(found, [step(x), step(x), F.dropout(x, 0.5)])


def test_captures_of_several_threads(vulkan_backend):
    """Each has its own numbers; the sequence that they share gives none twice."""
    x = vulkan_backend.tensor(np.ones(1000, np.float32))
    found = []

    def work():
        graph = vulkan_backend.capture(lambda x: (F.dropout(x), F.dropout(x)), x)
        for _ in range(10):
            found.extend(one.numpy().tobytes() for one in graph(x))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 60


def test_a_module_in_a_captured_function(vulkan_backend):
    """``backward`` drops what its forward has dropped."""
    with default(vulkan_backend):
        model = nn.Sequential(nn.Linear(6, 50, rng=0), nn.Dropout(P), nn.Linear(50, 4, rng=1))
        model.to(vulkan_backend).train()
        x = vulkan_backend.tensor(random(7, 6))

        def step(x):
            model.zero_grad()
            y = model(x)
            dx = model.backward(y)
            return y, dx, *(p.grad_on(vulkan_backend) for p in model.parameters())

        graph = vulkan_backend.capture(step, x)
        grilly.manual_seed(1)
        found = [graph(x), graph(x)]
        grilly.manual_seed(1)
        for one in found:
            equal(one, step(x))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_seeds_of_attention_on_the_device(vulkan_backend, dtype):
    """A Tensor of one integer among the arguments, as a number of the host: forward and gradient."""
    q, k, v = attention(vulkan_backend, 2, 3, 37, 8)

    def step(q, seed):
        def loss(q):
            out = F.flash_attention2(q, k, v, dropout_p=P, dropout_seed=seed, dropout_offset=4)
            return grilly.sum(out * out)

        out, lse = F.flash_attention2(q, k, v, dropout_p=P, dropout_seed=seed, dropout_offset=4, return_lse=True)
        weights = F.attention_dropout(q, dropout_p=P, dropout_seed=seed, dropout_offset=2)
        given = F.flash_attention2_backward(out, q, k, v, out, lse, dropout_p=P, dropout_seed=seed, dropout_offset=4)
        return grilly.grad(loss)(q), out, weights, *given

    seeds = np.array([[0, 0], [0, 77]], dtype)
    equal(step(q, vulkan_backend.tensor(seeds)[1, 1:]), step(q, 77))
    graph = vulkan_backend.capture(step, q, np.zeros(1, dtype))
    for seed in (5, 111):
        equal(graph(q, np.array([seed], dtype)), step(q, seed))


def test_seeds_of_attention_that_are_tensors(backend):
    q, k, v = attention(backend, 2, 3, 37, 8)
    seeds = backend.tensor(np.array([[0, 0], [0, 77]]))
    for call in (
        lambda seed: F.flash_attention2(q, k, v, dropout_p=P, dropout_seed=seed, dropout_offset=4),
        lambda seed: F.attention_dropout(q, dropout_p=P, dropout_seed=seed, dropout_offset=4),
    ):
        equal(call(seeds[1, 1:]), call(77))
        with pytest.raises(TypeError, match="dropout_seed is a tensor of float32"):
            call(q)


@pytest.mark.parametrize("name, shares", [
    ("gpt2", ("attn_pdrop", "embd_pdrop", "resid_pdrop")), ("llama", ("attention_dropout",)),
    ("bert_texts", ("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout")),
    ("t5", ("dropout_rate",)), ("vit", ("attention_probs_dropout_prob", "hidden_dropout_prob")),
])  # fmt: skip
@pytest.mark.parametrize("checkpointed", [False, True])
def test_captured_steps_of_models(vulkan_backend, tmp_path, name, shares, checkpointed):
    """The weights after three steps have the same bits as those of steps that are not captured."""
    case = CASES[name]
    inputs = {key: getattr(case, key) for key in ("input_ids", "decoder_input_ids", "pixel_values")
              if getattr(case, key) is not None}  # fmt: skip
    change(write_folder(tmp_path, case.arguments), **dict.fromkeys(shares, 0.2))

    def weights(captured, seed):
        model = models.load(tmp_path, "float32", backend=vulkan_backend).train().checkpoint_layers(checkpointed)
        optimizer = optim.AdamW(1e-2, max_grad_norm=1.0)
        optimizer.init(model)

        def loss_of(model, inputs):
            out = model(**inputs)[0]
            return grilly.sum(out * out) / out.size

        def step(inputs):
            loss, gradients = grilly.value_and_grad(loss_of)(model, inputs)
            optimizer.update(model, gradients)
            return loss

        run = vulkan_backend.capture(step, inputs) if captured else step
        grilly.manual_seed(seed)
        losses = [float(run(inputs)) for _ in range(3)]
        return losses, model.state_dict()

    with default(vulkan_backend):
        (losses, found), (wanted, plain), (others, _) = weights(True, 3), weights(False, 3), weights(True, 4)
    assert losses == wanted and losses != others
    for key, array in plain.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)
