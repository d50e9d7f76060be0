"""Masks of edits, by the names of sige.utils: where two images differ, that at all resolutions, and its blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def active_blocks(mask: torch.Tensor, block_size, stride, padding) -> torch.Tensor:
    """Which blocks of a padded image hold an active pixel of a mask [H, W]: one each `stride` pixels, bool [rows,
    columns]."""
    (rows, columns), (top, left) = block_size, padding
    padded = F.pad(mask[None].float(), (left, columns, top, rows))
    return F.max_pool2d(padded, block_size, stride)[0] > 0.5


def reduce_mask(mask: torch.Tensor, block_size, stride, padding, verbose: bool = False) -> torch.Tensor | None:
    """The active blocks' first rows and columns in the image, int32 [blocks, 2]. On a GPU it waits."""
    if block_size is None or stride is None or padding is None:
        return None
    stride, padding = pair(stride), pair(padding)
    blocks = active_blocks(mask, pair(block_size), stride, padding)
    places = blocks.nonzero()
    if verbose:
        print(f"{len(places)} of {blocks.numel()} blocks are active ({len(places) / blocks.numel():.2%})")
    return (places * places.new_tensor(stride) - places.new_tensor(padding)).int()


def dilate_mask(mask, dilation):
    """The pixels of a mask, [H, W] or [C, H, W], of PyTorch or of NumPy, and those at most `dilation` rows above and
    below them, or columns beside them: a cross, not a square."""
    reach = [max(extent, 0) for extent in pair(dilation)]
    marks = mask if isinstance(mask, torch.Tensor) else torch.from_numpy(mask)
    if marks.dim() not in (2, 3):
        raise NotImplementedError(f"the mask has {marks.dim()} dimensions, but must be [H, W] or [C, H, W]")
    images = marks.bool().float().reshape(-1, 1, *marks.shape[-2:])
    found = F.max_pool2d(images, (2 * reach[0] + 1, 1), 1, (reach[0], 0))
    found = found.maximum(F.max_pool2d(images, (1, 2 * reach[1] + 1), 1, (0, reach[1])))
    found = found.reshape(marks.shape).to(marks.dtype)
    return found if isinstance(mask, torch.Tensor) else found.numpy()


def compute_difference_mask(tensor1: torch.Tensor, tensor2: torch.Tensor, eps: float = 2e-2) -> torch.Tensor:
    """The pixels, bool [H, W], at which any channel of [H, W], [C, H, W] or [1, C, H, W] differs by more than eps."""
    differs = (tensor1 - tensor2).abs() > eps
    if differs.dim() not in (2, 3, 4) or (differs.dim() == 4 and len(differs) != 1):
        raise NotImplementedError(f"the tensors are {list(differs.shape)}, but must be [H, W], [C, H, W], [1, C, H, W]")
    return differs.reshape(-1, *differs.shape[-2:]).any(0)


def downsample_mask(
    mask: torch.Tensor, min_res=4, dilation=1, threshold: float = 0.3, eps: float = 1e-3
) -> dict[tuple[int, int], torch.Tensor]:
    """A mask [H, W] at its own resolution and at each half of the one before, while a side is at least `min_res`: where
    more than `threshold` of it, interpolated, is left, or else at its maximum; and dilated."""
    least = pair(min_res)
    size, left, masks = tuple(mask.shape), mask[None, None].float(), {}
    while not masks or size[0] >= least[0] or size[1] >= least[1]:
        if masks:
            left = F.interpolate(left, size, mode="bilinear", align_corners=False)
        masks[size] = dilate_mask(left[0, 0] > (left.max() - eps).clamp(max=threshold), dilation)
        size = (size[0] // 2, size[1] // 2)
    return masks
