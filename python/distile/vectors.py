"""Parameters as the library reads them: vectors of float32."""

from __future__ import annotations

import torch

from . import weights


def float32_of(layer: torch.nn.Module, *names: str) -> tuple[torch.Tensor | None, ...]:
    """Parameters of a layer, converted once and again when they change, where PyTorch's count of writes says so; the
    library converts others at each call. One that needs gradients stays as it is."""
    return tuple(_converted(layer, name) for name in names)


def _converted(layer, name):
    parameter = getattr(layer, name)
    if parameter is None or parameter.dtype == torch.float32 or not _may_be_kept(parameter):
        return parameter
    kept = layer.__dict__.setdefault(weights.CONVERTED, {})
    source, version, converted = kept.get(name, (None, None, None))
    if source is None or source.data_ptr() != parameter.data_ptr() or version != parameter._version:
        with torch.inference_mode(False):  # Tensors of that mode do not say when they are written.
            converted = parameter.detach().float()
        # Holding the source keeps its memory from being used for another parameter.
        kept[name] = parameter.detach(), parameter._version, converted
    return converted


def _may_be_kept(parameter):
    needs_gradient = parameter.requires_grad and torch.is_grad_enabled()
    known = type(parameter) in (torch.Tensor, torch.nn.Parameter) and not parameter.is_inference()
    return known and not needs_gradient and not torch.compiler.is_compiling() and weights.counts_writes(parameter)
