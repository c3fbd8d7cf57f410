"""Tests that this machine cannot run are not collected one by one: the run's summary says how many, and why.

Left out are

- tests with a runtime that cannot be opened here, unless ``GRILLY_REQUIRE_RUNTIMES`` names it;
- tests of a kernel (a parameter that is a Variant) that the device lacks something for;
- tests with the mark ``needs("torch")``, say, where no such package is installed;
- tests with a parameter ``family`` of whose kernels the device can run none;
- tests for which ``left_out(registry, item)`` of their module gives a reason. It gets the Registry of the runtime that
  the test would have, and pytest's item; None lets the test be.

Everything follows from what is installed and what the driver reports, so each process of a run leaves out the same.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections import Counter

REQUIRED = [name for name in os.environ.get("GRILLY_REQUIRE_RUNTIMES", "").split(",") if name]
#: Fixtures that open a device, with the runtime where it is not their parameter.
DEVICES = {
    "runtime": None, "backend": None, "runtime_name": None, "vulkan_backend": "vulkan", "vulkan": "vulkan",
    "kompute_backend": "kompute", "kompute": "kompute",
}  # fmt: skip


@functools.cache
def registry_of(runtime: str):
    """The Registry of the runtime's device, or the reason why it cannot be opened. The device is closed again."""
    from grilly.errors import NoDeviceError
    from grilly.registry import Registry
    from grilly.runtime import open_runtime

    try:
        opened = open_runtime(runtime=runtime)
    except NoDeviceError as error:
        return f"the {runtime} runtime cannot be opened here: {error}"
    try:
        return Registry(opened.device, opened.features)
    finally:
        opened.close()


@functools.cache
def lacks(runtime: str, name: str) -> str | None:
    """Why the kernel of this name cannot run on a runtime's device, whatever it is asked for; None where it can."""
    from grilly.registry import Request, default_manifest

    variant = next(v for found in default_manifest().by_operation.values() for v in found if v.name == name)
    facts = {fact: low for fact, (low, _) in variant.limits.items()} | {"align": variant.align}
    request = Request(variant.operation, variant.dtype, variant.models[0], facts, variant.family)
    why = next(why for each, why in registry_of(runtime).explain(request) if each.name == name)
    return None if why is None else f"kernels that are tested with {runtime} one by one: {why.split(', ')[0]}"


@functools.cache
def family_lacks(runtime: str, family: str) -> str | None:
    """Why none of a family's kernels can run on a runtime's device; None where one can, or there is no such family."""
    from grilly.registry import default_manifest

    names = [v.name for found in default_manifest().by_operation.values() for v in found if v.family == family]
    reasons = [lacks(runtime, name) for name in names]
    return reasons[0] if reasons and all(reasons) else None


def unserved(registry, request) -> str | None:
    """Why no kernel can serve a request on the registry's device; None where one can."""
    reasons = [why for variant, why in registry.explain(request) if request.prefer in (None, variant.family)]
    if not reasons or None in reasons:
        return None
    return f"{request.prefer or request.operation} in {request.dtype}: {reasons[0].split(', ')[0]}"


def reason(item) -> str | None:
    """Why a collected test cannot run here, or None."""
    from grilly.registry.manifest import Variant

    for mark in item.iter_markers("needs"):
        for package in mark.args:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
    fixture = next((name for name in DEVICES if name in item.fixturenames), None)
    if fixture is None:
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    runtime = DEVICES[fixture] or parameters.get(fixture)
    if runtime is None:  # the module has a fixture of its own of that name
        return None
    registry = registry_of(runtime)
    if isinstance(registry, str):
        return None if runtime in REQUIRED else registry.splitlines()[0]
    for value in parameters.values():
        if isinstance(value, Variant) and (why := lacks(runtime, value.name)):
            return why
    if isinstance(family := parameters.get("family"), str) and (why := family_lacks(runtime, family)):
        return why
    own = getattr(item.module, "left_out", None)
    return own(registry, item) if own else None


def sort_out(items) -> tuple[list, list, Counter]:
    """(tests to run, tests left out, why: reasons and how often each)."""
    kept, out, why = [], [], Counter()
    for item in items:
        found = reason(item)
        if found is None:
            kept.append(item)
        else:
            out.append(item)
            why[found] += 1
    return kept, out, why


def lines(why: Counter) -> list[str]:
    """What the summary says."""
    return [f"{count:,} x {text}" for text, count in sorted(why.items(), key=lambda item: (-item[1], item[0]))]
