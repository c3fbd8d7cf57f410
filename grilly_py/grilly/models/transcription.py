"""Transcriber: sound to text by Whisper, with its tokens for languages and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..compute import Compute
from ..compute.attention import foreign
from ..compute.device.arrays import NDArray
from ..errors import ModelError
from .config import Config, read_json
from .generation import GenerationKeywords
from .keywords import GENERATION
from .languages import code_of
from .loading import load
from .sounds import resample
from .spectrogram import log_mel
from .tokenizer import Tokenizer
from .whisper import Whisper
from .whisper_tokens import read_tokens
from .written import Written


@dataclass(frozen=True)
class Features:
    """How a folder wants sound to become features: samples a second, and the arguments of `log_mel`."""

    sampling_rate: int = 16000
    bins: int = 80
    n_samples: int = 480000
    n_fft: int = 400
    hop_length: int = 160

    def __call__(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """``(1, bins, frames)`` of at most ``n_samples``."""
        return log_mel(samples, self.bins, n_samples=self.n_samples, sampling_rate=self.sampling_rate,
                       n_fft=self.n_fft, hop_length=self.hop_length)[None]  # fmt: skip


class Transcriber:
    """Whisper of a folder, its tokenizer, and what the folder says of features, languages and tasks.

    ``Transcriber.load(folder)`` makes one.

    Attributes
    ----------
    model : Whisper
    tokenizer : Tokenizer
    features : Features
        Samples a second, samples of a piece (30 s), and how they become features.
    languages, tasks : dict of str to int
        The token of each; empty for models that know English alone.
    forced : list of int or None
        The tokens after the first where no language and no task is chosen; None for the language that is found.
    no_timestamps : int or None
        The token that asks for text without times.
    language, task : str or None
        Those of calls that choose none; None for the language that is found, and "transcribe".
    """

    def __init__(
        self, model: Whisper, tokenizer: Tokenizer, features: Features | None = None,
        languages: Mapping[str, int] | None = None, tasks: Mapping[str, int] | None = None,
        forced: Sequence[int | None] = (), no_timestamps: int | None = None, language: str | None = None,
        task: str | None = None,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer = model, tokenizer
        self.features = Features() if features is None else features
        self.languages, self.tasks = dict(languages or {}), dict(tasks or {})
        self.forced, self.no_timestamps = list(forced), no_timestamps
        self.language, self.task = language, task

    @classmethod
    def load(
        cls, folder: str | Path, dtype: DTypeLike | None = None, backend: Compute | None = None, **options: Any
    ) -> Transcriber:
        """Whisper from a folder as transformers saves it: with tokenizer.json and preprocessor_config.json.

        Parameters
        ----------
        folder : str or Path
            Languages and tasks are those of generation_config.json, and so are the ones that calls begin with:
            ``language`` and ``task``, or where it has neither ``forced_decoder_ids``, as in transformers.
        dtype, backend, **options
            As for ``grilly.models.load``.

        Raises
        ------
        ModelError
            As ``load``, for other architectures, and for features and tokens that the model does not take.
        ImportError
            Where the package tokenizers is not installed; the message says what to run.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ModelError(f"{folder} is no folder")
        named = read_json(folder / "config.json").get("architectures")
        if named != ["WhisperForConditionalGeneration"]:
            raise ModelError(f"{folder / 'config.json'}: architectures is {named!r}; sounds are transcribed by "
                             "WhisperForConditionalGeneration")  # fmt: skip
        features, where = _features(folder)
        tokenizer = Tokenizer(folder)
        model = load(folder, dtype, backend, **options)
        assert isinstance(model, Whisper)
        model.not_applied.pop("return_timestamps", None)  # text without times is what a Transcriber promises
        wanted, found = (model.encoder.bins, 2 * model.encoder.length), (
            features.bins, features.n_samples // features.hop_length)  # fmt: skip
        if found != wanted:
            raise ModelError(f"{where}: features are {found}; the model takes {wanted}")
        return cls(model, tokenizer, features, **read_tokens(folder, model.rows))

    def stream(
        self, samples: ArrayLike, sampling_rate: int, *, language: str | None = None, task: str | None = None,
        **options: Any,
    ) -> Iterator[str]:  # fmt: skip
        """The text of a sound, part by part as it is found. Parameters and errors are those of `transcribe`."""
        sound = np.asarray(samples)
        _check_not_empty(sound)
        if sound.ndim != 1 or sound.dtype.kind != "f":
            raise ValueError(f"Transcriber: samples are {sound.dtype} {sound.shape}; expected floats (N,)")
        if not np.isfinite(sound).all():
            raise ValueError("Transcriber: samples are not all finite")
        if isinstance(language, str) and code_of(language) in self.languages:
            language = code_of(language)
        for what, known, given in (("language", self.languages, language), ("task", self.tasks, task)):
            if given is not None and not known:
                raise ValueError(f"Transcriber: the model's folder names no {what}s, and none can be chosen")
            if given is not None and given not in known:
                raise ValueError(f"Transcriber: {what} is {given!r}; expected one of {', '.join(sorted(known))}")
        if "decoder_input_ids" in options:
            raise TypeError("Transcriber: decoder_input_ids follow from language and task; give these")
        if strange := options.keys() - {*GenerationKeywords.__annotations__, "attention_mask"}:
            raise foreign.unknown("transcribe", strange, GENERATION)
        language, task = self.language if language is None else language, self.task if task is None else task
        sound = resample("Transcriber", sound, sampling_rate, self.features.sampling_rate)
        return self._stream(sound, self._follow(language, task), options)

    def _stream(self, sound: NDArray[Any], follow: list[int | None], options: dict[str, Any]) -> Iterator[str]:
        step = self.features.n_samples
        for start in range(0, len(sound), step):
            features = self.features(sound[start : start + step])
            if follow[:1] == [None]:  # in the first piece
                follow = [self.languages[self._language(features)], *follow[1:]]
            begun = self._begun(features, follow)
            written, room = Written(self.tokenizer), self.model.positions - begun.shape[1]
            for tokens in self.model.stream(features, decoder_input_ids=begun, **{"max_new_tokens": room} | options):
                yield written.add(int(tokens[0]))
            yield written.rest()

    def transcribe(
        self, samples: ArrayLike, sampling_rate: int, *, language: str | None = None, task: str | None = None,
        **options: Any,
    ) -> str:  # fmt: skip
        """The text of a sound, of any length: pieces of 30 s are transcribed one after the other.

        Parameters
        ----------
        samples : array
            ``(N,)`` floats, from -1 to 1.
        sampling_rate : int
            Samples a second. The package soxr makes of others those that the model takes, 16,000.
        language : str, optional
            What is spoken: "en", "English" or "<|en|>". By default the folder's, ``self.language``, else what the model
            finds likeliest in the first piece.
        task : str, optional
            "transcribe" or "translate", into English. By default the folder's, ``self.task``, else "transcribe".
        **options
            Of ``generate``, such as ``max_new_tokens`` for each piece; by default as many as the model has positions.

        Returns
        -------
        str
            Without times.

        Raises
        ------
        ValueError
            For samples that are no such sound, an empty one, impossible rates, and languages and tasks that the model
            lacks.
        ImportError
            Where soxr is needed and not installed; the message says what to run.
        """
        return "".join(self.stream(samples, sampling_rate, language=language, task=task, **options)).strip()

    def detect_language(self, samples: ArrayLike) -> str:
        """The language that the model finds likeliest in a sound's first 30 s, such as "en".

        Parameters
        ----------
        samples : array
            ``(N,)`` floats, from -1 to 1, with as many a second as the model takes.

        Raises
        ------
        ValueError
            For samples that are no such sound, an empty one, and models without languages.
        """
        if not self.languages:
            raise ValueError("Transcriber: the model's folder names no languages")
        sound = np.asarray(samples)
        _check_not_empty(sound)
        return self._language(self.features(sound))

    def _language(self, features: NDArray[np.float32]) -> str:
        logits = self.model(features, self.model._begin(features)).logits[0, -1].astype(np.float32)
        return max(self.languages, key=lambda name: logits[self.languages[name]])

    def _follow(self, language: str | None, task: str | None) -> list[int | None]:
        """The tokens after the first; None at the first of these stands for the language that is found."""
        if self.forced and language is None and task is None:
            return list(self.forced)
        if not self.languages:
            return []
        return [None if language is None else self.languages[language], self.tasks[task or "transcribe"]]

    def _begun(self, features: NDArray[np.float32], follow: Sequence[int | None]) -> NDArray[np.int64]:
        """What an answer begins with, ``(1, S)``."""
        tokens = self.model._begin(features)[0].tolist() + [token for token in follow if token is not None]
        if self.no_timestamps is not None and self.no_timestamps not in tokens:
            tokens.append(self.no_timestamps)
        return np.array([tokens], np.int64)


def _check_not_empty(sound: NDArray[Any]) -> None:
    if not sound.size:  # which may come as any dtype: a list without elements is float64, a cut of a sound is its own
        raise ValueError(f"Transcriber: the sound is empty: samples have shape {sound.shape}; expected at least one")


def _features(folder: Path) -> tuple[Features, str]:
    """How sound becomes features, and the file that says so."""
    file, joined = folder / "preprocessor_config.json", folder / "processor_config.json"
    config: Config | None
    if not file.is_file() and joined.is_file():  # where transformers 5 puts it, with what else a processor has
        file = joined
        config = Config(str(file), read_json(file)).inner("feature_extractor")
        if config is None:
            raise ModelError(f"{file}: feature_extractor is missing")
    else:
        config = Config(str(file), read_json(file))
    config.only(feature_extractor_type="WhisperFeatureExtractor", dither=0, padding_value=0, padding_side="right",
                do_normalize=False)  # fmt: skip
    # The filters of old files are those that follow from the rest, and a mask is not used by the model.
    config.unused("mel_filters", "n_samples", "nb_max_frames", "processor_class", "return_attention_mask")
    rate = config.integer("sampling_rate", 16000)
    found = Features(rate, config.integer("feature_size", 80), config.integer("chunk_length", 30) * rate,
                     config.integer("n_fft", 400), config.integer("hop_length", 160))  # fmt: skip
    config.finish()
    return found, config.where
