"""Every field and file of a tokenizer's folder, and of generation, that transformers reads has its effect, is refused
by name, or has none. docs/models.md says which; transformers is what it is compared with."""

import ast
import importlib
import inspect
import json
import os
import random
import re
from pathlib import Path

import pytest

from grilly import ModelError, models

pytestmark = pytest.mark.needs("transformers")
pytest.importorskip("tokenizers")
import random_tokenizers  # noqa: E402
from random_tokenizers import CLASSES, drawn, told_by_grilly, told_by_transformers, trained, write  # noqa: E402

#: How many random folders are compared.
COUNT = int(os.environ.get("GRILLY_RANDOM_TOKENIZERS", "40"))
PAGE = (Path(__file__).parents[1] / "docs/models.md").read_text(encoding="utf-8")
#: Keyword arguments that transformers reads where it loads, calls or saves, and that no file of a tokenizer has.
ARGUMENTS = set("""
    _commit_hash _from_auto _from_pipeline add_generation_prompt cache_dir code_revision commit_message config
    continuing_subword_prefix end_of_word_suffix force_download initial_alphabet max_target_length mistral_format
    proxies repo_id revision sanitize_control_tokens save_jinja_files subfolder token tokenizer_type trust_remote_code
    use_fast use_source_tokenizer
""".split())  # fmt: skip
#: What no field can be.
NONSENSE = {"spin": [1], "AutoTokenizer": 5}


def table(header):
    """Names in a table of the page, by what becomes of them: the first word of the second column."""
    found = {}
    for line in PAGE.partition(f"| {header} |")[2].partition("\n\n")[0].splitlines()[2:]:
        names, what = line.strip("| ").split(" | ")
        found.setdefault(re.match(r"\w+", what).group(), set()).update(re.findall(r"`(\w+)`", names))
    return found


FIELDS, GENERATION = table("fields of tokenizer_config.json"), table("fields of generation_config.json")


def read_in(module):
    """Names of keyword arguments that a module's functions look up."""
    holders, found = {"kwargs", "init_kwargs", "local_kwargs", "tokenizer_config"}, set()
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        looked = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looked = [node.func.value, *node.args[:1]] if node.func.attr in ("pop", "get", "setdefault") else []
        elif isinstance(node, ast.Compare):
            looked = [node.comparators[0], node.left]
        elif isinstance(node, ast.Subscript):
            looked = [node.value, node.slice]
        if len(looked) == 2 and getattr(looked[0], "id", None) in holders and isinstance(looked[1], ast.Constant):
            found.add(looked[1].value)
    return found


def test_the_page_has_all_fields_of_a_tokenizer_that_transformers_reads():
    import transformers

    found = set()
    for name in ("tokenization_utils_base", "tokenization_utils_tokenizers", "models.auto.tokenization_auto"):
        found |= read_in(f"transformers.{name}")
    assert {"model_max_length", "split_special_tokens", "auto_map", "fast_tokenizer_files"} <= found
    for name in CLASSES:
        for one in getattr(transformers, f"{name}Tokenizer").__mro__:
            if one.__module__.startswith("transformers.models") and "__init__" in vars(one):
                found |= inspect.signature(vars(one)["__init__"]).parameters.keys()
    found -= {"self", "args", "kwargs"} | ARGUMENTS
    assert found == set().union(*FIELDS.values()) & found and set(FIELDS) == {"effect", "refused", "none"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each class."""
    made = {}
    for name, kind in [*CLASSES.items(), (None, "Unigram")]:
        said = f"{name}Tokenizer" if name else "TokenizersBackend"
        folder = tmp_path_factory.mktemp(str(name))
        made[said] = write(folder, {"tokenizer.json": json.loads(trained(kind)), "tokenizer_config.json": {}})
    return made


def tokens(folder, name, **told):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **told}))
    made = models.Tokenizer(folder)
    assert made.has_chat_template is False
    return made.tokens_of(random_tokenizers.TEXTS)


@pytest.mark.parametrize("field", sorted(FIELDS["effect"] | FIELDS["refused"]))
def test_a_field_with_an_effect_is_read(folders, field):
    refused = 0
    for name, folder in folders.items():
        try:
            tokens(folder, name, **{field: NONSENSE})
        except ModelError as error:
            assert re.search(rf"tokenizer_config.json: {field}\b", str(error))
            refused += 1
    assert refused


def test_fields_without_effect(folders):
    for name, folder in folders.items():
        assert tokens(folder, name, **dict.fromkeys(FIELDS["none"], NONSENSE)) == tokens(folder, name)


def test_random_folders(tmp_path):
    """The same tokens, texts and names as in transformers, or an error that names a file."""
    plain = sorted(FIELDS["none"] - {"padding_side"})
    same, refused = 0, []
    for seed in range(COUNT):
        files = drawn(random.Random(seed), plain)
        folder = write(tmp_path / "a", files)
        try:
            rows, wanted = told_by_transformers(folder, random.Random(seed))
        except Exception:  # of any kind: such a folder is none
            continue
        try:
            found = told_by_grilly(folder, rows, wanted[3] is not None)
        except ModelError as error:
            assert str(folder) in str(error)
            refused.append(str(error))
            continue
        assert found == wanted, (seed, files)
        same += 1
    assert same > 0.8 * COUNT, (same, refused)


def test_added_tokens_of_older_folders(tmp_path):
    """Those that tokenizer.json lacks follow the vocabulary."""
    files = {"tokenizer.json": json.loads(trained("WordLevel")), "added_tokens.json": {"<tool>": 40}}
    folder = write(tmp_path / "a", files)
    found = models.Tokenizer(folder)
    (number,) = found.encode("<tool>")[0][0].tolist()
    assert found.decode([number]) == "<tool>" and number == found.encode("hello <tool>")[0][0, 1]
    files["special_tokens_map.json"] = {"pad_token": "<tool>"}
    found = models.Tokenizer(write(tmp_path / "a", files))
    assert found.decode([number]) == "" and found.encode(["<tool>", "hello hello"])[0][0].tolist() == [number] * 2
    for name, content, said in (
        ("added_tokens.json", {"<tool>": "40"}, "<tool> is '40'; expected the number of this token"),
        ("special_tokens_map.json", {"legacy": True}, "legacy is True; expected no such field"),
        ("special_tokens_map.json", {"eos_token": 3}, "eos_token is 3; expected a token"),
        ("special_tokens_map.json", {"extra_special_tokens": [3]}, r"extra_special_tokens is \[3\]; expected a list"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=f"{name}: {said}"):
            models.Tokenizer(write(tmp_path / "a", {**files, name: content}))


def test_a_folder_of_a_slow_tokenizer(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer.json is missing; of vocab.txt transformers makes one: AutoToken"):
        models.Tokenizer(write(tmp_path / "a", {"vocab.txt": "a"}))


# -- generation_config.json --------------------------------------------------------------------------------------------


def test_the_page_has_all_fields_of_generation():
    import transformers
    from transformers.models.whisper import generation_whisper

    assert vars(transformers.GenerationConfig()).keys() <= set().union(*GENERATION.values())
    source = inspect.getsource(generation_whisper)
    found = re.findall(r'generation_config(?:\.(?!json\b)([a-z]\w*)|, "(\w+)")', source)
    found = {left or right for left, right in found} - {"from_model_config", "update", "to_dict"}
    assert "lang_to_id" in found and found <= set().union(*GENERATION.values())
