"""The field's words (docs/glossary.md): names that things had before do not come back."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Identifiers, and what these things are called.
FORMER = {
    "Ready": "Executable", "ready_for": "executable_for", "ready_plan": "within_budget", "Kept": "DeviceCache",
    "REPEATED": "CALLS", "Deal": "TileSchedule", "dealt": "tiling", "is_turned": "is_transposed",
    "TURNED_A": "TRANSPOSED_A", "TURNED_B": "TRANSPOSED_B", "JOIN_KEYS": "COMBINE_KEYS", "share_out": "split_keys",
    "MEMBERS": "PACKED_HEADS", "SHARED_KEYS": "SPLIT_KV", "crowded": "packs_rows", "CROWDED": "OPTIONS_IN_SHARED",
    "Piece": "Chunk", "pieces": "chunks", "GraphPiece": "GraphSuballocation", "paces": "throughputs",
    "HeaderWords": "ParameterTemplate", "HEADER": "PARAMETER_NAMES", "words_slot": "parameters_slot",
    "words_of": "parameters_of", "as_word": "as_parameter", "HEADER_WORD": "PARAMETER",
    "copy_header": "copy_parameters",
    "BendKeywords": "ScoreModKeywords", "BENDS": "HAS_SCORE_MOD", "BEND": "SCORE_MOD", "bend_scores": "apply_score_mod",
    "HIDES": "HAS_MASK_MOD", "hide_scores": "apply_mask_mod", "sees": "mask_mod", "sees_all": "mask_is_full",
    "emit_put": "emit_scatter", "activation_slope": "activation_derivative", "GELU_SLOPE": "GELU_DERIVATIVE",
    "PeerExchange": "InteropExchange", "DriverPeer": "DriverInterop", "Peer": "Interop", "Joint": "InteropOrder",
    "OptionFacts": "OptionSummary", "Terms": "AttentionTerms and the like", "shared_facts": "shared_constants",
    "shader_facts": "shader_constants", "read_facts": "reflect", "page_steps": "page_strides",
}  # fmt: skip
#: Names of files and folders without their endings.
FORMER_FILES = {
    "shares", "tails", "deal", "turned", "put", "pace", "joint", "peers", "crowded", "shared_facts", "shader_facts",
    "attention-join", "flash-attention3-shares", "cache-words", "linear-rows-turned", "bend", "hide", "see",
}  # fmt: skip
#: Where a name is another thing: pieces of text and of SPIR-V, the terms of a sum, and what a drawing shows.
OTHER = {
    ("grilly_py/grilly/runtime/pruned.py", "pieces"), ("grilly_py/grilly/models/tokenizer_classes.py", "pieces"),
    ("grilly_py/grilly/runtime/linking.py", "HEADER"), ("grilly_py/grilly/runtime/inlining.py", "HEADER"),
    ("grilly_py/grilly/runtime/spirv.py", "HEADER"), ("grilly_py/grilly/runtime/modules.py", "HEADER"),
    ("shaders/arrays/accumulate.comp", "Terms"), ("tools/docsite/drawings.py", "sees"),
}  # fmt: skip
SOURCES = sorted(
    path
    for folder, ending in (("grilly_py/grilly", "py"), ("tools", "py"), ("shaders", "comp"), ("shaders", "glsl"))
    for path in (ROOT / folder).rglob(f"*.{ending}")
)


def identifiers(path: Path) -> set[str]:
    """Names in the code of a file, comments and texts aside."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r"//.*|^#include .*", "", text, flags=re.MULTILINE)))
    found = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                found.update(name.split("."))
    return found


def test_former_names_do_not_come_back():
    found = {
        (path.relative_to(ROOT).as_posix(), name) for path in SOURCES for name in identifiers(path) & FORMER.keys()
    }  # fmt: skip
    assert not [(path, name, FORMER[name]) for path, name in sorted(found - OTHER)]


def test_former_files_do_not_come_back():
    paths = [path for folder in ("grilly_py/grilly", "shaders") for path in (ROOT / folder).rglob("*")]
    assert not [str(path.relative_to(ROOT)) for path in paths if path.stem in FORMER_FILES]


def test_names_in_the_glossary_are_there():
    named = {*re.findall(r"`(?:\w+\.)?(?!py`)([A-Za-z_]\w+)`", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"))}
    assert len(named) > 30 and not named.difference(*map(identifiers, SOURCES))


def test_identifiers_are_found(tmp_path):
    (tmp_path / "a.py").write_text('from b.c import d as e\n\n\ndef f(g):  # h\n    """i"""\n    return g.j(k=1)\n')
    assert identifiers(tmp_path / "a.py") >= {"d", "e", "f", "g", "j", "k"}
    assert not identifiers(tmp_path / "a.py") & {"h", "i"}
    (tmp_path / "a.glsl").write_text('#include "x.glsl"\nuint a = b; // c\n')
    assert identifiers(tmp_path / "a.glsl") == {"uint", "a", "b"}
