"""The plans of attention that a device keeps, and the parameters of options that a call brings."""

from __future__ import annotations

from collections.abc import Sequence

from ..device.caches import DeviceCache
from ..device.device import Device, Throughputs
from ..device.executables import Executable, key_of, placed
from ..device.plan import Layout
from ..device.submission_budget import within_budget
from ..device.tensor import Tensor
from .added import is_narrow
from .call import AttentionCall, AttentionTerms
from .operands import AttentionPlan
from .options import CheckedOptions
from .parameters import parameters_of
from .plan import planned, reads_narrow_bias


class AttentionExecutable(Executable):
    """A plan of attention, or of its gradients, with its pipelines made. Its last input is the parameter buffer.

    Attributes
    ----------
    parameters : ParameterTemplate or None
        The parameters of a call but for its arrays; None where a call brings none.
    counted : bool
        Whether ``run`` is told the number of keys: its live word 0.
    """

    __slots__ = ("parameters", "counted")

    def __init__(self, device: Device, made: AttentionPlan):
        super().__init__(device, made.plan)
        self.parameters = made.parameters
        self.counted = made.counted

    def parameters_of(self, device: Device, checked: CheckedOptions | None, keep: bool = True) -> Tensor | None:
        """The parameter buffer of a call; None where the plan has its own, or there are no options."""
        if self.parameters is None or checked is None or not (checked.arrays or checked.live):
            return None
        return parameters_of(
            device, self.parameters.template, checked.arrays, checked.live, checked.size, keep, checked.seed
        )


#: Calls whose bias must be float32, by what their plan would depend on.
WIDE: DeviceCache[tuple, bool] = DeviceCache("attention whose bias must be float32", 1024)


def attention_executable(
    device: Device, tensors: Sequence[Tensor | None], terms: AttentionTerms, keep: bool = True
) -> AttentionExecutable | None:
    """The plan of a call, of the cache of ``planned`` or new.

    Parameters
    ----------
    tensors : sequence of Tensor or None
        q, k, v, mask and bias, of four axes, checked; None for a mask or a bias that the call lacks.
    terms : AttentionTerms
    keep : bool
        Whether the cache keeps a new plan. A plan holds memory of the device.

    Returns
    -------
    AttentionExecutable or None
        None: the bias has 16 bits and the kernel reads float32. The caller converts the bias.

    Raises
    ------
    ValueError
        For a tensor of another backend.
    """
    key = key_of(device, terms, tensors)
    if key is None:
        raise ValueError("attention: a tensor belongs to another backend; move it with backend.tensor(...)")
    bias = tensors[4]
    if bias is not None and bias._offset:  # it stands among the parameters of the header
        key = (*key[:5], placed(bias))
    plans = device.caches[planned]
    found = plans.get(key)
    if found is None:
        layouts = (None if layout is None else Layout(*layout) for layout in key[1:])
        call = AttentionCall(*layouts, *terms)
        facts, registry = device.facts, device.registry
        if is_narrow(call):
            if key in device.caches[WIDE]:
                return None
            if not reads_narrow_bias(call, facts, registry):
                device.caches[WIDE].keep(key, True)
                return None
        live = (call.k.shape[2],) if terms.counted else ()

        def make(throughputs: Throughputs) -> AttentionExecutable:
            return AttentionExecutable(device, planned(call, facts, registry, throughputs))

        found = within_budget(device, make, (*tensors, None), live)
        if keep:
            found = plans.keep(key, found)
    return found
