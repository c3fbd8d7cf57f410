"""Every record of an elementwise operation: the functions that are made of it, dtypes, numbers, ONNX."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import grilly.functional as F
from grilly import array_api as xp
from grilly.compute.arrays.map import plan
from grilly.compute.expressions.records import FLOATS, NUMBERS, OPERATIONS

#: What users call, by the record's name.
FUNCTIONS = {
    name: getattr(xp, name, None) or getattr(F, name) for name in OPERATIONS
    if hasattr(F, name) or hasattr(xp, name)
}  # fmt: skip
OF_ONE = [name for name, function in FUNCTIONS.items() if function.__module__ != xp.where.__module__ and name != "clip"
          and len(inspect.signature(function).parameters) - len(OPERATIONS[name].numbers) == 1]  # fmt: skip


def takes(name: str, dtype: np.dtype) -> bool:
    """Whether an operation of one array computes with a dtype."""
    record = OPERATIONS[name]
    if not hasattr(xp, name) or dtype.kind == "f":
        return dtype.kind == "f" and record.takes not in ("bits", "integers")
    return not (dtype.kind == "b" and record.takes in (FLOATS, NUMBERS, "integers"))


def test_every_record_has_a_function_with_its_documentation():
    private = {name for name in OPERATIONS if name.endswith("_derivative") or name.startswith("onnx_")}
    assert set(OPERATIONS) - private - FUNCTIONS.keys() == {"gelu_tanh"}
    for name, function in FUNCTIONS.items():
        record = OPERATIONS[name]
        assert function.__name__ == name and inspect.getdoc(function)
        if name not in ("gelu", "where", "clip", "nextafter"):  # functions with arguments of their own
            assert inspect.getdoc(function).startswith(record.text.split("\n")[0]), name
    for name in F.__all__:
        if name.endswith("_backward") and name.removesuffix("_backward") in FUNCTIONS:
            assert f"{name.removesuffix('_backward')}_derivative" in OPERATIONS


@pytest.mark.parametrize("name", OF_ONE)
def test_dtypes(vulkan_backend, name):
    """A pipeline is made for each, so they are few: floats of 16 bits, with NaN and a view, integers and bool."""
    record, function = OPERATIONS[name], FUNCTIONS[name]
    for kind in ("float16", "int32", "bool"):
        array = np.array([[0, 1, 1], [1, 0, 1]], kind)
        if kind == "float16":
            array *= np.float16(np.nan if record.takes not in ("bits", "integers") else 1)
        tensor = vulkan_backend.tensor(array).T
        if not takes(name, array.dtype):
            with pytest.raises(TypeError, match=name):
                function(tensor)
            continue
        found = function(tensor).numpy()
        assert found.shape == (3, 2) and (found.dtype == bool or not record.is_test)
        if kind == "float16" and not record.is_test:
            assert np.isnan(found).all() and found.dtype == array.dtype


@pytest.mark.parametrize("name", [name for name in OF_ONE if OPERATIONS[name].numbers])
def test_numbers_are_arguments(vulkan_backend, name):
    x = vulkan_backend.tensor(np.linspace(-3, 3, 50, dtype=np.float32))
    found, made = [], set()
    for factor in (1, 2, 3):
        found.append(FUNCTIONS[name](x, *(factor * value for value in OPERATIONS[name].numbers.values())).numpy())
        made.add(len(vulkan_backend.opened.caches[plan]))
    assert len(made) == 1 and not np.array_equal(found[0], found[1])


@pytest.mark.needs("onnx")
def test_names_in_onnx():
    onnx = pytest.importorskip("onnx")
    for record in OPERATIONS.values():
        if record.onnx:
            schema = onnx.defs.get_schema(record.onnx)
            own = {key: schema.attributes[key].default_value.f for key in record.attributes}
            assert own == pytest.approx(dict(record.attributes)), record.onnx
