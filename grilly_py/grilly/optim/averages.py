"""Running means of a module's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import array_api as xp
from ..compute import Compute, Tensor
from ..compute.arrays.functions import elementwise
from ..compute.backend import backend_of
from ..compute.device.arrays import NDArray
from ..compute.device.together import together
from ..errors import CaptureError
from ..nn.module import Module
from ..nn.parameter import Parameter
from .checks import check_number
from .flat import Layout
from .parameters import array_of, parameters_of, unique_names
from .rule import FLOAT32


@elementwise
def _averaged(average: Any, parameter: Any, part: Any) -> Any:
    return average + part * (parameter.astype("float32") - average)


class EMA:
    """An exponential moving average of parameters, float32: ``average = decay * average + (1 - decay) * parameter``.

    ``update`` is one dispatch for all parameters that an optimizer has laid side by side, so it is made after the
    optimizer's ``init``, or its first ``update``.

    Parameters
    ----------
    model : grilly.nn.Module or mapping of str to array
        Whose parameters the averages begin as.
    decay : float
        From 0 to below 1.

    Raises
    ------
    TypeError, ValueError
        For a decay out of bounds, and what has no parameters.
    CaptureError
        In a captured function.
    """

    def __init__(self, model: Module | Mapping[str, Any], decay: float = 0.999):
        self._decay = check_number("EMA", "decay", decay, least=0.0, below=1.0)
        arrays = self._arrays(model)
        if not arrays:
            raise ValueError("EMA: there are no parameters")
        own = model._backend if isinstance(model, Module) else None
        backend: Compute = own if own is not None else backend_of("EMA", *arrays.values())
        if backend.runtime.capturing:
            raise CaptureError("EMA: make it before the capture: what it makes is to stay")
        self._backend = backend
        self._layouts = Layout.found(arrays, backend.opened.facts.storage_range // 4)
        self._flats = []
        for layout in self._layouts:
            flat = layout.new(backend, FLOAT32)
            layout.fill(flat, arrays, [place.name for place in layout.places])
            self._flats.append(flat)

    @staticmethod
    def _arrays(model: Any) -> dict[str, Any]:
        params = parameters_of("EMA", model)
        return {name: array_of("EMA", params, name) for name in unique_names(params)}

    def update(self, model: Module | Mapping[str, Any]) -> None:
        """Take the parameters in.

        Raises
        ------
        ValueError
            For parameters of other names or shapes, and on another backend.
        """
        arrays = self._arrays(model)
        self._check("update", {name: tuple(array.shape) for name, array in arrays.items()})
        flats = [layout.gathered(self._backend, arrays) for layout in self._layouts]
        with together(self._backend.opened):
            for average, flat in zip(self._flats, flats, strict=True):
                _averaged.into([average], average, flat, 1 - self._decay)

    def averages(self) -> dict[str, Tensor]:
        """The averages by the parameters' names: views of what ``update`` changes."""
        found: dict[str, Tensor] = {}
        for layout, flat in zip(self._layouts, self._flats, strict=True):
            found |= layout.views(flat)
        return found

    def copy_to(self, model: Module) -> None:
        """Give a module's parameters the averages' values, in their dtypes; another module's of these names too.

        Raises
        ------
        TypeError
            For what is no module.
        ValueError
            For parameters of other names or shapes.
        """
        if not isinstance(model, Module):
            raise TypeError(f"EMA.copy_to: model is a {type(model).__name__}; expected an nn.Module")
        params: dict[str, Parameter] = parameters_of("EMA", model)
        self._check("copy_to", {name: tuple(params[name].shape) for name in unique_names(params)})
        cast = {name: xp.astype(average, params[name].dtype) for name, average in self.averages().items()}
        for name, value in cast.items():
            params[name].data = value

    def _check(self, function: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        own = {place.name: place.shape for layout in self._layouts for place in layout.places}
        if own != shapes:
            unlike = sorted(name for name in own.keys() | shapes.keys() if own.get(name) != shapes.get(name))
            raise ValueError(f"EMA.{function}: the parameters differ from those it was made of: {unlike[:5]}")

    def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """The averages as NumPy arrays, by the parameters' names. Waits for the device."""
        return {name: np.array(view.numpy(), order="C") for name, view in self.averages().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state dict, with the bits that it has.

        Raises
        ------
        ValueError
            For other names or shapes: nothing has changed then.
        TypeError
            For arrays that are not float32.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"EMA.load_state_dict: state is a {type(state).__name__}; expected names with arrays")
        arrays = {name: value if isinstance(value, Tensor) else np.asarray(value) for name, value in state.items()}
        self._check("load_state_dict", {name: tuple(array.shape) for name, array in arrays.items()})
        for name, array in arrays.items():
            if array.dtype != FLOAT32:
                raise TypeError(f"EMA.load_state_dict: {name} is {array.dtype}; expected float32")
        sent = {name: self._backend.tensor(array) for name, array in arrays.items()}
        own = self.averages()
        with together(self._backend.opened):
            for name, tensor in sent.items():
                own[name][...] = tensor


__all__ = ["EMA"]
