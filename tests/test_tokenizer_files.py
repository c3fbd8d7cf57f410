"""What tokenizer_config.json and the files of sentence-transformers change of a tokenizer and an encoder."""

import importlib.util
import json
import re

import numpy as np
import pytest

import goldens
from grilly import ModelError, models
from model_folders import write_folder

CASES = goldens.cases("models")
TEXTS = ["hello World", " hello  World", "café Fox", "中文"]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="not installed: tokenizers")


def pieces(**normalised):
    """A tokenizer as BERT's: letters, and signs of Chinese."""
    import tokenizers

    letters = [chr(n) for n in range(97, 123)] + [chr(n) for n in range(65, 91)] + list("é中文")
    words = ["[PAD]", "[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(**normalised)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return made


def runs(space, within=False):
    """A tokenizer of bytes, with a space before a text or not."""
    import tokenizers

    signs = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({sign: i for i, sign in enumerate(signs)}, []))
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=space)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([level]) if within else level
    return made


def written(folder, made, **told):
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize("kind", ["BertTokenizer", "DistilBertTokenizerFast", "MPNetTokenizerFast"])
@pytest.mark.parametrize("told, meant", [
    ({"do_lower_case": False}, {"lowercase": False}), ({"strip_accents": False}, {"strip_accents": False}),
    ({"tokenize_chinese_chars": False}, {"handle_chinese_chars": False}), ({"do_lower_case": True}, {}),
    ({"strip_accents": None, "do_lower_case": False}, {"lowercase": False}),
], ids=str)  # fmt: skip
def test_normalised_as_the_configuration_says(tmp_path, kind, told, meant):
    wanted = [one.ids for one in pieces(**meant).encode_batch(TEXTS)]
    found = models.Tokenizer(written(tmp_path / "a", pieces(lowercase=True), tokenizer_class=kind, **told))
    assert found.tokens_of(TEXTS, add_special_tokens=False) == wanted
    if meant:
        assert wanted != [one.ids for one in pieces().encode_batch(TEXTS)], "the case shows nothing otherwise"


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "RobertaTokenizerFast", "Qwen2Tokenizer", "WhisperTokenizer"])
@pytest.mark.parametrize("space", [False, True])
def test_a_space_before_texts(tmp_path, kind, space):
    told = {"tokenizer_class": kind, "add_prefix_space": space, "unk_token": "#", "eos_token": "$"}
    folder = written(tmp_path / "a", runs(not space), **told)
    found = models.Tokenizer(folder)
    assert found.tokens_of(TEXTS, add_special_tokens=False) == [runs(space).encode(text).ids for text in TEXTS]


def test_times_and_prompts_of_whisper(tmp_path):
    """They are in no text."""
    folder = written(tmp_path / "a", runs(False), tokenizer_class="WhisperTokenizer", bos_token="x", unk_token="x")
    told = ["<|startofprev|>", "<|startoftranscript|>", "<|0.00|>", "<|2.40|>", "<|notimestamps|>"]
    (folder / "added_tokens.json").write_text(json.dumps({text: 256 + n for n, text in enumerate(told)}))
    found = models.Tokenizer(folder)
    ids = found.encode("a")[0][0].tolist()
    assert [ids[0], ids[1], len(ids)] == [257, 260, 4] and found.decode(ids, False).endswith("a<|endoftext|>")
    a = ids[2]
    assert found.decode([258, a, 259]) == found.decode([256, a, a, 257, a]) .removeprefix(told[1]) == "a"
    assert found.decode([256, a]) == ""
    assert found.decode([256, a, 257, a], skip_special_tokens=False) == "<|startofprev|>a<|startoftranscript|>a"


def test_classes_that_do_not_read_these_fields(tmp_path):
    folder = written(tmp_path / "a", pieces(), tokenizer_class="PreTrainedTokenizerFast", do_lower_case=False)
    found = models.Tokenizer(folder)
    assert found.encode("Fox")[0].tolist() == [pieces().encode("Fox").ids]


def llama(prepends):
    """A tokenizer as Llama 2's, with a space before the texts between special tokens too, or with no space at all."""
    import tokenizers

    words = ["<unk>", "<s>", "</s>", "▁", "h", "i", "y", "o", "hi", "yo", "▁hi", "▁yo"]
    merges = [("h", "i"), ("y", "o"), ("▁", "hi"), ("▁", "yo")]
    model = tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges, unk_token="<unk>", fuse_unk=True)
    made = tokenizers.Tokenizer(model)
    steps = [tokenizers.normalizers.Prepend("▁")] if prepends else []
    made.normalizer = tokenizers.normalizers.Sequence([*steps, tokenizers.normalizers.Replace(" ", "▁")])
    made.decoder = tokenizers.decoders.Metaspace()
    made.add_special_tokens([tokenizers.AddedToken(word, normalized=False) for word in words[:3]])
    return made


#: What transformers 5.24 makes of "hi</s> yo" and "hi</s>yo".
ALWAYS, FIRST = ["▁hi", "</s>", "▁yo", "▁hi", "</s>", "▁yo"], ["▁hi", "</s>", "▁yo", "▁hi", "</s>", "yo"]
NEVER = ["hi", "</s>", "▁yo", "hi", "</s>", "yo"]


def test_llama_with_a_tokenizer_of_bytes(tmp_path):
    """As Llama 3 has it."""
    folder = written(tmp_path / "a", runs(False), tokenizer_class="LlamaTokenizer")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert models.Tokenizer(folder).encode(TEXTS[0])[0][0].tolist() == runs(False).encode(TEXTS[0]).ids


def added(content, **more):
    """A token as tokenizer_config.json has it."""
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": True, "special": False, **more}


def test_special_tokens_that_are_no_tokens(tmp_path):
    for told, said in (
        ({"eos_token": 3}, "eos_token is 3"), ({"extra_special_tokens": [3]}, r"extra_special_tokens is \[3\]"),
        ({"image_token": {"spin": 1}}, "image_token is "), ({"extra_special_tokens": "a"}, "extra_special_tokens is"),
        ({"added_tokens_decoder": {"3": {"spin": 1}}}, "added_tokens_decoder: 3 is "),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=f"tokenizer_config.json: {said}.*; expected a "):
            models.Tokenizer(written(tmp_path / "a", runs(False), **told))


SIGNS = [*"abmnrstv'.,!?", "n't", "'s", "'t", "'ve"]
SIGNS = ["</s>", "<unk>", "▁", *SIGNS, *(f"▁{sign}" for sign in SIGNS)]


def joining(folder, joined=True, bpe=False):
    """A tokenizer of signs, most of them with spaces before them."""
    import tokenizers

    kinds = tokenizers.models
    model = kinds.BPE({sign: i for i, sign in enumerate(SIGNS)}, []) if bpe else kinds.Unigram(
        [(sign, -1.0) for sign in SIGNS], unk_id=1)  # fmt: skip
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.Metaspace()
    made.add_special_tokens(["</s>"])
    told = {} if joined is None else {"clean_up_tokenization_spaces": joined}
    return models.Tokenizer(written(folder, made, **told))


def test_signs_lose_the_spaces_before_them(tmp_path):
    tokens = [SIGNS.index(sign) for sign in "▁a ▁, ▁b ▁n't ▁a ▁n 't ▁' ▁b ▁' m ▁'ve ▁'s ▁ ? ▁! </s> ▁.".split()]
    plain = "a , b n't a n't ' b 'm 've 's ? ! ."
    assert joining(tmp_path / "a").decode(tokens) == "a, bn't an't'b'm've's?!.", "as transformers 5.24"
    for joined, bpe in ((False, False), (None, False), (True, True)):  # spaces of a BPE are its words' own
        assert joining(tmp_path / "b", joined, bpe).decode(tokens) == plain


def test_a_configuration_of_another_tokenizer(tmp_path):
    with pytest.raises(ModelError, match="class is BertTokenizer, .* is WordPiece, and tokenizer.json has BPE; for"):
        models.Tokenizer(written(tmp_path / "a", runs(False), tokenizer_class="BertTokenizer", do_lower_case=True))
    with pytest.raises(ModelError, match="tokenizer_class is 'SpinTokenizer'; expected that of Bert, .*Backend' takes"):
        models.Tokenizer(written(tmp_path / "a", runs(False), tokenizer_class="SpinTokenizer"))
    with pytest.raises(ModelError, match="tokenizer_config.json: truncation_side is 'middle'; expected one of"):
        models.Tokenizer(written(tmp_path / "a", runs(False), truncation_side="middle"))
    with pytest.raises(ModelError, match="tokenizer_config.json: model_max_length is 'many'"):
        models.Tokenizer(written(tmp_path / "a", runs(False), model_max_length="many"))


def test_the_end_that_is_cut_off(tmp_path):
    whole = runs(False).encode("abcdef").ids
    for side, kept in (("left", whole[-4:]), ("right", whole[:4])):
        found = models.Tokenizer(written(tmp_path / "a", runs(False), truncation_side=side, model_max_length=1e30), 4)
        assert found.encode("abcdef")[0].tolist() == [kept] and found.longest is None


@pytest.fixture
def encoder(tmp_path):
    """A folder of an encoder of bytes, some of whose 61 tokens are letters."""
    import tokenizers

    folder = write_folder(tmp_path / "bert", CASES["bert"].arguments)
    signs = ["Ġ", "Ċ", *(chr(n) for n in range(97, 123)), *(chr(n) for n in range(65, 91))]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({sign: i for i, sign in enumerate(signs)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return written(folder, made, tokenizer_class="PreTrainedTokenizerFast")


def test_white_space_around_sentences(vulkan_backend, encoder):
    """Such tokenizers make tokens of it, and sentence-transformers takes it off."""
    loaded = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    wanted, other = loaded.encode(["a fox", "x a fox"])
    assert np.abs(wanted - other).max() > 0.01
    for text in (" a fox\n", "a fox ", "\n a fox"):
        np.testing.assert_array_equal(loaded.encode(text), loaded.encode("a fox"))
    np.testing.assert_array_equal(loaded.encode("a fox ", prompt=" x "), loaded.encode("x a fox"))


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "xlm-roberta"])
def test_where_the_longest_text_is_said(vulkan_backend, encoder, name):
    def vectors(**told):
        (encoder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend", **told}))
        return models.SentenceEncoder.load(encoder, backend=vulkan_backend).encode(["abcdefgh", "abcde", "abc"])

    whole = vectors(model_max_length=1e30)
    assert np.abs(whole[0] - whole[1]).max() > 0.01
    cut = vectors(model_max_length=5)
    np.testing.assert_allclose(cut[0], cut[1], atol=1e-6)
    file = encoder / f"sentence_{name}_config.json"
    file.write_text(json.dumps({"max_seq_length": 3, "do_lower_case": True}))
    cut = vectors(model_max_length=5)
    np.testing.assert_array_equal(cut[0], cut[2])
    loaded = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    assert loaded.lower
    np.testing.assert_array_equal(loaded.encode("ABC"), loaded.encode("abc"))
    file.write_text(json.dumps({"max_seq_length": None}))
    cut = vectors(model_max_length=5)
    np.testing.assert_allclose(cut[0], cut[1], atol=1e-6)


@pytest.mark.parametrize("file, told, said", [
    ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task is 'text-generation'"),
    ("sentence_bert_config.json", {"query_length": 32}, "query_length is 32; expected None"),
    ("sentence_bert_config.json", {"modality_config": {"image": {}}}, "modality_config is {'image': {}}; expected "),
    ("sentence_bert_config.json", {"unpad_inputs": True, "spin": 1}, "not known: spin"),
    ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim is 8; expected none: vectors"),
    ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'; expected "),
])  # fmt: skip
def test_files_of_sentence_transformers_that_ask_for_more(encoder, file, told, said):
    (encoder / file).write_text(json.dumps(told))
    with pytest.raises(ModelError, match=f"{file}: {re.escape(said)}"):
        models.SentenceEncoder.load(encoder)


def test_fields_of_sentence_transformers_to_ignore(vulkan_backend, encoder):
    (encoder / "sentence_bert_config.json").write_text(json.dumps({"spin": 1, "unpad_inputs": True}))
    (encoder / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": "dot", "spin": 1}))
    models.SentenceEncoder.load(encoder, backend=vulkan_backend, ignore=["spin"]).encode("a")


def test_words_of_sentence_transformers(vulkan_backend, encoder):
    loaded = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    for name in ("normalize_embeddings", "convert_to_tensor", "show_progress_bar", "truncate_dim", "output_value"):
        with pytest.raises(TypeError, match=rf"SentenceEncoder.encode: got .* '{name}'; here give nothing"):
            loaded.encode("a", **{name: True})
    with pytest.raises(TypeError, match="SentenceEncoder.encode: batch_size is 2.5"):
        loaded.encode(["a"], batch_size=2.5)
    with pytest.raises(TypeError, match="SentenceEncoder.encode: expected a str or a sequence of str"):
        loaded.encode(None)
    steps = [("0_Transformer", "models.Transformer"), ("1_Pooling", "models.Pooling")]
    (encoder / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in steps]))
    with pytest.raises(ModelError, match="the Transformer's path is '0_Transformer'; expected '': move the files"):
        models.SentenceEncoder.load(encoder, backend=vulkan_backend)


def test_the_norms_of_distilbert(vulkan_backend, tmp_path):
    """transformers adds 1e-12 there whatever the file says."""
    case = CASES["distilbert"]
    folder = write_folder(tmp_path / "distilbert", case.arguments)
    wanted = models.load(folder, backend=vulkan_backend)(case.input_ids).last_hidden_state
    (folder / "config.json").write_text(json.dumps({**case.arguments["config"], "layer_norm_eps": 0.1}))
    found = models.load(folder, backend=vulkan_backend)(case.input_ids).last_hidden_state
    np.testing.assert_array_equal(found, wanted)


def test_settings_that_change_after_calls(vulkan_backend, encoder):
    """What was captured with others is not replayed."""
    loaded = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    texts = ["a fox", "foxes"]

    def vectors():
        first = loaded.encode(texts)
        calls = 0
        while not len(loaded.graphs) and calls < 100:  # each time that one was let go of it takes more of them
            loaded.encode(texts)
            calls += 1
        np.testing.assert_allclose(loaded.encode(texts), first, atol=2e-6)
        assert len(loaded.graphs) == 1
        return first

    scaled = vectors()
    loaded.normalized = False
    plain = vectors()
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), scaled, rtol=0, atol=1e-6)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).max() > 0.01
    loaded.pooling = "max"
    assert (vectors() > plain).any()
    loaded.pooling = "mean"
    np.testing.assert_allclose(vectors(), plain, atol=1e-6)
    loaded.model.norm.bias.data = loaded.model.norm.bias.data + 1
    assert np.abs(vectors() - plain).max() > 0.01
    loaded.pooling = "least"
    with pytest.raises(ValueError, match="pooling is 'least'"):
        loaded.encode("a")
