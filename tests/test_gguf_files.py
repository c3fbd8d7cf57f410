"""GGUF files: what is read of good ones, and that bad ones are refused at once, by name and place."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import numpy as np
import pytest

from gguf_files import ARRAY, BOOL, F32, I32, TEXT, U8, U16, U32, U64, file, info, key, small, text
from grilly import ModelError, QuantizedTensor
from grilly.models import GGUF


def refused(path, data: bytes, *parts: str) -> str:
    """The error's text, which has the file's name and every one of these parts; it comes at once."""
    path.write_bytes(data)
    begin = time.perf_counter()
    with pytest.raises(ModelError) as caught:
        GGUF(path)
    assert time.perf_counter() - begin < 1
    said = str(caught.value)
    assert said.startswith(str(path)), said
    for part in parts:
        assert part in said, said
    return said


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


def test_keys_and_tensors(path):
    path.write_bytes(small())
    gguf = GGUF(str(path))
    assert gguf.path == path
    found = {name: value for name, value in gguf.keys.items() if not isinstance(value, np.ndarray)}
    assert found == {
        "general.architecture": "llama", "a.u8": 200, "a.i8": -5, "a.u16": 60000, "a.i16": -7, "a.u32": 2**31,
        "a.i32": -9, "a.f32": 0.5, "a.yes": True, "a.u64": 2**40, "a.i64": -(2**40), "a.f64": 0.1,
        "a.texts": ["é", "", "two words"],
    }  # fmt: skip
    assert found["a.yes"] is True and type(found["a.u8"]) is int
    for name, values, dtype in (("numbers", [1, -2, 3], "<i4"), ("flags", [True, False], "?"), ("none", [], "<f4")):
        array = gguf.keys[f"a.{name}"]
        assert array.tolist() == values and array.dtype == dtype and not array.flags.writeable
    assert {name: (one.type, one.shape, one.nbytes) for name, one in gguf.tensors.items()} == {
        "first": ("F32", (3, 4), 48), "second": ("Q8_0", (2, 32), 68), "third": ("F16", (), 2)
    }
    first = gguf.tensor("first")
    assert isinstance(first, QuantizedTensor) and not first.data.flags.writeable
    np.testing.assert_array_equal(first.dequantize(), np.arange(12).reshape(3, 4))
    assert gguf.tensor("second").data[0, :3].tolist() == [0, 1, 2] and gguf.tensor("third").dequantize() == 1
    with pytest.raises(ModelError, match="has no tensor 'fourth'"):
        gguf.tensor("fourth")


def test_what_the_package_writes(path):
    gguf = pytest.importorskip("gguf")
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, "llama")
    arrays = {"a.weight": rng.standard_normal((6, 64), np.float32), "b.weight": rng.standard_normal(5, np.float32)}
    writer.add_block_count(3)
    writer.add_array("some.list", ["a", "b"])
    writer.add_custom_alignment(64)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    packed = gguf.quants.quantize(arrays["a.weight"], gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("c.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUF(path)
    assert found.keys == {"general.architecture": "llama", "llama.block_count": 3, "some.list": ["a", "b"],
                          "general.alignment": 64}  # fmt: skip
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.tensor(name).dequantize(), array)
    assert found.tensor("c.weight").shape == (6, 64)
    np.testing.assert_array_equal(found.tensor("c.weight").data, packed)


def test_every_truncation_is_refused(path):
    data = small()
    for length in range(len(data) - 30):  # the last tensor is of two bytes, and what follows them is padding
        path.write_bytes(data[:length])
        with pytest.raises(ModelError) as caught:
            GGUF(path)
        assert str(path) in str(caught.value)
    path.write_bytes(data[:-30])
    assert GGUF(path).tensor("third").dequantize() == 1


#: Files, and parts of what is said of them.
WRONG = [
    (b"", ["is no GGUF file: it begins with b''"]), (b"PK\3\4" * 9, ["begins with b'PK\\x03\\x04'; expected b'GGUF'"]),
    (b"version https://git-lfs.github.com/spec/v1\noid", ["pointer of Git LFS", "git lfs pull"]),
    (b"GGUF\3\0\0\0", ["truncated: it has 8 bytes, and a header takes 24"]),
    (file(version=1), ["byte 4: the file is of version 1; expected version 3"]), (file(version=2), ["of version 2"]),
    (file(version=4), ["of version 4"]), (file(version=0x03000000), ["the file is big-endian"]),
    (file(counts=(2**60, 0)), ["byte 8: 1152921504606846976 tensors; the file has room for 1"]),
    (file(counts=(0, 2**60)), ["byte 16: 1152921504606846976 keys"]),
    (file(counts=(0, 3)), ["byte 16: 3 keys; the file has room for 1"]),
    (file([key("a", U32, 1)], counts=(0, 3), data=bytes(96)), ["the name of key 1 is ''"]),
    (file([key("a", U32, 1), key("a", U32, 2)]), ["byte 41: the name of key 1 is 'a'", "is there once"]),
    (file([key("", U32, 1)]), ["byte 24: the name of key 0 is ''"]),
    (file([key(b"\xff\xfe", U32, 1)]), ["the name of key 0 is no UTF-8"]),
    (file([key("a" * 70000, U32, 1)]), ["the name of key 0 has 70000 bytes; expected at most 65536"]),
    (file([key("a", TEXT, b"\xc3")]), ["a is no UTF-8"]),
    (file([text("a") + struct.pack("<II", 13, 0)]), ["a is of type 13; expected one from 0 to 12"]),
    (file([key("a", BOOL, 2)]), ["byte 37: a is 2; expected 0 or 1"]),
    (file([key("a", ARRAY, (BOOL, [1, 2]))]), ["a has other numbers than 0 and 1"]),
    (file([text("a") + struct.pack("<IQ", TEXT, 2**62) + b"x"]),
     ["a has 4611686018427387904 bytes; expected at most 268435456"]),
    (file([text("a") + struct.pack("<IIQ", ARRAY, U8, 2**62)]), ["a has 4611686018427387904 elements; the file has"]),
    (file([text("a") + struct.pack("<IIQ", ARRAY, TEXT, 2**40)]), ["a has 1099511627776 elements"]),
    (file([text("a") + struct.pack("<IIQQ", ARRAY, TEXT, 1, 2**63)]), ["a text of a has 9223372036854775808 bytes"]),
    (file([text("a") + struct.pack("<IIQ", ARRAY, TEXT, 3) + text("b") + struct.pack("<I", 1)], data=bytes(9)),
     ["the file is truncated in a"]),
    (file([key("a", ARRAY, (TEXT, ["b", b"\xff"]))]), ["a text of a is no UTF-8"]),
    (file([text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 0)]), ["a is an array of type 9; expected numbers or texts"]),
    (file([key("general.alignment", U32, 24)]), ["general.alignment is 24; expected a power of 2"]),
    (file([key("general.alignment", U32, 0)]), ["general.alignment is 0"]),
    (file([key("general.alignment", TEXT, "32")]), ["general.alignment is '32'"]),
    (file([key("general.alignment", U64, 2**40)]), ["general.alignment is 1099511627776"]),
    (file([], [info("t", (8,), 0, 0), info("t", (8,), 0, 32)], bytes(64)), ["the name of tensor 1 is 't'"]),
    (file([], [info("", (8,), 0, 0)], bytes(32)), ["the name of tensor 0 is ''"]),
    (file([], [info("t", (8,), 99, 0)], bytes(32)), ["t is of type 99, which has no name"]),
    (file([], [info("t", (8,), 4, 0)], bytes(32)), ["t is of type 4, which has no name"]),
    (file([], [info("t", (2, 2, 2, 2, 2), 0, 0)], bytes(128)), ["t has 5 axes; expected at most 4"]),
    (file([], [info("t", (0, 8), 0, 0)], bytes(32)), ["t has shape [8, 0]; expected extents from 1 on"]),
    (file([], [info("t", (2**30, 2**30), 0, 0)], bytes(32)), ["ends after 4611686018427387904 bytes; the file has"]),
    (file([], [info("t", (2**40, 2**40), 0, 0)], bytes(32)), ["fewer than 2**63 elements"]),
    (file([], [info("t", (2**64 - 1,), 24, 0)], bytes(32)), ["fewer than 2**63 elements"]),
    (file([], [info("t", (33,), 8, 0)], bytes(64)), ["t has rows of 33; expected a multiple of 32, the block of Q8_0"]),
    (file([], [info("t", (8,), 0, 0)], bytes(31)), ["the file ends; its tensors end after 96 bytes"]),
    (file([], [info("t", (8,), 0, 0)], bytes(33)), ["the file ends; its tensors end after 96 bytes"]),
    (file([], [info("t", (8,), 0, 0), info("u", (8,), 0, 16)], bytes(64)), ["u begins after 16 bytes; expected 32"]),
    (file([], [info("t", (8,), 0, 0), info("u", (8,), 0, 0)], bytes(64)), ["u begins after 0 bytes; expected 32"]),
    (file([], [info("t", (8,), 0, 32)], bytes(64)), ["t begins after 32 bytes; expected 0"]),
    (file([], [info("t", (8,), 0, 2**63)], bytes(64)), ["t begins after 9223372036854775808 bytes"]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_wrong_is_said_with_its_place(path, number):
    data, parts = WRONG[number]
    refused(path, data, *parts)


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="is no file"):
            GGUF(path)


def test_lies_about_sizes_take_no_memory(path):
    """A header of the most texts that are allowed, and one beyond; texts that take all of a file."""
    many = struct.pack("<IIQ", ARRAY, TEXT, 2**21 + 1) + bytes(8 * (2**21 + 1))
    refused(path, file([text("a") + many]), "a has 2097153 texts; a model has at most 2097152")
    with open(path, "wb") as opened:
        opened.write(file([text("a") + struct.pack("<IQ", TEXT, 2**33)]))
        opened.truncate(2**34)  # of zeros that take no room
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(ModelError, match="a has 8589934592 bytes; expected at most 268435456"):
        GGUF(path)
    assert time.perf_counter() - begin < 1 and tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def part(number, count, names, total):
    keys = [key("split.no", U16, number), key("split.count", U16, count), key("split.tensors.count", I32, total)]
    infos = [info(name, (8,), 0, 32 * place) for place, name in enumerate(names)]
    return file([*keys, key("only", F32, number)], infos, np.full(8 * len(names), number, "<f4").tobytes())


def write_parts(tmp_path, *parts):
    paths = [tmp_path / f"model-{number + 1:05d}-of-{len(parts):05d}.gguf" for number in range(len(parts))]
    for path, data in zip(paths, parts, strict=True):
        path.write_bytes(data)
    return paths


def test_parts(tmp_path):
    paths = write_parts(tmp_path, part(0, 3, [], 3), part(1, 3, ["a", "b"], 3), part(2, 3, ["c"], 3))
    for path in paths:  # any one
        gguf = GGUF(path)
        assert [one.file for one in gguf.tensors.values()] == [paths[1], paths[1], paths[2]]
        assert gguf.keys["only"] == 0 and [gguf.tensor(name).dequantize()[0] for name in "abc"] == [1, 1, 2]
    paths[2].unlink()
    with pytest.raises(ModelError, match="part 3 of 3 is missing: model-00003-of-00003.gguf"):
        GGUF(paths[0])


@pytest.mark.parametrize("parts, said", [
    ([part(0, 2, ["a"], 2), part(0, 2, ["b"], 2)], r"model-00002.*split.no and split.count are \(0, 2\); expected \(1"),
    ([part(0, 3, ["a"], 2), part(1, 3, ["b"], 2)], r"are \(0, 3\); expected \(0, 2\)"),
    ([part(0, 2, ["a"], 2), part(1, 2, ["a"], 2)], "model-00002.*tensor 'a' is in model-00001-of-00002.gguf too"),
    ([part(0, 2, ["a"], 3), part(1, 2, ["b"], 3)], "split.tensors.count is 3, and the parts have 2"),
])  # fmt: skip
def test_parts_that_do_not_go_together(tmp_path, parts, said):
    paths = write_parts(tmp_path, *parts)
    with pytest.raises(ModelError, match=said):
        GGUF(paths[0])


def test_names_of_parts(tmp_path):
    alone, of_none = tmp_path / "alone.gguf", tmp_path / "model-00003-of-00002.gguf"
    alone.write_bytes(part(0, 2, ["a"], 2))
    with pytest.raises(ModelError, match=r"alone.gguf: split.no and split.count are \(0, 2\); expected \(0, 1\)"):
        GGUF(alone)
    of_none.write_bytes(part(0, 1, ["a"], 1))
    with pytest.raises(ModelError, match="part 3 of 2; expected one from 1 to 2"):
        GGUF(of_none)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The file with some bytes changed, put in, taken out, or other numbers where lengths and counts may be."""
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        if not found:
            break
        at = draw.randrange(len(found) - 8) if len(found) > 8 else 0
        kind = draw.randrange(6)
        if kind == 0:
            found[at] = draw.randrange(256)
        elif kind == 1:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            number = draw.choice([0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1, draw.randrange(2**64)])
            found[at : at + 8] = struct.pack("<Q", number)
        elif kind == 3:
            del found[at : at + draw.choice([1, 4, 8, 100])]
        elif kind == 4:
            found[at:at] = draw.randbytes(draw.choice([1, 4, 8, 100]))
        else:
            found[at : at + 4] = struct.pack("<I", draw.choice([0, 1, 8, 9, 39, 2**31, draw.randrange(64)]))
    return bytes(found)


@pytest.mark.parametrize("seed", [
    0, *(pytest.param(seed, marks=pytest.mark.long("9,000 more files")) for seed in range(1, 10)),
])  # fmt: skip
def test_mutations_are_read_or_refused(path, seed):
    """1,000 files for each seed: no other exception, no hang, and all of a file that is read can be used."""
    draw, data, read, slowest = random.Random(seed), small(), 0, 0.0
    for _ in range(1000):
        path.write_bytes(mutated(data, draw))
        begin = time.perf_counter()
        try:
            gguf = GGUF(path)
            for name, one in gguf.tensors.items():
                assert gguf.tensor(name).nbytes == one.nbytes
            read += 1
        except ModelError as error:
            assert str(path) in str(error)
        slowest = max(slowest, time.perf_counter() - begin)
    assert 0 < read < 1000 and slowest < 1
