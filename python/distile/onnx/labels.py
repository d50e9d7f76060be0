"""How each operator of ONNX carries labels, the cells of an image that elements stand for (distile.positions).

Labels of a tensor have its shape. Along channels they are broadcast, so that they take little memory.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx

from ..grids import Grid
from ..positions import ALL, CONSTANT, Positions, broadcast, compact
from .graph import attributes


class Unknown(Exception):
    """What an operator does with labels is not known: its results stand for no certain cells."""


@dataclasses.dataclass
class Call:
    """A node that carries labels. `labels` are those of its inputs, and `known` the inputs whose values are known, None
    where they are not or the input is absent; `constant` says which are so for every image. `shapes` are those of its
    outputs, as far as shape inference knows them."""

    node: onnx.NodeProto
    positions: Positions
    labels: list[np.ndarray | None]
    known: list[np.ndarray | None]
    constant: list[bool]
    shapes: list[tuple[int, ...] | None]
    opset: int
    fixed: bool  # Whether the image has one size.
    values: dict = dataclasses.field(init=False)

    def __post_init__(self):
        self.values = attributes(self.node)

    def input(self, place: int) -> np.ndarray:
        """The labels of an input."""
        found = self.labels[place] if place < len(self.labels) else None
        if found is None:
            raise Unknown
        return found

    def given(self, place: int) -> bool:
        return place < len(self.node.input) and bool(self.node.input[place])

    def numbers(self, place: int, name: str) -> list[int] | None:
        """Integers that an attribute or, in later opsets, an input gives; None if neither does."""
        if name in self.values:
            value = self.values[name]
            return list(value) if isinstance(value, (list, tuple)) else [value]
        if not self.given(place):
            return None
        if self.known[place] is None:
            raise Unknown
        return [int(number) for number in self.known[place].reshape(-1)]


def reshaped(labels: np.ndarray, shape) -> np.ndarray:
    """Labels in another shape, broadcast along what was broadcast. Raises ValueError where that has not their size."""
    if labels.size != math.prod(shape):
        raise ValueError(f"labels {list(labels.shape)} have not the size of {list(shape)}")
    if not labels.size:
        return labels.reshape(shape)
    labels_1 = labels.squeeze()
    old, new = labels_1.shape, [extent for extent in shape if extent != 1]
    taken, small, i, j = [], [], 0, 0
    while i < len(old) and j < len(new):  # Axes that together have as many elements before and after.
        first, above, below = (i, j), old[i], new[j]
        while above != below:
            i, j = (i + 1, j) if above < below else (i, j + 1)
            above, below = math.prod(old[first[0] : i + 1]), math.prod(new[first[1] : j + 1])
        i, j = i + 1, j + 1
        constant = not any(labels_1.strides[first[0] : i])
        taken += [slice(0, 1 if constant else None)] * (i - first[0])
        small += [1] * (j - first[1]) if constant else new[first[1] : j]
    return broadcast(labels_1[tuple(taken)].reshape(small), new).reshape(shape)


def over(positions: Positions, labels: np.ndarray, axis: int) -> np.ndarray:
    """The labels of results, each from all elements along an axis."""
    axis %= labels.ndim
    shape = tuple(np.delete(labels.shape, axis))
    if labels.shape[axis] == 0:
        return broadcast(CONSTANT, shape)
    small = compact(labels)
    found = small[(slice(None),) * axis + (0,)] if small.shape[axis] == 1 else positions.reduced(small, axis)
    return broadcast(found, shape)


# What moves elements.


def _same(call: Call) -> list[np.ndarray]:
    return [call.input(0)]


def _elementwise(call: Call) -> list[np.ndarray]:
    return [call.positions.together(*(call.input(place) for place, name in enumerate(call.node.input) if name))]


def _first_two(call: Call) -> list[np.ndarray]:
    """A norm of a sum, and further vectors of the channels."""
    return [call.positions.together(call.input(0), call.input(1))]


def _transpose(call: Call) -> list[np.ndarray]:
    labels = call.input(0)
    return [labels.transpose(call.values.get("perm", range(labels.ndim)[::-1]))]


def _reshape(call: Call) -> list[np.ndarray]:
    labels = call.input(0)
    try:
        shape = call.numbers(1, "shape")
    except Unknown:
        shape = call.shapes[0]
    if shape is None:
        raise Unknown
    if not call.values.get("allowzero", 0):
        shape = [labels.shape[axis] if extent == 0 else extent for axis, extent in enumerate(shape)]
    known = math.prod(extent for extent in shape if extent != -1)
    return [reshaped(labels, [labels.size // max(known, 1) if extent == -1 else extent for extent in shape])]


def _flatten(call: Call) -> list[np.ndarray]:
    labels, axis = call.input(0), call.values.get("axis", 1)
    axis = axis + labels.ndim if axis < 0 else axis
    return [reshaped(labels, (math.prod(labels.shape[:axis]), math.prod(labels.shape[axis:])))]


def _squeeze(call: Call) -> list[np.ndarray]:
    labels, axes = call.input(0), call.numbers(1, "axes")
    return [labels.squeeze(None if axes is None else tuple(axes))]


def _unsqueeze(call: Call) -> list[np.ndarray]:
    return [np.expand_dims(call.input(0), tuple(call.numbers(1, "axes")))]


def _slice(call: Call) -> list[np.ndarray]:
    labels = call.input(0)
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    axes = call.numbers(3, "axes") or range(len(starts))
    steps = call.numbers(4, "steps") or [1] * len(starts)
    where = [slice(None)] * labels.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps):
        extent = labels.shape[axis]
        if step < 0 and end < -extent:
            end = None
        where[axis] = slice(start, end, step)
    return [labels[tuple(where)]]


def _split(call: Call) -> list[np.ndarray]:
    labels, axis, count = call.input(0), call.values.get("axis", 0), len(call.node.output)
    parts = call.numbers(1, "split")
    if parts is None:
        each = -(-labels.shape[axis] // count)
        parts = [min(each, labels.shape[axis] - place * each) for place in range(count)]
    return np.split(labels, np.cumsum(parts)[:-1], axis)


def _gather(call: Call) -> list[np.ndarray]:
    labels, indices, axis = call.input(0), call.input(1), call.values.get("axis", 0)
    axis %= labels.ndim
    known = call.known[1]
    if known is not None:
        return [np.take(labels, known.astype(np.int64), axis)]
    small = compact(labels)
    if small.shape[axis] > 1:
        raise Unknown
    shape = (*labels.shape[:axis], *indices.shape, *labels.shape[axis + 1 :])
    small = small.reshape(*small.shape[:axis], *[1] * indices.ndim, *small.shape[axis + 1 :])
    return [broadcast(small, shape)]


def _concat(call: Call) -> list[np.ndarray]:
    return [_joined([call.input(place) for place in range(len(call.node.input))], call.values["axis"])]


def _joined(parts: list[np.ndarray], axis: int) -> np.ndarray:
    axis %= parts[0].ndim
    small = [compact(part) for part in parts]
    first = small[0]
    if first.shape[axis] == 1 and all(one.shape == first.shape and (one == first).all() for one in small):
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return broadcast(first, shape)
    return np.concatenate(parts, axis)


def _quantized_concat(call: Call) -> list[np.ndarray]:
    return [_joined([call.input(place) for place in range(2, len(call.node.input), 3)], call.values["axis"])]


def _expand(call: Call) -> list[np.ndarray]:
    labels, known = call.input(0), call.known[1]
    shape = call.shapes[0] if known is None else tuple(int(extent) for extent in known)
    if shape is None:
        raise Unknown
    return [broadcast(labels, np.broadcast_shapes(labels.shape, shape))]


def _tile(call: Call) -> list[np.ndarray]:
    labels, repeats = call.input(0), call.numbers(1, "repeats")
    small = compact(labels)
    shape = [extent * count for extent, count in zip(labels.shape, repeats)]
    repeats = [1 if extent == 1 else count for extent, count in zip(small.shape, repeats)]
    return [broadcast(np.tile(small, repeats), shape)]


def _pad(call: Call) -> list[np.ndarray]:
    """Padded elements stand for no cell, also those that repeat others."""
    labels = call.input(0)
    amounts = call.numbers(1, "pads") if call.opset > 10 else call.values.get("pads", call.values.get("paddings"))
    axes = call.numbers(3, "axes") or range(labels.ndim)
    if amounts is None:
        raise Unknown
    pairs = [(0, 0)] * labels.ndim
    for axis, before, after in zip(axes, amounts, amounts[len(axes) :]):
        pairs[axis] = before, after
    cut = [slice(max(-before, 0), extent - max(-after, 0)) for extent, (before, after) in zip(labels.shape, pairs)]
    labels, more = labels[tuple(cut)], [(max(before, 0), max(after, 0)) for before, after in pairs]
    whole = [slice(0, 1 if stride == 0 and pair == (0, 0) else None) for stride, pair in zip(labels.strides, more)]
    padded = np.pad(labels[tuple(whole)], more, constant_values=CONSTANT)
    return [broadcast(padded, [extent + sum(pair) for extent, pair in zip(labels.shape, more)])]


def _depth_to_space(call: Call) -> list[np.ndarray]:
    labels, block = call.input(0), call.values["blocksize"]
    batch, channels, rows, columns = labels.shape
    inner = channels // block**2
    if call.values.get("mode", "DCR") == "DCR":
        moved = labels.reshape(batch, block, block, inner, rows, columns).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = labels.reshape(batch, inner, block, block, rows, columns).transpose(0, 1, 4, 2, 5, 3)
    return [reshaped(moved, (batch, inner, rows * block, columns * block))]


def _space_to_depth(call: Call) -> list[np.ndarray]:
    labels, block = call.input(0), call.values["blocksize"]
    batch, channels, rows, columns = labels.shape
    moved = labels.reshape(batch, channels, rows // block, block, columns // block, block)
    shape = batch, channels * block**2, rows // block, columns // block
    return [reshaped(moved.transpose(0, 3, 5, 1, 2, 4), shape)]


# What computes.


def _plane(call: Call, place: int) -> np.ndarray:
    """The labels of images without channels, [N, H, W]; those of [N, C, W] have one row."""
    labels = call.input(place)
    if labels.ndim not in (3, 4):
        raise Unknown
    plane = over(call.positions, labels, 1)
    return plane[:, None] if labels.ndim == 3 else plane


def _axes_of_window(call: Call, plane: np.ndarray, kernel, transposed: bool = False) -> list[tuple]:
    """For rows and columns: kernel, stride, dilation, and padding before and after."""
    values, count = call.values, len(kernel)
    strides, dilations = values.get("strides") or [1] * count, values.get("dilations") or [1] * count
    pads = values.get("pads") or [0] * 2 * count
    kind = values.get("auto_pad", "NOTSET")
    found = []
    for axis in range(count):
        window = dilations[axis] * (kernel[axis] - 1) + 1
        before, after = pads[axis], pads[axis + count]
        if kind.startswith("SAME") and not transposed:
            extent = plane.shape[1 + axis + (2 - count)]
            total = max((-(-extent // strides[axis]) - 1) * strides[axis] + window - extent, 0)
            before = total // 2 if kind == "SAME_UPPER" else -(-total // 2)
            # Makes the number of outputs equal for each size of images.
            after = max(window - 1 - before, 0)
        elif kind == "VALID":
            before = after = 0
        found.append((kernel[axis], strides[axis], dilations[axis], before, after))
    return [(1, 1, 1, 0, 0)] * (2 - count) + found


def _through(call: Call, plane: np.ndarray, change) -> np.ndarray:
    extents = change(Grid()).extents(plane.shape[1:])
    if min(extents) < 1:
        raise Unknown
    return call.positions.windowed(plane, change, extents)


def _images(call: Call, plane: np.ndarray, channels: int, place: int) -> np.ndarray:
    """A result with channels, of as many dimensions as an input."""
    plane = plane[:, 0] if call.input(place).ndim == 3 else plane
    return broadcast(plane[:, None], (len(plane), channels, *plane.shape[1:]))


def _windowed(call: Call, place: int, kernel, channels: int, ceil: bool = False) -> np.ndarray:
    if call.input(place).ndim - 2 != len(kernel):
        raise Unknown
    plane = _plane(call, place)
    axes = _axes_of_window(call, plane, kernel)
    if any(axis[:2] != (1, 1) or axis[3:] != (0, 0) for axis in axes):
        change = lambda grid: Grid(*(along.windowed(*axis, ceil) for along, axis in zip(grid, axes)))
        plane = _through(call, plane, change)
    return _images(call, plane, channels, place)


def _convolution(places: tuple[int, int]):
    def carry(call: Call) -> list[np.ndarray]:
        weights = call.input(places[1])
        return [_windowed(call, places[0], weights.shape[2:], weights.shape[0])]

    return carry


def _transposed_convolution(call: Call) -> list[np.ndarray]:
    weights = call.input(1)
    kernel = weights.shape[2:]
    plane, values = _plane(call, 0), call.values
    more = [0] * (2 - len(kernel)) + list(values.get("output_padding") or [0] * len(kernel))
    axes = [list(axis) for axis in _axes_of_window(call, plane, kernel, transposed=True)]
    kind, wanted = values.get("auto_pad", "NOTSET"), values.get("output_shape")
    for place, axis in enumerate(axes[2 - len(kernel) :]):
        window, extent = axis[2] * (axis[0] - 1) + 1, plane.shape[1 + place + 2 - len(kernel)]
        outputs = wanted[place - len(kernel)] if wanted else extent * axis[1] if kind.startswith("SAME") else None
        if outputs is not None:
            total = max(axis[1] * (extent - 1) + more[place] + window - outputs, 0)
            less, rest = total // 2, total - total // 2
            axis[3:] = (less, rest) if kind == "SAME_UPPER" else (rest, less)
    change = lambda grid: Grid(*(along.transposed(*axis, end) for along, axis, end in zip(grid, axes, more)))
    if wanted and not call.fixed:
        raise Unknown
    channels = weights.shape[1] * values.get("group", 1)
    return [_images(call, _through(call, plane, change), channels, 0)]


def _pool(call: Call) -> list[np.ndarray]:
    if call.values.get("channels_last", 0):
        raise Unknown
    ceil = bool(call.values.get("ceil_mode", 0))
    result = _windowed(call, 0, call.values["kernel_shape"], call.input(0).shape[1], ceil)
    return [result] * len(call.node.output)


def _resized(call: Call) -> list[np.ndarray]:
    labels, shape = call.input(0), _resized_shape(call)
    if labels.ndim != 4 or shape[:2] != labels.shape[:2] or "axes" in call.values:
        raise Unknown
    if call.values.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Unknown
    plane, extents = over(call.positions, labels, 1), shape[2:]
    if not call.fixed and call.given(3) and call.constant[3]:
        raise Unknown
    return [_images(call, call.positions.resized(plane, extents, of_another=call.given(3)), shape[1], 0)]


def _resized_shape(call: Call) -> tuple[int, ...]:
    before = call.input(0).shape
    sizes = call.known[3] if call.given(3) else None
    if sizes is not None and len(sizes) == len(before):
        return tuple(int(extent) for extent in sizes)
    scales = call.values.get("scales")
    for place in (1, 2):
        if scales is None and call.given(place) and call.known[place] is not None and call.known[place].size:
            scales = call.known[place] if call.opset < 11 or place == 2 else None
    if scales is not None and len(scales) == len(before):
        return tuple(int(math.floor(extent * float(scale))) for extent, scale in zip(before, scales))
    if call.shapes[0] is None:
        raise Unknown
    return call.shapes[0]


def _global(call: Call) -> list[np.ndarray]:
    labels = call.input(0)
    if call.values.get("channels_last", 0):
        raise Unknown
    return [_reduced_axes(call.positions, labels, range(2, labels.ndim), True)]


def _reduced_axes(positions: Positions, labels: np.ndarray, axes, keep: bool) -> np.ndarray:
    axes = sorted(axis % labels.ndim for axis in axes)
    found = labels
    for axis in reversed(axes):
        found = over(positions, found, axis)
    return np.expand_dims(found, tuple(axes)) if keep and axes else found


def _reduce(call: Call) -> list[np.ndarray]:
    labels, axes = call.input(0), call.numbers(1, "axes")
    if not axes:
        axes = [] if call.values.get("noop_with_empty_axes", 0) else range(labels.ndim)
    return [_reduced_axes(call.positions, labels, axes, bool(call.values.get("keepdims", 1)))]


def _arg(call: Call) -> list[np.ndarray]:
    axes = [call.values.get("axis", 0)]
    return [_reduced_axes(call.positions, call.input(0), axes, bool(call.values.get("keepdims", 1)))]


def _product(positions: Positions, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The labels of a matrix product: those of the rows of the left operand, or if they stand for no cells, of the
    columns of the right one."""
    vectors = a.ndim == 1, b.ndim == 1
    a, b = a[None] if vectors[0] else a, b[:, None] if vectors[1] else b
    rows, columns = over(positions, a, -1)[..., None], over(positions, b, -2)[..., None, :]
    found = positions.of_product(rows, columns)
    found = found[..., 0, :] if vectors[0] else found
    return found[..., 0] if vectors[1] else found


def _matrix_product(places: tuple[int, int]):
    return lambda call: [_product(call.positions, call.input(places[0]), call.input(places[1]))]


def _gemm(places: tuple[int, int]):
    def carry(call: Call) -> list[np.ndarray]:
        a, b = (call.input(place) for place in places)
        a, b = a.T if call.values.get("transA", 0) else a, b.T if call.values.get("transB", 0) else b
        return [_product(call.positions, a, b)]

    return carry


def _einsum(call: Call) -> list[np.ndarray]:
    terms, _, result = call.values["equation"].replace(" ", "").partition("->")
    if not result or "." in terms:
        raise Unknown
    extents, found = {}, []
    for place, term in enumerate(terms.split(",")):
        labels = call.input(place)
        extents.update(zip(term, labels.shape))
        if len(set(term)) < len(term):
            raise Unknown
        for axis in reversed(range(len(term))):
            labels = labels if term[axis] in result else over(call.positions, labels, axis)
        kept = [letter for letter in term if letter in result]
        labels = labels.transpose([kept.index(letter) for letter in result if letter in kept])
        absent = tuple(place for place, letter in enumerate(result) if letter not in kept)
        found.append(np.expand_dims(labels, absent) if absent else labels)
    return [broadcast(call.positions.of_product(*found), [extents[letter] for letter in result])]


def _attention(call: Call) -> list[np.ndarray]:
    """The rows of queries."""
    labels = over(call.positions, call.input(0), -1)
    channels = call.input(2).shape[-1] if call.given(2) else call.input(0).shape[-1]
    if labels.ndim == 2 and call.shapes[0] is not None:
        channels = call.shapes[0][-1]
    return [broadcast(labels[..., None], (*labels.shape, channels))]


def _quantized_dynamically(call: Call) -> list[np.ndarray]:
    labels = call.input(0)
    number = _reduced_axes(call.positions, labels, range(labels.ndim), False)
    return [labels, number, number]


ELEMENTWISE = {
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BiasGelu", "CastLike", "Clip", "Div", "Equal",
    "FastGelu", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu",
    "Pow", "QLinearAdd", "QLinearMul", "Sub", "Sum", "Where", "Xor",
}  # fmt: skip
# Operators whose results stand where their first input stands: functions of one element, and norms.
SAME = {
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitwiseNot", "Cast", "Ceil",
    "Celu", "Cos", "Cosh", "CumSum", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "GroupNorm",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN",
    "LRN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization",
    "Mish", "Neg", "Not", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QuantizeLinear", "QuickGelu",
    "RMSNormalization", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign",
    "SimplifiedLayerNormalization", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Trilu",
}  # fmt: skip
REDUCE = {
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
}  # fmt: skip
CARRIERS = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(REDUCE, _reduce),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "QLinearGlobalAveragePool"), _global),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"), _pool),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv"), _convolution((0, 1))),
    **dict.fromkeys(("MatMul", "MatMulInteger", "DynamicQuantizeMatMul"), _matrix_product((0, 1))),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm((0, 1))),
    **dict.fromkeys(("Attention", "MultiHeadAttention"), _attention),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _first_two),
    "QLinearConv": _convolution((0, 3)),
    "QLinearMatMul": _matrix_product((0, 3)),
    "QGemm": _gemm((0, 3)),
    "QLinearConcat": _quantized_concat,
    "Concat": _concat,
    "ConvTranspose": _transposed_convolution,
    "DepthToSpace": _depth_to_space,
    "DynamicQuantizeLinear": _quantized_dynamically,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
