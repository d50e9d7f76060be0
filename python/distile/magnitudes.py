"""Which weights magnitude pruning sets to 0: those of least magnitude, anywhere, in blocks or in a pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

PATTERNS = {"2:4": (2, 4)}
"""How many weights a pattern keeps, and of how many consecutive input channels."""
SCOPES = ("layer", "global")


@dataclasses.dataclass(frozen=True)
class Pruning:
    """What becomes 0. Raises ValueError for fields that do not fit together.

    `zeros`, from 0 to below 1, is the share that becomes 0: of each layer, or with the scope "global" of all layers
    together. `block` is output channels x input channels that become 0 together, by the sum of their magnitudes; what
    they leave of a layer's channels is not pruned. In place of these, the pattern "2:4" keeps the two largest of each four
    consecutive input channels, which sparse tensor cores multiply."""

    zeros: float | None = None
    scope: str = "layer"
    block: tuple[int, int] = (1, 1)
    pattern: str | None = None

    def __post_init__(self):
        if self.pattern is not None:
            if self.pattern not in PATTERNS:
                raise ValueError(f"pattern is {self.pattern!r}, not " + " or ".join(f'"{known}"' for known in PATTERNS))
            if self.zeros is not None or self.scope != "layer" or tuple(self.block) != (1, 1):
                raise ValueError("a pattern says which weights become 0: leave zeros, scope and block out")
            return
        if not (isinstance(self.zeros, (int, float)) and 0 <= self.zeros < 1):
            raise ValueError(f"zeros is {self.zeros!r}; it is a share from 0 to below 1")
        if self.scope not in SCOPES:
            raise ValueError(f'scope is {self.scope!r}, not "layer" or "global"')
        if len(self.block) != 2 or min(self.block) < 1:
            raise ValueError(f"block is {self.block}, not two numbers of channels from 1 on")

    def left_out(self, filters: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Which weights of filters [output channels, input channels, ...] of float32 become 0, as arrays of bool of their
        shapes: as many as fit into the share, and where magnitudes are equal any of them."""
        if self.pattern is not None:
            return [_beyond_pattern(filter, *PATTERNS[self.pattern]) for filter in filters]
        sizes = [_magnitudes(filter, self.block) for filter in filters]
        if self.scope == "layer":
            least = [_least(size.reshape(-1), self.zeros).reshape(size.shape) for size in sizes]
        else:
            ends = np.cumsum([size.size for size in sizes])[:-1]
            together = np.concatenate([size.reshape(-1) for size in sizes]) if sizes else np.empty(0, np.float32)
            parts = np.split(_least(together, self.zeros), ends)
            least = [part.reshape(size.shape) for part, size in zip(parts, sizes)]
        return [_spread(one, filter.shape, self.block) for one, filter in zip(least, filters)]


def _least(magnitudes: np.ndarray, share: float) -> np.ndarray:
    """Which are the least, as many as fit into a share."""
    count, least = int(share * magnitudes.size), np.zeros(magnitudes.size, bool)
    if count:
        least[np.argpartition(magnitudes, count - 1)[:count]] = True
    return least


def _magnitudes(filter: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The magnitudes of whole blocks: [blocks of output channels, blocks of input channels, ...]."""
    outputs, inputs = (extent // size for extent, size in zip(filter.shape, block))
    whole = np.abs(filter[: outputs * block[0], : inputs * block[1]])
    return whole.reshape(outputs, block[0], inputs, block[1], *filter.shape[2:]).sum((1, 3))


def _spread(blocks: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """What is so of blocks, of their weights; what no block has is not so."""
    spread, weights = blocks.repeat(block[0], 0).repeat(block[1], 1), np.zeros(shape, bool)
    weights[: spread.shape[0], : spread.shape[1]] = spread
    return weights


def _beyond_pattern(filter: np.ndarray, kept: int, of: int) -> np.ndarray:
    """All but the largest of consecutive input channels, of each output channel and kernel position."""
    last = np.abs(np.moveaxis(filter, 1, -1))
    channels = last.shape[-1]
    # What is behind the last channel is less than any weight.
    padded = np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, -channels % of)], constant_values=-1)
    groups = padded.reshape(*padded.shape[:-1], -1, of)
    least = np.ones(groups.shape, bool)
    np.put_along_axis(least, np.argsort(groups, -1, kind="stable")[..., of - kept :], False, -1)
    return np.moveaxis(least.reshape(padded.shape)[..., :channels], -1, 1)
