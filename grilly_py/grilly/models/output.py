"""Output: what a model computed, by name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..compute import Tensor
from ..compute.device.tape import OPEN


class Output(Mapping[str, Any]):
    """What a model computed, by name: ``output.logits`` or ``output["logits"]``; ``output[0]`` is the first field.

    A mapping: ``dict(output)``, ``**output``, ``len(output)``. What a head gives comes first, as in transformers.

    NumPy arrays where the model was given NumPy arrays, else Tensors, and Tensors where gradients are taken. Logits are
    computed when they are first asked for: nobody who wants the hidden states alone pays for a product with the
    vocabulary. Names, ``keys()`` and ``len`` ask for nothing.

    Raises
    ------
    KeyError, IndexError, AttributeError
        For fields that are not there; the message has those that are.
    TypeError
        For slices and other keys.
    """

    def __init__(self, host: bool, **tensors: Tensor | Callable[[], Tensor] | None) -> None:
        self._host = host and not OPEN.tapes
        self._found: dict[str, Any] = {name: value for name, value in tensors.items() if value is not None}
        self._ready: set[str] = set()

    def __getitem__(self, name: str | int) -> Any:
        name = name if isinstance(name, str) else self._name(name)
        if name not in self._found:
            raise KeyError(f"this output has no {name!r}; it has {', '.join(self._found)}")
        if name not in self._ready:
            value = self._found[name]
            value = value if isinstance(value, Tensor) else value()
            self._found[name] = value.numpy() if self._host else value
            self._ready.add(name)
        return self._found[name]

    def _name(self, place: Any) -> str:
        """The name of the field at a place."""
        names = [*self._found]
        try:
            return names[operator.index(place)]
        except TypeError:
            raise TypeError(f"this output has no {place!r}; expected the name of a field or one's place, of "
                            f"{', '.join(names)}") from None  # fmt: skip
        except IndexError:
            raise IndexError(f"this output has no field {place}; it has {len(names)}: {', '.join(names)}") from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # _found is not there yet when a copy is made
            raise AttributeError(name)
        if name not in self._found:
            raise AttributeError(f"this output has no {name}; it has {', '.join(self._found)}")
        return self[name]

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickle: all of it computed, as what computes cannot be written down."""
        for name in self._found:
            self[name]
        return self.__dict__

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    # A mapping's == would compute all fields, and ask arrays whether they are true.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Output({', '.join(self._found)})"
