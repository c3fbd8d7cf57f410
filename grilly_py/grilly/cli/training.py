"""The steps of ``grilly finetune``, and checkpoints to go on from."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import array_api as xp
from .. import functional as F
from ..compute import Compute, Tensor
from ..compute.random import manual_seed
from ..data import IGNORED, Batches
from ..errors import ModelError, UnsupportedError
from ..models.checkpoint import Checkpoint, replaced, write_safetensors
from ..models.config import read_json
from ..transforms import value_and_grad
from . import CommandError
from .output import Progress, check_writable

#: The file that names the last checkpoint, and how names of tensors of the optimizer begin in it.
STATE, OF_OPTIMIZER = "checkpoint.json", "optimizer."
#: Steps before the one that is captured, as calls of models.
BEFORE = 2
#: Seconds between lines of progress where they are not written over each other.
QUIET = 5.0


def count_of(batch: dict[str, Tensor]) -> Tensor:
    """How many labels of a batch are learned, float32."""
    return xp.sum((batch["labels"] != IGNORED).astype("float32"))


def loss_of(model: Any, batch: dict[str, Tensor], count: Tensor) -> Tensor:
    """The sum of the losses of a batch's labels, divided by ``count``; float32."""
    inputs = {name: array for name, array in batch.items() if name != "labels"}
    logits, labels = model(**inputs).logits, batch["labels"].reshape(-1)
    rows = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels, ignore_index=IGNORED, reduction="none")
    return xp.sum(rows.astype("float32", copy=False)) / count


class Training:
    """A model that is trained step by step.

    Parameters
    ----------
    model : Model
    optimizer : Optimizer
        Not begun yet.
    batches : Batches
    facts : dict
        What must be the same for a training to go on.
    folder : Path
        Where checkpoints are.
    seed : int
        Of what is dropped.
    accumulate : int
        Batches of a step.

    Attributes
    ----------
    losses : list of float
        Of the steps that were done and read.
    scaled : bool
        Whether the optimizer scales losses, so that gradients of float16 do not vanish.
    """

    def __init__(
        self, model: Any, optimizer: Any, batches: Batches, facts: dict[str, Any], folder: Path, seed: int,
        accumulate: int = 1,
    ) -> None:  # fmt: skip
        self.model, self.optimizer, self.batches, self.facts = model, optimizer, batches, facts
        self.folder, self.seed, self.accumulate, self.losses = folder, seed, accumulate, list[float]()
        self._own = {name: part for name, part in model.named_parameters() if part.requires_grad}
        self._of = value_and_grad(self._losses, has_aux=True)
        self._run: Callable[[list[dict[str, Tensor]]], Tensor] = self._step
        self.scaled = model.dtype.name == "float16"
        self._stepped = 0
        optimizer.init(model, list(self._own))

    def step(self) -> Tensor:
        """One step; the loss before it, which is not waited for."""
        batches = [next(self.batches) for _ in range(self.accumulate)]
        manual_seed((self.seed << 32) + self.batches.place)
        self._stepped += 1
        if self._stepped == BEFORE + 1:
            self._run = self._captured(batches)
        return self._run(batches)

    def _losses(self, model: Any, batch: dict[str, Tensor], count: Tensor) -> tuple[Tensor, Tensor]:
        """The loss that gradients are taken of, which for float16 is scaled, and the loss."""
        loss = loss_of(model, batch, count)
        return self.optimizer.scale(loss) if self.scaled else loss, loss

    def _step(self, batches: list[dict[str, Tensor]]) -> Tensor:
        """One step, by the gradients of all labels of batches."""
        count = functools.reduce(operator.add, map(count_of, batches))
        losses, gradients = list[Tensor](), dict[str, Tensor]()
        for batch in batches:
            (_, loss), found = self._of(self.model, batch, count)
            losses.append(loss)
            gradients = {name: gradients[name] + one if gradients else one for name, one in found.items()}
        self.optimizer.update(self.model, gradients)
        return functools.reduce(operator.add, losses)

    def _captured(self, batches: list[dict[str, Tensor]]) -> Callable[[list[dict[str, Tensor]]], Tensor]:
        """The graph of a step; the step itself with a runtime that captures nothing."""
        backend: Compute = self.model.backend
        try:
            return backend.capture(self._step, batches)
        except UnsupportedError:
            return self._step

    def begin(self) -> None:
        """Make the folder. Raises CommandError where nothing can be written there, before steps that would be lost."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{self.folder} cannot be written: {error.strerror}") from error
        check_writable(str(self.folder / STATE))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what a training goes on from; until all is written the former checkpoint stays."""
        done = self.batches.place
        name = f"checkpoint-{done}"
        tensors = {name: part.numpy() for name, part in self._own.items()}
        tensors |= {OF_OPTIMIZER + name: array for name, array in self.optimizer.state_dict().items()}
        write_safetensors(self.folder / f"{name}.safetensors", tensors)
        told = {"file": name, "facts": self.facts, "batches": self.batches.state, "losses": self.losses}
        with replaced(self.folder / STATE) as file:
            file.write(json.dumps(told).encode())
        for old in self.folder.glob("checkpoint-*.safetensors"):
            if old.stem != name:
                old.unlink()

    def resume(self) -> None:
        """Go on from the folder's checkpoint. Raises CommandError where it is of another training, or damaged."""
        if not (self.folder / STATE).is_file():
            raise CommandError(f"--resume: {self.folder} has no {STATE}; leave --resume out to begin")
        told = read_json(self.folder / STATE)
        former = told.get("facts")
        if not isinstance(former, dict):
            raise CommandError(f"--resume: {self.folder / STATE} has no facts of a training")
        other = [f"{name} was {former.get(name)}, and is {now}" for name, now in self.facts.items()
                 if former.get(name) != now]  # fmt: skip
        if other:
            said = "; ".join(other)
            raise CommandError(f"--resume: {self.folder} has a checkpoint of another training: {said}")
        try:
            checkpoint = Checkpoint(self.folder, str(told.get("file")))
            arrays = {name: checkpoint.floats(name) for name in checkpoint.entries}
            for name, part in self._own.items():
                part.data = self.model.backend.tensor(arrays.pop(name)).astype(part.dtype, copy=False)
            self.optimizer.load_state_dict({name.removeprefix(OF_OPTIMIZER): one for name, one in arrays.items()})
            self.batches.go_to(told["batches"])
            self.losses = [float(loss) for loss in told["losses"]]
            if len(self.losses) * self.accumulate != self.batches.place:
                raise ValueError(f"it has {len(self.losses)} losses, and {self.batches.place} batches")
        except (ModelError, KeyError, ValueError, TypeError) as error:
            raise CommandError(f"--resume: {self.folder / STATE} cannot be gone on from: {error}") from error

    # -- the whole -------------------------------------------------------------------------------------------------

    def run(self, steps: int, every: int, tokens: float) -> bool:
        """Train to so many steps, with a checkpoint after each ``every``; whether it was not interrupted.

        ``tokens``: of a step, for what is said of its speed.
        """
        progress, begun = _Said(steps, len(self.losses), tokens), len(self.losses)
        last: Tensor | None = None
        with _asked_to_stop() as asked:
            while begun < steps and not asked:
                loss = self.step()
                begun += 1
                if last is not None:  # the device has the next step to compute meanwhile
                    self._read(last, progress)
                last = loss
                if begun % every == 0 and begun < steps:
                    self._read(last, progress)
                    last = None
                    self.save()
            if last is not None:
                self._read(last, progress)
            progress.done()
            self.save()
        return not asked

    def _read(self, loss: Tensor, progress: _Said) -> None:
        self.losses.append(float(loss))
        progress.say(self.losses)


class _Said:
    """What is said of steps as they are done."""

    def __init__(self, steps: int, done: int, tokens: float) -> None:
        self._steps, self._first, self._tokens = steps, done, tokens
        self._progress, self._start = Progress(), time.perf_counter()
        self._last = 0.0

    def say(self, losses: list[float]) -> None:
        """A line of the last step."""
        now, done = time.perf_counter(), len(losses)
        timed = done - self._first - BEFORE - 1  # those before had kernels to make, and the graph
        if timed == 0:
            self._begun = now
        if now - self._last < (0.1 if self._progress.replaces else QUIET) and done < self._steps:
            return
        self._last, speed = now, ""
        if timed > 0:
            seconds = (now - self._begun) / timed
            speed = f", {self._tokens / seconds:,.0f} tokens/s, {_left(seconds * (self._steps - done))} left"
        elif done < self._steps:
            speed = f" (the first {BEFORE + 1} steps make kernels, and take longer)"
        self._progress.say(f"step {done} of {self._steps}: loss {losses[-1]:.4f}{speed}")

    def done(self) -> None:
        """Clear the line."""
        self._progress.done()


def _left(seconds: float) -> str:
    """A time to go, to the second."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Not empty once Ctrl-C was pressed; pressed again it interrupts at once."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with contextlib.suppress(OSError, ValueError):  # not print, in which the signal may have come
            os.write(sys.stderr.fileno(), b"\nends after this step, with a checkpoint; Ctrl-C again ends at once\n")

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # in a thread, which signals do not reach
        yield asked
        return
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


__all__ = ["Training"]
