"""Opening a device: which runtimes there are and how one is chosen. Importing this touches no Vulkan."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ClosedError, GrillyError, NoDeviceError
from . import lifetime
from .interface import DeviceInfo, Runtime
from .lifetime import check_alive, opening


def _vulkan(device: DeviceInfo) -> Runtime:
    from .vulkan import VulkanRuntime

    return VulkanRuntime(device)


def _kompute(device: DeviceInfo) -> Runtime:
    from .kompute import KomputeRuntime

    return KomputeRuntime(device)


#: Runtime names in the order in which "auto" tries them.
RUNTIMES: dict[str, Callable[[DeviceInfo], Runtime]] = {"vulkan": _vulkan, "kompute": _kompute}


def open_runtime(device: int | str | None = None, runtime: str = "auto") -> Runtime:
    """Open ``device`` (index, name fragment, or None for the best) with ``runtime`` ("auto", "vulkan", "kompute").

    Raises ValueError for an unknown name, NoDeviceError, listing every candidate with its cause, when none opens, and
    ClosedError when the interpreter is ending.
    """
    if runtime != "auto" and runtime not in RUNTIMES:
        raise ValueError(f"Compute: unknown runtime {runtime!r}; choose 'auto' or one of {sorted(RUNTIMES)}")
    with opening:
        check_alive()
        from .probe import enumerate_devices, select

        info = select(enumerate_devices(), device)
        causes = []
        for name in RUNTIMES if runtime == "auto" else (runtime,):
            try:
                return RUNTIMES[name](info)
            except ClosedError:
                raise
            except (GrillyError, ImportError, OSError) as error:
                causes.append((name, error))
    listing = "\n".join(f"  {name}: {error}" for name, error in causes)
    hint = f"\n{lifetime.fork_hint}" if lifetime.fork_hint else ""
    raise NoDeviceError(f"Compute: {info.name} could not be opened\n{listing}{hint}") from causes[0][1]


__all__ = ["RUNTIMES", "open_runtime"]
