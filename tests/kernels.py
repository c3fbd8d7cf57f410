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


@contextlib.contextmanager
def retiled(backend, family, threads=None, **tile):
    """Inside, the plans find other numbers in the data file of a family than it holds."""
    registry, asked = backend.registry, []

    def choice(variant):
        chosen = type(registry).choice(registry, variant)
        if variant.family == family:
            chosen.tile = {**chosen.tile, **tile}
            chosen.threads = threads or chosen.threads
            asked.append(variant)
        return chosen

    registry.choice = choice
    try:
        registry._choices.clear()
        backend.plans.clear()
        yield
        assert asked, f"nothing asked for {family}"
    finally:
        del registry.choice
        registry._choices.clear()
        backend.plans.clear()
