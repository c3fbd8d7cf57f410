"""Take the noise out of a picture by attention: python denoise.py [FILE.png]

Each pixel looks at all pixels whose surroundings are like its own, and becomes their mean (non-local means; Buades,
Coll and Morel 2005). That is attention: queries and keys are the surroundings, values are the pixels. For a picture of
96 x 96 the weights would be 9,216 x 9,216 numbers; they are never stored.
"""

import sys

import numpy as np
from png import enlarged, side_by_side, write_png

import grilly.functional as F

SIZE, AROUND = 96, 5  # pixels of a side; of the square that counts as a pixel's surroundings


def picture(size=SIZE):
    """Rings, a disc and stripes: float32 (size, size) from 0 to 1."""
    y, x = np.mgrid[:size, :size] / size
    image = 0.5 + 0.35 * np.sign(np.sin(40 * np.hypot(x - 0.3, y - 0.35)))
    image[(x > 0.62)] = 0.85
    image[(x > 0.62) & (np.floor(12 * y) % 2 == 0)] = 0.25
    image[np.hypot(x - 0.3, y - 0.8) < 0.13] = 0.1
    return image.astype(np.float32)


def surroundings(image, around=AROUND):
    """The square around each pixel: float32 (pixels, around * around)."""
    padded = np.pad(image, around // 2, mode="reflect")
    squares = np.lib.stride_tricks.sliding_window_view(padded, (around, around))
    return squares.reshape(image.size, -1).astype(np.float32)


def denoise(image, noise):
    """The picture without its noise, whose standard deviation is ``noise``."""
    patches = surroundings(image)
    width = 0.75 * noise * np.sqrt(patches.shape[1])  # how unlike two surroundings may be
    # -|a - b|^2 / (2 w^2) is a b / w^2 - |b|^2 / (2 w^2), and a number for each a, which the softmax takes out again.
    bias = -(patches**2).sum(axis=1) / (2 * width**2)
    found = F.flash_attention2(patches, patches, image.reshape(-1, 1), scale=1 / width**2, attn_bias=bias[None])
    return found.reshape(image.shape)


def decibels(image, truth):
    """Peak signal-to-noise ratio: larger is nearer to the truth."""
    return -10 * np.log10(((image.astype(np.float64) - truth) ** 2).mean())


if __name__ == "__main__":
    truth, noise = picture(), 0.12
    noisy = truth + np.random.default_rng(0).standard_normal(truth.shape, dtype=np.float32) * np.float32(noise)
    clean = denoise(noisy, noise)
    print(f"noisy {decibels(noisy, truth):.1f} dB, after attention {decibels(clean, truth):.1f} dB")
    if sys.argv[1:]:
        shown = [enlarged((255 * np.clip(image, 0, 1)).astype(np.uint8), 2) for image in (truth, noisy, clean)]
        write_png(sys.argv[1], side_by_side(shown))
