"""SIGE's modules for models that edit images, by the names of sige.nn: Gather, Scatter, ScatterGather,
ScatterWithBlockResidual, SIGEConv2d, SIGEModel.

    from distile.sige import Gather, Scatter, SIGEConv2d, SIGEModel  # instead of: from sige.nn import ...

In mode "full" a model computes everything, and each Scatter keeps what it saw. After set_masks(), with the masks of the
edited pixels by resolution, it computes in mode "sparse" the blocks that hold an edit, and takes all else from there.
Results are SIGE's: the same blocks are computed. Between a Gather and its Scatter, though, tensors are whole images, of
which only those blocks are valid, because our convolutions read them in place.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .nn import MaskedConv2d

ACTIVATIONS = {"identity": lambda x: x, "relu": F.relu, "swish": F.silu, "silu": F.silu}


class SIGEModule(nn.Module):
    """A module with a mode."""

    def __init__(self, call_super: bool = True):
        if call_super:
            super().__init__()
        self.mode, self.cache_id, self.sparse_update = "full", 0, False

    def set_mask(self, masks: dict[tuple[int, int], torch.Tensor], cache: dict) -> None:
        """Takes the masks [H, W] of the edited pixels, by resolution."""

    def set_mode(self, mode: str) -> None:
        if mode not in ("full", "sparse"):
            raise ValueError(f"there is no mode {mode!r}; the modes are full and sparse")
        self.mode = mode

    def set_cache_id(self, cache_id: int) -> None:
        self.cache_id = cache_id

    def set_sparse_update(self, sparse_update: bool) -> None:
        self.sparse_update = sparse_update

    def clear_cache(self) -> None:
        """Forgets what mode "full" kept."""


class _Link:
    """A reference to another module that does not make it a child."""

    def __init__(self, module):
        self.module = module


class SIGEConv2d(SIGEModule, MaskedConv2d):
    """A convolution that computes, in mode "sparse", the blocks of the Gather that was made for it."""

    def __init__(self, *args, **keywords):
        MaskedConv2d.__init__(self, *args, **keywords)
        SIGEModule.__init__(self, call_super=False)
        self.gather = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode == "full":
            return nn.Conv2d.forward(self, x)
        gather = self.gather.module if self.gather is not None else getattr(x, "_distile_gather", None)
        if gather is None:
            raise RuntimeError(
                "a SIGEConv2d in mode 'sparse' needs a Gather made for it, Gather(conv, block_size), or the output of "
                "a ScatterGather as its input"
            )
        return MaskedConv2d.forward(self, x, gather.output_mask.expand(x.shape[0], -1, -1))


def _prepared(x, scale, shift, activation, activation_first):
    """What comes before a convolution: scale, shift and activation, or the activation first."""
    if activation_first:
        x = activation(x)
    if scale is not None:
        x = x * scale
    if shift is not None:
        x = x + shift
    return x if activation_first else activation(x)


class Gather(SIGEModule):
    """Says which blocks a convolution computes, and applies scale, shift and activation before it."""

    def __init__(self, conv: SIGEConv2d, block_size, offset=None, activation_name="identity", activation_first=False):
        super().__init__()
        size = (block_size, block_size) if isinstance(block_size, int) else block_size
        padding = (offset, offset) if isinstance(offset, int) else offset
        if padding is not None and tuple(padding) != tuple(conv.padding):
            raise ValueError(f"the offset is {padding}, but must be the convolution's padding, {conv.padding}")
        steps = [max(size[axis] - conv.kernel_size[axis], 0) // conv.stride[axis] + 1 for axis in (0, 1)]
        self.outputs = tuple(steps)  # Of a block, which reads block_size pixels.
        self.block_stride = tuple(steps[axis] * conv.stride[axis] for axis in (0, 1))
        self.block_size = tuple((steps[axis] - 1) * conv.stride[axis] + conv.kernel_size[axis] for axis in (0, 1))
        self.activation, self.activation_first = ACTIVATIONS[activation_name], activation_first
        self.input_res = self.output_mask = None
        conv.gather = _Link(self)
        self.conv = _Link(conv)

    def forward(self, x, scale=None, shift=None):
        if self.mode == "full":
            if scale is not None or shift is not None:
                raise ValueError(
                    "in mode 'full', a Gather takes no scale and no shift: they belong to the normalization"
                )
            self.input_res = tuple(x.shape[2:])
            return x
        return _prepared(x, scale, shift, self.activation, self.activation_first)

    def set_mask(self, masks, cache) -> None:
        if self.input_res is None:
            raise RuntimeError("set_masks() comes after a run in mode 'full'")
        conv = self.conv.module
        key = (self.input_res, self.block_size, self.block_stride, conv.padding)
        if key not in cache:
            cache[key] = self._outputs_of(masks[self.input_res])
        self.output_mask = cache[key]

    def _outputs_of(self, edited: torch.Tensor) -> torch.Tensor:
        """The outputs [1, H, W] of the blocks that read an edited pixel."""
        conv = self.conv.module
        top, left = conv.padding
        padded = F.pad(edited[None].float(), (left, self.block_size[1], top, self.block_size[0]))
        mask = F.max_pool2d(padded, self.block_size, self.block_stride) > 0
        for axis in (0, 1):
            mask = mask.repeat_interleave(self.outputs[axis], axis + 1)
        height, width = (
            (edited.shape[axis] + 2 * conv.padding[axis] - conv.dilation[axis] * (conv.kernel_size[axis] - 1) - 1)
            // conv.stride[axis]
            + 1
            for axis in (0, 1)
        )
        return mask[:, :height, :width].contiguous()


class Scatter(SIGEModule):
    """Puts the computed blocks, plus a residual, into what it kept of mode "full"."""

    def __init__(self, gather: Gather):
        super().__init__()
        self.gather = _Link(gather)
        self.original_outputs: dict[int, torch.Tensor] = {}

    def forward(self, x, residual=None):
        output = x if residual is None else x + residual
        if self.mode == "full":
            self.original_outputs[self.cache_id] = output.contiguous(memory_format=torch.channels_last)
            return output
        original = self.original_outputs[self.cache_id]
        output = torch.where(self.gather.module.output_mask[:, None], output, original)
        if self.sparse_update:
            original.copy_(output)
        return output

    def clear_cache(self) -> None:
        self.original_outputs = {}


class ScatterGather(Scatter):
    """A Scatter and the Gather of the next convolution, which computes the same blocks as the Gather given."""

    def __init__(self, gather: Gather, activation_name="identity", activation_first=False):
        super().__init__(gather)
        self.activation, self.activation_first = ACTIVATIONS[activation_name], activation_first

    def forward(self, x, scale=None, shift=None):
        output = super().forward(x)
        if self.mode == "full":
            if scale is not None or shift is not None:
                raise ValueError(
                    "in mode 'full', a ScatterGather takes no scale and no shift: they belong to the normalization"
                )
            return output
        if self.gather.module.output_mask.shape[1:] != x.shape[2:]:
            raise RuntimeError("the convolution before a ScatterGather must keep the size of its input")
        output = _prepared(output, scale, shift, self.activation, self.activation_first)
        output._distile_gather = self.gather.module
        return output


class ScatterWithBlockResidual(Scatter):
    """A Scatter with a residual that has blocks of its own, those of the Gather of the shortcut: other pixels take the
    residual of mode "full"."""

    def __init__(self, main_gather: Gather, shortcut_gather: Gather):
        super().__init__(main_gather)
        self.shortcut_gather = _Link(shortcut_gather)
        self.original_residuals: dict[int, torch.Tensor] = {}

    def forward(self, x, residual):
        if self.mode == "full":
            self.original_residuals[self.cache_id] = residual.contiguous(memory_format=torch.channels_last)
            return super().forward(x, residual)
        main = self.gather.module.output_mask[:, None]
        shortcut = self.shortcut_gather.module.output_mask[:, None]
        output, before = self.original_outputs[self.cache_id], self.original_residuals[self.cache_id]
        result = torch.where(main, x + before, output) + torch.where(shortcut, residual - before, 0)
        if self.sparse_update:
            output.copy_(result)
            before.copy_(torch.where(shortcut, residual, before))
        return result

    def clear_cache(self) -> None:
        super().clear_cache()
        self.original_residuals = {}


class SIGEModel(nn.Module):
    """A model that holds such modules."""

    def __init__(self, call_super: bool = True):
        if call_super:
            super().__init__()
        self.mode = "full"

    def _modules_of_sige(self):
        return (module for module in self.modules() if isinstance(module, SIGEModule))

    def set_masks(self, masks: dict[tuple[int, int], torch.Tensor]) -> None:
        cache: dict = {}
        for module in self._modules_of_sige():
            module.set_mask(masks, cache)

    def set_mode(self, mode: str) -> None:
        self.mode = mode
        for module in self._modules_of_sige():
            module.set_mode(mode)

    def set_cache_id(self, cache_id: int) -> None:
        for module in self._modules_of_sige():
            module.set_cache_id(cache_id)

    def set_sparse_update(self, sparse_update: bool) -> None:
        for module in self._modules_of_sige():
            module.set_sparse_update(sparse_update)

    def clear_cache(self) -> None:
        for module in self._modules_of_sige():
            module.clear_cache()
