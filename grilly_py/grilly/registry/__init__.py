"""Which shader serves an operation on a device: the manifest, the architectures, and the choice between variants."""

from .architecture import identify
from .choice import Choice, Request
from .manifest import Manifest, Variant, default_manifest
from .names import ARCHITECTURES, DTYPES, FEATURES, matches, serves
from .resolve import Registry

__all__ = [
    "ARCHITECTURES",
    "DTYPES",
    "FEATURES",
    "Choice",
    "Manifest",
    "Registry",
    "Request",
    "Variant",
    "default_manifest",
    "identify",
    "matches",
    "serves",
]
