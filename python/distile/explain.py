"""Will my model gain? `python -m distile.explain model.py --masks masks.npy`: a table of its layers."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import pathlib
import sys

import torch
from torch import nn

from . import masks, polykernels
from . import nn as masked
from .building import build
from .conversion import convert
from .report import Row, median_us, table

WEIGHTED = (masked.MaskedConv2d, masked.MaskedConvTranspose2d, masked.MaskedUpsampleConv2d, masked.MaskedLinear)


def _work(layer, output: torch.Tensor) -> int:
    """The multiply-adds of a dense layer."""
    if isinstance(layer, masked.MaskedLinear):
        return output.numel() * layer.in_features
    taps = layer.kernel_size[0] * layer.kernel_size[1] * layer.in_channels // layer.groups
    if isinstance(layer, masked.MaskedConvTranspose2d):
        taps = -(-taps // (layer.stride[0] * layer.stride[1]))
    return output.numel() * taps


@contextlib.contextmanager
def _recorded_calls(model):
    """The inputs and masks with which each masked layer ran."""
    calls: list[tuple[str, nn.Module, tuple, dict, torch.Tensor]] = []
    handles = []
    for name, layer in model.named_modules():
        if isinstance(layer, WEIGHTED):

            def hook(layer, args, keywords, output, name=name):
                calls.append((name, layer, args, keywords, output))

            handles.append(layer.register_forward_hook(hook, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _mask_of(layer, args, keywords, output):
    given = keywords.get("mask", args[1] if len(args) > 1 else None)
    size = output.shape[2:] if output.dim() == 4 and not isinstance(layer, masked.MaskedLinear) else output.shape[1:-1]
    return masks.resolve(given, *size)


@torch.no_grad()
def explain(model: nn.Module, *example, mask: torch.Tensor, seconds: float = 0.2) -> list[Row]:
    """A row for each call of a layer that ran with a mask, for a model of masked layers (distile.convert makes one).

    Times are medians on this machine, of the layer alone: dense is PyTorch's own layer on the same input. Predicted is
    the dense time times the density. A model whose layers take their masks themselves needs no `mask`, but gets one.
    """
    model.eval()
    rows = []
    with masks.mask(mask):
        with _recorded_calls(model) as calls:
            model(*example)
        for name, layer, args, keywords, output in calls:
            active = _mask_of(layer, args, keywords, output)
            if active is None:
                continue
            density = active.float().mean().item()
            with polykernels.recording() as missing:
                layer(*args, **keywords)
            bare = {key: value for key, value in keywords.items() if key not in ("mask", "out", "zero")}
            unmasked = (*args[:1], None, *args[2:])
            with masks.mask(None):
                dense_us = median_us(lambda: layer(*unmasked, **bare), seconds)
            masked_us = median_us(lambda: layer(*args, **keywords), seconds)
            work = _work(layer, output)
            rows.append(
                Row(
                    name or type(layer).__name__,
                    _kind(layer),
                    density,
                    work,
                    work * density,
                    dense_us,
                    masked_us,
                    dense_us * density,
                    bool(missing),
                )
            )
    return rows


def _kind(layer) -> str:
    if isinstance(layer, masked.MaskedLinear):
        return f"linear {layer.in_features}-{layer.out_features}"
    size = "x".join(map(str, layer.kernel_size))
    depthwise = layer.groups == layer.in_channels == layer.out_channels
    stride = "" if layer.stride == (1, 1) else f"/{layer.stride[0]}"
    name = "depthwise" if depthwise else type(layer).__name__.removeprefix("Masked").removesuffix("2d").lower()
    return f"{name} {size}{stride} {layer.in_channels}-{layer.out_channels}"


def unsupported_layers(model: nn.Module) -> list[str]:
    """Leaves of a model with parameters that have no masked form."""
    return [
        f"{name}: {type(layer).__name__}"
        for name, layer in model.named_modules()
        if not list(layer.children())
        and list(layer.parameters(recurse=False))
        and not isinstance(layer, (*WEIGHTED, masked.MaskedLayerNorm, masked.MaskedRMSNorm))
    ]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m distile.explain", description=__doc__)
    parser.add_argument("model", help="a Python file with model() -> nn.Module and example() -> its inputs; or an ONNX "
        "file, with the options of python -m distile.onnx explain")
    parser.add_argument(
        "--masks",
        required=True,
        help="a .npy file of masks, [H, W] or [N, H, W], of the images' size or a "
        "fraction of it; or a density, for a disc of that density",
    )
    parser.add_argument("--build", action="store_true", help="compile missing PolyKernels first")
    parser.add_argument("--seconds", type=float, default=0.2, help="to measure each time (default: %(default)s)")
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument.endswith(".onnx") for argument in arguments):
        from .onnx import explain as of_onnx

        return of_onnx.main(arguments)
    options = parser.parse_args(arguments)
    path = pathlib.Path(options.model)
    if path.suffix != ".py":
        parser.error(f"{options.model} is not a Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    model, example = program.model().eval(), program.example()
    example = example if isinstance(example, tuple) else (example,)
    if not any(isinstance(layer, WEIGHTED) for layer in model.modules()):
        model = convert(model)
    model = model.to(memory_format=torch.channels_last)
    example = tuple(
        tensor.contiguous(memory_format=torch.channels_last)
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 4
        else tensor
        for tensor in example
    )
    mask = _read_masks(options.masks, example[0])
    if options.build:
        for operator in build(model, *example, mask=mask):
            print(f"built {operator}", file=sys.stderr)
    print(table(explain(model, *example, mask=mask, seconds=options.seconds), unsupported_layers(model)))
    return 0


def _read_masks(text: str, example: torch.Tensor) -> torch.Tensor:
    batch = example.shape[0]
    try:
        density = float(text)
    except ValueError:
        import numpy

        found = torch.from_numpy(numpy.load(text) != 0)
        found = found[None] if found.dim() == 2 else found
        return found[:1].expand(batch, -1, -1).contiguous() if found.shape[0] < batch else found[:batch]
    if example.dim() == 3:
        return torch.rand(example.shape[:2], generator=torch.Generator().manual_seed(1)) < density
    y, x = (torch.arange(extent) / extent - 0.5 + 0.5 / extent for extent in example.shape[2:])
    distance = y[:, None] ** 2 + x[None, :] ** 2
    return (distance <= distance.flatten().quantile(density)).expand(batch, -1, -1).contiguous()


if __name__ == "__main__":
    sys.exit(main())
