"""docs/adding-an-operation.md, done: its blocks change a copy of the checkout, which then has the operation."""

from __future__ import annotations

import json

import pytest

import guides
from compilers import needs_compiler

#: What the two operations may touch, outside of shaders and tests: an entry and a function; and a plan, a function and
#: a list of names.
MOST_FILES = 5
#: The operation in the copy, compared with NumPy in float64.
CHECK = """
import numpy as np
import grilly
import grilly.functional as F

x = np.random.default_rng(5).standard_normal((2, 3, 131)).astype(np.float32)
want = x / np.sqrt(np.square(x, dtype=np.float64).sum(-1, keepdims=True))
print(np.abs(F.l2_normalize(x) / want - 1).max(), F.l2_normalize.__doc__.splitlines()[0])
print(grilly.logit(grilly.asarray([0.5], dtype=grilly.float32)).numpy()[0], grilly.logit.__doc__)
"""


@pytest.fixture(scope="module")
def guide():
    return guides.Guide("adding-an-operation.md")


def test_the_guide_lists_what_it_touches(guide):
    guides.assert_lists_what_it_touches(guide, MOST_FILES)


@needs_compiler
def test_the_guide_works(guide, tmp_path, vulkan_backend):
    # Only what the guide's files need (copies, casts): with all families the compiler would take minutes.
    families = ("elementwise/copy", "arrays/map", "arrays/expressions", "arrays/transpose")
    shaders = ("include", *(f"{family}.{kind}" for family in families for kind in ("comp", "toml")))
    guides.bare_copy(tmp_path, shaders)
    guide.apply(tmp_path)
    compiled = guides.run(tmp_path, "tools/compile_shaders.py")
    assert compiled.returncode == 0, compiled.stderr
    sizes = json.loads((tmp_path / "shaders/sizes.json").read_text())
    assert {name for name in sizes if name.startswith("l2-")} == {
        f"l2-normalize.row.{dtype}" for dtype in ("float32", "float16", "bfloat16")
    }
    done = guides.run(tmp_path, "-c", CHECK)
    assert done.returncode == 0, done.stderr
    of_rows, of_elements = done.stdout.splitlines()
    error, said = of_rows.split(maxsplit=1)
    assert float(error) <= (131 + 16) * 2.0**-24
    assert said.startswith("Each row divided by its length")
    assert of_elements.startswith("0.0 log(x / (1 - x))")
    assert guides.passed(tmp_path, "tests/test_logit.py") == 1
    assert guides.passed(tmp_path, "tests/internals/test_records.py", "-k", "logit or documentation") >= 2
    assert guides.passed(tmp_path, "tests/test_l2_normalize.py") >= 20
    assert guides.passed(tmp_path, "tests/test_docstrings.py", "-k", "functional or reference or l2_normalize") >= 4
    assert guides.passed(tmp_path, "tests/test_typing.py", "-k", "public or function or methods or logit") >= 4
    guides.assert_style(tmp_path, guide)
