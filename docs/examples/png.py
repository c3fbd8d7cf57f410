"""Pictures to files, with nothing but Python: for examples that show what they found."""

import struct
import zlib

import numpy as np

#: The colours of 0 and 1 in `heat`.
PALE, DEEP = np.array([238, 242, 244]), np.array([0, 77, 64])


def write_png(path, image):
    """Write uint8 pixels (height, width) in grey, or (height, width, 3) in colours."""
    height, width = image.shape[:2]
    rows = image.reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # each row says that it is as it is
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b"")):
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))


def heat(numbers):
    """Numbers from 0 to 1 (height, width) as colours from pale to deep."""
    share = np.clip(numbers, 0, 1)[..., None]
    return (PALE + share * (DEEP - PALE)).round().astype(np.uint8)


def side_by_side(images, gap=8):
    """Pictures of one height in a row, with white between them."""
    white = np.full((images[0].shape[0], gap, *images[0].shape[2:]), 255, np.uint8)
    return np.concatenate([part for image in images for part in (image, white)][:-1], axis=1)


def enlarged(image, times):
    """Each pixel as a square of ``times`` by ``times``."""
    return image.repeat(times, axis=0).repeat(times, axis=1)
