"""Builds and checks every shader of a repository."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import files
from .builder import Builder, CompileError, Job
from .families import Case
from .pack import pack


@dataclass
class Built:
    """What came of a build: the cases that are right with their binaries, and everything that is wrong."""

    made: list[tuple[Job, bytes]] = field(default_factory=list)
    compiled: int = 0
    problems: list[str] = field(default_factory=list)


def build(
    builder: Builder, jobs: int, only: list[str] | None = None, check: bool = False, rebuild: bool = False,
    show: Callable[[int, int, Job], None] = lambda done, total, job: None, without: frozenset[str] = frozenset(),
) -> Built:  # fmt: skip
    """Compile what the cache lacks, compare every binary with its data file, and record sizes in shaders/sizes.json.

    Parameters
    ----------
    only : list of str, optional
        Families; else all, and sources that none names are problems.
    check : bool
        Leave sizes.json as it is: a difference is a problem.
    rebuild : bool
        Compile everything; a binary unlike the one in the cache is a problem.
    show : callable
        Told of each binary that was compiled: how many are done, of how many, which.
    without : frozenset of str
        Features: binaries that need one of them are left out.
    """
    built = Built()
    cases, built.problems = builder.families(only)
    if not only and not built.problems:
        built.problems += builder.orphans(cases)
        if check:
            built.problems += builder.unused_sets(cases)
    try:
        builder.check_python(written=not check)
    except CompileError as error:
        built.problems.append(str(error))
    chosen = [case for case in cases if not without.intersection(case.settings["requires"])]
    planned = _each(builder.job, chosen, jobs)
    built.problems += [str(job) for job in planned if isinstance(job, CompileError)]
    wanted = [job for job in planned if isinstance(job, Job)]
    cached = [builder.cache.get(job.key) for job in wanted]
    missing = [job for job, binary in zip(wanted, cached, strict=True) if rebuild or binary is None]
    done, lock = 0, threading.Lock()

    def compile_one(job: Job) -> bytes:
        nonlocal done
        try:
            return builder.compile(job)
        finally:
            with lock:
                done += 1
                show(done, len(missing), job)

    fresh = dict(zip([job.case.name for job in missing], _each(compile_one, missing, jobs), strict=True))
    recorded = builder.recorded() if check else _read_or_nothing(builder)
    sizes = {}
    for job, before in zip(wanted, cached, strict=True):
        binary = fresh.get(job.case.name, before)
        try:
            if isinstance(binary, CompileError):
                raise binary
            if before is not None and binary != before:
                raise CompileError(f"{job.case.name}: what the compiler makes now differs from the cache's binary")
            reflection = builder.check(job.case, binary)
            if check:
                builder.check_recorded(job.case, reflection, recorded)
            sizes[job.case.name] = builder.unstated(job.case, reflection)
            built.made.append((job, binary))
            built.compiled += job.case.name in fresh
        except CompileError as error:
            built.problems.append(str(error))
    text = sizes_text(cases, sizes, recorded, keep=bool(only or without or built.problems))
    now = builder.sizes_file.read_text(encoding="utf-8") if builder.sizes_file.is_file() else None
    if check and text != now and not built.problems:
        stale = builder.show(builder.sizes_file)
        built.problems.append(f"{stale} is out of date; run: python tools/compile_shaders.py")
    elif not check and text != now:
        files.replace_file(builder.sizes_file, text.encode())
        builder.sizes_file.chmod(0o644)
    if not only and not without and not built.problems:
        builder.cache.prune(job.key for job, _ in built.made)
    return built


def sizes_text(cases: list[Case], sizes: dict[str, dict], recorded: dict[str, dict], keep: bool) -> str:
    """The text of sizes.json, a line a binary by name: ``sizes``, and where ``keep`` also what was ``recorded``."""
    known = {**(recorded if keep else {}), **sizes}
    lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known) if known[name]]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def pack_all(builder: Builder, built: Built, folder: Path, jobs: int, wheel: bool = False) -> None:
    """Write a folder of shaders (shaderbuild/pack.py): all, or those that a ``wheel`` carries.

    Raises CompileError where sizes are out of date.
    """
    recorded = builder.recorded()
    made = []
    for job, binary in built.made:
        if wheel and not job.case.settings["wheel"]:
            continue
        builder.check_recorded(job.case, builder.check(job.case, binary), recorded)
        made.append((builder.entry(job.case, recorded), job.key, binary))
    head = {
        "compilers": {"glslang": builder.glslang.version, "spirv-tools": builder.optimizer.version},
        "constants": builder.shared_constants(),
    }
    sources = {job.case.family: (job.case.source or job.case.generator).stem for job, _ in built.made}
    pack(folder, made, sources, head, jobs)


def _read_or_nothing(builder: Builder) -> dict[str, dict]:
    with contextlib.suppress(CompileError):  # a build writes the file anew
        return builder.recorded()
    return {}


def _each(function: Callable, items: list, jobs: int) -> list:
    """``function`` of every item, in parallel; a CompileError becomes the item's result."""

    def guarded(item):
        try:
            return function(item)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(guarded, items))


def progress(verbose: bool) -> Callable[[int, int, Job], None]:
    """A ``show`` for ``build``: every compiler call, or one line on a terminal."""

    def show(done: int, total: int, job: Job) -> None:
        if verbose:
            print(f"[{done}/{total}] {job.case.name}: {' '.join(job.flags)}", flush=True)
        elif sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r\x1b[K[{done}/{total}] {job.case.name}", end=end, file=sys.stderr, flush=True)

    return show
