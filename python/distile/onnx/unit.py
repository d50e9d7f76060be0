"""A node with its masked form."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx

from .._facts import FLOAT_TYPES
from ..description import Operator
from .graph import Graph

TYPES = {getattr(onnx.TensorProto, of_onnx): name for name, (_, of_onnx) in FLOAT_TYPES.items()}


class Unsupported(Exception):
    """Why a node has no masked form."""


@dataclasses.dataclass
class Tokens:
    """Tokens [N, T, C] that nodes make of a tensor: of the same shape, or one that `perm` makes [N, T, heads,
    head_dim], whose last two dimensions they join."""

    name: str
    head_dim: int
    perm: list[int] | None = None
    first: int | None = None  # Only this number of them, from the first on.
    repeats: int = 1  # How often each head comes, one after the other.
    width: int | None = None  # Channels of a head, zeros behind its own included.


@dataclasses.dataclass
class Heads:
    """A result of attention that is not its tokens [N, T, heads * width]: the first channels of each head, joined, or
    with `apart`, [N, heads, T, channels]."""

    number: int
    width: int
    channels: int
    apart: bool


@dataclasses.dataclass(eq=False)
class Unit:
    """A node with its masked form. `inputs` are those of the masked operator in its order, without the mask; images
    among them are in NCHW. Vectors of float32 are arrays."""

    op: str
    nodes: list[onnx.NodeProto]
    inputs: list[str | np.ndarray | Tokens | None]
    attributes: dict
    images: bool
    dtype: str
    generator: str | None = None  # With a PolyKernel: its generator and parameters, except epilogue and residual.
    params: dict = dataclasses.field(default_factory=dict)
    key_tokens: int | None = None  # The tokens of attention's keys.
    attended: int | None = None  # How many of its keys, from the first on; None: all.
    before: list[onnx.NodeProto] = dataclasses.field(default_factory=list)  # Nodes before it that it takes in.
    prepared: list[onnx.NodeProto] = dataclasses.field(default_factory=list)  # New ones that make its input.
    activation: str = "none"  # Among its nodes.
    result: Heads | None = None  # Where attention's result goes; None: its tokens.
    zero: np.ndarray | None = None  # With a quantized output: the zero point, which stands for 0.

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]

    @property
    def is_apart(self) -> bool:
        """Whether its output is [N, heads, T, channels]."""
        return self.result is not None and self.result.apart

    @property
    def has_epilogue(self) -> bool:
        """Whether it takes a residual, and values to keep where it is not active."""
        return self.generator is not None and self.generator != "masked_attention"

    @property
    def has_activation(self) -> bool:
        """Whether it takes in an activation behind its nodes, and those with an epilogue a residual."""
        return (self.has_epilogue and self.zero is None) or self.op in ("MaskedGroupNorm", "MaskedBatchNorm")

    def operator(self, activation: str, residual: bool) -> Operator | None:
        """The operator whose PolyKernel it needs; None if it needs none."""
        if not self.generator:
            return None
        end = {"epilogue": activation, "residual": residual} if self.has_epilogue else {}
        return Operator.make(self.generator, dtype=self.dtype, **self.params, **end)


def require(condition, reason: str) -> None:
    if not condition:
        raise Unsupported(reason)


def float32(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.astype(np.float32)


def dtype_of(graph: Graph, name: str) -> str:
    dtype = TYPES.get(graph.types.get(name))
    require(dtype, f"its type is not known, or none of {', '.join(FLOAT_TYPES)}")
    return dtype
