"""What changes from frame to frame, for networks that keep their activations."""

from __future__ import annotations

import torch

from . import masks
from ._library import ops


class Changes:
    """The pixels of frames, or the tokens, that differ from what was last computed.

        changes = distile.Changes(0.05)
        for frame in video:
            mask = changes.update(frame)
            network(changes.frame, mask)

    Args:
        threshold: a pixel changes if any channel differs by more. Smaller changes that follow each other add up until
            they do: `frame` is never farther than this from the last frame, in any channel.

    `frame` is what a network computes from: its pixels are those of the frame in which they last changed. It is None
    before the first.
    """

    def __init__(self, threshold: float = 0.0):
        self.threshold = threshold
        self.frame: torch.Tensor | None = None

    @torch.no_grad()
    def update(self, frame: torch.Tensor) -> torch.Tensor:
        """The mask of the pixels of `frame`, [N, C, H, W] or [N, T, C], that change. The first frame, or one of another
        shape, type or device, changes everywhere."""
        if not isinstance(frame, torch.Tensor):
            raise TypeError(f"a frame is a tensor of PyTorch, not {type(frame).__name__}: give torch.as_tensor(frame)")
        kept = self.frame
        if kept is None or (kept.shape, kept.dtype, kept.device) != (frame.shape, frame.dtype, frame.device):
            images = frame.dim() == 4
            self.frame = frame.clone(memory_format=torch.channels_last if images else torch.contiguous_format)
            pixels = (frame.shape[0], *frame.shape[2:]) if images else frame.shape[:2]
            return frame.new_ones(pixels, dtype=torch.bool)
        changed = masks.difference(frame, kept, self.threshold)
        ops.activate.out(frame, changed, out=kept)
        return changed
