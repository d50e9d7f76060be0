"""Batch norms in eval mode within the weights of the layers before them: at conversion, and in what is loaded later."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

PARTS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@dataclasses.dataclass(frozen=True)
class Fold:
    """The weights of a layer with a batch norm in them. The names are of state dictionaries."""

    layer: str
    norm: str
    transposed: bool
    eps: float

    def weights(
        self, weight: torch.Tensor, bias: torch.Tensor | None, norm: dict[str, torch.Tensor | None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The weight and the bias that compute the layer and then the norm."""
        factor = torch.rsqrt(norm["running_var"] + self.eps)
        if norm.get("weight") is not None:
            factor = factor * norm["weight"]
        summand = -norm["running_mean"] if bias is None else bias - norm["running_mean"]
        summand = summand * factor
        if norm.get("bias") is not None:
            summand = summand + norm["bias"]
        shape = (1, -1, 1, 1) if self.transposed else (-1, 1, 1, 1)
        return (weight * factor.view(shape)).to(weight.dtype), summand.to(weight.dtype)

    @torch.no_grad()
    def apply(self, layer: nn.Module, norm: nn.Module) -> None:
        """Puts the norm into the layer."""
        values = self.weights(layer.weight, layer.bias, {name: getattr(norm, name, None) for name in PARTS})
        learns = layer.weight.requires_grad
        layer.weight, layer.bias = (nn.Parameter(value, requires_grad=learns) for value in values)


@dataclasses.dataclass(frozen=True)
class FoldOnLoad:
    """A hook before a state dictionary is loaded: one of the model before its conversion has the norm by itself. A layer
    that is shared has several names."""

    fold: Fold
    layers: tuple[str, ...]
    norms: tuple[str, ...]

    @torch.no_grad()
    def __call__(self, module, state, prefix, metadata, strict, missing, unexpected, errors) -> None:
        layers, norms = ([prefix + name for name in names] for names in (self.layers, self.norms))
        norm = {part: state.pop(f"{name}.{part}") for name in norms for part in PARTS if f"{name}.{part}" in state}
        layer = layers[0]
        weight, bias = state.get(f"{layer}.weight"), state.get(f"{layer}.bias")
        if not norm and (weight is None or bias is not None):
            return  # It was saved from the converted model.
        lacks = [f"{layer}.weight"] if weight is None else []
        lacks += [f"{norms[0]}.{part}" for part in ("running_mean", "running_var") if part not in norm]
        if lacks:
            errors.append(
                f"{layer} has the batch norm {norms[0]} in its weights, but {' and '.join(lacks)} is not there: load "
                "both, or load before distile.convert"
            )
            return
        weight, bias = self.fold.weights(weight, bias, norm)
        for name in layers:
            state[f"{name}.weight"], state[f"{name}.bias"] = weight, bias


def fold_on_load(model: nn.Module, fold: Fold) -> None:
    """Lets a converted model load what was saved before."""
    common = 0
    paths = fold.layer.split("."), fold.norm.split(".")
    while paths[0][common] == paths[1][common]:
        common += 1
    owner = model.get_submodule(".".join(paths[0][:common]))
    names = []
    for path in paths:
        module = owner.get_submodule(".".join(path[common:]))
        names.append(tuple(name for name, one in owner.named_modules(remove_duplicate=False) if one is module))
    owner.register_load_state_dict_pre_hook(FoldOnLoad(fold, *names))
