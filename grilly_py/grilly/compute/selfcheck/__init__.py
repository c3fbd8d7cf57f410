"""The numeric check that a matrix-unit kernel, and holes, must pass on a device before they are used there.

Drivers have offered matrix shapes that their hardware lacks and returned wrong products; some arrange elements in
another order than a kernel assumes. So the kernel runs on a few small problems, and its results are compared with
those of the kernels that use no matrix units, on the same device. Holes are compared with NumPy: code that Python wrote
is no code that a driver's compiler was tested with. The registry remembers the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ClosedError, DeviceLostError, GrillyError, OutOfDeviceMemoryError
from ...registry import Choice
from ..attention.backward_stored import OPERATION as STORED_DQ
from ..device.device import Device
from . import attention, behind, convolutions, decode, expressions, gradients, matmul, quantized

#: What checks a variant of an operation: a function of a device, the choice and the facts of ``prove``.
CHECKS = {
    "attention": attention.check, "attention-tiled": attention.check_tiles,
    "attention-split-kv": attention.check_split_kv,
    "attention-decode": decode.check, "linear": matmul.check, "linear-quantized": quantized.check,
    "convolution-matrix": convolutions.check,
    "attention-backward-dq": gradients.check, "attention-backward-dkv": gradients.check, STORED_DQ: gradients.check,
    "expressions": expressions.check,
}  # fmt: skip


def prove(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Run a variant on small random problems and compare it with the kernels that need no proof, or with NumPy.

    Parameters
    ----------
    device : Device
        Where to run.
    choice : Choice
        The variant; its operation is "attention", "attention-tiled", "attention-split-kv", "attention-decode",
        "attention-backward-...", "linear", "linear-quantized", "convolution-matrix" or "expressions".
    facts : mapping
        The request's; ``head_dim`` and ``value_dim`` are those of the problems. With ``holes`` an expression is checked
        behind a product or a convolution.

    Returns
    -------
    str or None
        What was wrong, or None.

    Raises
    ------
    DeviceLostError
        When the device was lost to the check.
    OutOfDeviceMemoryError, ClosedError
        When it could not be made; that is no verdict.
    ShaderError
        When the binary is missing or damaged.
    """
    device.registry.manifest.binary(choice.variant)  # a damaged file says nothing of the device
    operation = choice.variant.operation
    check = behind.check if "holes" in facts and operation in behind.PROBLEMS else CHECKS.get(operation)
    if check is None:
        return f"there is no self-check for {operation}"
    try:
        # For real, also in a captured function; and a wrong kernel's results are compared, whatever they are.
        with device.runtime.aside(), np.errstate(all="ignore"):
            return check(device, choice, facts)
    except (DeviceLostError, OutOfDeviceMemoryError, ClosedError):
        raise
    except GrillyError as error:
        if isinstance(error.__cause__, DeviceLostError):
            raise error.__cause__ from None
        return str(error)
