"""SIGE's modules for models that edit images, by the names of sige.nn and sige.utils, so that a model's file needs
another import alone:

    from distile.sige import Gather, Scatter, SIGEConv2d, SIGEModel  # instead of: from sige.nn import ...

In mode "full" a model computes everything, and each Scatter keeps what it saw. After set_masks(), with the masks of the
edited pixels by resolution, it computes in mode "sparse" the blocks that hold an edit, and takes all else from there.
Results are SIGE's: the same blocks are computed. Between a Gather and its Scatter, though, tensors are whole images, of
which only those blocks are valid, because our convolutions read them in place. Mode "profile" is mode "sparse".
"""

from __future__ import annotations

import importlib
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from . import dense
from .nn import MaskedConv2d
from .sige_masks import (  # noqa: F401
    active_blocks,
    compute_difference_mask,
    dilate_mask,
    downsample_mask,
    pair,
    reduce_mask,
)

ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": F.silu,
    "silu": F.silu,
}
MODES = ("full", "sparse", "profile")


def _activation(name):
    if name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class SIGEModule(nn.Module):
    """A module with a mode. A subclass with masks of its own overrides set_mask() and calls this one."""

    def __init__(self, call_super: bool = True):
        if call_super:
            super().__init__()
        self.devices = ["cpu", "cuda"]
        self.supported_dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
        self.mode, self.runtime, self.mask, self.timestamp = "full", {}, None, None
        self.cache_id, self.sparse_update = 0, False

    def set_mask(self, masks: dict[tuple[int, int], torch.Tensor], cache: dict, timestamp: int) -> None:
        """Takes the masks [H, W] of the edited pixels, by resolution. `cache` is for what modules share of them, and
        `timestamp` another number for other masks."""
        self.timestamp = timestamp

    def set_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"there is no mode {mode!r}; the modes are {', '.join(MODES)}")
        self.mode = mode

    def set_cache_id(self, cache_id: int) -> None:
        self.cache_id = cache_id

    def set_sparse_update(self, sparse_update: bool) -> None:
        self.sparse_update = sparse_update

    def clear_cache(self) -> None:
        """Forgets what mode "full" kept."""

    def load_runtime(self, function_name: str, runtime_dict: dict | None = None) -> dict:
        """The functions of SIGE's own package by device, for modules that call them with blocks; None without it. The
        modules here need none."""
        found = self.runtime if runtime_dict is None else runtime_dict
        for device in self.devices:
            try:
                found[device] = getattr(importlib.import_module(f"sige.{device}"), function_name, None)
            except ImportError:
                found[device] = None
        return found

    def check_dtype(self, *tensors: torch.Tensor | None) -> None:
        for tensor in tensors:
            if tensor is not None and tensor.dtype not in self.supported_dtypes:
                raise NotImplementedError(
                    f"a {type(self).__name__} takes {', '.join(map(str, self.supported_dtypes))}, but no {tensor.dtype}"
                )

    def check_dim(self, *tensors: torch.Tensor | None) -> None:
        for tensor in tensors:
            if tensor is not None and tensor.dim() != 4:
                raise NotImplementedError(
                    f"a {type(self).__name__} takes images [N, C, H, W], but no tensor with {tensor.dim()} dimensions"
                )


class SIGEModuleWrapper:
    """A reference to another module that does not make it a child."""

    def __init__(self, module: SIGEModule):
        self.module = module


class Blocks(torch.Tensor):
    """A whole image of which the blocks of a Gather are valid. What PyTorch computes from it is one too, so that a
    convolution finds its blocks."""

    blocks_of: Gather
    convolved: bool  # Its pixels are outputs of the Gather's convolution, not inputs.

    @staticmethod
    def of(tensor: torch.Tensor, gather: Gather, convolved: bool) -> Blocks:
        made = tensor.as_subclass(Blocks)
        made.blocks_of, made.convolved = gather, convolved
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        source = next((given for given in _flat(args) if isinstance(given, Blocks)), None)
        if source is not None and hasattr(source, "blocks_of"):
            for made in _flat((result,)):
                if isinstance(made, Blocks) and not hasattr(made, "blocks_of"):
                    made.blocks_of, made.convolved = source.blocks_of, source.convolved
        return result


def _flat(values):
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _flat(value)
        else:
            yield value


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.as_subclass(torch.Tensor) if isinstance(tensor, Blocks) else tensor


class SIGEConv2d(SIGEModule, MaskedConv2d):
    """A convolution that computes, in mode "sparse", the blocks of the Gather that its input comes from, or that was
    made for it."""

    def __init__(self, *args, **keywords):
        MaskedConv2d.__init__(self, *args, **keywords)
        SIGEModule.__init__(self, call_super=False)
        self.gather = self.output_res = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode == "full":
            output = dense.ACTIVATIONS[self.activation](nn.Conv2d.forward(self, x))
            self.output_res = tuple(output.shape[2:])
            return output
        gather, convolved = getattr(x, "blocks_of", None), getattr(x, "convolved", False)
        if gather is None and self.gather is not None:
            gather = self.gather.module
        if gather is None:
            raise RuntimeError(
                "a SIGEConv2d in mode 'sparse' needs a Gather made for it, Gather(conv, block_size), or an input that "
                "comes from a Gather or a ScatterGather"
            )
        if convolved and (self.kernel_size, self.stride) != ((1, 1), (1, 1)):
            raise RuntimeError(
                "a SIGEConv2d directly after another one has a 1x1 kernel and stride 1; others need a Scatter and a "
                "Gather, or a ScatterGather, before them"
            )
        if self.output_res is None:
            raise RuntimeError("mode 'sparse' comes after a run in mode 'full'")
        offset, size, padding = (0, 0) if convolved else gather.offset, self.output_res, []
        x = _plain(x)
        for axis in (0, 1):
            reads = (size[axis] - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
            extent = min(x.shape[2 + axis], reads - offset[axis])
            x = x.narrow(2 + axis, 0, extent)  # Cuts a side that the convolution does not read to its end.
            padding += [offset[axis], reads - offset[axis] - extent]
        mask = gather.outputs_at(*size).expand(x.shape[0], -1, -1)
        output = self._call("conv2d", x, mask, None, None, False, **self._window(padding=padding))
        return Blocks.of(output, gather, True)


class _Prepares(SIGEModule):
    """A module that applies scale, shift and activation before a convolution, or the activation first."""

    def _set_activation(self, activation_name, activation_first):
        self.activation_name, self.activation_first = activation_name, activation_first
        self.activation = _activation(activation_name)

    def _prepared(self, x, scale, shift):
        if self.activation_first:
            x = self.activation(x)
        if scale is not None:
            x = x * scale
        if shift is not None:
            x = x + shift
        return x if self.activation_first else self.activation(x)

    def _check_full(self, scale, shift):
        if scale is not None or shift is not None:
            raise ValueError(
                f"in mode 'full', a {type(self).__name__} takes no scale and no shift: they belong to the normalization"
            )


class Gather(_Prepares):
    """Says which blocks a convolution computes, and applies scale, shift and activation before it.

    `offset` is how far the first block begins before the image; by default, the padding of the convolution.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        block_size: int | tuple[int, int],
        offset: int | tuple[int, int] | None = None,
        activation_name: str = "identity",
        activation_first: bool = False,
        verbose: bool = False,
    ):
        super().__init__()
        size, self.kernel_size, self.model_stride = pair(block_size), conv.kernel_size, conv.stride
        steps = [max(size[axis] - conv.kernel_size[axis], 0) // conv.stride[axis] + 1 for axis in (0, 1)]
        self.outputs = tuple(steps)  # The outputs of a block, which reads block_size pixels.
        self.block_stride = tuple(steps[axis] * conv.stride[axis] for axis in (0, 1))
        self.block_size = tuple((steps[axis] - 1) * conv.stride[axis] + conv.kernel_size[axis] for axis in (0, 1))
        if self.block_size != size:
            warnings.warn(f"blocks of {size} do not fit the convolution: they become {self.block_size}", stacklevel=2)
        self.offset = tuple(conv.padding) if offset is None else pair(offset)
        self.verbose, self.input_res, self._active = verbose, None, None
        self._set_activation(activation_name, activation_first)
        conv.gather = SIGEModuleWrapper(self)

    def forward(self, x, scale=None, shift=None):
        self.check_dtype(x, scale, shift)
        self.check_dim(x, scale, shift)
        if self.mode == "full":
            self._check_full(scale, shift)
            self.input_res = tuple(x.shape[2:])
            return x
        return Blocks.of(self._prepared(_plain(x), scale, shift), self, False)

    def set_mask(self, masks, cache, timestamp) -> None:
        if self.timestamp == timestamp:
            return
        super().set_mask(masks, cache, timestamp)
        if self.input_res is None:
            raise RuntimeError("set_masks() comes after a run in mode 'full'")
        if self.input_res not in masks:
            sizes = ", ".join(str(tuple(size)) for size in masks)
            raise KeyError(f"set_masks() got masks of {sizes}, but a Gather reads images of {self.input_res}")
        self.mask = masks[self.input_res]
        key = ("blocks", self.input_res, self.block_size, self.block_stride, self.offset, self.outputs)
        if key not in cache:
            blocks = active_blocks(self.mask, self.block_size, self.block_stride, self.offset)
            if self.verbose:
                print(f"{int(blocks.sum())} of {blocks.numel()} blocks are active")
            for axis in (0, 1):
                blocks = blocks.repeat_interleave(self.outputs[axis], axis)
            cache[key] = {None: blocks[None]}
        self._active = cache[key]

    def outputs_at(self, height: int, width: int) -> torch.Tensor:
        """The outputs [1, height, width] of the blocks that read an edited pixel."""
        if self._active is None:
            raise RuntimeError("mode 'sparse' comes after set_masks()")
        if (height, width) not in self._active:
            every = self._active[None]
            reached = F.pad(every, (0, width - every.shape[2], 0, height - every.shape[1]))
            self._active[height, width] = reached.contiguous()
        return self._active[height, width]

    @property
    def active_indices(self) -> torch.Tensor | None:
        """The first row and column of each active block, int32 [blocks, 2]. On a GPU it waits."""
        if self.mask is None:
            return None
        return reduce_mask(self.mask, self.block_size, self.block_stride, self.offset)


class Scatter(SIGEModule):
    """Puts the computed blocks, plus a residual, into what it kept of mode "full"."""

    def __init__(self, gather: Gather):
        super().__init__()
        self.gather = SIGEModuleWrapper(gather)
        self.output_res: tuple[int, int] | None = None
        self.original_outputs: dict[int, torch.Tensor] = {}

    def forward(self, x, residual=None):
        self.check_dtype(x, residual)
        self.check_dim(x, residual)
        x, residual = _plain(x), _plain(residual)
        output = x if residual is None else x + residual
        if self.mode == "full":
            self._keep(output)
            return output
        original = self.original_outputs[self.cache_id]
        output = torch.where(_outputs(self.gather, original), output, original)
        if self.sparse_update:
            original.copy_(output)
        return output

    def _keep(self, output):
        self.output_res = tuple(output.shape[2:])
        self.original_outputs[self.cache_id] = output.contiguous(memory_format=torch.channels_last)

    def clear_cache(self) -> None:
        self.original_outputs = {}


def _outputs(gather: SIGEModuleWrapper, image: torch.Tensor) -> torch.Tensor:
    """The pixels [1, 1, H, W] of an image of outputs that a Gather's blocks compute."""
    return gather.module.outputs_at(*image.shape[2:])[:, None]


class ScatterGather(Scatter, _Prepares):
    """A Scatter and the Gather of the next convolution, which computes the same blocks as the Gather given."""

    def __init__(self, gather: Gather, activation_name: str = "identity", activation_first: bool = False):
        super().__init__(gather)
        self._set_activation(activation_name, activation_first)

    def forward(self, x, scale=None, shift=None):
        self.check_dtype(scale, shift)
        self.check_dim(scale, shift)
        if self.mode == "full":
            self._check_full(scale, shift)
            return super().forward(x)
        gather = self.gather.module
        if gather.input_res != tuple(x.shape[2:]):
            raise RuntimeError("the convolution before a ScatterGather must keep the size of its input")
        return Blocks.of(self._prepared(super().forward(x), scale, shift), gather, False)

    def set_mask(self, masks, cache, timestamp) -> None:
        super().set_mask(masks, cache, timestamp)
        self.gather.module.set_mask(masks, cache, timestamp)


class ScatterWithBlockResidual(Scatter):
    """A Scatter with a residual that has blocks of its own, those of the Gather of the shortcut: other pixels take the
    residual of mode "full"."""

    def __init__(self, main_gather: Gather, shortcut_gather: Gather):
        super().__init__(main_gather)
        self.main_gather, self.shortcut_gather = self.gather, SIGEModuleWrapper(shortcut_gather)
        self.original_residuals: dict[int, torch.Tensor] = {}

    def forward(self, x, residual):
        self.check_dtype(x, residual)
        self.check_dim(x, residual)
        x, residual = _plain(x), _plain(residual)
        if self.mode == "full":
            self.original_residuals[self.cache_id] = residual.contiguous(memory_format=torch.channels_last)
            return super().forward(x, residual)
        output, before = self.original_outputs[self.cache_id], self.original_residuals[self.cache_id]
        main, shortcut = _outputs(self.main_gather, output), _outputs(self.shortcut_gather, output)
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
        self.mode, self.timestamp = "full", 0

    def _modules_of_sige(self):
        return (module for module in self.modules() if isinstance(module, SIGEModule))

    def set_masks(self, masks: dict[tuple[int, int], torch.Tensor]) -> None:
        self.timestamp += 1
        cache: dict = {}
        for module in self._modules_of_sige():
            module.set_mask(masks, cache, self.timestamp)

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
