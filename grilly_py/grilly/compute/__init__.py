"""What operations mean: argument checks, the plan, the result."""

from .backend import Compute, Profile, default_backend, devices, use
from .device.tensor import Tensor

__all__ = ["Compute", "Profile", "Tensor", "default_backend", "devices", "use"]
