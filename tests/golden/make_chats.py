"""Writes tests/golden/chats.json: what transformers makes of conversations by chat templates of all kinds.

    python tests/golden/make_chats.py

Needs transformers, tokenizers and jinja2; the tests need the last two. Each case has the files of a folder, messages,
options, and the text.
"""

import json
import tempfile
from pathlib import Path

import tokenizers
import transformers

TAGS = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message['content'] | trim + eos_token }}\n"
    "{% endfor %}\n{% if add_generation_prompt %}\n    {{- '<|assistant|>' }}\n{% endif %}\n"
)
TURNS = (
    "{%- set state = namespace(system='', count=0) -%}\n"
    "{%- for message in messages -%}\n"
    "    {%- if message.role == 'system' -%}\n"
    "        {%- set state.system = message.content -%}\n"
    "        {%- continue -%}\n"
    "    {%- endif -%}\n"
    "    {%- if (message.role == 'user') != (state.count % 2 == 0) -%}\n"
    "        {{- raise_exception('roles must take turns, and ' ~ message.role ~ ' comes again') -}}\n"
    "    {%- endif -%}\n"
    "    {%- set state.count = state.count + 1 -%}\n"
    "    {%- if message.role == 'assistant' -%}\n"
    "        {% generation %}{{ message.content + eos_token }}{% endgeneration %}\n"
    "    {%- else -%}\n"
    "        {{ bos_token if loop.first or state.count == 1 }}[{{ state.system }}|{{ message.content }}]\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n"
)
TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson(indent=1) }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ (message.content or '') | tojson }}"
    "{% if message.tool_calls is defined %} calls {{ message.tool_calls | tojson(sort_keys=true) }}{% endif %};"
    "{% endfor %}{{ dict(a=1, b=mood | default('none')) }}{{ documents | length if documents }}"
)
THOUGHTS = (
    "{% for message in messages %}{{ message.role }}({{ message.keys() | join(',') }}): "
    "{{ message.reasoning_content }}, {{ message.thinking }}, {{ message.content }};{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Be short."}, {"role": "user", "content": " How are you? "},
    {"role": "assistant", "content": "Fine <b>&</b> \u00e4\u4f60"}, {"role": "user", "content": "Good."},
]  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False, "__type": "AddedToken"}}
TOOL = {"type": "function", "function": {"name": "add", "description": "a + b < c", "parameters": {}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"b": 1, "a": 2}}]}
CASES = [
    ("a field", {"tokenizer_config.json": {**TOKENS, "chat_template": TAGS}}, TALK, {}),
    ("the answer's beginning", {"tokenizer_config.json": {**TOKENS, "chat_template": TAGS}}, TALK,
     {"add_generation_prompt": True}),
    ("a file, which comes before a field",
     {"tokenizer_config.json": {**TOKENS, "chat_template": TAGS}, "chat_template.jinja": TURNS}, TALK, {}),
    ("tools", {"tokenizer_config.json": {**TOKENS, "chat_template": TOOLS}}, [*TALK[:2], CALL], {"tools": [TOOL]}),
    ("a variable of its own", {"tokenizer_config.json": TOKENS, "chat_template.jinja": TOOLS}, TALK[1:2],
     {"mood": "<fine>", "documents": [{"title": "a", "text": "b"}]}),
    ("one of several", {"tokenizer_config.json": {**TOKENS, "chat_template": [
        {"name": "default", "template": TAGS}, {"name": "tool_use", "template": TOOLS}]}}, TALK[:2],
     {"tools": [TOOL]}),
    ("by name", {"tokenizer_config.json": TOKENS, "chat_template.jinja": TAGS,
                 "additional_chat_templates/turns.jinja": TURNS}, TALK, {"chat_template": "turns"}),
    ("thoughts by each of their names", {"tokenizer_config.json": TOKENS, "chat_template.jinja": THOUGHTS}, [
        {"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "assistant", "content": "b", "thinking": "t"},
        {"role": "assistant", "content": "c", "reasoning": "r", "reasoning_content": None, "thinking": "t"},
        {"role": "assistant", "content": "d", "reasoning": "r", "reasoning_content": "", "thinking": "t"}], {}),
]  # fmt: skip


def write(folder: Path, files: dict) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def main() -> None:
    found = []
    for name, files, messages, options in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch), files)
            words = tokenizers.models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a")
            tokenizers.Tokenizer(words).save(str(Path(scratch) / "tokenizer.json"))
            made = transformers.PreTrainedTokenizerFast.from_pretrained(scratch)
            text = made.apply_chat_template(messages, tokenize=False, **options)
        found.append({"name": name, "files": files, "messages": messages, "options": options, "text": text})
        print(f"{name}: {text!r}")
    file = Path(__file__).parent / "chats.json"
    file.write_text(json.dumps({"transformers": transformers.__version__, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
