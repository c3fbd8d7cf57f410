"""Classes of tokenizers in transformers 5: which one a folder's tokenizer is, and what each makes of the fields.

A class takes the vocabulary of tokenizer.json and makes the other steps itself, whatever the file says of them. The
class TokenizersBackend takes the file's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError
from .config import Config
from .languages import code_of

#: The class that takes tokenizer.json as it is, and its other names.
AS_IT_IS = "TokenizersBackend"
_NAMES_OF_IT = (AS_IT_IS, "PreTrainedTokenizer", "PreTrainedTokenizerFast")
#: Other names of classes.
_SAME = {
    "DistilBert": "Bert", "Electra": "Bert", "MobileBert": "Bert", "Bart": "Roberta", "Longformer": "Roberta",
}  # fmt: skip
#: The class that goes with a model_type. Where it is `AS_IT_IS`, whatever tokenizer_class says.
_OF_MODELS = {
    "bert": "Bert", "distilbert": "Bert", "mpnet": "MPNet", "roberta": "Roberta", "xlm-roberta": "XLMRoberta",
    "gpt2": "GPT2", "qwen2": "Qwen2", "qwen3": "Qwen2", "gemma": "Gemma", "gemma2": "Gemma", "t5": "T5", "clip": "CLIP",
    "whisper": "Whisper", "mistral": AS_IT_IS, "phi3": AS_IT_IS,
}  # fmt: skip
#: Models whose files are known to name another class than theirs.
_MISNAMED = ("qwen2",)
#: What one word is, of texts of Qwen 2 and of CLIP.
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")  # fmt: skip
_CLIP_WORDS = (r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")

Steps = dict[str, Any]


def sequence(kind: str, *steps: Steps) -> Steps:
    """Steps one after the other; ``kind`` is what the format calls their list."""
    return {"type": "Sequence", kind: list(steps)}


def level(space: bool = False, regex: bool = True) -> Steps:
    """Bytes as letters, one for each of the 256; ``regex``: of GPT-2's words."""
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}


def split(pattern: Steps, behavior: str, invert: bool = False) -> Steps:
    """Words by a pattern."""
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def _metaspace(scheme: str, split: bool = True) -> Steps:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def _replaced(old: str, new: str) -> Steps:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def bpe(**options: Any) -> Steps:
    """A model of merges, without its vocabulary."""
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}  # fmt: skip
    return {**plain, **options}


def _charsmap(data: Steps) -> Steps | None:
    """The table of characters of a SentencePiece model, where the file has one."""
    normalizer = data.get("normalizer") or {}
    steps = normalizer.get("normalizers", []) if normalizer.get("type") == "Sequence" else [normalizer]
    return next((step for step in steps if step.get("type") == "Precompiled"), None)


def _pieces(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    return {
        "model": {"unk_token": tokens["unk_token"], "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True,
            "handle_chinese_chars": config.flag("tokenize_chinese_chars", True),
            "strip_accents": config.flag("strip_accents", None), "lowercase": config.flag("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }  # fmt: skip


def _bytes(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    space = config.flag("add_prefix_space", False)
    return {"model": bpe(), "normalizer": None, "pre_tokenizer": level(space), "decoder": level(True)}


def _qwen2(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    letters = level(config.flag("add_prefix_space", False), regex=False)
    words = split({"Regex": QWEN2_WORDS}, "Isolated")
    return {"model": bpe(), "normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", words, letters),
            "decoder": level(True)}  # fmt: skip


def _llama(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    space = config.flag("add_prefix_space", True)
    scheme = "never" if not space else "always" if config.flag("legacy", False) else "first"
    steps = [_replaced("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if space:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"model": bpe(fuse_unk=True, byte_fallback=True), "normalizer": None,
            "pre_tokenizer": _metaspace(scheme, split=False), "decoder": sequence("decoders", *steps)}  # fmt: skip


def _gemma(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    steps = [_replaced("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    model = bpe(fuse_unk=True, byte_fallback=True, unk_token=tokens["unk_token"])
    return {"model": model, "normalizer": _replaced(" ", "▁"), "decoder": sequence("decoders", *steps),
            "pre_tokenizer": split({"String": " "}, "MergedWithPrevious")}  # fmt: skip


def unigram(data: Steps, unk_id: int, scheme: str) -> Steps:
    """All steps of a model of pieces with scores, without its vocabulary."""
    spaces = _metaspace(scheme)
    return {"model": {"unk_id": unk_id, "byte_fallback": False}, "normalizer": _charsmap(data), "decoder": spaces,
            "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"}, spaces)}  # fmt: skip


def _t5(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    return unigram(data, 2, "always")


def _xlm_roberta(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    space = config.flag("add_prefix_space", config.default("add_prefix_space", absent=True, null=False))
    return unigram(data, 3, "always" if space else "never")


def _clip(config: Config, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    white = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    return {
        "model": bpe(end_of_word_suffix="</w>", unk_token=tokens["unk_token"]),
        "normalizer": sequence("normalizers", {"type": "NFC"}, white, {"type": "Lowercase"}),
        "pre_tokenizer": sequence("pretokenizers", split({"Regex": _CLIP_WORDS}, "Removed", invert=True), level()),
        "decoder": level(True),
    }


@dataclass(frozen=True)
class Kind:
    """A class of tokenizers.

    Attributes
    ----------
    model : str
        The type of the model in tokenizer.json that goes with it.
    steps : callable or None
        The parts of tokenizer.json that it makes, of the fields, of the special tokens by name, and of the file. None
        for the file's.
    tokens : dict of str to str or None
        Special tokens where the fields name no others.
    around : tuple of str, tuple of str, or None
        Names of the tokens that are put before and after a text; None where the file says which.
    flags : dict of str to dict
        How special tokens that are told by their text alone are found in texts.
    """

    model: str = ""
    steps: Callable[[Config, Mapping[str, str | None], Steps], Steps] | None = None
    tokens: Mapping[str, str | None] = field(default_factory=dict)
    around: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)


def _named(**tokens: str) -> dict[str, str]:
    return {f"{name}_token": content for name, content in tokens.items()}


_BERT = _named(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA = _named(bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>")
_PAIR = (("cls_token",), ("sep_token",))
_ENDS = (("bos_token",), ("eos_token",))
_END = "<|endoftext|>"
_PLAIN = {"lstrip": False, "rstrip": False}
#: The classes of the models that there are.
KINDS = {
    "Bert": Kind("WordPiece", _pieces, _BERT, _PAIR),
    "MPNet": Kind("WordPiece", _pieces, {**_ROBERTA, "unk_token": "[UNK]"}, _PAIR,
                  {**dict.fromkeys(_ROBERTA, _PLAIN), "mask_token": {"lstrip": True, "rstrip": False}}),
    "Roberta": Kind("BPE", _bytes, _ROBERTA, _PAIR),
    "XLMRoberta": Kind("Unigram", _xlm_roberta, _ROBERTA, _ENDS),
    # It has no padding even where tokenizer.json has.
    "GPT2": Kind("BPE", _bytes, {**_named(bos=_END, eos=_END, unk=_END), "pad_token": None}),
    "Qwen2": Kind("BPE", _qwen2, _named(eos=_END, unk=_END, pad=_END)),
    "Llama": Kind("BPE", _llama, _named(bos="<s>", eos="</s>", unk="<unk>")),
    "Gemma": Kind("BPE", _gemma, _named(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>")),
    "T5": Kind("Unigram", _t5, _named(eos="</s>", unk="<unk>", pad="<pad>"), ((), ("eos_token",))),
    "CLIP": Kind("BPE", _clip, _named(bos="<|startoftext|>", eos=_END, unk=_END, pad=_END), _ENDS),
    "Whisper": Kind("BPE", _bytes, _named(bos=_END, eos=_END, unk=_END),
                    flags=dict.fromkeys(_named(bos="", eos="", unk=""), {"normalized": False, "special": True})),
    AS_IT_IS: Kind(),
}  # fmt: skip


def class_of(config: Config, model: Config, text: str) -> str:
    """The name in `KINDS` of a folder's class; ``model`` is its config.json, ``text`` that of its tokenizer.json.

    Raises ModelError for a class that is not there.
    """
    where = config if config.fields.get("tokenizer_class") else model
    said, model_type = where.fields.get("tokenizer_class"), model.fields.get("model_type")
    own = _OF_MODELS.get(model_type) if isinstance(model_type, str) else None
    if said is None or own == AS_IT_IS:
        return own or AS_IT_IS
    if said in _NAMES_OF_IT:
        return own if own is not None and model_type in _MISNAMED else AS_IT_IS
    name = said.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(said, str) else ""
    # Llama 3 has a tokenizer of bytes, which is taken as it is, whatever its class is called.
    if name == "Llama" and model_type not in _MISNAMED and '"ByteLevel"' in text:
        return AS_IT_IS
    name = _SAME.get(name, name)
    if own is not None and name != own and model_type in _MISNAMED:
        return own
    if name not in KINDS or name == said:
        raise where.error("tokenizer_class", f"that of {', '.join(KINDS)}, such as 'BertTokenizer'; {AS_IT_IS!r} takes "
                          "the steps of tokenizer.json as they are")  # fmt: skip
    return name


def changed(config: Config, name: str, tokens: Mapping[str, str | None], data: Steps) -> Steps:
    """The object in tokenizer.json with the steps of a class, without added tokens. Raises ModelError."""
    kind = KINDS[name]
    if kind.steps is None:
        return data
    model = data.get("model")
    model = model if isinstance(model, dict) else {}
    found = _type_of(model)
    if found != kind.model:
        raise ModelError(
            f"{config.where}: the tokenizer's class is {name}Tokenizer, as tokenizer_class here or model_type in "
            f"config.json says, whose model is {kind.model}, and tokenizer.json has {found}; for the steps of "
            f"tokenizer.json as they are, tokenizer_class is {AS_IT_IS!r}"
        )
    needed = [*(("unk_token",) if found == "WordPiece" else ()), *(one for names in kind.around or () for one in names)]
    for one in needed:
        if tokens.get(one) is None:
            raise config.error(one, f"a token, as {name}Tokenizer puts it into texts")
    steps = kind.steps(config, tokens, data)
    vocabulary = {part: model[part] for part in ("vocab", "merges") if part in model}
    if found == "BPE":
        vocabulary.setdefault("merges", [])
    return {**data, "added_tokens": [], **steps, "model": {"type": found, **steps["model"], **vocabulary}}


def _type_of(model: Steps) -> str:
    """The type of a model; old files lack it."""
    if isinstance(model.get("type"), str):
        return str(model["type"])
    listed = isinstance(model.get("vocab"), list)
    return "BPE" if "merges" in model else "Unigram" if listed else (
        "WordPiece" if "max_input_chars_per_word" in model else "WordLevel")  # fmt: skip


def around(config: Config, name: str, tokens: Mapping[str, str | None], tokenizer: Any) -> Any:
    """What puts tokens around texts, a post-processor of the package tokenizers; None where the file says it."""
    from tokenizers import processors

    kind = KINDS[name]
    if name == "Whisper":
        if tokens.get("eos_token") is None:
            raise config.error("eos_token", "a token, as WhisperTokenizer puts it after texts")
        before, after = _begun(config, tokens, tokenizer), [tokens["eos_token"]]
    elif kind.around is None:
        return None
    else:
        before, after = ([tokens[one] for one in names] for names in kind.around)
    numbers = {token: number_of(tokenizer, tokens, token) for token in [*before, *after]}
    # Signs of the template's own are in no name.
    marks = {token: f"T{place}" for place, token in enumerate(numbers)}
    pieces = [*(marks[token] for token in before), "$A", *(marks[token] for token in after)]
    named = [{"id": marks[token], "ids": [number], "tokens": [token]} for token, number in numbers.items()]
    return processors.TemplateProcessing(single=pieces, pair=[*pieces, "$B:1"], special_tokens=named)


def number_of(tokenizer: Any, tokens: Mapping[str, str | None], token: str | None) -> int | None:
    """The number of a token, or that of the unknown one."""
    found = None if token is None else tokenizer.token_to_id(token)
    unknown = tokens.get("unk_token")
    return tokenizer.token_to_id(unknown) if found is None and unknown is not None else found


def _begun(config: Config, tokens: Mapping[str, str | None], tokenizer: Any) -> list[str | None]:
    """The tokens that Whisper's texts begin with."""
    begun = ["<|startoftranscript|>"]
    language, task = config.fields.get("language"), config.fields.get("task")
    if language is not None:
        token = f"<|{code_of(language)}|>" if isinstance(language, str) else None
        if token is None or tokenizer.token_to_id(token) is None:
            raise config.error("language", "a language that the vocabulary has a token of")
        begun.append(token)
    if task is not None:
        begun.append(f"<|{config.text('task', ('transcribe', 'translate'))}|>")
    if not config.flag("predict_timestamps", False):
        begun.append("<|notimestamps|>")
    found = [number_of(tokenizer, tokens, token) for token in begun]
    if None in found:
        raise config.error("unk_token", f"a token, as the vocabulary lacks {begun[found.index(None)]}")
    return [tokenizer.id_to_token(number) for number in found]


__all__ = [
    "AS_IT_IS", "KINDS", "QWEN2_WORDS", "Steps", "around", "bpe", "changed", "class_of", "level", "number_of",
    "sequence", "split", "unigram",
]  # fmt: skip
