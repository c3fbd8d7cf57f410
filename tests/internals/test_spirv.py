"""The numbering of identifiers in shaders, and the form in which a wheel packs them."""

import numpy as np
import pytest

from grilly.registry import default_manifest
from grilly.runtime import spirv

#: Between them they have subgroups, cooperative matrices, texels, 16-bit floats, switches and atomics.
FAMILIES = ["accumulate", "map", "reduce", "linear-texels", "linear-matrix-small", "flash-decode", "norm-rows"]


@pytest.fixture(scope="module", params=FAMILIES)
def binary(request):
    manifest = default_manifest()
    return manifest.binary(next(variant for variant in manifest.variants if variant.family == request.param))


def test_identifiers_are_numbered_as_they_are_made(binary):
    words = np.frombuffer(binary, np.uint32)
    made, inside, at = [], False, 5
    while at < len(words):
        opcode = int(words[at]) & 0xFFFF
        inside = inside or opcode == 54  # OpFunction
        if inside and opcode == 248:  # OpLabel
            made.append(words[at + 1])
        elif inside and 109 <= opcode <= 205:  # conversions, arithmetic, comparisons
            made.append(words[at + 2])
        at += int(words[at]) >> 16
    assert made == sorted(set(made)) and made[-1] < words[3]
    assert spirv.numbered(binary) == binary


def test_other_numbers_are_the_same_module(binary):
    """Identifiers that are renamed, here in words that are known to hold nothing else, are numbered the same."""
    words = np.frombuffer(binary, np.uint32).copy()
    bound, at, renamed = int(words[3]), 5, []
    while at < len(words):
        renamed.append(at)
        at += int(words[at]) >> 16
    labels = [int(words[at + 1]) for at in renamed if words[at] & 0xFFFF == 248]
    if len(labels) < 2:
        pytest.skip("it has one block")
    names = {old: bound + place for place, old in enumerate(reversed(labels))}
    for at in renamed:
        opcode, end = int(words[at]) & 0xFFFF, at + (int(words[at]) >> 16)
        places = {248: [1], 249: [1], 246: [1, 2], 247: [1], 250: [2, 3], 245: range(4, end - at, 2)}.get(opcode, ())
        if opcode == 251:  # OpSwitch
            places = [2, *range(4, end - at, 2)]
        for place in places:
            words[at + place] = names[int(words[at + place])]
    words[3] = bound + len(labels)
    assert words.tobytes() != binary
    assert spirv.numbered(words.tobytes()) == binary


def test_the_packed_form_comes_back(binary):
    packed = spirv.relative(binary)
    assert packed != binary and len(packed) == len(binary)
    assert spirv.absolute(packed) == binary


def test_damaged_modules_are_refused(binary):
    words = np.frombuffer(binary, np.uint32).copy()
    last = words.copy()
    last[-1] = 0xFFFF << 16 | 56
    for way in (spirv.numbered, spirv.relative, spirv.absolute):
        with pytest.raises(ValueError, match="cut or damaged"):
            way(last.tobytes())
    unknown = np.append(words, np.array([3 << 16 | 999, 1, words[3]], np.uint32))
    with pytest.raises(ValueError, match="instruction 999"):
        spirv.numbered(unknown.tobytes())


def test_a_missing_identifier_is_refused(binary):
    words = np.frombuffer(binary, np.uint32)
    more = np.append(words, np.array([2 << 16 | 249, words[3] + 7], np.uint32))  # a branch to nowhere
    with pytest.raises(ValueError, match="which no instruction makes"):
        spirv.numbered(more.tobytes())
