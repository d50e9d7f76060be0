"""Which pixels of an image the outputs of a model's layers stand for: found by running an example."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from . import masks
from .grids import Grid
from .mappings import Traced
from .nn_base import Masked
from .positions import ALL, CONSTANT, OTHER, Mapping, NoPositions, Positions, compact

aten = torch.ops.aten

# Operators that move elements, and nothing else: labels move in the same way.
MOVES = {
    "_reshape_alias", "_unsafe_view", "broadcast_to", "channel_shuffle", "chunk", "diagonal", "expand", "flip", "index",
    "index_select", "movedim", "narrow", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "reshape", "roll",
    "rot90", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "tile", "transpose", "unbind", "unfold",
    "unsqueeze", "unsafe_split", "unsafe_chunk", "view",
}  # fmt: skip
# Operators whose results stand where their first tensor does.
STAY = {
    "_batch_norm_impl_index", "_batch_norm_no_update", "_batch_norm_with_update", "_batch_norm_with_update_functional",
    "_log_softmax", "_softmax", "_to_copy", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "alias", "batch_norm", "celu_", "clone", "contiguous", "cudnn_batch_norm",
    "cumsum", "detach", "dropout", "group_norm", "instance_norm", "miopen_batch_norm", "quantized_batch_norm",
    "layer_norm", "lift_fresh", "log_softmax", "native_batch_norm", "native_dropout", "native_group_norm",
    "native_layer_norm", "rms_norm", "_fused_rms_norm", "rrelu_with_noise", "softmax", "to", "_safe_softmax",
    "_weight_norm_interface",
}  # fmt: skip
# Operators that treat all elements alike, but lack PyTorch's tag for it.
# PyTorch 2.11 lacks it for the last line, later versions have it there.
POINTWISE = {
    "_prelu_kernel", "bernoulli", "hardswish", "log_sigmoid_forward", "masked_fill", "prelu",
    "_conj_physical", "celu", "elu", "hardsigmoid", "hardtanh", "leaky_relu", "selu",
}  # fmt: skip
# Operators that take no more than the size of their tensor.
FILLED = {"empty_like", "fill", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
          "ones_like", "rand_like", "randint_like", "randn_like", "zero", "zeros_like"}  # fmt: skip
REDUCTIONS = {"all", "amax", "amin", "any", "linalg_vector_norm", "logsumexp", "max", "mean", "min", "norm", "prod",
              "std", "std_mean", "sum", "var", "var_mean"}  # fmt: skip
ATTENTIONS = {
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps", "scaled_dot_product_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}  # fmt: skip


@dataclasses.dataclass
class Call:
    """Labels of the first input and the first output of a module."""

    input: torch.Tensor | None
    output: torch.Tensor | None


def _tensor(labels) -> torch.Tensor:
    """Labels as a tensor. PyTorch warns of arrays that nobody may write, as those that broadcast; what they share is
    small, so it is copied."""
    return torch.from_numpy(compact(labels).copy()).expand(labels.shape)


def _tensors(values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Trace:
    """What a run of an example found: the calls of each module, and the labels in them."""

    def __init__(self, positions: Positions, calls: dict[nn.Module, list[Call]]):
        self._positions, self._calls = positions, calls

    def calls(self, layer: nn.Module) -> list[Call]:
        """The calls of a module."""
        return self._calls.get(layer, [])

    def mapping(self, layer: nn.Module, masked: Masked) -> Traced:
        """How the masks of a layer's calls follow from the image's; `masked` is its masked form. Raises NoPositions if
        that of no call does."""
        found: dict[Mapping | tuple[int, ...], None] = {}
        sizes: set[tuple[int, ...]] = set()
        reason = NoPositions("the example does not call it")
        for call in self.calls(layer):
            labels = call.input if masked.masks_input else call.output
            if labels is None:
                reason = NoPositions("it gives no tensor")
                continue
            channels = masked.channels or (1 if labels.dim() == 4 else -1)
            size = list(labels.shape[1:])
            del size[channels - 1 if channels > 0 else channels]
            try:
                if labels.dim() < 3:
                    raise NoPositions("its output has no positions")
                found[self._positions.mapping(_reduced(self._positions, labels, channels).numpy())] = None
                sizes.add(tuple(size))
            except NoPositions as why:
                reason = why
                found[tuple(size)] = None
        if not sizes:
            raise reason
        if sizes <= found.keys():
            raise NoPositions(f"in some of its calls, {reason}")
        return Traced(tuple(found))


def arguments_of(example) -> tuple[tuple, dict]:
    """The arguments of a call: an example is one, a tuple of them, or a dictionary of those with names."""
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, tuple) else (example,)), {}


@torch.inference_mode(False)
@torch.no_grad()
def run(model: nn.Module, arguments: tuple, keywords: dict) -> Trace:
    """Runs a model on an example, and follows which pixels of the image each element stands for. The image is the first
    tensor of four dimensions, [N, C, H, W]; or without one, of three: tokens [N, T, C]. Another of its size is over the
    same image."""
    leaves, structure = tree_flatten((arguments, keywords))
    image = _image_of(leaves)
    training = [module for module in model.modules() if module.training]
    model.eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # It calls none of a transformer's layers.
    devices = [leaves[image].device] if leaves[image].is_cuda else []
    try:
        with torch.random.fork_rng(devices), masks.mask(None):
            if leaves[image].shape[0] == 1:  # Two images, so that a batch is told from windows.
                try:
                    return _run(model, structure, [_twice(leaf) for leaf in leaves], image)
                except Exception:  # What the model's own code raises where its batch is fixed.
                    pass
            return _run(model, structure, leaves, image)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True


def _image_of(leaves: list) -> int:
    for dimensions in (4, 3):
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.dim() == dimensions:
                return place
    raise ValueError("the example has no image [N, C, H, W] and no tokens [N, T, C], which masks could be for")


def _twice(leaf):
    fits = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == 1
    return torch.cat([leaf, leaf]) if fits else leaf


def _run(model: nn.Module, structure, leaves: list, image: int) -> Trace:
    shape = leaves[image].shape
    positions = Positions(shape[0], *(shape[2:] if len(shape) == 4 else (1, shape[1])))
    follow = _Follow(positions)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            follow.begin(leaf, leaf.shape[:1] + leaf.shape[2:] == shape[:1] + shape[2:] if len(shape) == 4 == leaf.dim()
                         else leaf.shape[:-1] == shape[:-1])  # fmt: skip
    calls: dict[nn.Module, list[Call]] = {}

    def hook(module, arguments, keywords, output):
        first = (next(iter(_tensors(values)), None) for values in ((arguments, keywords), output))
        calls.setdefault(module, []).append(Call(*map(follow.known, first)))

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in model.modules()]
    try:
        arguments, keywords = tree_unflatten(leaves, structure)
        with follow:
            model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    return Trace(positions, calls)


def _everywhere(label: int, shape) -> torch.Tensor:
    """Labels live on the CPU, whatever the default device is."""
    return torch.full((), label, device="cpu").expand(shape)


def _reduced(positions: Positions, labels: torch.Tensor, axis: int) -> torch.Tensor:
    """Labels of results, each from all elements along an axis, which is gone."""
    if labels.shape[axis] == 1 or (labels.shape[axis] and labels.stride(axis) == 0):
        return labels.select(axis, 0)
    if not labels.shape[axis]:
        return labels.sum(axis) + CONSTANT
    return torch.from_numpy(positions.reduced(labels.numpy(), axis % labels.dim()))


class _Follow(TorchDispatchMode):
    """Gives each result of an operator its labels. Tensors without labels are constants."""

    def __init__(self, positions: Positions):
        super().__init__()
        self.positions = positions
        self._labels = WeakIdKeyDictionary()

    def begin(self, tensor: torch.Tensor, is_image: bool) -> None:
        """Labels an input of the model."""
        if not is_image:
            self._labels[tensor] = _everywhere(OTHER, tensor.shape)
            return
        cells = torch.from_numpy(self.positions.whole())
        cells = cells[:, None] if tensor.dim() == 4 else cells.view(*tensor.shape[:-1], 1)
        self._labels[tensor] = cells.expand(tensor.shape)

    def known(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The labels of a tensor; None without a tensor."""
        if tensor is None:
            return None
        found = self._labels.get(tensor)
        return _everywhere(CONSTANT, tensor.shape) if found is None else found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [leaf for leaf in _tensors((args, kwargs)) if leaf in self._labels]
        if given:
            made = _tensors(result if result is not None else kwargs.get("into"))
            for tensor, labels in zip(made, self._made(func, args, kwargs, given, made)):
                if labels is not None and labels.shape == tensor.shape:
                    self._labels[tensor] = labels
                else:
                    self._labels[tensor] = _everywhere(ALL, tensor.shape)
        return result

    def _made(self, func, args, kwargs, given, made) -> list[torch.Tensor | None]:
        """The labels of all results; None for what stands for no cell."""
        name = func._schema.name.split("::")[1]
        if func.namespace == "distile":
            return [self._masked(name.removesuffix("_inference").removesuffix("_into"), func, args, kwargs, made[0])]
        name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        handler = _HANDLERS.get(name)
        if handler:
            return handler(self, func, args, kwargs, made)
        if name in MOVES:
            return self._moved(func, args, kwargs)
        if name in FILLED and not any(leaf in self._labels for leaf in _tensors((args[1:], kwargs))):
            return [_everywhere(CONSTANT, made[0].shape)]
        if name in STAY:
            return [self.known(given[0])] + [None] * (len(made) - 1)
        if name in REDUCTIONS:
            return [self._over_dimensions(func, args, kwargs, tensor) for tensor in made]
        if name in ATTENTIONS:
            return [self._attended(*args[:3])] + [None] * (len(made) - 1)
        if torch.Tag.pointwise in func.tags or name in POINTWISE:
            return [self._pointwise(args, kwargs, tensor.shape) for tensor in made]
        return [None] * len(made)

    def _masked(self, name, func, args, kwargs, result) -> torch.Tensor | None:
        """The labels of an operator of ours, which a layer with a mask of its own calls."""
        named = {one.name: one.default_value for one in func._schema.arguments} | _named(func, args, kwargs)
        input = args[0]
        if name == "linear":
            return _linear(self, func, args, kwargs, [result])[0]
        if name == "attention":
            return self._attended(*args[:3])
        if name in ("conv2d", "conv_transpose2d", "upsample_conv2d", "max_pool2d", "avg_pool2d", "upsample_nearest"):
            return self.window(input, functools.partial(_window_of, name, named), result)
        if name in ("global_pool", "group_statistics", "pack", "unpack") or named.get("mask") is None:
            return None
        return self._pointwise((input, named.get("other")), {}, result.shape)

    def _moved(self, func, args, kwargs) -> list[torch.Tensor]:
        name = func._schema.name
        if any(leaf in self._labels for leaf in _tensors((args[1:], kwargs))):
            return [None]  # Indices that depend on the image.
        labels = self.known(args[0])
        rest = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, (args[1:], kwargs))
        if name in ("aten::view", "aten::_unsafe_view", "aten::_reshape_alias"):
            return [labels.reshape(rest[0][0])] if isinstance(rest[0][0], (list, tuple)) else [labels]
        moved = func(labels, *rest[0], **rest[1])
        return list(moved) if isinstance(moved, (list, tuple)) else [moved]

    def _pointwise(self, args, kwargs, shape) -> torch.Tensor | None:
        tensors = [leaf for leaf in _tensors((args, kwargs)) if leaf in self._labels]
        try:
            labels = (self.known(tensor).numpy() for tensor in tensors)
            return _tensor(self.positions.together(*labels)).expand(shape)
        except (RuntimeError, ValueError):  # Not of one shape, as operators of ours may have them.
            return None

    def _over_dimensions(self, func, args, kwargs, result) -> torch.Tensor | None:
        """The labels of a reduction over dimensions."""
        named = _named(func, args, kwargs)
        labels, dimensions = self.known(args[0]), named.get("dim")
        if dimensions is None or dimensions == []:
            dimensions = range(labels.dim())
        dimensions = [dimensions] if isinstance(dimensions, int) else dimensions
        for axis in dimensions:
            labels = _reduced(self.positions, labels, axis).unsqueeze(axis)
        if labels.dim() != result.dim():
            for axis in sorted((axis % labels.dim() for axis in dimensions), reverse=True):
                labels = labels.squeeze(axis)
        return labels

    def _attended(self, query, key, value) -> torch.Tensor:
        rows = _reduced(self.positions, self.known(query), -1)
        rows = torch.where(rows >= 0, rows, ALL)
        return rows.unsqueeze(-1).expand(*rows.shape, value.shape[-1])

    def product(self, left, right, shape) -> torch.Tensor:
        """The labels of a product of matrices: those of the left one's rows, or where they stand for no cell, of the
        right one's columns."""
        rows = _reduced(self.positions, self.known(left), -1)
        columns = _reduced(self.positions, self.known(right), -2 if right.dim() > 1 else -1)
        rows = rows.unsqueeze(-1) if right.dim() > 1 else rows
        columns = columns.unsqueeze(-2) if right.dim() > 1 else columns
        return _tensor(self.positions.of_product(rows.numpy(), columns.numpy())).expand(shape)

    def image(self, tensor) -> torch.Tensor:
        """Labels of an image's pixels, [N, H, W]."""
        return _reduced(self.positions, self.known(tensor), 1)

    def window(self, tensor, change: Callable[[Grid], Grid], result) -> torch.Tensor:
        """The labels of what a layer with a window makes of an image."""
        labels = self.positions.windowed(self.image(tensor).numpy(), change, tuple(result.shape[2:]))
        return torch.from_numpy(labels)[:, None].expand(result.shape)


def _named(func, args, kwargs) -> dict:
    return dict(zip([one.name for one in func._schema.arguments], args), **kwargs)


def _window_of(name: str, named: dict, grid: Grid) -> Grid:
    """The grid of what an operator of ours makes of an image."""
    scales = named.get("scale") or (1, 1)
    kernel = named["weight"].shape[2:] if "weight" in named else named.get("kernel", (1, 1))
    pads = named.get("padding") or (0, 0)
    pads = (pads[0], pads[0], pads[1], pads[1]) if len(pads) == 2 else pads
    axes = []
    for place, axis in enumerate(grid):
        window = dict(kernel=kernel[place], stride=(named.get("stride") or (1, 1))[place])
        window |= dict(dilation=(named.get("dilation") or (1, 1))[place], before=pads[2 * place], after=pads[2 * place + 1])
        if name == "conv_transpose2d":
            axes.append(axis.transposed(**window, more=(named.get("output_padding") or (0, 0))[place]))
        else:
            axes.append(axis.upsampled(scales[place]).windowed(**window))
    return Grid(*axes)


def _pair(value) -> tuple[int, int]:
    value = [value] if isinstance(value, int) else list(value)
    return (value[0], value[0]) if len(value) == 1 else tuple(value)


def _axes(kernel, stride, padding, dilation):
    return list(zip(_pair(kernel), _pair(stride), _pair(padding), _pair(dilation)))


def _convolution(self: _Follow, func, args, kwargs, made):
    input, weight, _, stride, padding, dilation, transposed, more = args[:8]
    result = made[0]
    if input.dim() != 4:
        kernel = tuple(weight.shape[2:])
        if set(kernel) | set(stride) != {1} or result.shape[2:] != input.shape[2:]:
            return [None]
        return [_reduced(self.positions, self.known(input), 1).unsqueeze(1).expand(result.shape)]
    axes = _axes(weight.shape[2:], stride, padding, dilation)

    def change(grid: Grid) -> Grid:
        if transposed:
            pairs = zip(grid, axes, _pair(more))
            return Grid(*(axis.transposed(k, s, d, p, p, extra) for axis, (k, s, p, d), extra in pairs))
        return Grid(*(axis.windowed(k, s, d, p, p) for axis, (k, s, p, d) in zip(grid, axes)))

    return [self.window(input, change, result)]


def _pool(self: _Follow, func, args, kwargs, made):
    named = _named(func, args, kwargs)
    if args[0].dim() != 4:
        return [None] * len(made)
    kernel = named["kernel_size"]
    axes = _axes(kernel, named.get("stride") or kernel, named.get("padding", 0), named.get("dilation", 1))
    ceil = named.get("ceil_mode", False)
    change = lambda grid: Grid(*(axis.windowed(k, s, d, p, p, ceil) for axis, (k, s, p, d) in zip(grid, axes)))
    return [self.window(args[0], change, made[0])] + [None] * (len(made) - 1)


def _adaptive(self: _Follow, func, args, kwargs, made):
    before, after = args[0].shape[2:], made[0].shape[2:]
    if len(before) != 2:
        return [None] * len(made)
    if before == after:
        return [self.known(args[0])] + [None] * (len(made) - 1)
    whole = any(new == 1 < old for old, new in zip(before, after))
    if whole or any(old % new for old, new in zip(before, after)):
        return [None] * len(made)
    change = lambda grid: Grid(*(axis.resized(*pair) for axis, *pair in zip(grid, before, after)))
    return [self.window(args[0], change, made[0])] + [None] * (len(made) - 1)


def _resized(self: _Follow, func, args, kwargs, made):
    if args[0].dim() != 4:
        return [None]
    labels = self.positions.resized(self.image(args[0]).numpy(), tuple(made[0].shape[2:]))
    return [torch.from_numpy(labels)[:, None].expand(made[0].shape)]


def _product(self: _Follow, func, args, kwargs, made):
    factors = args[1:] if "add" in func._schema.name else args
    return [self.product(factors[0], factors[1], made[0].shape)]


def _linear(self: _Follow, func, args, kwargs, made):
    return [_reduced(self.positions, self.known(args[0]), -1).unsqueeze(-1).expand(made[0].shape)]


def _joined(self: _Follow, func, args, kwargs, made):
    stacked = "stack" in func._schema.name
    kept = [tensor for tensor in args[0] if stacked or tensor.dim() == made[0].dim()]  # Not empty ones of one dimension.
    return [func([self.known(tensor) for tensor in kept], *args[1:], **kwargs)]


def _padded(self: _Follow, func, args, kwargs, made):
    pads = list(args[1])
    return [nn.functional.pad(self.known(args[0]), pads, value=CONSTANT)]


def _gated(self: _Follow, func, args, kwargs, made):
    axis = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    return [self.known(args[0]).narrow(axis, 0, made[0].shape[axis])]


def _copied(self: _Follow, func, args, kwargs, made):
    return [self.known(args[1]).expand(made[0].shape)]


_HANDLERS = {
    "convolution": _convolution,
    "convolution_overrideable": _convolution,
    "max_pool2d_with_indices": _pool,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "_adaptive_avg_pool2d": _adaptive,
    "adaptive_avg_pool2d": _adaptive,
    "adaptive_max_pool2d": _adaptive,
    "upsample_nearest2d": _resized,
    "_upsample_nearest_exact2d": _resized,
    "upsample_bilinear2d": _resized,
    "_upsample_bilinear2d_aa": _resized,
    "upsample_bicubic2d": _resized,
    "_upsample_bicubic2d_aa": _resized,
    "mm": _product,
    "bmm": _product,
    "addmm": _product,
    "baddbmm": _product,
    "matmul": _product,
    "mv": _product,
    "linear": _linear,
    "cat": _joined,
    "stack": _joined,
    "constant_pad_nd": _padded,
    "reflection_pad2d": _padded,
    "replication_pad2d": _padded,
    "copy": _copied,
    "glu": _gated,
}
