"""The weights of modules: in which type they are stored, and when the library packs them again."""

from __future__ import annotations

import torch

from ._library import ops
from .operators import NARROW_TYPES

TYPES = [torch.float32, *NARROW_TYPES]
CONVERTED = "_float32"  # Where vectors.py keeps its copies in a module.
CHECKS = ("contents", "version")

_check = CHECKS[0]


def set_weights_check(check: str) -> str:
    """How later calls of all threads find out that the weights of a module were written, and must be packed again.

    "contents": on a CPU, each call reads them, which finds every write. "version": by PyTorch's count of writes, which
    costs nothing, but misses those through `.data`, a view of NumPy or a pointer. On a GPU it is always the latter; after
    other writes, call distile.forget(). Returns what it was before.
    """
    global _check
    if check not in CHECKS:
        raise ValueError(f"there is no check {check!r}; there are {', '.join(CHECKS)}")
    ops._check_contents(check == "contents")
    before, _check = _check, check
    return before


def counts_writes(parameter: torch.Tensor) -> bool:
    """Whether PyTorch's count alone says that a parameter was written."""
    return _check == "version" or parameter.is_cuda


@torch.no_grad()
def cast_weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, float]:
    """Stores the weights of a converted model's masked convolutions and linear layers in another type, float32, float16 or
    bfloat16, but not their biases. Inputs, sums and results keep theirs: where those are float32, packed weights take half
    of the bytes, if distile.build has compiled PolyKernels for them (docs/python.md).

    Returns the largest error of each layer's weights by its name, as a share of its largest weight. A layer whose
    weights are parametrized stays as it is. Raises ValueError for another type, and for weights that do not fit into
    it, before anything is changed."""
    if dtype not in TYPES:
        raise ValueError(f"weights are stored in {', '.join(map(str, TYPES))}, not {dtype}")
    layers = {name: layer for name, layer in model.named_modules() if _stores_weight(layer)}
    errors = {}
    for name, layer in layers.items():
        weight = layer.weight.float()
        if weight.isfinite().all() and not weight.to(dtype).isfinite().all():
            raise ValueError(f"the weights of {name or 'the layer'} are too large for {dtype}")
        errors[name] = float((weight.to(dtype).float() - weight).abs().max() / weight.abs().max().clamp(min=1e-38))
    # Layers may share one parameter. The old ones live until all are cast: their addresses tell them apart.
    old = {id(layer.weight): layer.weight for layer in layers.values()}
    cast = {key: torch.nn.Parameter(weight.to(dtype), weight.requires_grad) for key, weight in old.items()}
    for layer in layers.values():
        layer.weight = cast[id(layer.weight)]
    return errors


def _stores_weight(layer: torch.nn.Module) -> bool:
    return hasattr(layer, "_place") and layer._parameters.get("weight") is not None


def forget(model: torch.nn.Module) -> None:
    """Frees the packed weights of a model's modules, and what was converted of others. Their next calls do that again."""
    for module in model.modules():
        module.__dict__.pop(CONVERTED, None)
        if hasattr(module, "_place"):
            ops._free_weights(module._place.number)
