"""Chooses the binary for a request: one of the manifest's variants that this device and runtime can run."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping

from ..errors import DeviceLostError, SelfCheckWarning, UnsupportedError
from ..runtime.interface import DeviceInfo
from .architecture import identify
from .choice import Choice, Request
from .manifest import Manifest, Variant, default_manifest
from .measured import HOLES, Verdicts, Winners, check_mode
from .names import DTYPES, OFFERS, matches, serves
from .shared import extras_in

_CACHE_SIZE = 4096
#: Head dimensions that ``Registry.table`` asks for.
TABLE_SIZES = (32, 64, 80, 128, 256)
#: Facts that are no dimension: the table takes a call that fills any device, and copies of float32.
TABLE_COUNTS = {
    "rows": 1 << 24, "keys": 1 << 16, "outputs": 1 << 24, "from_bits": 32, "to_bits": 32, "bfloat16": 0, "high": 0,
    "causal": 0, "depth": 1024, "depth_align": 8, "gradient": 0, "columns": 0, "options": 0, "transposed": 0,
    "ragged": 0, "tall": 1, "classes": 0,
}  # fmt: skip


def _failed(failure: str | None) -> str | None:
    return f"failed its self-check on this driver: {failure}" if failure else None


class Registry:
    """Resolves requests for one device through one runtime.

    Parameters
    ----------
    device : DeviceInfo
        The open device. An ``architecture`` of "generic" is identified from the rest.
    features : frozenset of str
        What the device offers through the runtime (``Runtime.features``).
    manifest : Manifest, optional
        The package's own by default.
    prove : callable, optional
        ``prove(choice, problem)`` runs a variant on small problems and returns what was wrong with its results, or
        None. It is called once for each ``Variant.unproven`` variant that would be chosen; without it such variants
        are chosen unless they are known to have failed.
    changed : callable, optional
        Called when a winner was kept or all were forgotten: what was planned with earlier choices is out of date.

    Attributes
    ----------
    winners : Winners
        What ``grilly tune`` measured on this device; it goes before ranks.
    """

    def __init__(
        self,
        device: DeviceInfo,
        features: Iterable[str],
        manifest: Manifest | None = None,
        prove: Callable[[Choice, Mapping[str, int]], str | None] | None = None,
        changed: Callable[[], None] = lambda: None,
    ):
        self.device = device
        self.features = frozenset(features)
        self.manifest = manifest if manifest is not None else default_manifest()
        self.architecture = device.architecture if device.architecture != "generic" else identify(device)
        self._choices: dict[Request, Choice] = {}
        self._lock = threading.RLock()
        self.winners = Winners(device)
        self._verdicts = Verdicts(device, self.manifest.key)
        self._prove = prove
        self._changed = changed
        self._proving = threading.RLock()  # a check resolves other operations
        self._warned: set[str] = set()
        self._shaders: dict[tuple[str, str], str] = {}

    def resolve(self, request: Request) -> Choice:
        """The variant that was measured fastest, or else the one of highest rank, that can run.

        Among equals it is the first by family, variant and place in its file. An unproven variant is checked before
        it is first chosen, and passed over with a SelfCheckWarning when it computes wrongly.

        Raises
        ------
        UnsupportedError
            When none can run; names the operation, dtype, architecture, and what each candidate lacks.
        """
        if request.problem.__class__ is not tuple:
            request = request._replace(problem=tuple(request.problem.items()))
        choice = self._choices.get(request)
        return choice if choice is not None else self._resolve(request)

    def _resolve(self, request: Request) -> Choice:
        facts, failed = dict(request.problem), {}
        for variant in self._able(request):
            choice = self.choice(variant)
            failure = self._failure(choice, facts)
            if failure is None:
                break
            failed[variant] = failure
        else:
            wrong = failed and request.operation == HOLES
            raise UnsupportedError(self._wrong(failed) if wrong else self._miss(request))
        for variant, failure in failed.items():
            self._warn(variant, failure, f"{choice.variant.name} is used instead")
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return choice  # a signal handler came in the midst of what follows, under which nothing may change
        with self._lock:
            if len(self._choices) >= _CACHE_SIZE:  # oldest first; keeping the order of use would slow every hit
                self._choices.pop(next(iter(self._choices)))
            return self._choices.setdefault(request, choice)

    def explain(self, request: Request) -> list[tuple[Variant, str | None]]:
        """Every variant of the operation, with None where it can run or the reason why it cannot.

        A variant whose self-check has not been run counts as one that can.
        """
        facts = dict(request.problem)
        variants = self.manifest.by_operation.get(request.operation, ())
        return [(v, self._lacks(v, request) or _failed(self._known_failure(v, facts))) for v in variants]

    def candidates(self, request: Request) -> list[Choice]:
        """Every variant that can serve the request, best first, unproven ones checked."""
        facts = dict(request.problem)
        choices = (self.choice(variant) for variant in self._able(request))
        return [choice for choice in choices if self._failure(choice, facts) is None]

    def equals(self, request: Request) -> list[Choice]:
        """What `resolve` gives, and the variants of the same rank that can serve the request.

        Where it was measured to be the fastest it is alone.
        """
        first = self.resolve(request)
        if first.variant.name == self.measured(request):
            return [first]
        rank = self.rank(first.variant)
        return [choice for choice in self.candidates(request) if self.rank(choice.variant) == rank]

    def choice(self, variant: Variant) -> Choice:
        """The variant with the subgroup size that would be requested here, whether or not it can run."""
        return Choice(variant, self._subgroup(variant)[0], self.manifest)

    # -- self-checks -----------------------------------------------------------------------------------------------

    def unchecked(self, variant: Variant, facts: Mapping[str, int]) -> bool:
        """Whether the variant will be checked at first use with these facts."""
        if not self._is_checked(variant, facts):
            return False
        return self._verdicts.find(variant, self._subgroup(variant)[0], facts) is None

    def trusts(self, choice: Choice, facts: Mapping[str, int]) -> bool:
        """Whether a variant passes another self-check, of what these facts tell of; it is made the first time."""
        failure = self._failure(choice, facts)
        if failure is not None:
            self._warn(choice.variant, failure, "what would be a part of it takes dispatches of its own")
        return failure is None

    def _is_checked(self, variant: Variant, facts: Mapping[str, int]) -> bool:
        """Whether a self-check says if the variant can be used: of those on matrix units, and of holes on GPUs.

        Compilers of processors are few, and tests run them; there holes are checked where it is asked for.
        """
        mode = check_mode()
        if variant.operation == HOLES or "holes" in facts:
            return mode == "always" or mode == "once" and self.device.kind != "cpu"
        return variant.unproven and mode != "off"

    def _known_failure(self, variant: Variant, facts: Mapping[str, int]) -> str | None:
        if not self._is_checked(variant, facts):
            return None
        return self._verdicts.find(variant, self._subgroup(variant)[0], facts) or None

    def _failure(self, choice: Choice, facts: Mapping[str, int]) -> str | None:
        """What is wrong with a variant's results, checking it if that was not done; None where nothing is."""
        variant, size = choice.variant, choice.subgroup_size
        if not self._is_checked(variant, facts):
            return None
        with self._proving:  # another thread may be checking the same one
            failure = self._verdicts.find(variant, size, facts)
            if failure is None and self._prove is not None:
                try:
                    failure = self._prove(choice, facts) or ""
                except DeviceLostError:
                    # This device is gone; the next one to be opened must not be lost to the same kernel.
                    self._verdicts.keep(variant, size, facts, "the device was lost")
                    raise
                self._verdicts.keep(variant, size, facts, failure)
        return failure or None

    def _wrong(self, failed: Mapping[Variant, str]) -> str:
        """What is said where nothing can be used instead of variants that failed."""
        return "; ".join(
            f"{variant.name} {_failed(failure)} ({self._driver()}), and without it there are no elementwise "
            "operations; update the driver, or open another device"
            for variant, failure in failed.items()
        )

    def _driver(self) -> str:
        return f"{self.device.driver} {self.device.driver_version}, {self.device.name}"

    def _warn(self, variant: Variant, failure: str, instead: str) -> None:
        with self._lock:
            if variant.name in self._warned:
                return
            self._warned.add(variant.name)
        warnings.warn(
            f"{variant.name} {_failed(failure)} ({self._driver()}); {instead}",
            SelfCheckWarning,
            stacklevel=4,
        )

    # -- order -----------------------------------------------------------------------------------------------------

    def _able(self, request: Request) -> list[Variant]:
        """The variants that can serve the request, best first; self-checks are not looked at."""
        variants = self.manifest.by_operation.get(request.operation, ())
        return self._ordered([v for v in variants if self._lacks(v, request) is None], request)

    def _ordered(self, variants: Iterable[Variant], request: Request) -> list[Variant]:
        won = self.measured(request)
        return sorted(variants, key=lambda v: (v.name != won, *self._precedence(v)))

    def measured(self, request: Request) -> str | None:
        """Name of the variant that ``grilly tune`` found fastest for requests like this one, or None."""
        if not self.winners.entries:  # then nobody need know the version of the shaders
            return None
        return self.winners.find(request, self.shaders(request.operation, request.dtype))

    def remember(self, request: Request, choice: Choice, seconds: float, shape: str) -> None:
        """Keep a measured winner and use it from now on.

        Parameters
        ----------
        request : Request
            As the plan made it; the winner serves all requests of the same ``bucket``.
        choice : Choice
            The winner.
        seconds : float
            Its device time.
        shape : str
            What was measured, for people.

        Raises
        ------
        OSError
            Where the cache folder cannot be written.
        """
        shaders = self.shaders(request.operation, request.dtype)
        self.winners.keep(request, shaders, choice.variant, seconds, shape)
        self._choose_anew()

    def forget_winners(self) -> bool:
        """Choose by ranks from now on; False where no winner was kept. Raises OSError where the file stays."""
        found = self.winners.reset()
        self._choose_anew()
        return found

    def _choose_anew(self) -> None:
        with self._lock:
            self._choices.clear()
        self._changed()

    def shaders(self, operation: str, dtype: str) -> str:
        """The version of an operation's shaders for a dtype: a digest over all that they are made from.

        A winner stands only as long as the kernels that it was measured against.
        """
        key = (operation, dtype)
        if key not in self._shaders:
            variants = self.manifest.by_operation.get(operation, ())
            some = sorted(self.manifest.key(v) for v in variants if v.dtype == dtype)
            self._shaders[key] = hashlib.sha256("".join(some).encode()).hexdigest()[:16]
        return self._shaders[key]

    def rank(self, variant: Variant) -> int:
        """The variant's rank on this architecture: ``rank_on``'s for the longest prefix that matches, else ``rank``."""
        best = max((p for p in variant.rank_on if matches(p, self.architecture)), key=len, default=None)
        return variant.rank if best is None else variant.rank_on[best]

    def table(self, sizes: Iterable[int] = TABLE_SIZES) -> list[dict]:
        """Which variants this device uses, for ``grilly shaders``.

        Parameters
        ----------
        sizes : iterable of int
            Values given to every fact that a variant of the operation has limits on, but for TABLE_COUNTS.

        Returns
        -------
        list of dict
            One row for each operation, model and binary: ``operation``, ``model``, ``variant``, ``dtype``, ``rank``,
            ``chosen`` (the sizes for which it is the choice), ``reason`` (why it is never chosen; None otherwise) and
            ``unchecked`` (whether a self-check at first use may still change that).
        """
        rows = []
        for operation, variants in sorted(self.manifest.by_operation.items()):
            facts = sorted({fact for variant in variants for fact in variant.limits})
            counts = {fact: count for fact, count in TABLE_COUNTS.items() if fact in facts}
            swept = tuple(sizes) if set(facts) - set(counts) else (0,)
            for model in sorted({model for variant in variants for model in variant.models}):
                for dtype in DTYPES:
                    served = [v for v in variants if v.dtype == dtype and model in v.models]
                    requests = [
                        Request(operation, dtype, model, {**sized, **counts, "align": size & -size or 2**20})
                        for size, sized in ((size, dict.fromkeys(facts, size)) for size in swept)
                    ]
                    rows += self._rows(served, requests, swept, model)
        return rows

    def _rows(self, served: list[Variant], requests: list[Request], sizes: tuple, model: str) -> list[dict]:
        chosen: dict[str, list[int]] = {variant.name: [] for variant in served}
        reasons: dict[str, str] = {}
        unchecked: set[str] = set()
        for request, size in zip(requests, sizes, strict=True):
            facts = dict(request.problem)
            found = [(v, self._lacks(v, request) or _failed(self._known_failure(v, facts))) for v in served]
            able = self._ordered((variant for variant, reason in found if reason is None), request)
            unchecked.update(variant.name for variant in able if self.unchecked(variant, facts))
            if able:
                chosen[able[0].name].append(size)
            better = "was measured faster" if able and able[0].name == self.measured(request) else "ranks higher"
            for variant in able[1:]:
                reasons[variant.name] = f"{able[0].label} {better}"
            for variant, reason in found:
                if reason is not None:
                    reasons.setdefault(variant.name, reason)
        return [
            {
                "operation": variant.operation,
                "model": model,
                "variant": variant.label,
                "dtype": variant.dtype,
                "rank": self.rank(variant),
                "chosen": tuple(chosen[variant.name]),
                "reason": None if chosen[variant.name] else reasons.get(variant.name),
                "unchecked": variant.name in unchecked,
            }
            for variant in sorted(served, key=self._precedence)
        ]

    def _precedence(self, variant: Variant) -> tuple:
        return (-self.rank(variant), variant.family, variant.variant, variant.position)

    def _lacks(self, variant: Variant, request: Request) -> str | None:
        """Why the variant cannot serve the request here, or None."""
        facts = dict(request.problem)
        if request.prefer is not None and variant.family != request.prefer:
            return f"family {request.prefer} was asked for"
        if variant.dtype != request.dtype:
            return f"it is for {variant.dtype}"
        if request.model not in variant.models:
            return f"it is for model {', '.join(variant.models)}"
        if not serves(variant.architectures, self.architecture):
            return self._elsewhere(variant)
        missing = [feature for feature in variant.requires if feature not in self.features]
        if missing:
            return f"the device lacks {', '.join(missing)}"
        size, reason = self._subgroup(variant)
        if reason:
            return reason
        for fact, (low, high) in variant.limits.items():
            value = facts.get(fact)
            if value is None:
                return f"it needs {fact}, which the request lacks"
            if not low <= value <= high:
                return f"{fact} is {value}, it takes {low} to {high}"
        short = facts.get("extras", 0) & ~variant.offered
        if short:
            return f"it does not offer {', '.join(OFFERS[name] for name in extras_in(short))}"
        if facts.get("align", 1) % variant.align:
            return f"offsets, strides or dimensions are not multiples of {variant.align}"
        return self._too_large(variant, size)

    def _elsewhere(self, variant: Variant) -> str:
        """For which architectures a variant is that is not for this one."""
        shut = (p[1:] for p in variant.architectures if p.startswith("!"))
        if away := [p for p in shut if matches(p, self.architecture)]:
            return f"it is not for {', '.join(away)}"
        return f"it is for {', '.join(p for p in variant.architectures if not p.startswith('!'))}"

    def _too_large(self, variant: Variant, subgroup_size: int | None) -> str | None:
        """Of what a variant needs more than the device has, or None."""
        limits = self.device.limits
        subgroups = -(-variant.threads // (subgroup_size or self.device.subgroup_sizes[0]))
        for what, need, limit in (
            ("bytes of shared memory", variant.shared_bytes, "shared_bytes"),
            ("invocations in a workgroup", variant.threads, "invocations"),
            ("subgroups in a workgroup", subgroups, "subgroups"),
            ("bytes of push constants", variant.push_bytes, "push_bytes"),
            ("storage buffers", len(variant.access), "bindings"),
        ):
            have = limits.get(limit)
            if have is not None and need > have:
                return f"it needs {need} {what}, the device has {have}"
        return None

    def _subgroup(self, variant: Variant) -> tuple[int | None, str | None]:
        """The subgroup size to request (None: none) and why the variant cannot run (None: it can)."""
        if not variant.subgroup_sizes:
            return None, None
        low, high = self.device.subgroup_sizes
        if "subgroup-size-control" in self.features:
            for size in variant.subgroup_sizes:
                if low <= size <= high:
                    return size, None
            offers = f"{low} to {high}"
        elif low == high:
            # No size can be requested, and a device with one size only has no other to give.
            if low in variant.subgroup_sizes:
                return None, None
            offers = f"{low} only"
        else:
            offers = f"{low} to {high}, and it cannot be requested"
        wanted = " or ".join(map(str, variant.subgroup_sizes))
        return None, f"it needs subgroups of {wanted}, the device has {offers}"

    def _miss(self, request: Request) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in dict(request.problem).items())
        text = (
            f"{request.operation}: no shader for {request.dtype}, model {request.model}"
            f"{', ' + facts if facts else ''} on {self.architecture} ({self.device.name})"
        )
        candidates = self.explain(request)
        if not candidates:
            known = ", ".join(sorted(self.manifest.by_operation))
            return f"{text}; the manifest has no such operation, only {known}"
        if request.prefer is not None:
            candidates = [c for c in candidates if c[0].family == request.prefer]
            if not candidates:
                families = ", ".join(sorted({v.family for v in self.manifest.by_operation[request.operation]}))
                return f"{request.operation}: the operation has no family {request.prefer!r}, only {families}"
        lines = "\n".join(f"  {variant.name}: {reason}" for variant, reason in candidates)
        return f"{text}; candidates:\n{lines}"
