"""The special and added tokens of a tokenizer's folder, which several files may name, merged as in transformers 5."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import Config, read_json
from .tokenizer_classes import KINDS, Kind

#: Fields that name special tokens. Those that are in no file get their numbers in this order.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _OLD, _SPECIFIC = "extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
#: They end with _token and are none; tokenizer.json says what is put around texts.
_FLAGS_OF_ENDS = ("add_bos_token", "add_eos_token")
_TOKEN = "a token, or an object with its content and flags such as lstrip"


class SpecialTokens:
    """Special and added tokens.

    Parameters
    ----------
    folder : Path
        With special_tokens_map.json and added_tokens.json, or without.
    config : Config
        Of tokenizer_config.json.
    name : str
        The tokenizer's class, of `KINDS`.
    data : mapping
        The object in tokenizer.json.

    Attributes
    ----------
    named : dict of str to str or None
        The special tokens by their names, as templates of chats know them.

    Raises
    ------
    ModelError
        For what are no tokens; it names the file and the field.
    """

    def __init__(self, folder: Path, config: Config, name: str, data: Mapping[str, Any]) -> None:
        from tokenizers import AddedToken

        self._made, self._config, self._name = AddedToken, config, name
        self._fields = {
            field: said for field, said in config.fields.items()
            if field in (_EXTRA, _OLD, _SPECIFIC) or field in SPECIAL
            or field.endswith("_token") and isinstance(said, (str, Mapping)) and field not in _FLAGS_OF_ENDS
        }  # fmt: skip
        self._extra_field = _EXTRA if config.fields.get(_EXTRA) or _OLD not in config.fields else _OLD  # for messages
        self._specific = self._taken_apart()
        self._added: dict[int, Any] = {}  # by number
        self._by_text: dict[str, Any] = {}  # also those whose numbers others took
        if (listed := config.inner("added_tokens_decoder")) is not None:
            for number, said in listed.fields.items():
                if not number.isdigit():
                    raise listed.error(number, "a number as the name of this field")
                self._add(int(number), self._token(listed, number, said))
        else:
            self._read_map(folder / "special_tokens_map.json")
            self._read_added(folder / "added_tokens.json")
            for said in data.get("added_tokens") or ():
                self._add(said["id"], self._token(config, "added_tokens", said))
        self._fill(KINDS[name], data.get("padding") or {})
        self.named = {field: None if token is None else str(token) for field, token in self._named.items()}

    def _add(self, number: int, token: Any) -> None:
        self._added[number] = self._by_text[token.content] = token

    def _token(self, where: Config, field: str, said: Any, **more: Any) -> Any:
        """A token of an object."""
        try:
            return self._made(said["content"], **{flag: said[flag] for flag in _FLAGS if flag in said}, **more)
        except (KeyError, TypeError):
            raise where.error(field, _TOKEN) from None

    def _read(self, field: str, said: Any) -> Any:
        """A token of an object; a text stays what it is."""
        return said if isinstance(said, (str, self._made)) else self._token(self._config, field, said)

    def _mapping(self, field: str, said: Any) -> dict[str, Any]:
        """Tokens that have names of their own."""
        if not isinstance(said, Mapping):
            raise self._config.error(field, "tokens by name")
        return {name: self._read(field, one) for name, one in said.items()}

    def _taken_apart(self) -> dict[str, Any]:
        """Take tokens of a model's own out of the fields, those that have names."""
        fields = self._fields
        if _OLD in fields and not fields.get(_EXTRA):
            fields[_EXTRA] = fields.pop(_OLD)
        own = [field for field, said in fields.items() if field not in SPECIAL and isinstance(said, str)
               and field.endswith("_token")]  # fmt: skip
        specific = {field: fields.pop(field) for field in own}
        if isinstance(fields.get(_EXTRA), Mapping):
            specific |= self._mapping(self._extra_field, fields.pop(_EXTRA))
        told = fields.pop(_SPECIFIC, None)
        return specific or ({} if told is None else self._mapping(_SPECIFIC, told))

    def _read_map(self, file: Path) -> None:
        """special_tokens_map.json, which older versions wrote."""
        where, fields = Config(str(file), read_json(file) if file.is_file() else {}), self._fields
        for field, said in where.fields.items():
            if field == _EXTRA and isinstance(said, Mapping):
                fields[field] = said
            elif field in (_EXTRA, _OLD):
                listed = where.list(field, [])
                if not all(isinstance(one, str) or field == _EXTRA and isinstance(one, Mapping) for one in listed):
                    raise where.error(field, "a list of tokens")
                known = list(fields.get(_EXTRA) or []) if field == _EXTRA else []
                made = [one if isinstance(one, str) else self._token(where, field, one) for one in listed]
                fields[field] = known + [one for one in made if one not in known]
            elif not field.endswith("_token"):
                raise where.error(field, "no such field: special tokens have names that end with _token")
            elif isinstance(said, Mapping):
                fields[field] = self._token(where, field, {**said, "special": True})
            elif said is None or isinstance(said, str):
                fields[field] = said
            else:
                raise where.error(field, _TOKEN)
        if isinstance(fields.get(_EXTRA), Mapping):
            self._specific |= self._mapping(_EXTRA, fields.pop(_EXTRA))

    def _read_added(self, file: Path) -> None:
        """added_tokens.json, which older versions wrote: tokens with their numbers."""
        where = Config(str(file), read_json(file) if file.is_file() else {})
        named = [self._fields.get(field) for field in SPECIAL]
        special = {str(token) for token in [*named, *(self._fields.get(_EXTRA) or [])] if token}
        for text, number in where.fields.items():
            if type(number) is not int:
                raise where.error(text, "the number of this token")
            self._add(number, self._made(text, normalized=text not in special, special=text in special))

    def _fill(self, kind: Kind, padding: Mapping[str, Any]) -> None:
        """Set ``_named`` and ``_extra``, of the fields and of what the class has where they say nothing."""
        fields = self._fields
        for field in SPECIAL:
            if fields.get(field) is not None:
                token = self._read(field, fields[field])
                fields[field] = self._by_text.get(str(token), token)
        for field, text in kind.tokens.items():
            fields.setdefault(field, text)
        for field, flags in kind.flags.items():
            if isinstance(fields[field], str):
                fields[field] = self._made(fields[field], **flags)
        if "pad_token" in padding:
            fields.setdefault("pad_token", padding["pad_token"])
        if self._name == "T5":
            self._number_extra()
        if _OLD in fields and _EXTRA not in fields:
            fields[_EXTRA] = fields.pop(_OLD)
        extra = fields.get(_EXTRA)
        if extra is not None and not isinstance(extra, list):
            raise self._config.error(self._extra_field, "a list of tokens")
        self._extra = [self._read(self._extra_field, said) for said in extra or ()]
        own = {field: self._read(field, said) for field, said in fields.items()
               if field.endswith("_token") and field not in SPECIAL and said is not None}  # fmt: skip
        self._named = {field: fields.get(field) for field in SPECIAL} | own | self._specific

    def _number_extra(self) -> None:
        """The tokens of T5 that stand for what was left out of a text."""
        count, listed = self._config.integer("extra_ids", 100, least=0), self._fields.get(_OLD)
        made = [f"<extra_id_{number}>" for number in range(count)]
        found = [said for said in listed or () if "<extra_id_" in str(said)]
        if found and count and len(found) != count:
            raise self._config.error("extra_ids", f"{len(found)}, as {_OLD} has so many")
        self._fields[_OLD] = [*(listed or ()), *([] if found else made)]

    def add_to(self, tokenizer: Any) -> None:
        """Add the tokens to a tokenizer. What it has of them keeps its number, others follow its last one."""
        tokens = [token for _, token in sorted(self._added.items(), key=lambda item: item[0])]
        there = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        there |= {str(token) for token in tokens}
        for token in [*self._named.values(), *self._extra]:
            if token is not None and str(token) not in there and token not in tokens:
                tokens.append(token)
        named = set(self.named.values())
        made = [self._made(token, special=True) if isinstance(token, str) else token for token in tokens]
        for token in made:
            token.special = token.special or token.content in named
        tokenizer.add_tokens(made)
        if self._name == "Qwen2":
            texts = dict.fromkeys(str(token) for token in [*self._named.values(), *self._extra] if token is not None)
            tokenizer.add_tokens([self._made(text, special=True) for text in texts])


__all__ = ["SPECIAL", "SpecialTokens"]
