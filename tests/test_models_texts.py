"""Tokenizers, encoders of sentences, and the commands generate and embed."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import goldens
import grilly
from grilly import ModelError, models
from grilly.cli import main
from grilly.integrations import minilm
from grilly.models import ARCHITECTURES
from model_folders import drawn, write_folder, write_safetensors, write_tokenizer
from sounds import write_whisper
from standalone import BLOCK
from test_minilm import KNOWN, SENTENCES, weights

CASES = goldens.cases("models")
WORDS = [f"w{number}" for number in range(61)]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="not installed: tokenizers")


@pytest.fixture
def folder(tmp_path):
    """A language model whose tokens are words: w0, w1, ..."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = write_folder(tmp_path / "model", CASES["llama"].arguments)
    made.save(str(path / "tokenizer.json"))
    return path


def test_tokenizer(folder):
    tokenizer = models.Tokenizer(folder)
    ids, mask = tokenizer.encode(["w5 w6 w7", "w8"])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]] and mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert tokenizer.decode(ids[0]) == "w5 w6 w7"
    assert tokenizer.encode("w5 w6")[0].tolist() == [[5, 6]], "one text, and not one for each letter"
    with pytest.raises(ValueError, match=r"tokens have shape \(2, 3\); expected those of one text"):
        tokenizer.decode(ids)
    with pytest.raises(ValueError, match="Tokenizer.decode: tokens from -1 to 5; expected 0 to"):
        tokenizer.decode([5, -1])
    with pytest.raises(TypeError, match="Tokenizer.decode: a token is 1.5; expected an integer"):
        tokenizer.decode([1.5])
    assert models.Tokenizer(folder, longest=2).encode(["w5 w6 w7"])[0].tolist() == [[5, 6]]
    for longest in (0, -1):
        with pytest.raises(ValueError, match=f"longest is {longest}; expected at least 1"):
            models.Tokenizer(folder, longest=longest)
    with pytest.raises(ValueError, match="no tokens"):
        tokenizer.encode([""])
    for texts, number in (("w5 \ud800", 0), (["w5", "w6 \udc80"], 1)):
        with pytest.raises(ValueError, match=rf"Tokenizer: text {number} has a lone surrogate, U\+D[8C].0 at 3"):
            tokenizer.encode(texts)
    with pytest.raises(TypeError):
        tokenizer.encode([5])
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer.json cannot be read"):
        models.Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        models.Tokenizer(folder)
    with pytest.raises(ModelError, match="nowhere is no folder"):
        models.Tokenizer(folder / "nowhere")


def test_generate_command(vulkan_backend, folder, capsys):
    case = CASES["llama"]
    prompt = " ".join(WORDS[token] for token in case.input_ids[0])
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["generate", str(folder), prompt, "--max-new-tokens", "9", *device]) == 0
    out, err = capsys.readouterr()
    assert out == " ".join(WORDS[token] for token in case.tokens[0, :9]) + "\n"
    assert err.endswith("a second\n") and "9 tokens: the first after" in err
    stop = f"{WORDS[case.tokens[0, 1]]} {WORDS[case.tokens[0, 2]]}"
    assert main(["generate", str(folder), prompt, "--max-new-tokens", "9", "--stop", stop, *device]) == 0
    assert capsys.readouterr().out == " ".join(WORDS[token] for token in case.tokens[0, :3]) + "\n"
    assert main(["generate", str(folder), prompt, "--temperature", "-1", *device]) == 1
    assert "temperature is -1.0" in capsys.readouterr().err
    for given, why in (
        (["--temperature", "0"], "--temperature must be above 0; leave it out for the likeliest"),
        (["--top-p", "0.9", "--seed", "1"], "--top-p and --seed are for sampling; add --temperature 1"),
        (["--seed", "3"], "--seed is for sampling; add --temperature 1"),
    ):
        assert main(["generate", str(folder), prompt, *given, *device]) == 1
        assert why in capsys.readouterr().err
    drawn = ["--temperature", "2", "--top-k", "1", "--seed", "3"]
    assert main(["generate", str(folder), prompt, "--max-new-tokens", "2", *drawn, *device]) == 0
    assert capsys.readouterr().out == " ".join(WORDS[token] for token in case.tokens[0, :2]) + "\n"
    file = folder / "generation_config.json"
    file.write_text('{"top_k": 1, "do_sample": true, "num_beams": 4}')
    assert main(["generate", str(folder), prompt, "--max-new-tokens", "2", *drawn[:2], *drawn[4:], *device]) == 0
    file.unlink()
    out, err = capsys.readouterr()
    assert out == " ".join(WORDS[token] for token in case.tokens[0, :2]) + "\n"
    assert err.startswith("grilly generate: the folder asks for num_beams=4, which is not applied here\n2 tokens")
    assert main(["generate", str(folder / "none"), prompt, *device]) == 1
    assert "none is no folder" in capsys.readouterr().err


@pytest.fixture
def encoder(tmp_path, folder):
    """A folder of an encoder whose tokens are words, as sentence-transformers writes it."""
    made = write_folder(tmp_path / "bert", CASES["bert"].arguments)
    write_tokenizer(made, (folder / "tokenizer.json").read_text(encoding="utf-8"))
    steps = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    (made / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in steps]))
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return made


def test_sentences_with_rotary_positions(vulkan_backend, encoder, tmp_path):
    """Of texts that run together, in one row or with padding, each has positions of its own."""
    other = write_folder(tmp_path / "nomic", CASES["nomic_bert"].arguments)
    for name in ("config.json", "model.safetensors"):
        (encoder / name).write_bytes((other / name).read_bytes())
    made = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    texts = ["w5 w6 w7 w9 w20", "w8 w3", "w11 w12 w13"]
    alone = []
    for text in texts:
        ids = np.array([[int(word[1:]) for word in text.split()]])
        mean = made.model(ids).last_hidden_state[0].mean(axis=0)
        alone.append(mean / np.linalg.norm(mean) if made.normalized else mean)
    np.testing.assert_allclose(made.encode(texts), alone, atol=1e-5)
    np.testing.assert_allclose(made.encode(texts, batch_size=2), alone, atol=1e-5)


def test_prompts_and_lower_case(vulkan_backend, encoder):
    def load(prompts=None, default=None, **limits):
        named = {"prompts": prompts or {}, "default_prompt_name": default}
        (encoder / "config_sentence_transformers.json").write_text(json.dumps(named))
        (encoder / "sentence_bert_config.json").write_text(json.dumps(limits))
        return models.SentenceEncoder.load(encoder, backend=vulkan_backend)

    plain = load()
    wanted, alone = plain.encode("w9 w5 w6"), plain.encode("w5 w6")
    assert np.abs(wanted - alone).max() > 0.01, "the case shows nothing otherwise"
    prompted = load({"query": "w9 ", "document": ""}, "query", max_seq_length=512)
    np.testing.assert_array_equal(prompted.encode("w5 w6"), wanted)
    np.testing.assert_array_equal(prompted.encode("w5 w6", prompt_name="document"), alone)
    np.testing.assert_array_equal(prompted.encode(["w5 w6"], prompt="")[0], alone)
    np.testing.assert_array_equal(plain.encode("w5 w6", prompt="w9 "), wanted)
    np.testing.assert_array_equal(load(max_seq_length=2).encode("w9 w5 w6"), plain.encode("w9 w5"))
    longest = prompted.encode("w5 " * 200)  # more than max_seq_length, which is more than the model has positions
    np.testing.assert_array_equal(longest, prompted.encode("w5 " * 100))
    np.testing.assert_array_equal(load(do_lower_case=True).encode("W9 w5 W6"), wanted)
    with pytest.raises(ValueError, match="prompt_name is 'passage'; the folder's prompts: document, query"):
        prompted.encode("w5", prompt_name="passage")
    with pytest.raises(ModelError, match="default_prompt_name is 'query'; prompts has none"):
        load({}, "query")
    (encoder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True, "include_prompt": False})
    )
    np.testing.assert_array_equal(load().encode("w5 w6"), alone)
    with pytest.raises(ModelError, match="include_prompt of the pooling is false"):
        load({"query": "w9 "})


@pytest.mark.parametrize("case, headed", [
    ("bert", "BertForMaskedLM"), ("roberta", "RobertaForMaskedLM"), ("roberta", "XLMRobertaForSequenceClassification"),
    ("distilbert", "DistilBertForQuestionAnswering"), ("mpnet", "MPNetForMaskedLM"), ("mpnet", None),
])  # fmt: skip
def test_the_model_type_says_which_encoder(vulkan_backend, tmp_path, folder, case, headed):
    """As in all-mpnet-base-v2, whose files are those of the bare model: architectures names one with a head."""
    made = write_folder(tmp_path / "encoder", CASES[case].arguments)
    write_tokenizer(made, (folder / "tokenizer.json").read_text(encoding="utf-8"))
    wanted = models.SentenceEncoder.load(made, backend=vulkan_backend).encode(["w5 w6", "w7"])
    config = json.loads((made / "config.json").read_text())
    if headed is not None and headed.startswith("XLM"):
        config["model_type"] = "xlm-roberta"
    (made / "config.json").write_text(json.dumps({**config, "architectures": headed and [headed]}))
    tensors = drawn(CASES[case].arguments["tensors"], CASES[case].arguments["seed"])
    heads = ("lm_head.bias", "cls.predictions.transform.dense.weight", "classifier.dense.bias", "vocab_transform.bias",
             "qa_outputs.bias", "pooler.dense.bias")  # fmt: skip
    some = np.ones(3, np.float32)
    bare = {name: array for name, array in tensors.items() if not name.startswith("pooler")}
    prefixed = {f"{case}.{name}": array for name, array in bare.items()}
    headed_ones = [bare | dict.fromkeys(heads[:-1], some), prefixed | dict.fromkeys(heads, some)]
    for given in (tensors, bare, prefixed, *headed_ones):
        write_safetensors(made / "model.safetensors", given)
        found = models.SentenceEncoder.load(made, backend=vulkan_backend).encode(["w5 w6", "w7"])
        np.testing.assert_array_equal(found, wanted)
    write_safetensors(made / "model.safetensors", bare | {"spin": some})
    with pytest.warns(UserWarning, match="does not use spin;"):
        models.SentenceEncoder.load(made, backend=vulkan_backend)


def test_an_old_encoder_without_a_model_type(vulkan_backend, encoder):
    wanted = models.SentenceEncoder.load(encoder, backend=vulkan_backend).encode("w5")
    config = json.loads((encoder / "config.json").read_text())
    del config["model_type"]
    (encoder / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(models.SentenceEncoder.load(encoder, backend=vulkan_backend).encode("w5"), wanted)


def test_tokens_beyond_the_vocabulary(vulkan_backend, encoder, tmp_path, capsys):
    """A tokenizer of another model gives such tokens: the table has no rows for them."""
    tokens = json.loads((encoder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens["model"]["vocab"]["w99"] = 99
    (encoder / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    made = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    made.encode(["w5", "w6 w7"])
    for texts in ("w99", ["w5", "w6 w99"]):
        with pytest.raises(ValueError, match="Bert: input_ids go from [059]+ to 99; expected 0 to 60"):
            made.encode(texts)
    (tmp_path / "lines.txt").write_text("w5\nw99\n")
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["embed", str(encoder), str(tmp_path / "lines.txt"), *device]) == 1
    assert "to 99; expected 0 to 60" in capsys.readouterr().err
    (tmp_path / "lines.txt").write_text("w5\n\nw6\n")  # of which this tokenizer makes no token
    assert main(["embed", str(encoder), str(tmp_path / "lines.txt"), *device]) == 1
    assert "sentence 1, counted from 0, has no tokens; leave it out" in capsys.readouterr().err


def test_layers_after_the_pooling(vulkan_backend, encoder):
    random = np.random.RandomState(0)
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    paths = ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
    parts = zip(paths, kinds, strict=True)
    steps = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts]
    plain = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    (encoder / "modules.json").write_text(json.dumps(steps))
    layers = []
    for name, inputs, outputs, bias, kind in (("2_Dense", 32, 20, True, "activation.Tanh"),
                                              ("3_Dense", 20, 7, False, "linear.Identity")):  # fmt: skip
        (encoder / name).mkdir()
        tensors = {"linear.weight": random.standard_normal((outputs, inputs)).astype(np.float32) / 6}
        if bias:
            tensors["linear.bias"] = random.standard_normal(outputs).astype(np.float32)
        write_safetensors(encoder / name / "model.safetensors", tensors)
        told = {"in_features": inputs, "out_features": outputs, "bias": bias,
                "activation_function": f"torch.nn.modules.{kind}"}  # fmt: skip
        (encoder / name / "config.json").write_text(json.dumps(told))
        layers.append((tensors, told))
    sentences = ["w5 w6 w7 w9", "w8 w3"]
    x = plain.encode(sentences)
    (first, _), (second, told) = layers
    x = np.tanh(x @ first["linear.weight"].T + first["linear.bias"]) @ second["linear.weight"].T
    made = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    assert made.width == 7
    np.testing.assert_allclose(made.encode(sentences), x / np.linalg.norm(x, axis=1, keepdims=True), atol=1e-5)
    for change, said in (({"in_features": 21}, "in_features is 21; expected 20"),
                         ({"out_features": 8}, "wrong: linear.weight has shape"),
                         ({"activation_function": "torch.nn.Mish"}, "activation_function is 'torch.nn.Mish'"),
                         ({"spin": 1}, "not known: spin")):  # fmt: skip
        (encoder / "3_Dense/config.json").write_text(json.dumps({**told, **change}))
        with pytest.raises(ModelError, match=said):
            models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    (encoder / "3_Dense/config.json").write_text(json.dumps({**told, "in_features": 21}))
    write_safetensors(encoder / "3_Dense/model.safetensors", {"linear.weight": np.zeros((7, 21), np.float32)})
    with pytest.raises(ModelError, match="3_Dense/config.json: in_features is 21; expected 20"):
        models.SentenceEncoder.load(encoder, backend=vulkan_backend)


def test_lines_of_a_file_are_those_of_other_tools(vulkan_backend, encoder, tmp_path, capsys):
    file = tmp_path / "lines.txt"
    file.write_text("\ufeffw5 w6\n\nw7\x0cw8\u2028w9\r\nw3\n", encoding="utf-8", newline="")
    device = ["--device", str(vulkan_backend.device.index)]
    (encoder / "modules.json").unlink()
    tokens = json.loads((encoder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {"SpecialToken": {"id": "w1", "type_id": 0}}  # as encoders have, so that an empty line has a token
    tokens["post_processor"] = {
        "type": "TemplateProcessing", "single": [special, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"w1": {"id": "w1", "ids": [1], "tokens": ["w1"]}},
    }  # fmt: skip
    (encoder / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    assert main(["embed", str(encoder), str(file), *device]) == 0
    assert "4 vectors of 32" in capsys.readouterr().out
    own = models.SentenceEncoder.load(encoder, backend=vulkan_backend)
    wanted = own.encode(["w5 w6", "", "w7 w8 w9", "w3"])
    np.testing.assert_allclose(np.load(tmp_path / "lines.txt.npy"), wanted, atol=1e-5)


def test_where_vectors_cannot_go_is_said_first(tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("w5\n", encoding="utf-8")
    arguments = ["embed", str(tmp_path / "none"), str(tmp_path / "lines.txt"), "--output", str(tmp_path / "no/a.npy")]
    assert main(arguments) == 1
    assert "a.npy cannot be written: No such file" in capsys.readouterr().err


@weights
def test_sentences(vulkan_backend):
    encoder = models.SentenceEncoder.load(minilm.model_path(), backend=vulkan_backend)
    found = encoder.encode(SENTENCES, batch_size=3)
    for row, numbers in KNOWN.items():
        np.testing.assert_allclose(found[row, :6], numbers, atol=5e-6)
    np.testing.assert_allclose(encoder.encode(SENTENCES[0]), found[0], atol=5e-6)
    np.testing.assert_allclose(encoder.encode(["word " * 400]), encoder.encode(["word " * 300]), atol=1e-6)
    for _ in range(3):  # the third is captured
        np.testing.assert_allclose(encoder.encode(SENTENCES, batch_size=3), found, atol=1e-6)
    assert len(encoder.graphs) and not len(encoder.model.graphs)
    with pytest.raises(TypeError, match="a str or a sequence of str"):
        encoder.encode([3])


@weights
def test_embed_command(vulkan_backend, tmp_path, capsys):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(SENTENCES[:3]) + "\n", encoding="utf-8")
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["embed", str(minilm.model_path()), str(file), *device]) == 0
    assert "3 vectors of 384" in capsys.readouterr().out
    found = np.load(tmp_path / "lines.txt.npy")
    np.testing.assert_allclose(found[0, :6], KNOWN[0], atol=5e-6)
    assert main(["embed", str(minilm.model_path()), str(tmp_path / "none"), *device]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.needs("soundfile", "soxr")
def test_the_page_runs(vulkan_backend, tmp_path, folder, monkeypatch):
    """docs/models.md's blocks assert what they say, one after the other."""
    folder.rename(tmp_path / "llama")
    (tmp_path / "llama/chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}w3")
    encoder = write_folder(tmp_path / "encoder", CASES["bert"].arguments)
    write_tokenizer(encoder, (tmp_path / "llama/tokenizer.json").read_text(encoding="utf-8"))
    write_whisper(tmp_path / "whisper")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs/models.md").read_text(encoding="utf-8")
    names: dict = {}
    former = grilly.use(vulkan_backend)
    try:
        for number, block in enumerate(BLOCK.findall(page), 1):
            exec(compile(block, f"docs/models.md, Python block {number}", "exec"), names)
    finally:
        grilly.use(former)
    assert names["ids"].tolist() == [[7, 5, 9, 3]] and isinstance(names["answer"], str)
    assert names["text"].shape == (2, 24) and isinstance(names["words"], str) and names["vectors"].shape == (2, 32)
    for name in ARCHITECTURES:
        assert name in page


@pytest.mark.parametrize("mode", ["cls", "max", "mean_sqrt_len"])
def test_pooling(vulkan_backend, tmp_path, folder, mode):
    made = write_folder(tmp_path / "bert", CASES["bert"].arguments)
    write_tokenizer(made, (folder / "tokenizer.json").read_text(encoding="utf-8"))
    steps = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    (made / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in steps]))
    field = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens"}.get(mode, f"pooling_mode_{mode}_tokens")
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text(json.dumps({field: True, "pooling_mode_mean_tokens": False}))
    encoder = models.SentenceEncoder.load(made, backend=vulkan_backend)
    ids, mask = encoder.tokenizer.encode(["w5 w6 w7 w9", "w8 w3"])
    states = [x[m == 1] for x, m in zip(encoder.model(ids, mask).last_hidden_state, mask, strict=True)]
    wanted = {"cls": lambda x: x[0], "max": lambda x: x.max(0), "mean_sqrt_len": lambda x: x.sum(0) / len(x) ** 0.5}
    found = encoder.encode(["w5 w6 w7 w9", "w8 w3"])
    np.testing.assert_allclose(found, np.stack([wanted[mode](x) for x in states]), atol=1e-5)
    np.testing.assert_allclose(encoder.encode("w5 w6 w7 w9"), found[0], atol=1e-5)  # without padding
    (made / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    with pytest.raises(ModelError, match="pooling_mode_lasttoken is True; expected False"):
        models.SentenceEncoder.load(made, backend=vulkan_backend)
