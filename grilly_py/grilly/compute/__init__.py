"""What operations mean: argument checks, the plan, the result."""

from .backend import Compute, Profile, asarray, default_backend, devices, empty, use
from .device.tensor import Tensor

__all__ = ["Compute", "Profile", "Tensor", "asarray", "default_backend", "devices", "empty", "use"]
