"""Pictures of masks: as PNG, and for terminals."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

COLOUR = (46, 125, 209)
LARGEST = 64


def levels(mask: Sequence, largest: int = LARGEST) -> list[list[float]]:
    """The share of active pixels in each cell of a picture of the first image of a mask [N, H, W], or [N, T], whose
    tokens stand row by row. The picture has at most `largest` rows and columns."""
    image = mask[0]
    if not hasattr(image[0], "__len__"):
        columns = max(math.isqrt(len(image) - 1) + 1, 1)
        image = [image[start : start + columns] for start in range(0, len(image), columns)]
        image[-1] = [*image[-1], *[False] * (columns - len(image[-1]))]
    rows, columns = min(len(image), largest), min(len(image[0]), largest)
    return [
        [_mean(image, _part(y, rows, len(image)), _part(x, columns, len(image[0]))) for x in range(columns)]
        for y in range(rows)
    ]


def _part(number: int, parts: int, extent: int) -> range:
    return range(number * extent // parts, max((number + 1) * extent // parts, number * extent // parts + 1))


def _mean(image: Sequence, rows: range, columns: range) -> float:
    return sum(bool(image[y][x]) for y in rows for x in columns) / (len(rows) * len(columns))


def png(picture: list[list[float]]) -> bytes:
    """A PNG of levels from 0 to 1, a pixel each, which is opaque where they are 1, so it suits any background."""
    rows = b"".join(
        b"\0" + b"".join(bytes((*COLOUR, round(32 + 223 * level))) for level in row)  # 0: an unfiltered row.
        for row in picture
    )
    header = struct.pack(">IIBBBBB", len(picture[0]), len(picture), 8, 6, 0, 0, 0)  # 8 bits of RGBA.
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def for_terminal(picture: list[list[float]], unicode: bool = True) -> str:
    """Lines of characters, each of two rows of the picture."""
    if len(picture) % 2:
        picture = [*picture, [0.0] * len(picture[0])]
    characters = {(0, 0): "·", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}
    if not unicode:
        characters = {(0, 0): ".", (1, 0): '"', (0, 1): "_", (1, 1): "#"}
    return "\n".join(
        "".join(characters[upper >= 0.5, lower >= 0.5] for upper, lower in zip(*pair))
        for pair in zip(picture[::2], picture[1::2])
    )
