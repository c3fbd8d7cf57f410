"""The folder of shaders that a wheel carries: manifest.json.gz, and an archive for each source.

Sources that are compiled to the same binaries, such as those of weighted sums with T5's layout and without, share one.

An archive is a row of .xz blocks, each with the binaries of neighbouring cases up to BLOCK bytes, so that a program
unpacks little more than what it uses. They are packed in the form of `runtime.spirv.relative`, which takes a third of
the room. An entry of the manifest says where in the archive its block is, and where in the block its binary, which
variants of a family may share. The same binaries give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import names, spirv

#: Bytes of SPIR-V in a block, if it has more than one binary.
BLOCK = 4 << 20
# Words of four bytes, most of them small.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": BLOCK, "lc": 0, "lp": 2, "pb": 2, "nice_len": 273}]


def pack(
    folder: Path, made: list[tuple[dict, str, bytes]], sources: dict[str, str], head: dict[str, dict], jobs: int
) -> None:
    """Write the folder: what the manifest says of all shaders, and its entries, each with its key and its binary.

    A family's entries stand in one piece. Families of one of the ``sources``, by their names, are alike, and lie in one
    archive.
    """
    made = sorted(made, key=lambda each: (sources[each[0]["family"]], each[0]["family"]))
    blocks: list[list[int]] = []
    size = BLOCK
    first: dict[tuple[str, bytes], int] = {}  # variants of one binary: each device is given it with other limits
    for number, (entry, _, binary) in enumerate(made):
        if first.setdefault((entry["family"], binary), number) != number:
            continue
        size += len(binary)
        if not blocks or size > BLOCK or sources[entry["family"]] != sources[made[blocks[-1][0]][0]["family"]]:
            blocks.append([])
            size = len(binary)
        blocks[-1].append(number)
    with ThreadPoolExecutor(jobs) as pool:
        packed = list(pool.map(lambda block: _compress([made[number][2] for number in block]), blocks))

    archives: dict[str, bytes] = {}
    places: dict[int, tuple[list[int], list[int]]] = {}
    for block, data in zip(blocks, packed, strict=True):
        archive, start = f"{sources[made[block[0]][0]['family']]}.xz", 0
        for number in block:
            length = len(made[number][2])
            places[number] = [len(archives.get(archive, b"")), len(data)], [start, length]
            start += length
        archives[archive] = archives.get(archive, b"") + data
    twins: dict[bytes, str] = {}
    names_of = {name: twins.setdefault(data, name) for name, data in archives.items()}
    entries = []
    for entry, key, binary in made:
        block_at, place = places[first[entry["family"], binary]]
        kept = {name: value for name, value in entry.items() if name != "defines"}  # the binary has what they said
        entries.append({
            **kept, "key": key[: names.HASH_DIGITS],
            "sha256": hashlib.sha256(binary).hexdigest()[: names.HASH_DIGITS],
            "archive": names_of[f"{sources[entry['family']]}.xz"], "block": block_at, "place": place,
        })  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.xz"), *folder.glob("manifest.json*")]:
        old.unlink()
    for data, name in twins.items():
        (folder / name).write_bytes(data)
    (folder / names.MANIFEST).write_bytes(gzip.compress(manifest_text(entries, head).encode(), 9, mtime=0))


def _shared(entries: list[dict]) -> dict[str, dict]:
    """What all entries of each family have alike, but its name."""
    shared: dict[str, dict] = {}
    for entry in entries:
        first = shared.setdefault(entry["family"], {key: value for key, value in entry.items() if key != "family"})
        for key in [key for key, value in first.items() if key not in entry or entry[key] != value]:
            del first[key]
    return shared


def _compress(binaries: list[bytes]) -> bytes:
    return lzma.compress(
        b"".join(map(spirv.relative, binaries)), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=_FILTERS
    )


def manifest_text(entries: list[dict], head: dict[str, dict]) -> str:
    """The manifest, one entry a line, less what all entries of its family share: "families" has that."""
    families = _shared(entries)
    own = [{key: value for key, value in entry.items() if key not in families[entry["family"]]} for entry in entries]
    lines = [json.dumps(entry, separators=(",", ":")) for entry in own]
    first = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    shared = json.dumps(families, separators=(",", ":")).replace("},", "},\n")
    first += f'"families": {shared},\n'
    return f'{{"schema": {names.MANIFEST_SCHEMA},\n{first}"variants": [\n' + ",\n".join(lines) + "\n]}\n"
