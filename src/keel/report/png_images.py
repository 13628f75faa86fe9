"""Small PNG images of numbers, as data URIs for SVG and HTML."""

import base64
import struct
import zlib

import numpy as np

SHADES = 32
COLOUR = (0x2F, 0x78, 0xA8)
"""Colour of images, which is visible on light and dark paper."""


def png_image(values: np.ndarray) -> str:
    """Values [height, width] from 0 to 1 as a data URI of a PNG image: one colour from transparent to opaque."""
    pixels = np.round(values * (SHADES - 1)).astype(np.uint8)
    alphas = bytes(round(255 * shade / (SHADES - 1)) for shade in range(SHADES))
    return palette_image(pixels, bytes(COLOUR) * SHADES, alphas)


def palette_image(pixels: np.ndarray, colours: bytes, alphas: bytes) -> str:
    """Pixels [height, width], indices into colours of three bytes and alphas, as a data URI of a PNG image."""
    height, width = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], 1)  # each row begins with its filter, none
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": colours,
        b"tRNS": alphas,
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
