"""What tokenizer_config.json and the files of sentence-transformers change of a tokenizer and an encoder."""

import importlib.util
import json

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


@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "MPNetTokenizerFast"])
@pytest.mark.parametrize("told, meant", [
    ({"do_lower_case": False}, {"lowercase": False}), ({"strip_accents": False}, {"strip_accents": False}),
    ({"tokenize_chinese_chars": False}, {"handle_chinese_chars": False}), ({"do_lower_case": True}, {}),
    ({"strip_accents": None, "do_lower_case": False}, {"lowercase": False}),
], ids=str)  # fmt: skip
def test_normalised_as_the_configuration_says(tmp_path, kind, told, meant):
    wanted = [one.ids for one in pieces(**meant).encode_batch(TEXTS)]
    found = models.Tokenizer(written(tmp_path / "a", pieces(lowercase=True), tokenizer_class=kind, **told))
    assert [found.encode(text)[0][0].tolist() for text in TEXTS] == wanted
    if meant:
        assert wanted != [one.ids for one in pieces().encode_batch(TEXTS)], "the case shows nothing otherwise"


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "RobertaTokenizerFast", "Qwen2Tokenizer"])
@pytest.mark.parametrize("space", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_a_space_before_texts(tmp_path, kind, space, within):
    folder = written(tmp_path / "a", runs(not space, within), tokenizer_class=kind, add_prefix_space=space)
    found = models.Tokenizer(folder)
    assert [found.encode(text)[0][0].tolist() for text in TEXTS] == [runs(space).encode(text).ids for text in TEXTS]


def test_classes_that_do_not_read_these_fields(tmp_path):
    folder = written(tmp_path / "a", pieces(), tokenizer_class="PreTrainedTokenizerFast", do_lower_case=False)
    found = models.Tokenizer(folder)
    assert found.encode("Fox")[0].tolist() == [pieces().encode("Fox").ids]


def test_a_configuration_of_another_tokenizer(tmp_path):
    with pytest.raises(ModelError, match="tokenizer_class is 'BertTokenizer', and tokenizer.json has no place for"):
        models.Tokenizer(written(tmp_path / "a", runs(False), tokenizer_class="BertTokenizer", do_lower_case=True))
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
        (encoder / "tokenizer_config.json").write_text(json.dumps(told))
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
        np.testing.assert_array_equal(loaded.encode(texts), first)
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
    np.testing.assert_array_equal(vectors(), plain)
    loaded.model.norm.bias.data = loaded.model.norm.bias.data + 1
    assert np.abs(vectors() - plain).max() > 0.01
    loaded.pooling = "least"
    with pytest.raises(ValueError, match="pooling is 'least'"):
        loaded.encode("a")
