"""The ``grilly`` command, whose commands are listed in ``COMMANDS``. ``main`` runs it, and ``__main__`` that."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from .. import __version__
from ..errors import GrillyError

#: Command name -> what ``grilly --help`` says of it. The module of that name has add_arguments() and run().
COMMANDS = {
    "info": "list the Vulkan devices, what each offers, and the kernels grilly would use; or what a GGUF file has",
    "shaders": "show which compiled kernel serves what on a device, and why not the others",
    "bench": "time flash attention against naive attention, NumPy and PyTorch over sequence lengths",
    "tune": "measure which kernel is fastest for given shapes on this device, and use it from then on",
    "generate": "continue a text by a language model from a folder or a GGUF file, and print it as it comes",
    "embed": "write the vectors of a file's lines, by an encoder of sentences from a folder or a GGUF file",
    "finetune": "train a language model from a folder on texts or chats, by adapters (LoRA) or as a whole",
    "quantize": "write the model of a folder as a GGUF file, with weights of few bits",
    "run": "run a model of ONNX on arrays from files, as one captured graph",
    "transcribe": "write down the speech in a file of sound, by Whisper from a folder, and print it as it comes",
    "demo": "embed sentences with all-MiniLM-L6-v2 on the device and check the result",
}


class CommandError(Exception):
    """A command cannot do what was asked; the message is for the person at the terminal."""


def _parser(only: str | None) -> argparse.ArgumentParser:
    """The parser; only the command named by ``only`` is imported, so that the others cost nothing."""
    parser = argparse.ArgumentParser(
        prog="grilly", description="Exact, memory-efficient attention on Vulkan devices.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"grilly {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == only:
            importlib.import_module(f".{name}", __name__).add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        Exit status: 0, or 1 when the command failed (its reason is on stderr, unless nobody reads what it prints any
        more), or 130 when interrupted.

    Raises
    ------
    SystemExit
        With status 2 for wrong arguments, and 0 after ``--help`` and ``--version``.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in argv if word in COMMANDS), None)
    name = "grilly" if command is None else f"grilly {command}"
    with _streams(name):
        try:
            return _run(argv, command)
        except BrokenPipeError:  # the reader (head, less) has seen enough
            return 1
        except (GrillyError, CommandError) as error:
            return _failed(f"{name}: {error}")
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            return _failed(f"{name}: {where}{error.strerror or error}")
        except MemoryError as error:
            return _failed(f"{name}: there is not enough memory" + (f": {error}" if str(error) else ""))
        except KeyboardInterrupt:
            return _failed(f"{name}: interrupted", 130)
        finally:
            _let_go()


@contextlib.contextmanager
def _streams(name: str) -> Iterator[None]:
    """Standard output and error that take every text, and warnings as lines of the command's."""
    with contextlib.ExitStack() as after, warnings.catch_warnings():
        for stream in ("stdout", "stderr"):
            if getattr(sys, stream) is None:  # closed by the shell's >&-
                setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))
            file = getattr(sys, stream)
            # A sign that an encoding lacks, and a byte of a file's name that is none in UTF-8, would end the command.
            # Where PYTHONIOENCODING asks for another way, that is taken.
            if isinstance(file, io.TextIOWrapper) and file.errors in ("strict", "surrogateescape"):
                after.callback(_again, file, file.errors)
                file.reconfigure(errors="backslashreplace")
        warnings.showwarning = lambda message, *_: print(f"{name}: {message}", file=sys.stderr)
        yield


def _again(file: io.TextIOWrapper, errors: str) -> None:
    with contextlib.suppress(OSError):  # of what could not be written; `main` has said it
        file.reconfigure(errors=errors)


def _run(argv: Sequence[str], command: str | None) -> int:
    """The status of the command. That standard output cannot be written is an error too."""
    try:
        args = _parser(command).parse_args(argv)
    finally:
        sys.stdout.flush()  # what --help printed
    status: int = importlib.import_module(f".{args.command}", __name__).run(args)
    sys.stdout.flush()
    return status


def _failed(text: str, status: int = 1) -> int:
    with contextlib.suppress(OSError):  # where stderr cannot be written either, the status alone tells
        print(text, file=sys.stderr, flush=True)
    return status


def _let_go() -> None:
    """Let what could not be written go nowhere: the interpreter, which writes it at exit, would complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


__all__ = ["COMMANDS", "CommandError", "main"]
