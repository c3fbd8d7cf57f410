"""Chat templates: how messages become the text that a model was trained to answer.

A template is a program that comes with the model, in the language of jinja2. It runs in that package's sandbox, and
reaches nothing but its variables there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .config import read_json

#: The sandbox of older versions has holes.
LEAST_JINJA = (3, 1, 6)
#: The remedy where a package is missing.
INSTALL = 'pip install "grilly-vulkan[models]"'
#: What a message calls the thoughts before an answer; the first that it has counts.
_THOUGHT = ("reasoning_content", "thinking", "reasoning")


class ChatTemplates:
    """The templates of a folder, by name: chat_template.jinja and additional_chat_templates/NAME.jinja, or where there
    is neither the field chat_template of tokenizer_config.json or chat_template.json.

    Parameters
    ----------
    folder : Path
    tokens : mapping of str to str
        The special tokens by the names that templates know them by: bos_token and its like.
    given : dict of str to (str, str), optional
        Those of a GGUF file, in place of the folder's.

    Attributes
    ----------
    sources : dict of str to (str, str)
        The text of each template, and the file, for messages. Empty where the folder has none.
    """

    def __init__(
        self, folder: Path, tokens: Mapping[str, str], given: dict[str, tuple[str, str]] | None = None
    ) -> None:
        self._folder, self.tokens = folder, tokens
        self.sources: dict[str, tuple[str, str]] = {} if given is None else given
        if given is not None:
            return
        for name in ("chat_template.json", "tokenizer_config.json"):
            file = folder / name
            if file.is_file():
                self._read(file, read_json(file).get("chat_template"))
        files = {"default": folder / "chat_template.jinja"}
        files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
        read = {name: (file.read_text("utf-8"), str(file)) for name, file in files.items() if file.is_file()}
        self.sources = read or self.sources

    def _read(self, file: Path, found: Any) -> None:
        """Add what a field holds: a template, or a list of those with names."""
        listed = [{"name": "default", "template": found}] if isinstance(found, str) else found or []
        for one in listed if isinstance(listed, list) else [listed]:
            if not isinstance(one, Mapping) or not all(isinstance(one.get(key), str) for key in ("name", "template")):
                raise ModelError(f"{file}: chat_template is {str(found)[:200]}; expected a text, or a list of objects "
                                 "with name and template")  # fmt: skip
            self.sources[one["name"]] = one["template"], f"{file}: chat_template"

    def render(self, name: str | None, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The text of messages, by the template of that name; by default "tool_use" where there are tools, else
        "default".

        Raises ModelError where the folder has no such template, and for what goes wrong in it; ImportError without
        jinja2.
        """
        if name is None:
            name = "tool_use" if variables.get("tools") is not None and "tool_use" in self.sources else "default"
        if not self.sources and self._folder.is_file():
            raise ModelError(f"{self._folder}: tokenizer.chat_template is missing: the tokenizer has no template")
        if not self.sources:
            raise ModelError(
                f"{self._folder / 'tokenizer_config.json'}: chat_template is missing, and so is "
                f"{self._folder / 'chat_template.jinja'}: the tokenizer has no template"
            )
        if name not in self.sources:
            raise ModelError(
                f"{self._folder}: the tokenizer has no template named {name!r:.100}; it has "
                + ", ".join(sorted(self.sources))
            )
        source, where = self.sources[name]
        environment = _environment()
        import jinja2

        try:
            template = environment.from_string(source)
            return str(template.render(messages=[_told(one) for one in messages], **{**self.tokens, **variables}))
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"{where}: line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ModelError(f"{where}: {error}") from error


def _told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it: each looks for the thoughts before an answer by one of several names."""
    said = {key: value for key, value in message.items() if value is not None}
    thought = next((said[name] for name in _THOUGHT if name in said), None)
    return said if thought is None else {"thinking": thought, **said, "reasoning_content": thought}


def _environment() -> Any:
    """The sandbox, with what templates may call. Raises ImportError."""
    try:
        import jinja2
        from jinja2 import ext, nodes, sandbox, utils
    except ImportError as error:
        raise ImportError(f"chat templates: {error}; run: {INSTALL}") from None
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < LEAST_JINJA:
        least = ".".join(map(str, LEAST_JINJA))
        raise ImportError(f"chat templates: jinja2 is {jinja2.__version__}; before {least} its sandbox has holes: "
                          f"run: {INSTALL}")  # fmt: skip

    class Generation(ext.Extension):
        """``{% generation %}`` ... ``{% endgeneration %}``, around what the model says: of use in training alone."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    class Names(utils.Namespace):
        """Of ``namespace()``: without names of Python's own."""

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__()
            for name, value in dict(*given, **more).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace has no place for {name!r}")
            super().__setitem__(name, value)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
               sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": refuse, "strftime_now": lambda format: datetime.now().strftime(format),
        "dict": lambda *given, **more: dict(*given, **more), "namespace": Names,
    }  # fmt: skip
    return made
