"""Affine steps as units of their own: behind an activation, and what the next layer takes in of them."""

from __future__ import annotations

import dataclasses

import numpy as np

from .affine import Affine, affine_after
from .graph import Graph
from .patterns import activation_of
from .unit import Unit, dtype_of


def affine_unit(graph: Graph, affine: Affine, source: str, images: bool) -> Unit:
    """Affine steps on a tensor, as the batch norm that they are."""
    zeros, ones = np.zeros(affine.factor.size, np.float32), np.ones(affine.factor.size, np.float32)
    vectors = [affine.factor.astype(np.float32), affine.summand.astype(np.float32), zeros, ones]
    dtype = dtype_of(graph, affine.output)
    return Unit("MaskedBatchNorm", affine.nodes, [source, *vectors], {"epsilon": 0.0}, images, dtype)


def steps_behind(graph: Graph, unit: Unit) -> Unit | None:
    """The affine steps behind the activation of a unit, which are masked with it."""
    activation = activation_of(graph, unit.output) if unit.has_activation else None
    if activation is None:
        return None
    affine = affine_after(graph, activation.output, 1 if unit.images else -1, norms=False)
    return affine_unit(graph, affine, activation.output, unit.images) if affine.nodes else None


def reads_pixel_by_pixel(unit: Unit) -> bool:
    """Whether a unit is a layer whose outputs each read the one input at their place, with real weights."""
    if unit.op == "MaskedLinear":
        return True
    window = [unit.attributes.get(name) for name in ("kernel_shape", "strides", "pads")]
    return unit.op == "MaskedConv" and window == [[1, 1], [1, 1], [0, 0, 0, 0]]


def with_steps_before(graph: Graph, unit: Unit, steps: Unit) -> Unit | None:
    """A layer that reads pixel by pixel, with the affine steps that make its input; None if its type cannot hold the
    weights."""
    factor, summand = (vector.astype(np.float64) for vector in steps.inputs[1:3])
    given, bias = unit.inputs[1:3]
    filter = graph.constant(given) if isinstance(given, str) else given
    inner, outer = channel_places(unit, filter.ndim)
    groups = unit.attributes.get("group", 1)
    of_groups = factor.reshape(groups, -1), summand.reshape(groups, -1)
    matrix = np.moveaxis(filter, (outer, inner), (0, 1)).astype(np.float64).reshape(filter.shape[outer], -1)
    scales, shifts = (part.repeat(matrix.shape[0] // groups, 0) for part in of_groups)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (matrix * scales).astype(filter.dtype)
    if not np.isfinite(scaled.astype(np.float32)).all():
        return None
    moved = (matrix * shifts).sum(1) + (0 if bias is None else bias.astype(np.float64))
    shape = np.moveaxis(filter, (outer, inner), (0, 1)).shape
    weights = np.ascontiguousarray(np.moveaxis(scaled.reshape(shape), (0, 1), (outer, inner)))
    inputs = [steps.inputs[0], weights, moved.astype(np.float32)]
    return dataclasses.replace(unit, inputs=inputs, before=[*steps.nodes, *unit.before])


def channel_places(unit: Unit, rank: int) -> tuple[int, int]:
    """The dimensions of the input and of the output channels in a layer's weights."""
    return (1, 0) if rank == 4 or unit.attributes.get("transB") else (0, 1)
