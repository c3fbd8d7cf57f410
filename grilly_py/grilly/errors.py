"""The exceptions grilly raises besides ValueError and TypeError."""


class GrillyError(Exception):
    """Base class of grilly's own exceptions."""


class NoDeviceError(GrillyError):
    """No Vulkan device could be opened; the message lists each candidate with its cause and the remedy."""


class UnsupportedError(GrillyError):
    """This device or runtime cannot do what was asked; the message names what it lacks."""


class DeviceLostError(GrillyError):
    """The device stopped answering; what it held is gone. Open a new ``grilly.Compute()``."""


class OutOfDeviceMemoryError(GrillyError, MemoryError):
    """The device has no room for an allocation; the message says how much was asked for and is in use."""


class ShaderError(GrillyError):
    """A compiled shader or the manifest is missing or damaged, or the driver refused a shader."""


class CaptureError(GrillyError):
    """Something that cannot be captured, such as reading a result in a captured function, or a use of what one left."""


class ClosedError(GrillyError):
    """A backend, or a tensor whose backend was closed, was used after ``close()``."""


class ModelError(GrillyError, ValueError):
    """A folder or file holds no model that can be loaded; the message names the file, and the field or the tensors."""


class ExpressionError(GrillyError, TypeError):
    """A function of scalars cannot become an expression; the message says why, and where in the function."""


class GradientError(GrillyError, RuntimeError):
    """A gradient that there is none of, or that cannot be found; the message names the operation and what to do."""


class SelfCheckWarning(RuntimeWarning):
    """A kernel computed wrongly on this device and driver and is not used; the message says what is used instead."""
