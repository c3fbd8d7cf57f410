"""What a model's folder says of generation, and which of it is not computed here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .config import Config, place_of, read_json
from .sampling import PLAIN

#: Fields of tokens, and whether they hold one, or may hold several.
ONE, SOME, MANY = "a token", "a token or a list of tokens", "a list of tokens"
TOKENS = {
    "eos_token_id": SOME, "pad_token_id": ONE, "bos_token_id": ONE, "decoder_start_token_id": ONE,
    "suppress_tokens": MANY, "begin_suppress_tokens": MANY,
}  # fmt: skip
#: Those that config.json may say where generation_config.json does not.
SHARED = ("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id")


def _nothing(value: Any) -> bool:
    return value is None or value is False or value == 0 or value in ([], {})


def _none(value: Any) -> bool:
    return value is None


def _one(value: Any) -> bool:
    return value is None or value == 1


def _whole(value: Any) -> bool:
    return value != "quantized"


#: Fields by which transformers gives other tokens than `generate` without options, and values by which it does not.
NOT_APPLIED: dict[str, Callable[[Any], bool]] = {
    "bad_words_ids": _nothing, "cache_implementation": _whole, "compression_ratio_threshold": _none,
    "condition_on_prev_tokens": _nothing, "constraints": _nothing, "diversity_penalty": _nothing, "do_sample": _nothing,
    "dola_layers": _none, "encoder_no_repeat_ngram_size": _nothing, "encoder_repetition_penalty": _one,
    "epsilon_cutoff": _nothing, "eta_cutoff": _nothing, "exponential_decay_length_penalty": _nothing,
    "force_words_ids": _nothing, "forced_bos_token_id": _none, "forced_eos_token_id": _none, "guidance_scale": _one,
    "is_assistant": _nothing, "logprob_threshold": _none, "max_time": _none, "min_length": _nothing,
    "min_new_tokens": _nothing, "min_p": _nothing,
    "no_repeat_ngram_size": _nothing, "no_speech_threshold": _none, "num_beams": _one, "num_return_sequences": _one,
    "penalty_alpha": _nothing, "prompt_condition_type": _none, "remove_invalid_values": _nothing,
    "return_timestamps": _nothing, "sequence_bias": _nothing, "stop_strings": _nothing, "token_healing": _nothing,
    "top_h": _none, "typical_p": _one, "watermarking_config": _nothing,
}  # fmt: skip
#: Those of them that matter where tokens are drawn alone.
DRAWING = frozenset({"epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "typical_p"})


class Defaults:
    """Generation's defaults in a folder: generation_config.json, or config.json where that is not there.

    Parameters
    ----------
    folder : Path
        Or a GGUF file.
    fields : dict
        Those of config.json.

    Attributes
    ----------
    tokens : dict of str to int, list of int or None
        By the names of `TOKENS`; a negative token stands for none.
    repetition_penalty, temperature, top_p : float
    top_k : int
    max_new_tokens, max_length : int or None
    not_applied : dict of str to object
        What the folder asks for and is not computed.

    Raises
    ------
    ModelError
        For a file that is no JSON object, and values of another kind; it names the file and the field.
    """

    def __init__(self, folder: Path, fields: dict[str, Any]) -> None:
        whole = Config(place_of(folder), fields)
        file = folder / "generation_config.json"
        own = Config(str(file), read_json(file)) if file.is_file() else whole
        self.tokens: dict[str, Any] = {}
        for name, kind in TOKENS.items():
            config = whole if name in SHARED and name not in own.fields else own
            self.tokens[name] = _tokens(config, name, kind)
        begin = self.tokens.pop("bos_token_id")
        if self.tokens["decoder_start_token_id"] is None:  # which models that have no decoder of their own do not read
            self.tokens["decoder_start_token_id"] = begin
        self.repetition_penalty = own.number("repetition_penalty", 1.0, above=0.0)
        # Out of range they matter where tokens are drawn alone, and are refused there.
        self.temperature, self.top_p = (own.number(name, PLAIN[name]) for name in ("temperature", "top_p"))
        self.top_k = own.integer("top_k", PLAIN["top_k"], least=-1)
        self.max_new_tokens, self.max_length = (own.integer(name, None) for name in ("max_new_tokens", "max_length"))
        self.not_applied = {
            name: own.fields[name] for name, harmless in NOT_APPLIED.items() if not harmless(own.fields.get(name))
        }


def _tokens(config: Config, name: str, kind: str) -> Any:
    value = config.fields.get(name)
    several = isinstance(value, list) and kind != ONE
    given = value if several else [] if value is None else [value]
    if (kind == MANY and given and not several) or not all(type(token) is int for token in given):
        raise config.error(name, kind)
    kept = [token for token in given if token >= 0]
    return kept or None if several else next(iter(kept), None)

