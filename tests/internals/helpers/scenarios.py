"""What the fault lane and the interrupts do with a backend, each as a function of it that returns NumPy arrays.

A scenario gives the same arrays every time, bit for bit, whatever the backend did before.
"""

from __future__ import annotations

import functools

import numpy as np

from grilly.compute.attention.kvcache import flash_attention_with_kvcache

SCENARIOS: dict = {}
#: Those with arrays above 4 MB, whose transfers go in several chunks; they take longer.
LARGE = ("large", "streaming")
#: Those that ask for what the kompute runtime has not: times, or recordings of several dispatches.
VULKAN_ALONE = ("profile", "graph", "growing")


def scenario(function):
    """Put a function into SCENARIOS, by its name."""
    SCENARIOS[function.__name__] = function
    return function


@functools.cache
def arrays(*shape, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """The same random array each time; nobody writes to it."""
    array = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
    array.flags.writeable = False
    return array


def qkv(heads: int = 2, queries: int = 33, keys: int = 65, dim: int = 32) -> tuple:
    """Queries, keys and values of one sample."""
    return arrays(1, heads, queries, dim), arrays(1, heads, keys, dim, seed=1), arrays(1, heads, keys, dim, seed=2)


@scenario
def attention(backend):
    """Forward on NumPy arrays and on tensors, several calls of the same kind, one result read late."""
    tensors = [backend.tensor(a) for a in qkv()]
    first = backend.attention.flash_attention2(*tensors, return_lse=True)
    again = [backend.attention.flash_attention2(*tensors) for _ in range(3)]
    out = backend.attention.flash_attention2(*qkv())
    return [out, *(t.numpy() for t in again), *(t.numpy() for t in first)]


@scenario
def linear(backend):
    """Forward and backward of a layer."""
    from grilly.compute.matmul.linear import linear as forward
    from grilly.compute.matmul.linear import linear_backward

    x, weight, bias, grad = arrays(37, 40), arrays(24, 40, seed=3), arrays(24, seed=4), arrays(37, 24, seed=5)
    x_t, weight_t = backend.tensor(x), backend.tensor(weight)
    y = forward(backend.opened, x_t, weight_t, backend.tensor(bias))
    grads = linear_backward(backend.opened, backend.tensor(grad), x_t, weight_t)
    return [y.numpy(), *(g.numpy() for g in grads if g is not None), forward(backend.opened, x, weight, bias)]


@scenario
def caches(backend):
    """Two steps of decoding into a cache on the device, and one into pages."""
    attend = functools.partial(flash_attention_with_kvcache, backend.opened)
    keys, values = (backend.tensor(np.zeros((2, 40, 2, 16), np.float32)) for _ in range(2))
    results = []
    for step in range(2):
        q, k, v = (arrays(2, 1, heads, 16, seed=10 * step + i) for i, heads in enumerate((4, 2, 2)))
        lengths = np.array([5 + step, 9 + step], np.int32)
        results.append(attend(*(backend.tensor(a) for a in (q,)), keys, values, k, v, cache_seqlens=lengths))
    pages = [backend.tensor(np.zeros((6, 8, 2, 16), np.float32)) for _ in range(2)]
    table = np.array([[3, 1], [0, 4]], np.int32)
    results.append(
        attend(arrays(2, 1, 4, 16), *pages, arrays(2, 1, 2, 16, seed=7), arrays(2, 1, 2, 16, seed=8),
               cache_seqlens=np.array([3, 9], np.int32), page_table=table)
    )  # fmt: skip
    return [np.asarray(r) for r in results] + [keys.numpy(), values.numpy(), *(p.numpy() for p in pages)]


@scenario
def backward(backend):
    """Gradients of attention, with a bias and sinks."""
    q, k, v = qkv(dim=16)
    options = {"attn_bias": arrays(33, 65, seed=6), "sinks": arrays(2, seed=7)}
    tensors = [backend.tensor(a) for a in (q, k, v)]
    out, lse = backend.attention.flash_attention2(*tensors, return_lse=True, **options)
    grads = backend.attention.flash_attention2_backward(
        backend.tensor(arrays(*q.shape, seed=8)), *tensors, out, lse, return_dbias=True, return_dsinks=True, **options
    )
    return [g.numpy() for g in grads]


@scenario
def masks(backend):
    """Options that are laid out as words, bits and classes of tiles on the device."""
    q, k, v = qkv(keys=130)
    mask = arrays(33, 130, seed=11) > 0
    segments = (np.arange(33, dtype=np.int32)[None] // 12, np.arange(130, dtype=np.int32)[None] // 48)
    block_map = np.ones((1, 1, 3, 9), bool)
    block_map[..., 1::2] = False
    call = backend.attention.flash_attention2
    return [
        call(q, k, v, mask=mask, causal=True),
        call(q, k, v, segment_ids=segments, alibi_slopes=np.array([0.5, 0.25], np.float32)),
        call(q, k, v, block_map=block_map, block_size=(16, 16), softcap=3.0),
        call(q, k, v, mask=arrays(1, 1, 1, 130, seed=12), window_size=(20, 5)),
    ]


@scenario
def rope(backend):
    """Rotary embedding with frequencies and positions of its own."""
    from grilly.compute.rope import rope as turn

    device, x = backend.opened, arrays(2, 2, 19, 16)
    positions = np.arange(38, dtype=np.int32).reshape(2, 19)
    back = turn(device, turn(device, backend.tensor(x)), reverse=True)
    return [turn(device, x, base=500.0, offset=3), turn(device, x, positions=positions), back.numpy()]


@scenario
def transfers(backend):
    """Small arrays both ways: plain, transposed, repeated, 16 bits, into arrays of the device's own host memory."""
    x = arrays(33, 20)
    tensor = backend.tensor(x)
    half = tensor.astype("float16")
    given = backend.host_asarray(x)
    filled = backend.host_empty(x.shape)
    turned = backend.tensor(np.asfortranarray(x))
    tensor.numpy(out=filled)
    parts = [tensor[3:9, ::2].contiguous().numpy(), tensor.T.reshape(-1).numpy(), backend.tensor(given).numpy()]
    repeated = backend.tensor(np.broadcast_to(x[:1], x.shape))
    return [half.numpy(), turned.numpy(), filled.copy(), *parts, repeated.numpy()]


@scenario
def large(backend):
    """Arrays above 4 MB both ways, contiguous and not, so that they go in several chunks."""
    x = arrays(1100, 2048)
    tensor = backend.tensor(x)
    turned = backend.tensor(x[:, ::2])
    return [tensor.numpy(), turned.numpy(), backend.tensor(x.T).numpy(), tensor[5:700].astype("float16").numpy()]


@scenario
def streaming(backend):
    """A call on NumPy arrays that takes several times the memory it may use."""
    q, k, v = (arrays(1, 2, 700, 32, seed=seed) for seed in range(3))
    former, backend.memory_limit = backend.memory_limit, (q.nbytes * 4) // 3
    try:
        out, lse = backend.attention.flash_attention2(q, k, v, causal=True, return_lse=True)
    finally:
        backend.memory_limit = former
    return [out, lse]


@scenario
def profile(backend):
    """Timed calls, each dispatch and whole rows; the times are not compared."""
    results = []
    for by in ("dispatch", "row"):
        with backend.profile(by) as found:
            results.append(backend.attention.flash_attention2(*qkv()))
        assert found.timings and all(t.seconds >= 0 for t in found.timings)
    return results


@scenario
def many(backend):
    """More small chunks of work than one submission takes, without waiting in between."""
    x = backend.tensor(arrays(5, 7))
    downloads = []
    for number in range(40):
        x = x.astype("float16").astype("float32")
        if number % 16 == 0:
            downloads.append(x.download())
    return [x.numpy(), *(download.numpy() for download in downloads)]


@scenario
def graph(backend):
    """A captured function, replayed on arrays and tensors: a cache that grows, and words that the host writes."""
    from grilly.compute.matmul.linear import linear

    device = backend.opened
    keys, values = (backend.tensor(np.zeros((2, 20, 2, 16), np.float32)) for _ in range(2))
    weight = backend.tensor(arrays(32, 64, seed=3))

    def step(q, lengths):
        k, v = backend.tensor(arrays(2, 1, 2, 16, seed=7)), backend.tensor(arrays(2, 1, 2, 16, seed=8))
        out = flash_attention_with_kvcache(device, q, keys, values, k, v, lengths, causal=True)
        return out, linear(device, out.reshape(2, 64), weight)

    captured = backend.capture(step, arrays(2, 1, 4, 16), np.zeros(2, np.int32))
    results = []
    for number in range(3):
        q, lengths = arrays(2, 1, 4, 16, seed=number), np.array([5 + number, number], np.int32)
        results += captured(q if number else backend.tensor(q), lengths)
    own = captured(arrays(2, 1, 4, 16), lengths, copy=False)
    return [r.numpy() for r in (*results, *own, keys, values)]


@scenario
def growing(backend):
    """A captured step that counts the keys of its cache on the device, cut back between replays."""
    from grilly.nn import KVCache

    cache = KVCache(2, 12, 2, 16, backend=backend)
    step = backend.capture(cache.attend, *(arrays(2, 1, heads, 16, seed=heads) for heads in (4, 2, 2)))
    results = []
    for number in range(4):
        if number == 2:
            cache.truncate(1)
        results.append(step(*(arrays(2, 1, heads, 16, seed=10 * number + heads) for heads in (4, 2, 2))))
    held = [array.numpy()[:, : len(cache)] for array in (cache.k, cache.v)]
    return [*(r.numpy() for r in results), *held, cache.lengths.copy()]


@scenario
def options_of_nothing(backend):
    """Calls that are refused, and empty ones, between others."""
    x = backend.tensor(arrays(4, 4))
    try:
        backend.attention.flash_attention2(*qkv()[:2], arrays(3, 3))
    except ValueError:
        pass
    empty = backend.tensor(np.zeros((0, 4), np.float32))
    return [x.numpy(), empty.numpy(), backend.attention.flash_attention2(*qkv(queries=1))]


class Before:
    """What a program holds when something fails: tensors read and unread, views, a cache, an array of host memory."""

    def __init__(self, backend):
        q, k, v = qkv(queries=17, keys=21, dim=8)
        self.host = backend.host_empty((50, 9))
        self.host[...] = arrays(50, 9, seed=20)
        self.read = backend.tensor(arrays(40, 30, seed=21))
        self.kept = self.read.numpy()
        self.half = self.read.astype("float16")
        tensors = [backend.tensor(a) for a in (q, k, v)]
        self.out, self.lse = backend.attention.flash_attention2(*tensors, return_lse=True)
        self.view = self.read[2:20].T
        self.cache = [backend.tensor(np.zeros((1, 12, 2, 8), np.float32)) for _ in range(2)]
        flash_attention_with_kvcache(
            backend.opened,
            backend.tensor(arrays(1, 1, 2, 8)), *self.cache, arrays(1, 1, 2, 8, seed=22), arrays(1, 1, 2, 8, seed=23),
            cache_seqlens=4,
        )  # fmt: skip
        self.graph = self.replayed = None
        if backend.runtime.name == "vulkan":
            self.graph = backend.capture(lambda x: backend.attention.softmax(x.astype("float32")), self.half)
            self.replayed = self.graph(self.half)
        self.chain = self.half.astype("float32")  # work on what has not been read

    def parts(self) -> dict:
        """Each thing by name, as a function that reads it."""
        found = {name: getattr(self, name).numpy for name in ("chain", "half", "out", "lse", "view", "read")}
        found |= {f"cache {i}": cache.numpy for i, cache in enumerate(self.cache)}
        found["host"] = lambda: self.host.copy()
        if self.graph is not None:
            found["replayed"] = self.replayed.numpy
            found["graph"] = lambda: self.graph(self.half).numpy()
        return found


__all__ = ["LARGE", "SCENARIOS", "VULKAN_ALONE", "Before", "arrays"]
