"""docs/adding-an-option.md, done: its blocks change a copy of the checkout, which then has the option."""

from __future__ import annotations

import pytest

import guides
from compilers import needs_compiler

#: Files that an option may touch, outside of shaders and tests.
MOST_FILES = 8
#: Attends in the copy, and compares with a bias that is written out, in float64.
CHECK = """
import numpy as np
import grilly
import grilly.functional as F

rng = np.random.default_rng(5)
q, k, v = (rng.standard_normal((1, 2, n, 16), dtype=np.float32) for n in (7, 19, 19))
slopes = np.array([1.5, -0.5], np.float32)
distance = np.arange(19) - (np.arange(7)[:, None] + 12)
scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / 4
scores -= slopes[:, None, None].astype(np.float64) * np.log(1 + np.abs(distance))
weights = np.exp(scores - scores.max(-1, keepdims=True))
want = weights / weights.sum(-1, keepdims=True) @ v
found = F.flash_attention2(q, k, v, log_slopes=slopes)
print(np.abs(found - want).max(), np.abs(F.flash_attention2(q, k, v) - want).max())
"""


@pytest.fixture(scope="module")
def guide():
    return guides.Guide("adding-an-option.md")


def test_the_guide_lists_what_it_touches(guide):
    guides.assert_lists_what_it_touches(guide, MOST_FILES)


@pytest.mark.long("the guide compiles many shaders")
@needs_compiler
def test_the_guide_works(guide, tmp_path, vulkan_backend):
    guides.bare_copy(tmp_path, ("",))
    guide.apply(tmp_path)
    early = guides.run(tmp_path, "-c", CHECK)
    assert (
        "shader_constants.py is not what shaders state; run: python tools/compile_shaders.py --constants"
        in early.stderr
    )
    written = guides.run(tmp_path, "tools/compile_shaders.py", "--constants")
    assert written.returncode == 0, written.stderr
    done = guides.run(tmp_path, "-c", CHECK)
    assert done.returncode == 0, done.stderr
    error, without = map(float, done.stdout.split())
    # Sums of 19 weights and of 16 products, of numbers below 5: a few units in the last place.
    assert error < 1e-5 < 0.1 < without
    assert guides.passed(tmp_path, "tests/test_log_slopes.py") >= 8
    alone = "test_cell and attention-naive and k2_log_slopes"
    few = f"test_every or test_the_short or test_an_option_changes or ({alone})"
    assert guides.passed(tmp_path, "tests/test_features.py", "-k", few) >= 25
    assert guides.passed(tmp_path, "tests/internals/test_shared_constants.py") >= 8
    homes = "tests/test_typing.py", "tests/internals/test_options.py"
    assert guides.passed(tmp_path, *homes, "-k", "one_list or keyword or methods") >= 4
    guides.assert_style(tmp_path, guide)
