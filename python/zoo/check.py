"""Checks one architecture: converted without a mask, with a full one and with blobs, against the dense model."""

from __future__ import annotations

import collections
import copy
import json
import sys
import time
import traceback

import torch
from torch import nn
from torch.utils import _pytree as pytree

import architectures
import distile
import places
from distile.conversion import Left, Replaced
from masks import blobs
from reference import Masking
from results import BOUND

BATCH = 2


def settled(model: nn.Module) -> nn.Module:
    """The model in eval mode, with parameters and statistics that all change something: constants, as a layer's scale
    of 0, would hide a difference."""
    for parameter in model.parameters():
        if (parameter == parameter.flatten()[0]).all():
            parameter.normal_(0, 0.1) if parameter.flatten()[0] == 0 else parameter.uniform_(0.5, 1)
    for layer in model.modules():
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    return model.eval()


def tensors_of(result) -> list[torch.Tensor]:
    """The tensors of numbers in a result."""
    if not isinstance(result, (torch.Tensor, list, tuple, dict)):  # As a dataclass of timm's.
        result = vars(result)
    return [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def error(result, expected) -> float:
    """The largest difference, over the largest value."""
    pairs = list(zip(tensors_of(result), tensors_of(expected), strict=True))
    if any(one.shape != other.shape for one, other in pairs):
        return float("inf")
    pairs = [(one, other) for one, other in pairs if one.numel()]
    shares = [(one - other).abs().max() / other.abs().max().clamp(min=1e-30) for one, other in pairs]
    return max(map(float, shares), default=0)


def first_difference(model, converted, rows, mask, found, inputs) -> str:
    """The first replaced layer, in the order of calls, whose output is another than the reference's."""
    outputs: list[list] = [[], []]

    def record(into, name):
        return lambda _, __, output: into.append((name, (output[0] if isinstance(output, tuple) else output).clone()))

    Masking(model, rows, found, mask)
    for row in rows:
        model.get_submodule([row.name, *row.taken][-1]).register_forward_hook(record(outputs[0], row.name))
        converted.get_submodule([row.name, *row.taken][-1]).register_forward_hook(record(outputs[1], row.name))
    model(*inputs)
    with distile.mask(mask):
        converted(*inputs)
    for (name, expected), (other, given) in zip(*outputs):
        if name != other or expected.shape != given.shape or not error(given, expected) < BOUND:
            row = next(row for row in rows if row.name == name)
            return f"{name} ({row.masked}; {getattr(row, 'mapping', '')})"
    return "no layer"


def coordinates(architecture: architectures.Architecture) -> tuple:
    """The inputs of an architecture that show where the outputs of its layers lie."""
    return architecture.inputs(places.images(*architecture.size))


@torch.no_grad()
def check(name: str) -> dict:
    """What became of an architecture. `fault` says where it failed, if it did."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    architecture = architectures.NAMED[name]
    result: dict = {"architecture": name, "size": list(architecture.size)}
    begin, stage = time.perf_counter(), "make"
    try:
        model = settled(architecture.make())
        inputs = architecture.inputs(torch.randn(BATCH, 3, *architecture.size))
        stage = "dense"
        dense = model(*inputs)
        stage, report = "convert", []
        converted = distile.convert(copy.deepcopy(model), example=inputs, report=report)
        rows = [row for row in report if isinstance(row, Replaced)]
        result |= {"replaced": len(rows), "left": reasons(report)}
        stage = "without a mask"
        result["without"] = error(converted(*inputs), dense)
        stage = "full mask"
        with distile.mask(torch.ones(BATCH, *architecture.size, dtype=torch.bool)):
            result["full"] = error(converted(*inputs), dense)
        stage, mask = "blobs", torch.from_numpy(blobs(architecture.size, batch=BATCH))
        with distile.mask(mask):
            given = converted(*inputs)
        stage = "places"
        found = places.find(model, [row.name for row in rows], coordinates(architecture)) if rows else {}
        stage, reference = "reference", copy.deepcopy(model)
        Masking(reference, rows, found, mask)
        expected = reference(*inputs)
        result |= {"blobs": error(given, expected), "changed": error(expected, dense)}
        if not result["blobs"] < BOUND:
            stage = "difference"
            result["differs"] = first_difference(model, converted, rows, mask, found, inputs)
    except Exception as failure:
        result["fault"] = f"{stage}: {type(failure).__name__}: {str(failure).strip()[:300]}"
        traceback.print_exc()
    result["seconds"] = round(time.perf_counter() - begin, 1)
    return result


def reasons(report) -> dict[str, int]:
    return dict(collections.Counter(row.reason for row in report if isinstance(row, Left)).most_common())


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
