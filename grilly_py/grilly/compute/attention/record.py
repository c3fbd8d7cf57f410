"""Recording attention: the plans that a device keeps, and the words of options that a call brings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from ..device.caches import Kept
from ..device.device import Device
from ..device.pace import ready_plan
from ..device.plan import Layout
from ..device.record import Ready, key_of, placed
from ..device.tensor import Storage, Tensor
from .added import WideBias
from .call import AttentionCall, Terms
from .operands import HeaderWords
from .option_checks import INT32
from .options import CheckedOptions
from .plan import planned
from .words import words_of


class Prepared(NamedTuple):
    """A call's plan, ready to be run, and the template of the words that it brings, if it brings any.

    ``counted`` as of AttentionPlan: ``run`` is then told the number of keys.
    """

    ready: Ready
    words: HeaderWords | None
    counted: bool = False

    def words_of(self, device: Device, checked: CheckedOptions | None, keep: bool = True) -> Storage | None:
        """The words of a call's options on the device; None where they are the plan's own, or there are none."""
        if self.words is None or checked is None or not (checked.arrays or checked.live):
            return None
        return words_of(device, self.words.template, checked.arrays, checked.live, checked.size, keep)

    def run_all(
        self, tensors: Sequence[Tensor | None], words: Storage | None, live: Sequence[int] = ()
    ) -> list[Tensor]:
        """Record the dispatches; returns all results of the plan."""
        given = None if words is None else Tensor(words, (words.nbytes // 4,), INT32)
        return self.ready.run((*tensors, given), live)

    def run(
        self, tensors: Sequence[Tensor | None], words: Storage | None, live: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Record the dispatches; returns o and, if asked for, lse."""
        results = self.run_all(tensors, words, live)
        return results[0], results[1] if len(results) > 1 else None


#: Plans of attention, by what they depend on.
PLANS: Kept[tuple, Prepared] = Kept("attention plans", 1024)
#: Those that cannot be, because the bias must be float32.
WIDE: Kept[tuple, bool] = Kept("attention whose bias must be float32", 1024)


def prepared(device: Device, tensors: Sequence[Tensor | None], terms: Terms, keep: bool = True) -> Prepared:
    """The plan for a call on checked four-axis tensors q, k, v, mask and bias (None where there is none).

    ``keep`` says that calls like this one may come, so that the plan is kept: it holds memory of the device. Raises
    WideBias where the bias must be float32.
    """
    key = key_of(device, terms, tensors)
    if key is None:
        raise ValueError("attention: a tensor belongs to another backend; move it with backend.tensor(...)")
    bias = tensors[4]
    if bias is not None and bias._offset:  # it stands among the words of the header
        key = (*key[:5], placed(bias))
    plans = device.caches[PLANS]
    found = plans.get(key)
    if found is None:
        layouts = (None if layout is None else Layout(*layout) for layout in key[1:])
        call = AttentionCall(*layouts, *terms)
        live = (call.k.shape[2],) if terms.counted else ()
        if key in device.caches[WIDE]:
            raise WideBias
        try:
            make = functools.partial(planned, call, device.facts, device.registry)
            made, ready = ready_plan(device, make, (*tensors, None), live)
        except WideBias:
            device.caches[WIDE].keep(key, True)
            raise
        found = Prepared(ready, made.words, made.counted)
        if keep:
            found = plans.keep(key, found)
    return found


def attend(
    device: Device, tensors: Sequence[Tensor | None], terms: Terms, checked: CheckedOptions | None = None,
    keep: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Record attention on checked four-axis tensors q, k, v, mask and bias (None where there is none).

    ``checked`` has the contents of the options whose facts are in ``terms``. Returns o (B, H, Sq, Dv) and, if asked
    for, lse (B, H, Sq).
    """
    found = prepared(device, tensors, terms, keep)
    return found.run(tensors, found.words_of(device, checked, keep))
