"""The interface that ONNX's own tools know: ``onnx.backend.base.Backend``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.base

from .model import Model


class Prepared(onnx.backend.base.BackendRep):
    """A model that can be run again and again; ``model`` is the ``grilly.onnx.Model``."""

    def __init__(self, model: Model, capture: bool):
        self.model = model
        self._capture = capture

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Run the model.

        Parameters
        ----------
        inputs : sequence or mapping of arrays
            In the order of the model's inputs, or by their names; inputs that have defaults by their names only.
        seed : int, optional
            As in ``Model.run``.

        Returns
        -------
        tuple of numpy.ndarray
            In the order of its outputs.

        Raises
        ------
        ValueError, TypeError, ModelError, UnsupportedError
            As ``Model.run``.
        """
        if not isinstance(inputs, Mapping):
            given: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(self.model.inputs):
                raise ValueError(f"{len(given)} inputs are given; the model has {len(self.model.inputs)}")
            inputs = {each.name: value for each, value in zip(self.model.inputs, given, strict=True)}
        found = self.model.run(inputs, capture=self._capture, seed=kwargs.get("seed"))
        return tuple(found[name] for name in self.model.outputs)  # of which two may be the same


class Backend(onnx.backend.base.Backend):
    """ONNX's view of grilly: it runs models on grilly's default device, whatever ONNX calls that."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether grilly has the device and all of the model's operators."""
        from .graphs import lacking

        return cls.supports_device(device) and not lacking(model)

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", *, capture: bool = False, **kwargs: Any
    ) -> Prepared:
        """A model, ready to run.

        Parameters
        ----------
        model : onnx.ModelProto
        device : str
            As ``supports_device`` says; it makes no difference.
        capture : bool
            As in ``Model.run``.

        Raises
        ------
        ModelError, UnsupportedError
            As ``Model``.
        """
        return Prepared(Model(model), capture)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        """Run one node, of the newest operator set.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : list or tuple of numpy.ndarray
            For its named inputs, in order; one for those of one name.
        device, outputs_info
            They make no difference.

        Raises
        ------
        ValueError, TypeError, ModelError, UnsupportedError
            As ``Model`` and ``Model.run``.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        if not isinstance(inputs, (list, tuple)):
            raise TypeError(f"inputs is {type(inputs).__name__}; expected a list of arrays, one for each named input")
        if len(inputs) != len(names):
            raise ValueError(f"{len(inputs)} inputs are given; the node's are {', '.join(names) or 'none'}")
        arrays = [np.asarray(value) for value in inputs]
        arrays = [value.astype(value.dtype.newbyteorder("="), copy=False) for value in arrays]
        kinds = [onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for value in arrays]
        infos = [
            onnx.helper.make_tensor_value_info(name, kind, value.shape)
            for name, kind, value in zip(names, kinds, arrays, strict=True)
        ]
        results = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, results)
        return cls.prepare(onnx.helper.make_model(graph), device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether grilly has a device that ONNX calls so: CPU, by which ONNX's tools mean no device in particular."""
        return device == "CPU"


__all__ = ["Backend", "Prepared"]
