"""Activations, and their gradients: made of the records in compute/expressions/activations.py.

``grilly.functional`` has what has a name here without an underscore.
"""

from ..compute.expressions import activations as _records
from .from_records import gradient as _gradient
from .from_records import value as _value

celu = _value(_records.celu)
celu_backward = _gradient(_records.celu)
elu = _value(_records.elu)
elu_backward = _gradient(_records.elu)
hardshrink = _value(_records.hardshrink)
hardshrink_backward = _gradient(_records.hardshrink)
hardsigmoid = _value(_records.hardsigmoid)
hardsigmoid_backward = _gradient(_records.hardsigmoid)
hardswish = _value(_records.hardswish)
hardswish_backward = _gradient(_records.hardswish)
hardtanh = _value(_records.hardtanh)
hardtanh_backward = _gradient(_records.hardtanh)
leaky_relu = _value(_records.leaky_relu)
leaky_relu_backward = _gradient(_records.leaky_relu)
logsigmoid = _value(_records.logsigmoid)
logsigmoid_backward = _gradient(_records.logsigmoid)
mish = _value(_records.mish)
mish_backward = _gradient(_records.mish)
quick_gelu = _value(_records.quick_gelu)
quick_gelu_backward = _gradient(_records.quick_gelu)
relu = _value(_records.relu)
relu_backward = _gradient(_records.relu)
relu6 = _value(_records.relu6)
relu6_backward = _gradient(_records.relu6)
selu = _value(_records.selu)
selu_backward = _gradient(_records.selu)
sigmoid = _value(_records.sigmoid)
sigmoid_backward = _gradient(_records.sigmoid)
silu = _value(_records.silu)
silu_backward = _gradient(_records.silu)
softplus = _value(_records.softplus)
softplus_backward = _gradient(_records.softplus)
softshrink = _value(_records.softshrink)
softshrink_backward = _gradient(_records.softshrink)
softsign = _value(_records.softsign)
softsign_backward = _gradient(_records.softsign)
tanh = _value(_records.tanh)
tanh_backward = _gradient(_records.tanh)
tanhshrink = _value(_records.tanhshrink)
tanhshrink_backward = _gradient(_records.tanhshrink)
