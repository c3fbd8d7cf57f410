"""tools/fuzz.py for a few hundred calls and kernels; docs/running.md says how to run it for ten thousand."""

import numpy as np
import pytest

from toolbox import tool


@pytest.fixture(scope="module")
def fuzz():
    return tool("fuzz")


@pytest.mark.long("of a tool that only the project runs")
def test_random_calls(fuzz):
    import grilly
    from conftest import open_or_skip

    with open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")) as backend:
        counts, faults = fuzz.fuzz(backend, calls=300, seed=3, recipes=4)
    assert not faults, "\n".join(faults)
    assert counts["valid: returned"] > 100 and counts["compared"] > 5
    assert sum(n for name, n in counts.items() if name.startswith("broken")) > 50


@pytest.mark.parametrize("flaw", ["returns", "bare", "work", "wrong", "leak"])
def test_a_flaw_is_found(fuzz, monkeypatch, flaw):
    """Each thing that the tool looks for, made to happen."""
    import grilly
    from conftest import open_or_skip

    with open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")) as backend:
        true = type(backend.attention).flash_attention2
        kept = []

        def flawed(self, q, *arguments, **options):
            try:
                result = true(self, q, *arguments, **options)
            except (TypeError, ValueError):
                if flaw == "returns":
                    return None
                if flaw == "bare":
                    raise KeyError("inside") from None
                if flaw == "work":
                    backend.tensor(np.zeros(3, np.float32))
                raise
            if flaw == "leak":
                kept.append(backend.tensor(np.zeros(3, np.float32)))
            return result + 1 if flaw == "wrong" and isinstance(result, np.ndarray) else result

        monkeypatch.setattr(type(backend.attention), "flash_attention2", flawed)
        _, faults = fuzz.fuzz(backend, calls=120, seed=3, recipes=1)
        words = {
            "returns": "an invalid call returned", "bare": "raised KeyError", "work": "device work before",
            "wrong": "off by", "leak": "(bytes in use",
        }[flaw]  # fmt: skip
        assert any(words in fault for fault in faults), faults
        kept.clear()


def test_the_command(fuzz, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fuzz.py", "--calls", "40", "--recipes", "1"])
    assert fuzz.main() == 0
    assert capsys.readouterr().out.endswith("\n0 faults\n")
