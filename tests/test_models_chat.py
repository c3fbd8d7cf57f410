"""Chat templates: what transformers makes of them (tests/golden/chats.json), errors, and the command."""

import importlib.util
import json
from pathlib import Path

import pytest

import goldens
from grilly import ModelError, models
from grilly.cli import main
from model_folders import write_folder

for _package in ("tokenizers", "jinja2"):
    if importlib.util.find_spec(_package) is None:
        pytest.skip(f"not installed: {_package}", allow_module_level=True)

CHATS = json.loads((Path(__file__).parent / "golden" / "chats.json").read_text())["cases"]
USER = [{"role": "user", "content": "w5"}]


def tokenizer_of(folder, files):
    """A folder's tokenizer: words w0 to w60, a space before each. With these files."""
    import tokenizers

    words = {f"w{number}": number for number in range(61)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("w1 $A", special_tokens=[("w1", 1)])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return models.Tokenizer(folder)


@pytest.mark.parametrize("case", CHATS, ids=lambda case: case["name"])
def test_texts_are_those_of_transformers(tmp_path, case):
    tokenizer = tokenizer_of(tmp_path, case["files"])
    assert tokenizer.has_chat_template
    assert tokenizer.apply_chat_template(case["messages"], **case["options"]) == case["text"]


def test_special_tokens_are_in_the_text(tmp_path):
    tokenizer = tokenizer_of(tmp_path, {"chat_template.jinja": "w1 {{ messages[0].content }} w2"})
    text = tokenizer.apply_chat_template(USER)
    assert tokenizer.encode([text], add_special_tokens=False)[0].tolist() == [[1, 5, 2]]
    assert tokenizer.encode(["w5"])[0].tolist() == [[1, 5]]


def refused(tokenizer, *parts, messages=USER, **options):
    with pytest.raises(ModelError) as caught:
        tokenizer.apply_chat_template(messages, **options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_folders_without_a_template(tmp_path):
    tokenizer = tokenizer_of(tmp_path, {"tokenizer_config.json": {"bos_token": "w1"}})
    assert not tokenizer.has_chat_template
    refused(tokenizer, str(tmp_path / "tokenizer_config.json"), "chat_template is missing", "chat_template.jinja")
    one = tokenizer_of(tmp_path, {"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "x"}]}})
    refused(one, "no template named 'default'; it has rag")
    refused(one, f"{tmp_path}: the tokenizer has no template named 'rags'; it has rag", chat_template="rags")
    assert one.apply_chat_template(USER, chat_template="rag") == "x"
    for wrong in (3, {"name": "a"}, [{"name": "a"}]):
        with pytest.raises(ModelError, match=r"tokenizer_config.json: chat_template is .*; expected a text, or a list"):
            tokenizer_of(tmp_path, {"tokenizer_config.json": {"chat_template": wrong}}).apply_chat_template(USER)
    with pytest.raises(ValueError, match="no messages"):
        one.apply_chat_template([])


def test_arguments_of_transformers_are_no_variables(tmp_path):
    tokenizer = tokenizer_of(tmp_path, {"chat_template.jinja": "{{ messages | length }}{{ mood }}"})
    assert tokenizer.apply_chat_template(USER, mood=" good") == "1 good"
    for name, way in (
        ("continue_final_message", "the messages before it, add_generation_prompt=True, and its text after"),
        ("tokenize", "nothing: a text comes back"), ("return_tensors", "nothing: a text"), ("return_dict", "nothing"),
        ("truncation", r"nothing; Tokenizer.cut\(longest\)"), ("max_length", "nothing; Tokenizer.cut"),
        ("tokenizer_kwargs", "nothing"), ("return_assistant_tokens_mask", "nothing"),
        ("padding", "nothing"), ("sanitize_control_tokens", "nothing"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=rf"apply_chat_template: .* keyword argument '{name}'; here give {way}"):
            tokenizer.apply_chat_template(USER, **{name: True})
    assert tokenizer.apply_chat_template(USER, tokenize=False, max_length=None) == "1"


def test_what_are_no_messages_or_tools(tmp_path):
    """Said before the template runs, which would see letters as messages, or fail somewhere."""
    tokenizer = tokenizer_of(tmp_path, {"chat_template.jinja": "{{ raise_exception('it ran') }}"})
    for wrong, said in (
        ([USER, USER], r"conversation\[0\] is \[\{'role"), ("hi", "conversation is 'hi'"), (["hi"], r"\[0\] is 'hi'"),
        (USER[0], r"conversation is \{'role'.*; expected a list of messages"), ([*USER, object()], r"\[1\] is <object"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"apply_chat_template: .*{said}"):
            tokenizer.apply_chat_template(wrong)
    for tools, said in (
        ([len], r"tools\[0\] is <built-in"), (len, "tools is <built-in"), ({"type": "a"}, r"tools is \{'type'"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"apply_chat_template: {said}.*; expected a list of JSON schemas"):
            tokenizer.apply_chat_template(USER, tools=tools)
    with pytest.raises(TypeError, match=r"apply_chat_template: documents\[0\] is 'a'"):
        tokenizer.apply_chat_template(USER, documents=["a"])


def test_what_goes_wrong_in_a_template_names_it(tmp_path):
    file = str(tmp_path / "chat_template.jinja")
    for source, said in (
        ("{% if %}", "line 1: "), ("a\n{% for %}", "line 2: "), ("{{ missing.part }}", "'missing' is undefined"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{{ 1 / 0 }}", "zero"),
        ("{{ messages | tojson(3, 4, 5, 6, 7, 8) }}", "argument"), ("{{ [][3] + 1 }}", "no element 3"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"), ("{{ messages.append(3) }}", "safe"),
        ("{% set x = namespace(_a=1) %}", "'_a'"), ("{{ raise_exception.__globals__.json }}", "unsafe"),
        ("{{ dict.__closure__[0] }}", "unsafe"), ("{% include '/etc/passwd' %}", "loader"),
    ):  # fmt: skip
        refused(tokenizer_of(tmp_path, {"chat_template.jinja": source}), file, said)


def test_generate_command(vulkan_backend, tmp_path, capsys):
    """A folder with a template answers; --no-chat continues."""
    case = goldens.cases("models")["llama"]
    folder = write_folder(tmp_path / "model", case.arguments)
    prompt = " ".join(f"w{token}" for token in case.input_ids[0][1:])
    answer = " ".join(f"w{token}" for token in case.tokens[0, :5]) + "\n"

    def ran(template, *more, code=0):
        files = {} if template is None else {"chat_template.jinja": template}
        for old in folder.glob("chat_template.jinja"):
            old.unlink()
        tokenizer_of(folder, files)
        given = ["generate", str(folder), prompt, "--max-new-tokens", "5", "--device", str(vulkan_backend.device.index)]
        assert main([*given, *more]) == code
        return capsys.readouterr()

    first = f"w{case.input_ids[0][0]} "
    assert ran(first + "{{ messages[-1].content }}").out == answer
    assert ran("{% for m in messages %}{{ m.content + ' ' }}{% endfor %}", "--system", first).out == answer
    assert ran("w9 w9 {{ messages[0].content }}", "--no-chat").out == ran(None).out != answer
    assert "tokenizer has no template" in ran(None, "--chat", code=1).err
    assert "has no chat template" in ran(None, "--system", "w3", code=1).err
    assert "leave out --no-chat" in ran("x", "--system", "w3", "--no-chat", code=1).err
    assert "add_generation_prompt" not in ran("{{ add_generation_prompt and messages[0].content }}").err
