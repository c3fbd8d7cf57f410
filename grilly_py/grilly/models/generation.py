"""Generation: token after token, each chosen from the logits of the last."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import numpy as np

from ..compute import Compute, Tensor
from ..compute.attention import foreign
from ..compute.attention.cache_types import CacheType, check_cache_type
from ..compute.device.arrays import NDArray, Unpack
from ..compute.device.callers import callers_level
from ..errors import OutOfDeviceMemoryError, UnsupportedError
from .cache import Cache
from .defaults import DRAWING
from .graphs import Graphs
from .keywords import GENERATION
from .model import check_padding, on_host
from .offload import Offload
from .sampling import PLAIN, Sampler
from .tokenizer import Tokenizer
from .written import Stops

Returned = TypeVar("Returned")

#: From so many tokens on, a step is captured and replayed.
CAPTURED = 4
#: How many tokens are added where neither the call nor the folder says it.
NEW = 20


def packed(owner: str, input_ids: Any, attention_mask: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Prompts with their padding, which may lie on either side, moved to the right; and how many tokens each has.

    Raises ValueError for arrays that are no prompts, and prompts without a token.
    """
    ids = on_host(f"{owner}: input_ids", input_ids)
    if ids.ndim != 2 or not ids.size:
        raise ValueError(f"{owner}: input_ids has shape {ids.shape}; expected (B, S), neither of them 0")
    if attention_mask is None:
        return ids, np.full(len(ids), ids.shape[1])
    mask = on_host(f"{owner}: attention_mask", attention_mask)
    if mask.shape != ids.shape:
        raise ValueError(f"{owner}: attention_mask has shape {mask.shape}; expected {ids.shape}, as input_ids")
    check_padding(f"{owner}: attention_mask", mask)
    mask = mask != 0
    lengths = mask.sum(axis=1)
    if not lengths.all():
        raise ValueError(f"{owner}: prompt {int(lengths.argmin())} has no token: its attention_mask is 0 throughout")
    order = np.argsort(~mask, axis=1, kind="stable")  # tokens first, in their order
    return np.take_along_axis(ids, order, axis=1)[:, : lengths.max()], lengths


def fewer(positions: int, length: int, alone: str) -> str:
    """What to say where a text of this length and its new tokens, the last of which nothing reads, are too many."""
    most = positions + 1 - length
    return f"max_new_tokens may be {most} here" if most > 0 else f"{alone} too long"


class GenerationKeywords(TypedDict, total=False):
    """Keyword arguments of `Generates.generate`, which documents them, and of `Generates.stream`."""

    max_new_tokens: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    eos_token_id: int | Sequence[int] | None
    pad_token_id: int | None
    seed: int | None
    decoder_input_ids: Any
    stop_strings: str | Sequence[str] | None
    tokenizer: Tokenizer | None
    use_graph: bool
    cache_dtype: CacheType | None


@dataclass(frozen=True)
class _Options:
    """The values of `GenerationKeywords`, with their defaults."""

    max_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None
    seed: int | None = None
    decoder_input_ids: Any = None
    stop_strings: str | Sequence[str] | None = None
    tokenizer: Tokenizer | None = None
    use_graph: bool = True
    cache_dtype: CacheType | None = None


def _asked(function: str, options: GenerationKeywords) -> _Options:
    """The options of a call of ``function``. Raises TypeError for keywords that there are not."""
    unknown = [name for name in options if name not in GenerationKeywords.__annotations__]
    if unknown:
        raise foreign.unknown(function, unknown, GENERATION)
    check_cache_type(function, options.get("cache_dtype"))
    return _Options(**options)


@dataclass
class State:
    """What the next step of generation reads.

    Attributes
    ----------
    cache : Cache
        Keys and values of all tokens so far.
    source : Any
        For models with an encoder: its keys and values in each layer of the decoder. None for others.
    """

    cache: Cache
    source: Any = None


class Generates:
    """``generate`` and ``stream`` of models that continue texts, or write one for another.

    Both warn (UserWarning) of what the folder asks for and is not computed: ``not_applied``.

    A subclass has ``_prompt`` and ``_next``, and for encoders with decoders ``_begin``.
    """

    backend: Compute
    graphs: Graphs
    offload: Offload | None
    _beside: Callable[[str, Cache], AbstractContextManager[None]]
    eos_token_id: Any
    pad_token_id: Any
    repetition_penalty: float
    temperature: float
    top_k: int
    top_p: float
    not_applied: dict[str, Any]
    max_new_tokens: int | None
    max_length: int | None
    suppress_tokens: Any
    begin_suppress_tokens: Any
    has_head = True

    def _prompt(
        self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, room: int, kind: CacheType | None
    ) -> tuple[Tensor, State]:
        """The logits ``(B, vocab)`` after the prompt, and the state that the next steps need.

        ``kind`` is the call's ``cache_dtype``.
        """
        raise NotImplementedError

    def _next(self, ids: Tensor, state: State) -> Tensor:
        """The logits ``(B, vocab)`` after tokens ``(B, 1)``, which are added to the state."""
        raise NotImplementedError

    def left_out(self, do_sample: bool | None = None, stop_strings: Any = None) -> str:
        """What `generate` with these warns of: what the folder asks for and is not computed; empty for nothing."""
        # What the call itself says is not of the folder; what is for sampling alone has no effect without it.
        said = {"do_sample": do_sample is not None, "stop_strings": stop_strings is not None}
        said |= dict.fromkeys(DRAWING, do_sample is False)
        left = ", ".join(f"{name}={value!r}" for name, value in self.not_applied.items() if not said.get(name))
        return f"the folder asks for {left}, which is not applied here" if left else ""

    def _sampler(
        self, do_sample: bool, temperature: float | None, top_k: int | None, top_p: float | None, penalty: float,
        seed: int | None,
    ) -> Sampler:  # fmt: skip
        """What chooses tokens. The folder's numbers count where tokens are sampled and the call has none."""
        said: Mapping[str, Any] = {name: getattr(self, name) for name in PLAIN} if do_sample else PLAIN
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        numbers: dict[str, Any] = {name: said[name] if value is None else value for name, value in given.items()}
        return Sampler(do_sample, **numbers, repetition_penalty=penalty, seed=seed)

    def _begin(self, input_ids: Any, decoder_input_ids: Any = None) -> NDArray[Any]:
        """The tokens that the answer begins with, ``(B, S)`` int64."""
        if decoder_input_ids is not None:
            raise ValueError(f"{type(self).__name__}: decoder_input_ids are for models with an encoder")
        ids = on_host(f"{type(self).__name__}: input_ids", input_ids)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{type(self).__name__}: input_ids is of {ids.dtype}; expected integers")
        return ids.astype(np.int64)

    def _stops(self, asked: _Options) -> list[str]:
        """The texts that end a text. Raises ValueError for what is no text, and without a tokenizer."""
        given = asked.stop_strings
        stops = [given] if isinstance(given, str) else list(given or ())
        if "" in stops:
            raise ValueError(f"{type(self).__name__}: stop_strings has an empty text, which is in every text")
        if stops and (asked.tokenizer is None or not all(isinstance(stop, str) and stop for stop in stops)):
            raise ValueError(f"{type(self).__name__}: stop_strings are texts, and need a tokenizer that gives texts")
        return stops

    def _count(self, max_new_tokens: int | None, begun: int) -> int:
        """How many tokens to add at most to ``begun`` ones: what the call says, else what the folder says, else 20.

        Raises TypeError and ValueError for another than a whole number, at least 1.
        """
        name = type(self).__name__
        if max_new_tokens is None and self.max_new_tokens is None and self.max_length is not None:
            if self.max_length <= begun:
                raise ValueError(f"{name}: the folder's max_length is {self.max_length}, and {begun} tokens are there; "
                                 "give max_new_tokens")  # fmt: skip
            return self.max_length - begun
        max_new_tokens = self.max_new_tokens if max_new_tokens is None else _whole("max_new_tokens", max_new_tokens)
        max_new_tokens = NEW if max_new_tokens is None else max_new_tokens
        if max_new_tokens < 1:
            raise ValueError(f"{name}: max_new_tokens is {max_new_tokens}; expected at least 1")
        return max_new_tokens

    def _texts(self, begun: NDArray[Any], attention_mask: Any) -> list[NDArray[np.int64]]:
        """The tokens of each text of ``_begin``, without padding."""
        if attention_mask is None:
            return list(begun)
        kept = on_host("attention_mask", attention_mask) != 0
        return [row[kept] for row, kept in zip(begun, kept, strict=True)]

    def stream(
        self, input_ids: Any, attention_mask: Any = None, **options: Unpack[GenerationKeywords]
    ) -> Iterator[NDArray[np.int64]]:
        """The tokens that `generate` adds, one of each sample at a time, int64 ``(B,)``, as they are found.

        Parameters and errors are those of `generate`.
        """
        asked = _asked("stream", options)
        if not self.has_head:
            raise ValueError(f"{type(self).__name__}: this architecture has no head that gives logits")
        stops = self._stops(asked)
        penalty = self.repetition_penalty if asked.repetition_penalty is None else asked.repetition_penalty
        sampler = self._sampler(bool(asked.do_sample), asked.temperature, asked.top_k, asked.top_p, penalty, asked.seed)
        if left := self.left_out(asked.do_sample, asked.stop_strings):
            warnings.warn(f"{type(self).__name__}.generate: {left}; model.not_applied.clear() ends this warning",
                          UserWarning, stacklevel=callers_level())  # fmt: skip
        ends = self.eos_token_id if asked.eos_token_id is None else asked.eos_token_id
        ends = [_whole("eos_token_id", token) for token in ([] if ends is None else np.ravel(ends).tolist())]
        padding = self.pad_token_id if asked.pad_token_id is None else _whole("pad_token_id", asked.pad_token_id)
        if attention_mask is None and padding is not None and padding not in ends:
            attention_mask = _seen(input_ids, padding)
        padding = (ends[0] if ends else 0) if padding is None else padding
        begun = self._begin(input_ids, asked.decoder_input_ids)
        count = self._count(asked.max_new_tokens, begun.shape[-1])
        given = (input_ids, attention_mask, asked.decoder_input_ids, count, asked.cache_dtype)
        logits, state = self._making_room(self._prompt, *given)
        texts = self._texts(begun, attention_mask)
        seen = sampler.seen(self.backend, texts, logits.shape[-1])
        graph = asked.use_graph and count > CAPTURED and self.offload is None
        endings = [Stops(asked.tokenizer, stops, text) for text in texts] if stops else []

        def ended(tokens: NDArray[np.int64], done: NDArray[np.bool_]) -> NDArray[np.bool_]:
            done = done | np.isin(tokens, ends)
            for row, ending in enumerate(endings):
                done[row] = done[row] or ending.add(int(tokens[row]))
            return done

        found = self._chosen(logits, state, seen, count, sampler, graph)
        return _until_ended(found, ended, padding)

    def _chosen(
        self, logits: Tensor, state: State, seen: Tensor | None, count: int, sampler: Sampler, graph: bool
    ) -> Iterator[NDArray[Any]]:
        """The tokens that each text chooses, ``(B,)``, at most ``count`` times.

        A step finds on the device what the one before it chose. So when a token is read here, the next step is under
        way: the device does not wait for the host, unless that needs longer than a step.
        """
        never = list(self.suppress_tokens or ())
        rows = None if seen is None else self.backend.tensor(np.arange(seen.shape[1], dtype=np.int32))

        def send(draws: NDArray[np.float32] | None) -> list[Tensor]:
            return [] if draws is None else [self.backend.tensor(draws)]

        def step(*draws: Tensor) -> None:
            if seen is not None and rows is not None:
                held = seen
                held |= ids == rows  # one dispatch in a graph
            ids[:, 0] = sampler(_without(self._next(ids, state), never), *draws, seen=seen)

        logits = _without(logits, never + list(self.begin_suppress_tokens or ()))
        batch = len(logits)
        ids = sampler(logits, *send(sampler.draws(batch)), seen=seen).astype("int32", copy=False).reshape(batch, 1)
        run: Callable[..., Any] | None = None
        for left in range(count - 1, -1, -1):
            found = ids.download()
            if left:
                draws = sampler.draws(batch)
                if run is None:
                    run = self._making_room(self._captured, step, draws, state.cache) if graph else step
                run(*send(draws))
            yield found.numpy()[:, 0]

    def _making_room(self, call: Callable[..., Returned], *arguments: Any) -> Returned:
        """What the call gives; where there is no room for it, what was captured of the model makes way."""
        try:
            return call(*arguments)
        except OutOfDeviceMemoryError:
            if not len(self.graphs):
                raise
            self.graphs.clear()
        return call(*arguments)

    def _captured(
        self, step: Callable[..., Any], draws: NDArray[np.float32] | None, cache: Cache
    ) -> Callable[..., Any]:
        """The step as a graph, or as it is where the runtime captures nothing, as kompute's does."""
        with self._beside("the graph of a step; use_graph=False needs none", cache):
            try:
                return self.backend.capture(step, *([] if draws is None else [draws]))
            except UnsupportedError:
                return step

    def generate(
        self, input_ids: Any, attention_mask: Any = None, **options: Unpack[GenerationKeywords]
    ) -> NDArray[np.int64]:
        """Continue texts.

        Parameters
        ----------
        input_ids : array or Tensor of int
            Prompts, ``(B, S)``. For models that read something else, what they are called with.
        attention_mask : array or Tensor, optional
            ``(B, S)``: 0 for padding, on either side. Tokens stand at the places that they have among their like. By
            default what is ``pad_token_id`` is padding, as in transformers' language models, where that ends no text.
        max_new_tokens : int, optional
            How many tokens are added at most, at least 1. By default what the folder says: its ``max_new_tokens``, else
            its ``max_length``, in which tokens that are there count; else 20.
        do_sample : bool, optional
            Draw each token by its probability; else take the most probable one (greedy). None is False, with a warning
            where the folder asks for sampling. What is only with it is refused without it.
        temperature : float, optional
            Logits are divided by it; above 0. By default what the folder says, else 1. Only with ``do_sample``.
        top_k : int, optional
            Draw among so many of the most probable tokens; 0 for all. By default what the folder says, else 50. Only
            with ``do_sample``.
        top_p : float, optional
            Draw among the most probable tokens that together have this probability, in (0, 1]. By default what the
            folder says, else 1. Only with ``do_sample``.
        repetition_penalty : float, optional
            Above 0: logits of tokens that the text has, its prompt included and padding not, are divided by it where
            they are above 0, and multiplied where below (Keskar et al. 2019, arXiv:1909.05858). By default what the
            folder says, else 1.
        eos_token_id : int or sequence of int, optional
            A text ends with any of these. By default what the model's folder says.
        pad_token_id : int, optional
            What follows an ended text while others go on. By default what the folder says, else the first
            ``eos_token_id``.
        seed : int, optional
            Of the sampling: the same seed gives the same tokens from the same logits. Only with ``do_sample``.
        decoder_input_ids : array or Tensor of int, optional
            What answers begin with, ``(B, T)``, for models with an encoder; by default the token that the folder names,
            which T5 also puts before ones that do not begin with it.
        stop_strings : str or sequence of str, optional
            A text ends with the token whose text completes any of these, also one that its prompt begins. They may be
            names of special tokens, such as "<|im_end|>". Needs ``tokenizer``.
        tokenizer : Tokenizer, optional
            What turns tokens to texts.
        use_graph : bool
            Capture a step and replay it (see ``grilly.Compute.capture``), where the runtime can.
        cache_dtype : str, optional
            "q8_0" or "q4_0": keep keys and values of earlier tokens in 8.5 or 4.5 bits a number. By default the model's
            ``cache_dtype``, which ``load`` was told, and where that is None its ``dtype``. For models with an encoder
            it is about the answer's own tokens.

        Returns
        -------
        numpy.ndarray
            int64 ``(B, S + n)``: the prompts as given, then n new tokens, at most ``max_new_tokens``. For models with
            an encoder ``(B, T + n)``: what answers begin with, its first token too, then the answers.

        Raises
        ------
        TypeError, ValueError
            For prompts that are no such numbers or hold no token, more tokens than the model has positions, numbers
            out of their range, and another ``cache_dtype``.
        UnsupportedError
            For a ``cache_dtype`` and a model whose heads are no multiple of 32 elements.
        OutOfDeviceMemoryError
            When the device has no room for the cache, the prompt's states or the step's graph. It says how much the
            weights and the cache take, the graph where that was what found none, and what to change.
        """
        asked = _asked("generate", options)
        found = self.stream(input_ids, attention_mask, **options)
        begun = self._begin(input_ids, asked.decoder_input_ids)
        return np.concatenate([begun, np.stack(list(found), axis=1)], axis=1)


def _until_ended(
    chosen: Iterator[NDArray[Any]], ended: Callable[[NDArray[np.int64], NDArray[np.bool_]], NDArray[np.bool_]],
    padding: int,
) -> Iterator[NDArray[np.int64]]:  # fmt: skip
    """What was chosen, int64 ``(B,)``, with padding in texts that have ended, until all have."""
    done: Any = np.False_
    for tokens in chosen:
        tokens = np.where(done, padding, tokens).astype(np.int64)
        done = ended(tokens, done)
        yield tokens
        if done.all():
            return


def _seen(ids: Any, padding: int) -> NDArray[np.int64] | None:
    """The attention mask of tokens ``(B, S)``; None without padding, and for what are no tokens, such as sounds.

    Raises ValueError for a prompt that is padding throughout.
    """
    ids = on_host("generate: input_ids", ids)
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not (ids == padding).any():
        return None
    seen = ids != padding
    if not (any_seen := seen.any(axis=1)).all():
        raise ValueError(f"generate: prompt {int(any_seen.argmin())} has no token but pad_token_id, {padding}; give an "
                         "attention_mask where that is a token")  # fmt: skip
    return seen.astype(np.int64)


def _whole(name: str, number: Any) -> int:
    """A whole number. Raises TypeError for anything else, which it names."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"generate: {name} is {number!r}; expected a whole number") from None


def _without(logits: Tensor, tokens: Sequence[int] | None) -> Tensor:
    """The logits, of these tokens minus infinity."""
    tokens = [token for token in tokens or () if 0 <= token < logits.shape[-1]]
    if not tokens:
        return logits
    bias = np.zeros(logits.shape[-1], np.float32)
    bias[tokens] = -np.inf
    return logits.astype("float32", copy=False) + bias
