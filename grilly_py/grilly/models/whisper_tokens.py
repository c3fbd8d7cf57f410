"""What Whisper's answers begin with by a folder: tokens of languages and tasks, and which of them by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .config import Config, read_json
from .languages import code_of


def read_tokens(folder: Path, rows: int) -> dict[str, Any]:
    """The arguments of `Transcriber` that generation_config.json says, or config.json where that is not there.

    ``rows``: the size of the vocabulary. Raises ModelError for what are no tokens, and languages and tasks without one.
    """
    whole = Config(str(folder / "config.json"), read_json(folder / "config.json"))
    file = folder / "generation_config.json"
    config = Config(str(file), read_json(file)) if file.is_file() else whole
    named = []
    for name in ("lang_to_id", "task_to_id"):
        inner = config.inner(name)
        fields = {} if inner is None else inner.fields
        named.append({
            key.removeprefix("<|").removesuffix("|>"): _token(config, name, value, rows)
            for key, value in fields.items()
        })  # fmt: skip
    languages, tasks = named
    if languages and "transcribe" not in tasks:
        raise config.error("task_to_id", "tasks, transcribe among them")
    no_timestamps = config.fields.get("no_timestamps_token_id")
    if no_timestamps is not None:
        no_timestamps = _token(config, "no_timestamps_token_id", no_timestamps, rows)
    language, task = _chosen(config, languages, tasks)
    forced: list[int | None] = []
    if language is None and task is None:
        # As in transformers, the older field counts where both are left open, and may stand in either file.
        forced = _forced(config if "forced_decoder_ids" in config else whole, rows, bool(languages))
    return {
        "languages": languages, "tasks": tasks if languages else {}, "forced": forced, "no_timestamps": no_timestamps,
        "language": language, "task": task,
    }  # fmt: skip


def _token(config: Config, name: str, value: Any, rows: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < rows:
        raise config.error(name, f"tokens from 0 to {rows - 1}")
    return value


def _chosen(config: Config, languages: dict[str, int], tasks: dict[str, int]) -> tuple[str | None, str | None]:
    """The language and the task that the folder asks for, by the names that have tokens."""
    found: list[str | None] = []
    # A model without languages writes down English, and may say so.
    for name, known in (("language", languages or {"en": 0}), ("task", tasks if languages else {"transcribe": 0})):
        value = config.fields.get(name)
        if name == "language" and isinstance(value, str):
            value = code_of(value)
        if value is not None and (not isinstance(value, str) or value not in known):
            raise config.error(name, f"one of {', '.join(sorted(known))}")
        found.append(value if languages else None)
    return found[0], found[1]


def _forced(config: Config, rows: int, multilingual: bool) -> list[int | None]:
    """The tokens after the first; None stands for those that are found, of which the language is the first."""
    forced: list[int | None] = []
    for place, pair in enumerate(config.list("forced_decoder_ids", []), 1):
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] != place:
            raise config.error("forced_decoder_ids", "pairs of a place, from 1 on, and a token")
        found = multilingual and pair[1] is None
        forced.append(None if found else _token(config, "forced_decoder_ids", pair[1], rows))
    return forced


__all__ = ["read_tokens"]
