"""Running a device with the kernels that GPUs get."""

import contextlib

from grilly.registry import Registry


@contextlib.contextmanager
def chosen_as_on(backend, architecture):
    """Inside, ``backend`` chooses shaders as on ``architecture`` (None: as on its own device)."""
    own = backend.registry
    if architecture is not None:
        backend.registry = Registry(backend.device, backend.runtime.features)
        backend.registry.architecture = architecture
    try:
        yield backend
    finally:
        backend.registry = own
