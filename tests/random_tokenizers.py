"""Folders of tokenizers with random steps, fields and files, and what transformers makes of them."""

import functools
import json

import pytest

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = ["hello World, hello wide worlds", "the lower new newest café isn't low .", "中文 don't we 've  2 spaces ?"]
TEXTS = [
    "hello World", " hello  World <b> low", "café isn't the newest!", "中文 Zürich 42",
    "<a>hello<b>lower </s> new <s>", "we 've <tool> don't\n", "[MASK] <|endoftext|>new<|startoftext|>",
]  # fmt: skip
WORDS = ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "<|endoftext|>",
         "<|startoftext|>", "<bos>", "<eos>", "<a>", "<b>", "low", "hello")  # fmt: skip
#: Whisper's, the languages in its order.
SOUNDS = ("<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
          "<|notimestamps|>", "<|0.00|>", "<|0.02|>")  # fmt: skip
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: Classes, and the model of each.
CLASSES = {
    "Bert": "WordPiece", "DistilBert": "WordPiece", "MPNet": "WordPiece", "Electra": "WordPiece", "GPT2": "bytes",
    "Roberta": "bytes", "Bart": "bytes", "Qwen2": "bytes", "Llama": "BPE", "Gemma": "BPE", "T5": "Unigram",
    "XLMRoberta": "Unigram", "CLIP": "ends", "Whisper": "sounds",
}  # fmt: skip
MODEL_TYPES = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta", "gpt2", "qwen2", "qwen3", "gemma", "gemma2",
               "t5", "clip", "whisper", "mistral", "phi3", "llama")  # fmt: skip


@functools.cache
def trained(kind):
    """The model of a tokenizer.json, of few words, and the first steps that go with it."""
    level = kind in ("bytes", "ends", "sounds")
    special = [*WORDS[:14], *(SOUNDS if kind == "sounds" else ())]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if level else []
    options = {"special_tokens": special, "vocab_size": 420 if level else 130, "show_progress": False}
    if kind == "WordPiece":
        made, trainer = Tokenizer(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer(**options)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "Unigram":
        made, trainer = Tokenizer(models.Unigram()), trainers.UnigramTrainer(**options, unk_token="<unk>")
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "WordLevel":
        made, trainer = Tokenizer(models.WordLevel(unk_token="<unk>")), trainers.WordLevelTrainer(**options)
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        ends = {"end_of_word_suffix": "</w>"} if kind == "ends" else {}
        fallback = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"} if kind == "BPE" else {}
        made = Tokenizer(models.BPE(**ends, **fallback))
        if kind == "BPE":
            options["special_tokens"] = [*special, *(f"<0x{n:02X}>" for n in range(256))]
            options["vocab_size"] = 400
        trainer = trainers.BpeTrainer(**options, **ends, initial_alphabet=alphabet)
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if level else pre_tokenizers.Metaspace()
    made.train_from_iterator([sentence.lower() for sentence in SENTENCES] + SENTENCES, trainer)
    found = json.loads(made.to_str())
    if kind == "BPE":  # bytes are for unknown signs, and no special tokens
        found["added_tokens"] = [token for token in found["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps(found)


def steps(random, level):
    """Random steps of a tokenizer that is taken as it is."""
    b = lambda: random.random() < 0.5  # noqa: E731
    before = random.choice([
        None, normalizers.Lowercase(), normalizers.NFC(), normalizers.BertNormalizer(lowercase=b(), strip_accents=b()),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), normalizers.Prepend("▁"),
    ])  # fmt: skip
    parts = [pre_tokenizers.ByteLevel(add_prefix_space=b())] if level else [
        pre_tokenizers.Metaspace(prepend_scheme=random.choice(["always", "first", "never"]), split=b()),
        pre_tokenizers.Whitespace(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.WhitespaceSplit(),
    ]  # fmt: skip
    around = random.choice([
        None, processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]),
        processors.BertProcessing(("</s>", 1), ("<s>", 0)),
    ])  # fmt: skip
    after = [
        decoders.WordPiece(cleanup=b()), decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0), decoders.Replace("▁", " "), decoders.CTC("<pad>", "e", b()), decoders.BPEDecoder(),
        decoders.ByteLevel(),
    ]  # fmt: skip
    chosen = decoders.Sequence(random.sample(after, random.randint(1, 3))) if b() else random.choice([None, *after])
    return before, random.choice(parts), around, chosen


def token(random, text):
    """A token as tokenizer_config.json has it."""
    flags = {name: random.random() < 0.3 for name in ("lstrip", "rstrip", "normalized", "single_word", "special")}
    return {"__type": "AddedToken", "content": text, **flags}


def drawn(random, plain=()):
    """Files by name: objects. ``plain``: fields without effect, some of which are there with random values."""
    name = random.choice([*CLASSES, None, None, None])
    kind = CLASSES.get(name) or random.choice(["bytes", "ends", "BPE", "WordPiece", "Unigram", "WordLevel"])
    made = Tokenizer.from_str(trained(kind))
    normalizer, words, around, decoder = steps(random, kind in ("bytes", "ends", "sounds"))
    made.pre_tokenizer, made.decoder = words, decoder or made.decoder
    if normalizer is not None:
        made.normalizer = normalizer
    if around is not None:
        made.post_processor = around
    if random.random() < 0.3:
        made.add_tokens(["<tool>", "worlds"])
    if random.random() < 0.2:
        made.enable_truncation(9, direction=random.choice(["left", "right"]))
    if random.random() < 0.2:
        made.enable_padding(pad_token=random.choice(["<pad>", "<a>"]))
    told = {} if random.random() < 0.1 else fields(random)
    ending = random.choice(["", "Fast"])
    chosen = f"{name}Tokenizer{ending}" if name else random.choice(["TokenizersBackend", "PreTrainedTokenizerFast"])
    model_type = random.choice(MODEL_TYPES) if name is None or random.random() < 0.3 else "vit"
    config = {"model_type": model_type}
    if random.random() < 0.9:
        told["tokenizer_class"] = chosen
    elif random.random() < 0.3:
        config["tokenizer_class"] = chosen
    for field in random.sample(plain, min(len(plain), 5)):
        kinds = {"chat_control_tokens": [["<a>"]], "model_input_names": [["input_ids", "attention_mask"]],
                 "trim_offsets": [True, False]}  # fmt: skip
        told[field] = random.choice(kinds.get(field, [True, False, None, 3, "left", "spin"]))
    files = {"tokenizer.json": json.loads(made.to_str()), "tokenizer_config.json": told, "config.json": config}
    if random.random() < 0.3:
        said = {}
        for field in random.sample(NAMES, random.randint(0, 3)):
            text = random.choice(WORDS)
            flags = {flag: random.random() < 0.3 for flag in ("lstrip", "rstrip", "normalized", "single_word")}
            said[field] = {"content": text, **flags} if random.random() < 0.5 else text
        if random.random() < 0.3:
            said[random.choice(["additional", "extra"]) + "_special_tokens"] = random.sample(WORDS, 2)
        files["special_tokens_map.json"] = said
    if random.random() < 0.3:
        files["added_tokens.json"] = {"<tool>": 440, "<b>": 441} if random.random() < 0.7 else {"low": 3}
    if random.random() < 0.3:
        files["unknown.json"] = {"spin": 1}
    return files


def fields(random):
    """Random fields of tokenizer_config.json."""
    told = {}
    for field in ("do_lower_case", "tokenize_chinese_chars", "add_prefix_space", "clean_up_tokenization_spaces",
                  "add_bos_token", "add_eos_token", "legacy", "predict_timestamps"):  # fmt: skip
        if random.random() < 0.35:
            told[field] = random.random() < 0.5
    for field, values in {
        "strip_accents": (True, False, None), "split_special_tokens": (True, False, False, False),
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (True, False),
        "truncation_side": ("left", "right"), "padding_side": ("left", "right"), "max_len": (4, 100),
        "model_max_length": (5, 10**30, None), "language": ("german", "en", None), "task": ("translate", "transcribe"),
        "extra_ids": (0, 2), "fast_tokenizer_files": (["tokenizer.json"],),
    }.items():  # fmt: skip
        if random.random() < 0.15:
            told[field] = random.choice(values)
    for field in random.sample(NAMES, random.randint(0, 3)):
        text = random.choice(WORDS)
        told[field] = random.choice([text, text, token(random, text), None if random.random() < 0.2 else text])
    if random.random() < 0.2:
        told["image_token"] = random.choice(["<img>", token(random, "<img>")])
    if random.random() < 0.2:
        told["added_tokens_decoder"] = {
            str(number): {key: value for key, value in token(random, text).items() if key != "__type"}
            for number, text in ((0, "<s>"), (1, "</s>"), (500, "<tool>"), (501, "<b>"), (20, "low"))
            if random.random() < 0.7
        }
    extra = random.choice([["<a>", "<b>"], [token(random, "<b>")], {"tool_token": "<tool>"}, [], None, ["low"]])
    if random.random() < 0.3:
        told[random.choice(["extra_special_tokens", "additional_special_tokens"])] = extra
    if random.random() < 0.1:
        told["model_specific_special_tokens"] = {"audio_token": "<b>"}
    return told


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def told_by_transformers(folder, random):
    """What transformers makes of a folder: see `told`. Raises whatever it raises."""
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(folder)
    count = len(made)
    chosen = [[random.randrange(count) for _ in range(9)] for _ in range(4)]
    ids = [made(text, add_special_tokens=special)["input_ids"] for text in TEXTS for special in (True, False)]
    rows = chosen + ids
    texts = [made.decode(row, skip_special_tokens=skip) for row in rows for skip in (True, False)]
    cut = [made(text, truncation=True, max_length=6)["input_ids"] for text in TEXTS]
    padded = made(TEXTS, padding=True, padding_side="right")["input_ids"] if made.pad_token is not None else None
    longest = made.model_max_length if made.model_max_length < 10**20 else None
    return rows, (ids, texts, cut, padded, longest, made.special_tokens_map)


def told_by_grilly(folder, rows, padded):
    """The same of grilly."""
    from grilly import models

    made = models.Tokenizer(folder)
    ids = [made.tokens_of([text], special)[0] for text in TEXTS for special in (True, False)]
    texts = [made.decode(row, skip) for row in rows for skip in (True, False)]
    whole = made.encode(TEXTS)[0].tolist() if padded else None
    named, longest = made.special_tokens, made.longest
    made.cut(6)
    return ids, texts, made.tokens_of(TEXTS), whole, longest, named
