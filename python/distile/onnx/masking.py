"""The masks of a converted model: its new inputs, and their versions at lower resolutions."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper

from .graph import Graph
from .standard import squeeze, unsqueeze


def size_of(graph: Graph, unit) -> tuple[int, ...]:
    """The extents of the mask of a unit's output, but for the batch."""
    shape = graph.shapes[unit.output]
    return tuple(shape[2:4] if unit.images else shape[1:-1])


def factor_of(whole: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, int] | None:
    """Blocks of so many pixels are one pixel of `size`; None if there are none."""
    if len(whole) != 2 or len(size) != 2 or not all(size):
        return None
    factors = tuple(-(-whole[axis] // size[axis]) for axis in (0, 1))
    return factors if all(-(-whole[axis] // factors[axis]) == size[axis] for axis in (0, 1)) else None


@dataclasses.dataclass
class Source:
    """A mask by its name, at its full size."""

    name: str
    batch: int | str | None
    size: tuple[int, ...]
    is_new: bool


class Masks:
    """Makes masks where they are needed, with the operators of distile or, for a reference, with standard ones."""

    def __init__(self, graph: Graph, emit, reference: bool):
        self.graph, self.emit, self.reference = graph, emit, reference
        self.sources: dict[str, Source] = {}
        self._made: dict[tuple, str] = {}

    def declare(self, name: str, batch, sizes: list[tuple[int, ...]], size: tuple[int, ...] | None) -> None:
        """A mask, existing or new, for units with outputs of these sizes. A new one has the size given, or the largest
        of these."""
        shape = self.graph.shapes.get(name)
        if name in self.graph.types:
            if self.graph.types[name] != TensorProto.BOOL or shape is None or len(shape) > 3:
                raise ValueError(f"the tensor '{name}' is no mask: a mask is of type bool, [N, H, W] or [N, T]")
            self.sources[name] = Source(name, shape[0], tuple(shape[1:]), False)
        else:
            self.sources[name] = Source(name, batch, size or max(sizes, key=lambda one: int(np.prod(one))), True)

    def reason_against(self, name: str, size: tuple[int, ...]) -> str | None:
        """Why a mask does not serve outputs of this size."""
        whole = self.sources[name].size
        if whole == size or (len(size) == 1 and np.prod(whole, dtype=int) == size[0]) or factor_of(whole, size):
            return None
        return f"the mask '{name}' is for {list(whole)}, and its output is {list(size)}"

    def at(self, name: str, size: tuple[int, ...]) -> str:
        """The tensor with a mask for outputs of this size."""
        source = self.sources[name]
        if source.size == size or len(size) == 1:
            return name
        key = name, size
        if key not in self._made:
            factor = factor_of(source.size, size)
            self._made[key] = self._pool_by_max(name, factor) if self.reference else self._pool(name, factor)
            self.graph.add_shape(self._made[key], TensorProto.BOOL, [source.batch, *size])
        return self._made[key]

    def _pool(self, name: str, factor) -> str:
        output = f"distile/{name}/{factor[0]}x{factor[1]}"
        self.emit(helper.make_node("MaskPool", [name], [output], output, domain="distile", factor=list(factor)))
        return output

    def _pool_by_max(self, name: str, factor) -> str:
        base = f"distile/{name}/{factor[0]}x{factor[1]}"
        # Padding in numbers, because the oldest opsets have no ceil_mode.
        over = [factor[axis] * -(-whole // factor[axis]) - whole for axis, whole in enumerate(self.sources[name].size)]
        self.emit(helper.make_node("Cast", [name], [f"{base}/float"], to=TensorProto.FLOAT))
        self.emit(unsqueeze(self.graph, f"{base}/float", 1, f"{base}/image"))
        self.emit(
            helper.make_node("MaxPool", [f"{base}/image"], [f"{base}/pooled"], kernel_shape=list(factor),
                             strides=list(factor), pads=[0, 0, *over])
        )  # fmt: skip
        self.emit(squeeze(self.graph, f"{base}/pooled", 1, f"{base}/plane"))
        self.emit(helper.make_node("Cast", [f"{base}/plane"], [base], to=TensorProto.BOOL))
        return base

    def spread(self, name: str, unit) -> str:
        """For a reference: the mask with a dimension for the channels of a unit's output."""
        shape = self.graph.shapes[unit.output]
        mask = self.at(name, size_of(self.graph, unit))
        output = f"{unit.output}/distile_mask"
        if len(self.sources[name].size) == len(shape) - 2:
            axis = 1 if unit.images else len(shape) - 1
            self.emit(unsqueeze(self.graph, mask, axis, output))
        else:  # The pixels of an image as tokens.
            extents = self.graph.add_constant("distile/as_tokens", np.array([0, -1, 1], np.int64))
            self.emit(helper.make_node("Reshape", [mask, extents], [output]))
        return output

    def new_inputs(self) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(source.name, TensorProto.BOOL, [source.batch, *source.size])
            for source in self.sources.values()
            if source.is_new
        ]
