"""``grilly run``: which arrays it takes, which names of outputs it keeps, and where they may go."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import zipfile

import numpy as np
import pytest

from grilly.cli import main

pytestmark = pytest.mark.usefixtures("vulkan_backend")
onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'grilly-vulkan[onnx]'")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

X = np.array([1, -2, 0.5, 3], np.float32)


def write(file, outputs=("y",), inputs=("x",), kind=TensorProto.FLOAT, more=(), kinds=()):
    """A model whose outputs are its first input with the other sign; more nodes give outputs of further kinds."""
    nodes = [helper.make_node("Neg", [inputs[0]], [name]) for name in outputs] + list(more)
    told = [helper.make_tensor_value_info(name, kind, [4]) for name in outputs]
    told += [helper.make_tensor_value_info(node.output[0], own, None) for node, own in zip(more, kinds, strict=True)]
    taken = [helper.make_tensor_value_info(name, kind, [4]) for name in inputs]
    graph = helper.make_graph(nodes, "g", taken, told)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), file)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs m.onnx in a folder of its own, with x.npy; gives the status, and what was written to either stream."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)

    def run(*arguments, given=("x=x.npy",)):
        inputs = [word for each in given for word in ("--input", each)]
        status = main(["run", "m.onnx", "--runtime", "vulkan", *inputs, *arguments])
        return (status, *capsys.readouterr())

    return run


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_of_outputs(run):
    names = ("file", "/a/b", "../c", "A", "a", "é\n\x1b[2J", "allow_pickle", "lone.npy", "n" * 5000)
    write("m.onnx", names)
    status, out, _ = run("--output", "o.npz")
    assert status == 0 and "\x1b" not in out and r"'é\n\x1b[2J': float32 (4,)" in out
    with np.load("o.npz", allow_pickle=False) as found:
        assert sorted(found.files) == sorted(names)
        for name in names:
            np.testing.assert_array_equal(found[name], -X)


@pytest.mark.parametrize("names, said", [
    (("y", "y.npy"), "name 'y.npy': numpy.load gives 'y' in its place"),
    (("a\0b",), r"name 'a\x00b': it would become 'a"),
    (("n" * 65532,), "it would take 65536 bytes of at most 65535"),
])  # fmt: skip
def test_names_that_a_file_does_not_keep_are_found_before_anything_runs(run, names, said):
    write("m.onnx", names)
    status, out, error = run(given=["x=none.npy"])  # found before inputs are read
    assert (status, out) == (1, "") and said in error and "rename the output" in error
    assert not os.path.exists("m.onnx.npz")


@pytest.mark.parametrize("encoding, errors, line", [
    ("ascii", "strict", rb"\xe9\u2019\u65e5: float32"), ("ascii", "surrogateescape", rb"\xe9\u2019\u65e5: float32"),
    ("cp1252", "strict", b"\xe9\x92\\u65e5: float32"), ("ascii", "replace", b"???: float32"),
    ("utf-8", "strict", "é’日: float32".encode()),
])  # fmt: skip
def test_signs_that_standard_output_lacks(run, monkeypatch, encoding, errors, line):
    """They are escaped, unless the encoding was given another way; the stream is left as it was."""
    write("m.onnx", ("é’日",))
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding=encoding, errors=errors))
    assert run("--output", "o.npz")[0] == 0
    assert data.getvalue().startswith(line) and sys.stdout.errors == errors


@pytest.mark.skipif(os.name == "nt", reason="names of files are no bytes here")
def test_names_of_files_that_are_no_texts(run, monkeypatch):
    write("m.onnx")
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="utf-8"))
    try:
        open("o\udcff", "w").close()
    except OSError:
        pytest.skip("this file system takes texts alone")
    assert run("--output", "o\udcff")[0] == 0
    assert rb"'o\udcff': " in data.getvalue() and np.load("o\udcff")["y"].shape == (4,)
    assert r"no\udcff.npy cannot be read: No such file" in run(given=["x=no\udcff.npy"])[2]


def test_arrays_of_names_that_only_look_alike(run):
    write("m.onnx", ("y",), ("a.npy", "a"))
    with zipfile.ZipFile("in.npz", "w") as file:
        for name, array in (("a", np.zeros(4, np.float32)), ("a.npy", X)):
            with file.open(f"{name}.npy", "w") as member:
                np.save(member, array)
    assert run("--output", "o.npy", given=["in.npz"])[0] == 0
    np.testing.assert_array_equal(np.load("o.npy"), -X)


def test_inputs_with_an_equals_sign(run):
    write("m.onnx", ("y",), ("x=1", "z"))
    np.save("a=b.npy", X)
    np.savez("x=1.npz", z=X)
    assert run("--output", "o.npy", given=["x=1=a=b.npy", "z=x.npy"])[0] == 0
    np.testing.assert_array_equal(np.load("o.npy"), -X)
    assert run(given=["x=1=a=b.npy", "x=1.npz"])[0] == 0  # a file of arrays, with such a sign in its own name
    for given, said in (
        (["x=2=x.npy"], "x=1 is missing; z is missing; x is no input"),
        (["x=1=none=b.npy"], "none=b.npy cannot be read: No such file"),
        (["x=1=x.npy", "x=1=x.npy"], "names an input twice: x=1"),
    ):  # fmt: skip
        assert said in run(given=given)[2]
    write("m.onnx", ("y",), ("x=1", "x"))
    status, _, error = run(given=["x=1=x.npy", "x=x.npy"])
    assert status == 1
    assert "--input x=1=x.npy may mean the file 1=x.npy for x or the file x.npy for x=1; give an .npz file" in error
    for wrong in ("=x.npy", "x=", "x"):
        with pytest.raises(SystemExit):
            run(given=[wrong])


# -- dtypes -----------------------------------------------------------------------------------------------------------


def test_bfloat16(run):
    """Written as float32, and read as that or as the bits that numpy.save writes of ml_dtypes' arrays."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    write("m.onnx", kind=TensorProto.BFLOAT16)
    x = np.array([1, -np.inf, np.nan, 3e38], ml_dtypes.bfloat16)
    np.save("x.npy", x)
    np.savez("wide.npz", x=x.astype(np.float32))
    for given in ("x=x.npy", "wide.npz"):
        status, out, error = run("--output", "o.npz", given=[given])
        assert status == 0, error
        assert "y: bfloat16 (4,), written as float32" in out
        with np.load("o.npz") as found:
            np.testing.assert_array_equal(found["y"], -x.astype(np.float32))
    for other, said in (
        (np.float32([1, 0.1, 2, 3]), "does not hold 0.1;"), (np.float32([1, 3.4e38, 2, 3]), "does not hold 3.4e+38;"),
        (np.arange(4), "input x is int64; expected bfloat16"),
    ):  # fmt: skip
        np.save("other.npy", other)
        status, _, error = run("--output", "o.npz", given=["x=other.npy"])
        assert status == 1 and said in error
    write("m.onnx", kind=TensorProto.FLOAT16)
    assert "input x is void16; expected float16" in run()[2]  # bits are of bfloat16 alone


def test_dtypes_that_only_the_host_has(run):
    """Constants of dtypes that NumPy's files do not know are written as those that they do."""
    floats = helper.make_tensor("f", TensorProto.FLOAT8E4M3FN, [2], [1.5, -2])
    texts = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", "é".encode()])
    made = [helper.make_node("Constant", [], [name], value=value) for name, value in (
        ("f8", floats), ("i4", helper.make_tensor("i", TensorProto.INT4, [2], [-8, 7])), ("s", texts),
        ("d", numpy_helper.from_array(np.array([1e300])))
    )]  # fmt: skip
    kinds = (TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.STRING, TensorProto.DOUBLE)
    write("m.onnx", more=made, kinds=kinds)
    assert run("--output", "o.npz")[0] == 0
    with np.load("o.npz", allow_pickle=False) as found:
        assert {name: found[name].tolist() for name in ("f8", "i4", "s", "d")} == {
            "f8": [1.5, -2.0], "i4": [-8, 7], "s": ["a", "é"], "d": [1e300],
        }  # fmt: skip
        assert (found["f8"].dtype, found["i4"].dtype) == (np.float32, np.int8)


@pytest.mark.parametrize("data", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{", b"PK\x03\x04" + b"\0" * 40], ids=repr)
def test_files_that_hold_no_array(run, data):
    write("m.onnx")
    with open("bad.npy", "wb") as file:
        file.write(data)
    status, out, error = run(given=["x=bad.npy"])
    assert (status, out) == (1, "") and error.startswith("grilly run: bad.npy cannot be read: ")
    assert "pickle" not in error


@contextlib.contextmanager
def piped():
    """A pipe's ends, as the shell gives them to programs."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # one that was closed
            os.close(end)


# -- destinations -----------------------------------------------------------------------------------------------------


def test_one_array_or_several(run):
    write("m.onnx", ("y", "z"))
    status, _, error = run("--output", "o.npy", given=["x=none.npy"])
    assert status == 1 and "o.npy would hold one array, and there are 2: 'y', 'z'; give a file that ends with" in error
    write("m.onnx")
    assert run("--output", "o.NPY")[0] == 0
    np.testing.assert_array_equal(np.load("o.NPY"), -X)


def test_standard_output_and_pipes(run, monkeypatch):
    write("m.onnx")
    data = io.BytesIO()
    stdout = io.TextIOWrapper(data, encoding="ascii")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        status, _, error = run("--output", "-")
    assert status == 0 and "y: float32 (4,)\n" in error
    np.testing.assert_array_equal(np.load(io.BytesIO(data.getvalue()))["y"], -X)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert "standard output cannot be written: it is closed" in run("--output", "-")[2]
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert "standard output is a terminal" in run("--output", "/dev/stdout")[2]
    if not os.path.exists("/dev/fd"):
        return
    with open("x.npy", "rb") as file, piped() as (sent, gives), piped() as (reads, taken):
        os.write(gives, file.read())
        os.close(gives)
        assert run("--output", f"/dev/fd/{taken}", given=[f"x=/dev/fd/{sent}"])[0] == 0
        np.testing.assert_array_equal(np.load(io.BytesIO(os.read(reads, 2**16)))["y"], -X)


@pytest.mark.parametrize("name, said", [
    ("none/o.npz", "none/o.npz cannot be written: No such file"), (".", ". cannot be written: Is a directory"),
    ("x" * 300, "cannot be written: File name too long"), ("x.npy/o", "x.npy/o cannot be written: Not a directory"),
    ("/dev/full", "/dev/full cannot be written: No space left on device"), ("/dev/null", None),
])  # fmt: skip
def test_destinations(run, name, said):
    if name.startswith("/dev/") and not os.path.exists(name):
        pytest.skip(f"there is no {name} here")
    write("m.onnx")
    before = sorted(os.listdir("."))
    status, _, error = run("--output", name)
    assert (status, error) == (0, "") if said is None else status == 1 and said in error
    assert sorted(os.listdir(".")) == before


def test_nothing_is_written_over_by_an_empty_name(run):
    write("m.onnx")
    with pytest.raises(SystemExit):
        run("--output", "")
