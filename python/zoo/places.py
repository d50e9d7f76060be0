"""Which pixels of an image each element of a layer's output stands for, found without distile.

The original model runs on images whose values are coordinates. Every operator that computes is replaced by one that
carries coordinates: a window gives the middle of its block, a product the coordinates of its rows, an activation its
input. What moves elements, as a reshape, a roll or a concatenation, is PyTorch's own. So the values that arrive at a
layer say where its elements lie, in images, tokens and windows of any order. An operator that is neither raises
NotImplementedError: what it makes of coordinates would be no place.

A batch of five carries the centre of an element's block (y, x), its size (y, x) and a weight. All are multiplied by the
weight, so that sums are means; a weight of 0 stands for a constant, as a class token.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

PLANES = 5

MOVES = {
    "__get__", "__getitem__", "__iter__", "__setitem__", "broadcast_to", "channel_shuffle", "chunk", "clone",
    "contiguous", "copy_", "detach", "double", "expand", "expand_as", "flatten", "flip", "float", "index_select",
    "moveaxis", "movedim", "narrow", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "repeat_interleave",
    "reshape", "reshape_as", "roll", "rot90", "select", "split", "split_with_sizes", "squeeze", "squeeze_", "swapaxes",
    "swapdims", "t", "tensor_split", "tile", "to", "transpose", "transpose_", "type", "type_as", "unbind", "unflatten",
    "unfold", "unsqueeze", "unsqueeze_", "view", "view_as",
}  # fmt: skip
WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}  # Methods that end with one "_" write, too.
# Operators that take no more than the size of their tensor.
FILLED = {"empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "ones_like",
          "rand_like", "randn_like", "zero_", "zeros_like"}  # fmt: skip
# Operators whose results are constants here: each sees elements at several places.
LOST = {"avg_pool1d", "conv3d", "fold", "grid_sample", "lstm"}
SAME = {
    "relu", "relu_", "relu6", "silu", "gelu", "sigmoid", "sigmoid_", "tanh", "hardsigmoid", "hardswish", "hardtanh",
    "hardtanh_", "mish", "elu", "celu", "selu", "leaky_relu", "leaky_relu_", "prelu", "softplus", "softmax",
    "log_softmax", "layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm", "normalize", "pow", "__pow__",
    "square", "abs", "neg", "exp", "log", "sqrt", "rsqrt", "clamp", "clamp_", "clip", "dropout", "local_response_norm",
    "masked_fill", "masked_fill_",
}  # fmt: skip
SCALES = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply", "div", "div_", "__truediv__", "__itruediv__",
          "divide"}  # fmt: skip
SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__isub__", "rsub", "__rsub__"}
EXTREMES = {"max", "maximum", "min", "minimum"}
REDUCTIONS = {"adaptive_avg_pool2d", "adaptive_max_pool2d", "amax", "mean", "norm", "sum"}
PRODUCTS = {"matmul", "bmm", "__matmul__"}


def block_of(kernel: int, stride: int, dilation: int, before: int, after: int) -> float:
    """Where the block of output 0 begins, in inputs. With as many outputs as blocks, the blocks begin at input 0, and
    otherwise they lie in the middle of the windows."""
    window = dilation * (kernel - 1) + 1
    return 0 if window - stride <= before + after < window else (window - stride) / 2 - before


def resampled(planes: torch.Tensor, axis: int, first: float, step: float, count: int) -> torch.Tensor:
    """Planes [N, H, W] at the indices first + i * step along an axis, linear between its elements and beyond them. Beside
    a single element, they lie at its size."""
    extent = planes.shape[axis]
    at = first + step * torch.arange(count, dtype=planes.dtype)
    shape = [count if one == axis else 1 for one in range(planes.dim())]
    if extent == 1:
        sizes = torch.zeros_like(planes)
        if len(planes) == PLANES:
            sizes[axis - 1] = planes[axis + 1]
        return planes + sizes * at.view(shape)
    low = at.floor().clamp(0, extent - 2)
    share, low = (at - low).view(shape), low.long()
    return planes.index_select(axis, low) * (1 - share) + planes.index_select(axis, low + 1) * share


def places_of(planes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres and sizes of planes [5, windows, ...], and which have a weight."""
    weight = planes[4:]
    return planes[:4] / torch.where(weight == 0, 1, weight), weight != 0


def is_constant(x: torch.Tensor) -> bool:
    """Whether a tensor is the same for all planes, as what is not made from the image."""
    if not x.dim() or len(x) % PLANES:
        return True
    planes = x.nan_to_num().unflatten(0, (PLANES, -1))
    return bool((planes == planes[:1]).all())


def joined(planes: torch.Tensor, channels: int, image: tuple[int, int] | None = None) -> torch.Tensor:
    """Planes with one channel, for what is computed from all channels: the block around those of its elements. What
    sees all of the `image` by several of its elements is a constant."""
    if len(planes) % PLANES:
        return planes.narrow(channels, 0, 1).double() * 0
    planes = torch.zeros_like(planes) if is_constant(planes) else planes
    planes = planes.double().unflatten(0, (PLANES, -1))
    axis = channels % (planes.dim() - 1) + 1
    places, seen = places_of(planes)
    first = (places[:2] - places[2:] / 2).masked_fill(~seen, torch.inf).amin(axis, keepdim=True)
    last = (places[:2] + places[2:] / 2).masked_fill(~seen, -torch.inf).amax(axis, keepdim=True)
    seen = seen.any(axis, keepdim=True)
    found = torch.where(seen, torch.cat([(first + last) / 2, last - first, seen.double()]), 0)
    if image:
        several = (last - first) > places[2:].amax(axis, keepdim=True) * 1.01
        whole = several & ((last - first) > torch.tensor(image).view(2, *[1] * (first.dim() - 1)) * 0.99)
        found = torch.where(whole.any(0), 0, found)
    return found.flatten(0, 1)


def reduced(function, input, *arguments, **keywords):
    """A mean or a sum: a constant where it is over elements at several places."""
    result = function(input, *arguments, **keywords)
    if len(input) % PLANES or not result.dim() or len(result) != len(input):
        return result
    planes = input.double().unflatten(0, (PLANES, -1))
    places = places_of(planes)[0][:2].flatten(0, 1)
    count = function(torch.ones_like(places), *arguments, **keywords)
    mean = function(places, *arguments, **keywords) / count
    variance = function(places**2, *arguments, **keywords) / count - mean**2
    local = (variance < 1e-3).unflatten(0, (2, -1)).all(0)
    return torch.where(local, result.unflatten(0, (PLANES, -1)), 0).flatten(0, 1)


def without_border(planes: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Planes [N, H, W] without rows and columns of constants around them, and how many there were at both ends."""
    inside, borders = planes[-1] != 0, []
    for axis in (0, 1):
        places = inside.any(1 - axis).nonzero().flatten()
        first, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, inside.shape[axis])
        borders.append((first, inside.shape[axis] - end))
        planes = planes.narrow(1 + axis, first, end - first)
    return planes, borders


def moved(x: torch.Tensor, channels: int, geometry) -> torch.Tensor:
    """Images [N, C, H, W] whose rows and columns are blocks of those of x. `geometry(axis, extent, before, after)` says
    where block 0 begins, how long blocks are, and how many there are, with constants before and after. In windows, blocks
    of one element lie where these do."""
    folded = len(x) == 1 and x.shape[1] % PLANES == 0  # Images as groups of channels.
    if folded:
        x, channels = x.view(PLANES, -1, *x.shape[2:]), channels // PLANES
    planes = joined(x, 1)[:, 0]
    windows = planes.unflatten(0, (PLANES, -1)).unbind(1) if len(planes) % PLANES == 0 else [planes]
    stays = all(geometry(axis, planes.shape[1 + axis], 0, 0) == (0, 1, planes.shape[1 + axis]) for axis in (0, 1))
    if len(windows) == 1 or not stays:
        planes = torch.stack([resampled_window(window, geometry) for window in windows], 1).flatten(0, 1)
    result = planes[:, None].expand(-1, channels, -1, -1).to(x.dtype)
    return result.reshape(1, -1, *result.shape[2:]) if folded else result.contiguous()


def resampled_window(planes: torch.Tensor, geometry) -> torch.Tensor:
    """The planes [5, H, W] of blocks of those of one image or window."""
    planes, borders = without_border(planes)
    for axis in (0, 1):
        begin, length, count = geometry(axis, planes.shape[1 + axis], *borders[axis])
        planes = resampled(planes, 1 + axis, begin + (length - 1) / 2, length, count)
        if len(planes) == PLANES:
            lengths = torch.ones(PLANES, 1, 1, dtype=planes.dtype)
            lengths[2 + axis] = length
            planes = planes * lengths
    return planes


def pair(value) -> tuple:
    return (value, value) if isinstance(value, (int, float)) else tuple(value) * (2 // len(value))


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    kernel, stride, dilation = weight.shape[2:], pair(stride), pair(dilation)

    def geometry(axis, extent, before, after):
        window = dilation[axis] * (kernel[axis] - 1) + 1
        if padding == "same":
            before, after = before + (window - 1) // 2, after + window // 2
        elif padding != "valid":
            before, after = before + pair(padding)[axis], after + pair(padding)[axis]
        count = (extent + before + after - window) // stride[axis] + 1
        return block_of(kernel[axis], stride[axis], dilation[axis], before, after), stride[axis], count

    return moved(input, len(weight), geometry)


def conv_transpose2d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    stride, padding, more, dilation = map(pair, (stride, padding, output_padding, dilation))

    def geometry(axis, extent, before, after):
        window = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        count = (extent + before + after - 1) * stride[axis] + window + more[axis] - 2 * padding[axis]
        missing = (extent + before + after) * stride[axis] - count
        begin = 0 if 0 <= missing < stride[axis] else padding[axis] - (window - stride[axis]) / 2
        return begin / stride[axis] - before, 1 / stride[axis], count

    return moved(input, weight.shape[1] * groups, geometry)


def pool(function, input, kernel_size, stride=None, padding=0, *more, **keywords):
    kernel, stride, padding = pair(kernel_size), pair(stride or kernel_size), pair(padding)
    like = function(input[:1, :1], kernel, stride, padding, *more, **keywords)
    like = like[0] if isinstance(like, tuple) else like
    dilation = pair(keywords.get("dilation", more[0] if more and "max" in function.__name__ else 1))

    def geometry(axis, extent, before, after):
        pads = before + padding[axis], after + padding[axis]
        return block_of(kernel[axis], stride[axis], dilation[axis], *pads), stride[axis], like.shape[2 + axis]

    return moved(input, input.shape[1], geometry)


def interpolate(function, input, *arguments, **keywords):
    like = function(input[:1, :1], *arguments, **keywords)
    if like.shape[2:] == input.shape[2:]:
        return input
    if input.dim() != 4 or not input.any():
        return input.new_zeros(*input.shape[:2], *like.shape[2:])

    def geometry(axis, extent, before, after):
        length = input.shape[2 + axis] / like.shape[2 + axis]
        return -before, length, like.shape[2 + axis]

    return moved(input, input.shape[1], geometry)


def pad(function, input, pad, mode="constant", value=None):
    """A border of constants, whatever its values are."""
    return function(input, pad)


def linear(image, input, weight, bias=None):
    return joined(input, -1, image).expand(*input.shape[:-1], len(weight)).to(input.dtype)


def total(a, b, **_):
    """A sum; of a tensor and what is a constant or one for all positions, the tensor. A constant is a number, or one
    tensor for all planes."""
    tensors = [one for one in (a, b) if isinstance(one, torch.Tensor)]
    shape = torch.broadcast_shapes(*(one.shape for one in tensors))
    whole = [one for one in tensors if one.shape == shape]
    planes = whole if len(whole) == 1 else [one for one in tensors if one.dim() == len(shape) and not is_constant(one)]
    return planes[0].expand(shape) if len(planes) == 1 else torch.add(*finer(a, b))


def finer(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors without the elements that are of larger blocks than the other's, as what coarse queries attend to."""
    if len(a) % PLANES or len(b) % PLANES:
        return a, b
    planes = [one.unflatten(0, (PLANES, -1)) for one in (a, b)]
    areas = [places_of(one)[0][2:].prod(0) for one in planes]
    both = (planes[0][4] != 0) & (planes[1][4] != 0)
    coarse = [both & (one > other * 1.5) for one, other in (areas, areas[::-1])]
    a, b = (torch.where(where, 0, one).flatten(0, 1) for where, one in zip(coarse, planes))
    return a, b


def scaled(a, b, **_):
    """A tensor times or by another: that which has the elements of the result, and is no constant."""
    tensors = [one for one in (a, b) if isinstance(one, torch.Tensor)]
    shape = torch.broadcast_shapes(*(one.shape for one in tensors))
    planes = [one for one in tensors if not is_constant(one)] or tensors
    if len(planes) == 1:
        return planes[0].expand(shape)
    return next((one for one in planes if one.shape == shape), a + b)


def attention(query, key, value, *_, **__):
    """Rows of queries; or of what attends over channels, columns of values."""
    return rows_or_columns(query, value, (*query.shape[:-1], value.shape[-1]))


def rows_or_columns(left, right, shape):
    """What a product of matrices carries: the rows of the left one, or where they lie nowhere, the other's columns."""
    mean = lambda tensor, axis: tensor.mean(axis, keepdim=True)
    rows, columns = reduced(mean, left, -1).expand(shape), reduced(mean, right, -2).expand(shape)
    placed = rows.unflatten(0, (PLANES, -1))[4] != 0
    both = [tensor.unflatten(0, (PLANES, -1)) for tensor in (rows, columns)]
    return torch.where(placed, *both).flatten(0, 1).contiguous()


def einsum(shape, equation: str, *operands):
    """A sum of products, of this shape: as of matrices, the places of the first factor by its axes that stay, or where
    they lie nowhere, those of the next."""
    terms, arrow, kept = equation.replace(" ", "").partition("->")
    factors = []
    for term, operand in zip(terms.split(","), operands, strict=True):
        if is_constant(operand):
            continue
        if not arrow or "." in equation or term[0] != kept[0] or len(set(term)) < len(term):
            raise NotImplementedError(f"the zoo's reference knows no einsum of {equation}: add it to places.py")
        gone = [axis for axis, letter in enumerate(term) if letter not in kept]
        if gone:
            operand = reduced(lambda tensor: tensor.mean(gone, keepdim=True), operand)
        order = [term.index(letter) for letter in kept if letter in term]
        extents = [operand.shape[term.index(letter)] if letter in term else 1 for letter in kept]
        factors.append(operand.permute(order + gone).reshape(extents).expand(shape).unflatten(0, (PLANES, -1)))
    if not factors:
        return torch.zeros(shape)
    found, *others = factors
    for other in others:
        found = torch.where(found[4] != 0, found, other)
    return found.flatten(0, 1)


def floats(values) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def mark(values):
    """Notes of tensors that they are made from the image, and so of those that they are views of."""
    for one in floats(values):
        one.of_image = True
        if one._base is not None:
            one._base.of_image = True
    return values


def is_marked(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "of_image") or hasattr(tensor._base, "of_image")


class Places(TorchFunctionMode):
    """Operators carry coordinates inside, over an image of this size."""

    def __init__(self, image: tuple[int, int]):
        super().__init__()
        self.image = image

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        name = getattr(function, "__name__", "")
        if name in FILLED or not any(map(is_marked, floats((arguments, keywords)))):
            return function(*arguments, **keywords)
        writes = name in WRITES or name.endswith("_") and not name.endswith("__")
        if name in MOVES:
            result = function(*arguments, **keywords)
        else:  # Memory of its own, as a model may write into it.
            result = pytree.tree_map_only(torch.Tensor, torch.clone, self._carried(function, name, arguments, keywords))
            result = arguments[0].copy_(result) if writes else result
        mark(arguments[0] if writes else ())
        return mark(result)

    def _carried(self, function, name: str, arguments: tuple, keywords: dict):
        """What an operator of tensors of places carries."""
        call = lambda: function(*arguments, **keywords)
        numbers = floats(arguments)
        if name in ("conv2d", "conv_transpose2d"):
            return globals()[name](*arguments, **keywords)
        if name == "linear":
            return linear(self.image, *arguments, **keywords)
        if name in REDUCTIONS and len(numbers) == 1:
            return self._reduced(function, name, arguments, keywords)
        if name in LOST:
            return pytree.tree_map_only(torch.Tensor, torch.zeros_like, call())
        if name == "conv1d":
            x, weight = arguments[:2]
            like = call()
            return x.mean(1, keepdim=True).expand(-1, len(weight), -1) if like.shape[2:] == x.shape[2:] else like
        if name in ("max_pool2d", "boolean_dispatch", "avg_pool2d", "max_pool2d_with_indices"):
            return pool(function, *arguments, **keywords)
        if name in ("interpolate", "upsample"):
            return interpolate(function, *arguments, **keywords)
        if name == "pad":
            return pad(function, *arguments, **keywords)
        if name == "scaled_dot_product_attention":
            return attention(*arguments, **{key: keywords[key] for key in ("query", "key", "value") if key in keywords})
        if name == "multi_head_attention_forward":
            return arguments[0], None
        if name in ("cat", "concat", "stack"):
            parts = [one * 0 if is_constant(one) else one for one in arguments[0]]
            return function(parts, *arguments[1:], **keywords)
        if name == "addcmul":
            return total(arguments[0], scaled(*arguments[1:3]))
        if name == "glu":
            return arguments[0].chunk(2, *arguments[1:], **keywords)[0]
        if numbers and name in SAME:
            return numbers[0]
        if numbers and name in SCALES:
            return scaled(*arguments, **keywords)
        if numbers and name in SUMS or len(numbers) == 2 and name in EXTREMES:
            return total(*arguments)
        if name == "where" and len(arguments) == 3:
            return total(*arguments[1:])
        if name == "einsum":
            return einsum(call().shape, arguments[0], *floats(arguments[1:]))
        if name in PRODUCTS and len(numbers) == 2 and numbers[0].dim() == numbers[1].dim() > 2:
            return rows_or_columns(*numbers, call().shape)
        result = call()
        if floats(result):
            raise NotImplementedError(f"the zoo's reference does not know the operator {name}: add it to places.py")
        return result

    def _reduced(self, function, name: str, arguments: tuple, keywords: dict):
        keywords = {key: value for key, value in keywords.items() if key not in ("return_indices", "p")}
        stand_in = {"amax": torch.mean, "norm": torch.mean, "adaptive_max_pool2d": nn.functional.adaptive_avg_pool2d}
        dimension = keywords.get("dim", arguments[1] if len(arguments) > 1 else None)
        pools = name.startswith("adaptive")  # Its second argument is a size.
        if isinstance(dimension, int) and dimension and not pools and not len(arguments[0]) % PLANES:
            found = joined(arguments[0], dimension, self.image).to(arguments[0].dtype)
            return found if keywords.get("keepdim") or True in arguments[2:] else found.squeeze(dimension)
        return reduced(stand_in.get(name, function), *arguments, **keywords)


@dataclasses.dataclass
class Elements:
    """Where the elements of an output lie, [windows, ...] without channels: centres and sizes in pixels, and which are
    constants. `channels` is the dimension of its channels."""

    channels: int
    y: torch.Tensor
    x: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    constant: torch.Tensor

    def active(self, mask: torch.Tensor) -> torch.Tensor:
        """Which elements are active, [N * windows, ...], by a mask of the image, [N, H, W]: those with an active pixel
        in their block. Blocks at an end reach to that of the image."""
        ranges = [
            self._range(self.y, self.height, mask.shape[1]),
            self._range(self.x, self.width, mask.shape[2]),
        ]
        found = torch.zeros(len(mask), *self.y.shape, dtype=torch.bool)
        for image, pixels in enumerate(mask):
            sums = nn.functional.pad(pixels.long().cumsum(0).cumsum(1), (1, 0, 1, 0))
            (top, bottom), (left, right) = ranges
            count = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
            found[image] = (count > 0) | self.constant
        return found.flatten(0, 1)

    def _range(self, centre, size, extent):
        """The first pixel whose middle is in a block, and the one after the last; of a block between middles, the pixel
        of its own."""
        begin, end = centre - size / 2, centre + size / 2
        first, last = (begin - 0.5).ceil().long(), (end - 0.5).ceil().long()
        inside = centre.floor().long()
        first, last = torch.where(first < last, first, inside), torch.where(first < last, last, inside + 1)
        seen = centre[~self.constant]
        if seen.numel():
            first, last = first.masked_fill(centre == seen.min(), 0), last.masked_fill(centre == seen.max(), extent)
        first = first.clamp(0, extent - 1)
        return first, torch.maximum(last.clamp(0, extent), first + 1)


def channels_of(layer: nn.Module, planes: torch.Tensor) -> int:
    """The dimension of the channels of a layer's output."""
    last = isinstance(layer, (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention)) or planes.dim() != 4
    of_images = planes.dim() == 4 and isinstance(layer, nn.LayerNorm) and _constant(planes, 1)
    if isinstance(layer, nn.GroupNorm) or of_images:
        return 1
    own = planes.dim() == 4 and hasattr(layer, "num_heads")
    return planes.dim() - 1 if last or own else 1


def _constant(planes: torch.Tensor, dimension: int) -> bool:
    return bool((planes.amax(dimension) - planes.amin(dimension)).abs().max() < 1e-2)


def elements_of(layer: nn.Module, output) -> Elements:
    """The elements of an output."""
    planes = (output[0] if isinstance(output, tuple) else output).double()
    if len(planes) % PLANES:
        raise ValueError(f"an output of {type(layer).__name__}, {list(planes.shape)}, has no batch of {PLANES} planes")
    if planes.dim() == 2:  # No positions.
        nothing = torch.zeros(len(planes) // PLANES)
        return Elements(1, nothing, nothing, nothing, nothing, nothing == 0)
    channels = channels_of(layer, planes)
    found = joined(planes, channels).squeeze(channels).unflatten(0, (PLANES, -1))
    weight = found[-1]
    y, x, height, width, _ = ((one * 1024).round() / 1024 for one in found / torch.where(weight == 0, 1, weight))
    y, height = _spread(y, height, weight != 0)
    x, width = _spread(x, width, weight != 0)
    return Elements(channels, y, x, height, width, weight == 0)


def _spread(centre: torch.Tensor, size: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks that reach to the next, where every n-th is left of a grid."""
    places, sizes = centre[seen].unique(), size[seen].unique()
    steps = places.diff().unique()
    if len(steps) != 1 or len(sizes) != 1 or not steps[0] > sizes[0]:
        return centre, size
    return torch.where(seen, centre + (steps[0] - sizes[0]) / 2, centre), torch.where(seen, steps[0], size)


def images(height: int, width: int) -> torch.Tensor:
    """The images of coordinates, [5, 3, H, W]."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    one = torch.ones(height, width)
    return torch.stack([y, x, one, one, one])[:, None].repeat(1, 3, 1, 1)


@torch.no_grad()
def find(model: nn.Module, names: list[str], inputs: tuple) -> dict[str, list[Elements]]:
    """Where the outputs of layers lie, for each of their calls. `inputs` are the model's, made of `images`."""
    model = copy.deepcopy(model)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.zero_()
    found: dict[str, list[Elements]] = {name: [] for name in names}

    def hook(name):
        def record(layer, _, output):
            with torch._C.DisableTorchFunction():
                found[name].append(elements_of(layer, output))

        return record

    for name in names:
        model.get_submodule(name).register_forward_hook(hook(name))
    image = inputs[0][0] if isinstance(inputs[0], list) else inputs[0]
    with Places(image.shape[-2:]):
        model(*mark(inputs))
    return found
