"""Losses of trained models beside PyTorch's: tools/loss_curves.py."""

import importlib.util

import numpy as np
import pytest

from toolbox import tool

pytestmark = [pytest.mark.long("hundreds of steps with PyTorch too"), pytest.mark.needs("torch", "transformers")]
if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
    curves = tool("loss_curves")


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_losses_are_within_the_spread_of_pytorch_s(vulkan_backend, name):
    """PyTorch's own runs are up to 1.4 times as far from float64 as all of its others."""
    found = curves.compared(vulkan_backend, name, 200)
    assert found["exact"][-1] < 0.85 * found["exact"][0]
    np.testing.assert_array_equal(found["grilly"]["replayed"], found["grilly"]["called"])
    assert max(found["shares"].values()) < 2, found["shares"]


def test_another_training_is_without(vulkan_backend, tmp_path):
    """Of the figure that the test above looks at: a weight decay that is a tenth larger is far outside."""
    curves.MODELS["gpt2"]().save_pretrained(tmp_path)
    exact = curves.of_torch(tmp_path, "gpt2", 40, dtype="float64")
    spread = curves.farthest([curves.of_torch(tmp_path, "gpt2", 40, order) for order in range(3)], exact)
    other, same = (curves.of_grilly(vulkan_backend, tmp_path, "gpt2", 40, True, decay) for decay in (0.011, 0.01))
    assert (np.abs(other - exact) / spread).max() > 4 * (np.abs(same - exact) / spread).max()
