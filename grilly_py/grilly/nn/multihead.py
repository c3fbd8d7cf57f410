"""MultiheadAttention: PyTorch's layer, GPT's causal one and T5's, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from .. import functional as F
from ..compute import Compute, Tensor
from ..compute.attention.heads import join_heads
from ..compute.attention.keywords import MaskFunction, ScoreFunction
from ..compute.device.arguments import check_precision
from ..compute.device.arrays import (
    Architecture,
    Array,
    Float32Array,
    FloatArray,
    FloatT,
    HostMask,
    IntegersLike,
    MaskArray,
    NDArray,
    Precision,
)
from ..compute.device.numbers import integer
from .flash import check_heads, split_heads
from .kvcache import KVCache
from .linear import Linear, uniform
from .module import Module, shapes
from .parameter import Parameter

_ARCHITECTURES = ("generic", "gpt", "t5")


class MultiheadAttention(Module):
    """Multi-head attention with its projections (Vaswani et al. 2017, section 3.2.2).

    Loads ``torch.nn.MultiheadAttention``'s state dict unchanged, and with ``architecture="t5"`` that of Hugging Face's
    T5Attention. It differs from PyTorch's layer: **a boolean mask is True where a query attends** (PyTorch's layer
    reads True as "ignore"; its scaled_dot_product_attention reads it as here), inputs are always ``(B, S, E)`` or
    ``(S, E)``, ``average_attn_weights`` is False by default, and a query that sees nothing attends to nothing.

    Parameters
    ----------
    embed_dim : int
        Width of the queries and the output, E.
    num_heads : int
        H; divides ``embed_dim`` unless ``head_dim`` is given.
    bias : bool
        Whether the projections add a bias.
    kdim, vdim : int, optional
        Widths of the keys and values; E by default.
    causal : bool
        Query i attends only to keys ``j <= i + Sk - Sq``.
    architecture : str
        "generic"; "gpt": always causal, a query never reads keys after it, and where there are more keys than queries
        the first Sk - Sq keys come from a cache; "t5": scores are not scaled, and a learned bias for the distance
        between query and key is added (Raffel et al. 2020, section 2.1).
    head_dim : int, optional
        Width of a head, D; only for "t5", where H * D need not be E.
    bidirectional : bool
        "t5" only: whether keys after the query have buckets of their own, as in an encoder.
    relative_attention_bias : bool
        "t5" only: whether this layer has the table of biases. In T5 only the first layer of a stack has; the others
        are given its ``position_bias``, and cross-attention has none.
    relative_attention_num_buckets, relative_attention_max_distance : int
        "t5" only: rows of the table, and the distance from which all is alike.
    precision : str, optional
        "highest" or "high", of the projections (``grilly.functional.linear``) and of attention where it is one kernel
        (``grilly.functional.flash_attention2``). None: what each of them has by default, "highest".
    rng : int or numpy.random.Generator, optional
        Where the first weights come from.

    Raises
    ------
    ValueError
        For an unknown architecture or precision, heads that do not divide the width, or an option of another
        architecture.
    """

    _inputs = ("query", "key", "value", "position_bias")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        causal: bool = False,
        architecture: Architecture = "generic",
        head_dim: int | None = None,
        bidirectional: bool = True,
        relative_attention_bias: bool = True,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        precision: Precision | None = None,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        if architecture not in _ARCHITECTURES:
            raise ValueError(f"MultiheadAttention: architecture is {architecture!r}; expected one of {_ARCHITECTURES}")
        widths = {"embed_dim": embed_dim, "num_heads": num_heads, "head_dim": head_dim, "kdim": kdim, "vdim": vdim}
        for name, width in widths.items():
            if width is not None:
                integer("MultiheadAttention", name, width)
        if head_dim is None:
            check_heads("MultiheadAttention", embed_dim, num_heads)
        elif architecture != "t5" and head_dim * num_heads != embed_dim:
            raise ValueError(
                f'MultiheadAttention: head_dim is {head_dim}; only architecture="t5" takes another than E / H'
            )
        elif min(embed_dim, num_heads, head_dim) < 1:
            raise ValueError("MultiheadAttention: embed_dim, num_heads and head_dim must be at least 1")
        if precision is not None:
            check_precision("MultiheadAttention", precision)
        rng = np.random.default_rng(rng)
        self.precision = precision
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.architecture = architecture
        self.causal = causal or architecture == "gpt"
        self.bidirectional = bidirectional
        self.max_distance = relative_attention_max_distance
        if architecture == "t5":
            self._make_t5(bias, relative_attention_num_buckets if relative_attention_bias else 0, rng)
        else:
            self._make_generic(bias, rng)

    def _make_generic(self, bias: bool, rng: np.random.Generator) -> None:
        width = self.embed_dim
        # Glorot and Bengio 2010, over the matrices as they are stored, and zero biases: PyTorch's choice for this layer
        if self.kdim == self.vdim == width:
            self.in_proj_weight = Parameter(uniform(rng, math.sqrt(6 / (4 * width)), 3 * width, width))
        else:
            for name, columns in (("q", width), ("k", self.kdim), ("v", self.vdim)):
                bound = math.sqrt(6 / (width + columns))
                setattr(self, f"{name}_proj_weight", Parameter(uniform(rng, bound, width, columns)))
        self.in_proj_bias = Parameter(np.zeros(3 * width, np.float32)) if bias else None
        self.out_proj = Linear(width, width, bias, **self._own_precision(), rng=rng)
        if bias:
            self.out_proj.bias = Parameter(np.zeros(width, np.float32))

    def _make_t5(self, bias: bool, buckets: int, rng: np.random.Generator) -> None:
        inner = self.num_heads * self.head_dim
        for name, columns in (("q", self.embed_dim), ("k", self.kdim), ("v", self.vdim)):
            setattr(self, name, Linear(columns, inner, bias, **self._own_precision(), rng=rng))
        self.o = Linear(inner, self.embed_dim, bias, **self._own_precision(), rng=rng)
        self.relative_attention_bias = _Table(buckets, self.num_heads, rng) if buckets else None

    # -- computing -------------------------------------------------------------------------------------------------

    @overload
    def forward(
        self, query: NDArray[FloatT], key: NDArray[FloatT] | None = ..., value: NDArray[FloatT] | None = ..., *,
        mask: HostMask | None = ..., causal: bool | None = ..., need_weights: bool = ...,
        average_attn_weights: bool = ..., position_bias: Float32Array | MultiheadAttention | None = ...,
        position_offset: SupportsIndex | None = ..., cache: KVCache | None = ...,
        score_mod: ScoreFunction | None = ..., mask_mod: MaskFunction | None = ...,
    ) -> tuple[NDArray[FloatT], NDArray[np.float32] | None]: ...  # fmt: skip
    @overload
    def forward(
        self, query: Tensor, key: FloatArray | None = ..., value: FloatArray | None = ..., *,
        mask: MaskArray | None = ..., causal: bool | None = ..., need_weights: bool = ...,
        average_attn_weights: bool = ..., position_bias: Float32Array | MultiheadAttention | None = ...,
        position_offset: SupportsIndex | None = ..., cache: KVCache | None = ...,
        score_mod: ScoreFunction | None = ..., mask_mod: MaskFunction | None = ...,
    ) -> tuple[Tensor, Tensor | None]: ...  # fmt: skip
    @overload
    def forward(
        self, query: FloatArray, key: FloatArray | None = ..., value: FloatArray | None = ..., *,
        mask: MaskArray | None = ..., causal: bool | None = ..., need_weights: bool = ...,
        average_attn_weights: bool = ..., position_bias: Float32Array | MultiheadAttention | None = ...,
        position_offset: SupportsIndex | None = ..., cache: KVCache | None = ...,
        score_mod: ScoreFunction | None = ..., mask_mod: MaskFunction | None = ...,
    ) -> tuple[Array, Array | None]: ...  # fmt: skip
    def forward(
        self,
        query: FloatArray,
        key: FloatArray | None = None,
        value: FloatArray | None = None,
        *,
        mask: MaskArray | None = None,
        causal: bool | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = False,
        position_bias: Float32Array | MultiheadAttention | None = None,
        position_offset: SupportsIndex | None = None,
        cache: KVCache | None = None,
        score_mod: ScoreFunction | None = None,
        mask_mod: MaskFunction | None = None,
    ) -> tuple[Array, Array | None]:
        """Attend.

        Parameters
        ----------
        query : numpy.ndarray or grilly.Tensor
            ``(B, Sq, E)`` or ``(Sq, E)``.
        key, value : numpy.ndarray or grilly.Tensor, optional
            ``(B, Sk, kdim)`` and ``(B, Sk, vdim)``, or without B. The query and the key by default.
        mask : numpy.ndarray or grilly.Tensor, optional
            Boolean (**True = attend**) or additive, broadcastable to ``(B, H, Sq, Sk)``.
        causal : bool, optional
            Instead of the layer's own; "gpt" is always causal.
        need_weights : bool
            Whether to return the weights, as PyTorch's layer does by default. With them a matrix of
            ``B x H x Sq x Sk`` float32 numbers is stored, 512 MiB for 4,096 tokens and 8 heads, and the scores beside
            it. With ``need_weights=False`` one kernel does it all and stores neither; but in "t5" where there is a
            ``position_offset`` by which the last query does not stand at the last key.
        average_attn_weights : bool
            Whether to return the weights' mean over the heads.
        position_bias : numpy.ndarray, grilly.Tensor or MultiheadAttention, optional
            "t5" only: float32, broadcastable to ``(B, H, Sq, Sk)``, added to the scores instead of this layer's own
            relative bias. Or the layer whose table of biases counts, T5's first: then no array of that shape is made,
            and ``backward`` adds the table's gradient to that layer's.
        position_offset : int, optional
            "t5" only: the position of the first query among the keys. By default 0 when bidirectional, and Sk - Sq
            otherwise, where the first keys come from a cache.
        cache : KVCache, optional
            Of ``make_cache``. In a causal layer the query's tokens follow those in it, are added to it, and attend to
            all of them; in others the query attends to what ``fill_cache`` put there. Needs ``need_weights=False``, and
            takes no key, value or mask, and no array as ``position_bias``. Nothing is kept for ``backward``.
        score_mod, mask_mod : callable, optional
            As for ``grilly.functional.flash_attention2``, and with a cache as for ``flash_attention_with_kvcache``.
            They need ``need_weights=False``.

        Returns
        -------
        output : numpy.ndarray or grilly.Tensor
            In the query's shape. A query with nothing to attend to gives the output projection's bias.
        weights : numpy.ndarray, grilly.Tensor or None
            float32; ``(B, H, Sq, Sk)``, or ``(B, Sq, Sk)`` when averaged, less B where the query lacks it; None without
            ``need_weights``.

        Raises
        ------
        ValueError, TypeError
            For shapes and dtypes that do not go together, and options of another architecture.
        """
        functions = {"score_mod": score_mod, "mask_mod": mask_mod}
        self._check_functions(functions, need_weights)
        if cache is not None:
            given = {"key": key, "value": value, "mask": mask, "position_offset": position_offset}
            given["causal"] = None if causal == self.causal else causal
            return self._continue(query, cache, need_weights, position_bias, given, functions), None
        key = query if key is None else key
        value = key if value is None else value
        rank = self._check(query, key, value, causal, position_bias, position_offset)
        causal = self.causal if causal is None else causal
        backend, (query, key, value), keep = self._send(query, key, value, mask=mask)
        if rank == 2:
            alike = key is query, value is query
            query = query.reshape(1, *query.shape)
            key = query if alike[0] else key.reshape(1, *key.shape)
            value = query if alike[1] else value.reshape(1, *value.shape)
        q, k, v = (split_heads(array, self.num_heads) for array in self._project(backend, query, key, value))
        options, weights = self._flash_options(backend, q, k, mask, causal, position_bias, position_offset), None
        if options is None and any(function is not None for function in functions.values()):
            raise ValueError("MultiheadAttention: score_mod or mask_mod is given beside a position_offset by which the "
                             "last query does not stand at the last key")  # fmt: skip
        if need_weights or options is None:
            weights = self._attention_weights(backend, q, k, mask, causal, position_bias, position_offset)
            output = F.attention_output(weights, v, architecture=self.architecture)
        else:
            output = F.flash_attention2(q, k, v, **options, **functions, **self._own_precision())
        output = (self.o if self.architecture == "t5" else self.out_proj)(join_heads(output))
        weights = self._averaged(backend, weights, average_attn_weights) if need_weights else None
        if rank == 2:
            output = output.reshape(output.shape[1:])
            weights = None if weights is None else weights.reshape(weights.shape[1:])
        if not keep:
            output, weights = output.numpy(), None if weights is None else weights.numpy()
        return output, weights

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        @overload
        def backward(self, grad_output: NDArray[FloatT]) -> tuple[NDArray[FloatT] | None, ...]: ...
        @overload
        def backward(self, grad_output: Tensor) -> tuple[Tensor | None, ...]: ...
        def backward(self, grad_output: FloatArray) -> tuple[Array | None, ...]: ...

    def _differentiable(self, found: Any) -> Any:
        """``backward`` is given the gradient of the output; the weights' is none."""
        return found[0]

    def _returned(self, gradients: dict[str, Array]) -> tuple[Array | None, ...]:
        """Gradients of query, key and value; None for what was left out. That of ``position_bias`` is kept."""
        bias = gradients.get("position_bias")
        self.position_bias_grad = bias.numpy() if isinstance(bias, Tensor) else bias
        return tuple(gradients.get(name) for name in ("query", "key", "value"))

    def _attention_weights(
        self, backend: Compute, q: Tensor, k: Tensor, mask: MaskArray | None, causal: bool,
        position_bias: Float32Array | MultiheadAttention | None, position_offset: SupportsIndex | None,
    ) -> Tensor:  # fmt: skip
        """The weights ``(B, H, Sq, Sk)``, stored; zeros for a query that sees nothing."""
        scores = F.attention_scores(q, k, scale=1.0 if self.architecture == "t5" else None)
        if self.architecture == "t5":
            scores = self._add_bias(backend, scores, position_bias, position_offset)
        if mask is not None or causal:
            scores = F.attention_mask(scores, mask=mask, causal=causal)
        return backend.attention.softmax(scores)

    def make_cache(self, batch: int, max_len: int, backend: Compute | None = None) -> KVCache:
        """An empty cache for ``batch`` samples of up to ``max_len`` tokens, to be given to ``forward``.

        Of a causal layer's own tokens ("gpt", or ``causal=True``); in other layers of what they attend to, which
        ``fill_cache`` puts there. It lives on ``backend``, by default the layer's own, and has the weights' dtype.
        """
        backend = self._backend if backend is None else backend
        dtype = (self.o if self.architecture == "t5" else self.out_proj).weight.dtype
        return KVCache(batch, max_len, self.num_heads, self.head_dim, dtype=dtype, backend=backend)

    def fill_cache(
        self, cache: KVCache, key: FloatArray, value: FloatArray | None = None, lengths: IntegersLike | None = None
    ) -> None:
        """Project keys and values once, for every ``forward(query, cache=cache)`` to come: an encoder's output.

        Parameters
        ----------
        cache : KVCache
            Of ``make_cache``; what it held is forgotten.
        key, value : numpy.ndarray or grilly.Tensor
            ``(B, Sk, kdim)`` and ``(B, Sk, vdim)``; the key is the value by default.
        lengths : array of int, optional
            ``(B,)``: of how many keys each sample consists, where they are padded on the right; Sk by default.

        Raises
        ------
        ValueError, TypeError
            In a causal layer, whose caches grow by its own tokens; and as ``KVCache.fill``.
        """
        if self.causal:
            raise ValueError("MultiheadAttention: fill_cache is for cross-attention, and this layer is causal")
        value = key if value is None else value
        (of_key, of_value) = shapes("MultiheadAttention", key=key, value=value)
        for name, shape, width in (("key", of_key, self.kdim), ("value", of_value, self.vdim)):
            if len(shape) != 3 or shape[-1] != width:
                raise ValueError(f"MultiheadAttention: {name} has shape {shape}; expected (B, Sk, {width})")
        backend, (key, value), _ = self._send(key, value)
        self._same_backend(cache, backend)
        cache.fill(*self._by_tokens(self._project(backend, None, key, value)), lengths)

    @staticmethod
    def _check_functions(functions: dict[str, Any], need_weights: bool) -> None:
        """Raise ValueError where weights are wanted beside a function."""
        for name, function in functions.items():
            if function is not None and need_weights:
                raise ValueError(f"MultiheadAttention: with {name} no weights are returned; give need_weights=False")

    def _continue(
        self, query: Any, cache: KVCache, need_weights: bool, position_bias: Any, others: dict[str, Any],
        functions: dict[str, Any],
    ) -> Any:  # fmt: skip
        """The output for tokens that follow those in the cache, or attend to what it was filled with."""
        if need_weights:
            raise ValueError("MultiheadAttention: with a cache no weights are returned; give need_weights=False")
        for name, other in others.items():
            if other is not None:
                way = "" if self.causal or name != "mask" else "; give fill_cache the lengths= of padded samples"
                raise ValueError(f"MultiheadAttention: {name} is given beside a cache, which has the keys{way}")
        if position_bias is not None and not isinstance(position_bias, MultiheadAttention):
            raise ValueError(
                "MultiheadAttention: position_bias is an array beside a cache; give the layer that has the table"
            )
        tokens = query if self.causal else None
        rank = self._check(query, tokens, tokens, position_bias=position_bias)
        _, (sent,), keep = self._send(query)
        backend = sent.backend
        self._same_backend(cache, backend)
        sent = sent.reshape(1, *sent.shape) if rank == 2 else sent
        options = self._own_precision() | {name: own for name, own in functions.items() if own is not None}
        if self.architecture == "t5":
            options = {"scale": 1.0, **self._table(backend, position_bias), **options}
        given = (sent, sent, sent) if self.causal else (sent, None, None)
        attended = cache.attend(*self._by_tokens(self._project(backend, *given)), **options)
        last = self.o if self.architecture == "t5" else self.out_proj
        output = last(join_heads(attended.transpose(0, 2, 1, 3)))
        output = output.reshape(output.shape[1:]) if rank == 2 else output
        return output if keep else output.numpy()

    def _by_tokens(self, projected: Sequence[Tensor]) -> list[Tensor]:
        """(B, S, H * D) as a cache takes them: (B, S, H, D)."""
        return [split_heads(array, self.num_heads).transpose(0, 2, 1, 3) for array in projected]

    @staticmethod
    def _same_backend(cache: KVCache, backend: Compute) -> None:
        if cache.k.backend is not backend:
            raise ValueError("MultiheadAttention: query and cache are on different backends; give make_cache one")

    def _table(self, backend: Compute, position_bias: Any) -> dict[str, Any]:
        """The options that add the table of this layer, or of another that is given; none where there is no table."""
        layer = position_bias if isinstance(position_bias, MultiheadAttention) else self
        if layer.relative_attention_bias is None:
            return {}
        # the scores are float32 whatever the layer's dtype is
        table = layer.relative_attention_bias.weight.on(backend).astype(np.float32, copy=False)
        return {"t5_table": table, "t5_bidirectional": layer.bidirectional, "t5_max_distance": layer.max_distance}

    def _flash_options(
        self, backend: Compute, q: Tensor, k: Tensor, mask: Any, causal: bool, position_bias: Any, position_offset: Any
    ) -> dict[str, Any] | None:
        """The keyword arguments by which one kernel does this call and its gradients; None where it cannot."""
        options = {"mask": mask, "causal": causal}
        if self.architecture != "t5":
            return options
        options["scale"] = 1.0
        queries, keys = q.shape[2], k.shape[2]
        if position_bias is not None and not isinstance(position_bias, MultiheadAttention):
            return {**options, "attn_bias": position_bias}
        found = self._table(backend, position_bias)
        if found and self._offset(found["t5_bidirectional"], queries, keys, position_offset) != keys - queries:
            return None  # kernels count distances from the last query and the last key
        options.update(found)
        return options

    def _weights(self, backend: Compute) -> tuple[Tensor, ...]:
        """The projections' weights."""
        if self.architecture == "t5":
            return tuple(getattr(self, name).weight.on(backend) for name in "qkv")
        if "in_proj_weight" not in self._parameters:
            return tuple(getattr(self, f"{name}_proj_weight").on(backend) for name in "qkv")
        width, joined = self.embed_dim, self.in_proj_weight.on(backend)
        return tuple(joined[n * width : (n + 1) * width] for n in range(3))

    def _own_precision(self) -> dict[str, Any]:
        return {} if self.precision is None else {"precision": self.precision}

    def _check(
        self, query: Any, key: Any, value: Any, causal: Any = None, position_bias: Any = None,
        position_offset: Any = None,
    ) -> int:  # fmt: skip
        """Raise unless the arguments go together; returns the rank. Without key and value the query alone."""
        named = {"query": query} if key is None else {"query": query, "key": key, "value": value}
        found = shapes("MultiheadAttention", **named)
        rank = len(found[0])
        if rank not in (2, 3) or {len(shape) for shape in found} != {rank}:
            raise ValueError(
                f"MultiheadAttention: {', '.join(named)} have shapes {', '.join(map(str, found))}; "
                f"expected all (B, S, width) or all (S, width)"
            )
        for name, shape, width in zip(named, found, (self.embed_dim, self.kdim, self.vdim), strict=False):
            if shape[-1] != width:
                raise ValueError(f"MultiheadAttention: {name} has shape {shape}; its last axis must be {width}")
        if key is not None and found[1][:-1] != found[2][:-1]:
            raise ValueError(f"MultiheadAttention: key is {found[1]} and value is {found[2]}; B and Sk must be equal")
        if key is not None and rank == 3 and found[0][0] != found[1][0]:
            raise ValueError(f"MultiheadAttention: query is {found[0]} and key is {found[1]}; B must be equal")
        if self.architecture == "gpt" and causal is False:
            raise ValueError('MultiheadAttention: architecture="gpt" is always causal; use "generic"')
        if self.architecture != "t5" and not (position_bias is None and position_offset is None):
            raise ValueError('MultiheadAttention: position_bias and position_offset are for architecture="t5"')
        other = position_bias if isinstance(position_bias, MultiheadAttention) else None
        if other is not None and getattr(other, "relative_attention_bias", None) is None:
            raise ValueError("MultiheadAttention: position_bias is a layer that has no table of biases itself")
        return rank

    def _project(self, backend: Compute, *inputs: Tensor | None) -> Sequence[Tensor]:
        """The projected query, key and value, ``(B, S, H * D)``, of those that are given."""
        if self.architecture == "t5":
            return [getattr(self, name)(x) for name, x in zip("qkv", inputs, strict=True) if x is not None]
        width = self.embed_dim
        parts = [slice(i * width, (i + 1) * width) for i in range(3)]
        bias = None if self.in_proj_bias is None else self.in_proj_bias.on(backend)
        fused = "in_proj_weight" in self._parameters
        query, key, value = inputs
        if fused and query is not None and query is key and key is value:  # one product instead of three
            joined = F.linear(query, self.in_proj_weight.on(backend), bias, **self._own_precision())
            return [joined[..., part] for part in parts]
        weights = self._weights(backend)
        biases = [None if bias is None else bias[part] for part in parts]
        given = [each for each in zip(inputs, weights, biases, strict=True) if each[0] is not None]
        return [F.linear(x, w, b, **self._own_precision()) for x, w, b in given]

    @staticmethod
    def _offset(bidirectional: bool, queries: int, keys: int, given: Any) -> int:
        """Where the first query stands among the keys."""
        return (0 if bidirectional else keys - queries) if given is None else given

    def _add_bias(self, backend: Compute, scores: Tensor, position_bias: Any, position_offset: Any) -> Tensor:
        if position_bias is not None and not isinstance(position_bias, MultiheadAttention):
            return scores + backend.tensor(position_bias)  # float32's lowest number too: as without weights
        found = self._table(backend, position_bias)
        if not found:
            return scores
        bidirectional = found["t5_bidirectional"]
        return F.t5_bias(
            scores, found["t5_table"], bidirectional=bidirectional, max_distance=found["t5_max_distance"],
            offset=self._offset(bidirectional, *scores.shape[-2:], position_offset),
        )  # fmt: skip

    def _averaged(self, backend: Compute, weights: Tensor, average: bool) -> Tensor:
        if not average:
            return weights
        # a mean over heads is a product with a row of 1 / H, which keeps it on the device
        row = backend.tensor(np.full((1, self.num_heads), 1 / self.num_heads, weights.dtype))
        return F.linear(weights.transpose(0, 2, 3, 1), row).reshape(weights.shape[0], *weights.shape[2:])

    def extra_repr(self) -> str:
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        return text if self.architecture == "generic" else f"{text}, architecture={self.architecture!r}"


class _Table(Module):
    """T5's learned biases: ``weight`` is ``(buckets, heads)``."""

    def __init__(self, buckets: int, heads: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.weight = Parameter(rng.standard_normal((buckets, heads)).astype(np.float32))

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
