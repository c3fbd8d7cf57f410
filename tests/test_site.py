"""The site's pages of the API: each name is found, and none is hidden. tools/test builds the site itself."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = [(page.name, name) for page in sorted((ROOT / "docs/api").glob("*.md"))
         for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)]  # fmt: skip


def found(name: str):
    """A module, or what a module has under this name; a skip where an optional package lacks."""
    module, _, attribute = name.rpartition(".")
    for path in (name, module):
        try:
            loaded = importlib.import_module(path)
        except ImportError as error:
            if not (error.name or "").startswith("grilly"):
                pytest.skip(f"{path} needs {error.name}")
            continue
        return loaded if path == name else getattr(loaded, attribute)
    raise LookupError(name)


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_a_name_is_there_and_hides_nothing(page, name):
    """A function that is called like its module is taken for the module, and needs a line of its own."""
    value = found(name)
    if not hasattr(value, "__path__"):
        return
    modules = {info.name for info in pkgutil.iter_modules(value.__path__)}
    for hidden in modules & set(value.__all__):
        if inspect.ismodule(getattr(value, hidden)):
            continue
        assert (page, f"{name}.{hidden}.{hidden}") in NAMED


def test_every_public_part_has_a_page():
    parts = {
        "functional", "nn", "optim", "array_api", "linalg", "pinned", "random", "models", "torch", "transformers",
        "onnx", "dask", "quantization", "reference", "data",
    }  # fmt: skip
    assert {f"grilly.{part}" for part in parts} <= {name for _, name in NAMED}
    import grilly

    own = {"Compute", "Tensor", "Graph", "FlashConfig", "FlashResult", "devices", "use", "manual_seed",
           "QuantizedTensor", "quantize", "elementwise", "reduction", "Scalar", "lora", "BlockMask",
           "block_mask"}  # fmt: skip
    assert own <= set(grilly.__all__) and own <= {name.rpartition(".")[2] for page, name in NAMED if page == "index.md"}
    modules = {"data", "functional", "integrations", "linalg", "models", "nn", "optim", "pinned", "quantization",
               "random", "reference"}  # fmt: skip
    transforms = {"autocast", "checkpoint", "grad", "stop_gradient", "value_and_grad", "vjp"}
    assert {"grilly.transforms", "grilly.compute.autocast.autocast"} <= {name for _, name in NAMED}
    known = own | modules | transforms | {"__version__", "benchmark_flash_attention"}
    errors = {name for name in grilly.__all__ if name.endswith(("Error", "Warning"))}
    from grilly import array_api

    assert set(grilly.__all__) - known - errors <= set(array_api.__all__)


def test_the_navigation_has_every_page_once():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[ :-] (\S+\.md)$", text.split("\nnav:\n")[1], re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted([*(str(page.relative_to(docs)) for page in docs.rglob("*.md")), "changelog.md"])
