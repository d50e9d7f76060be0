"""Will my model gain? `python -m distile.explain model.py --masks masks.npy`: a table of its layers."""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import importlib.util
import inspect
import json
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from . import masks, numerics, polykernels
from . import nn as masked
from .building import build
from .conversion import Left, convert, trace
from .mappings import Said, tokens
from .mistakes import check_device, density_of, told
from .nn_base import Masked
from .operators import Operator
from .own_weights import OwnWeightCalls
from .page import Found, Whole, page
from .pictures import levels
from .report import Row, median_us, table
from .rules import Rule, read_rules
from .stage_fusing import find_stages
from .stage_steps import Fused, NotFused
from .weight_zeros import remark

EXAMPLE = """For instance:
  import torch, torchvision

  def model():
      return torchvision.models.resnet50()

  def example():
      return torch.randn(1, 3, 224, 224)
"""
CONVOLUTIONS = (masked.MaskedConv2d, masked.MaskedConvTranspose2d, masked.MaskedUpsampleConv2d)
ATTENTION = (masked.MaskedAttention, masked.MaskedMultiheadAttention)


@dataclasses.dataclass
class Call:
    """A call of a masked layer, by the names of its arguments."""

    name: str
    layer: nn.Module
    arguments: inspect.BoundArguments
    output: torch.Tensor

    def run(self) -> torch.Tensor:
        return self.layer(*self.arguments.args, **self.arguments.kwargs)

    def without_mask(self) -> Call:
        """This call of the dense layer. Its context must be without a mask."""
        return self._with({"mask": None, "key_mask": None, "out": None, "zero": False})

    def with_full_mask(self) -> Call:
        """This call with all pixels active, in a context of such masks."""
        given = {name: self.arguments.arguments.get(name) for name in ("mask", "key_mask")}
        return self._with({name: _full(value) for name, value in given.items()})

    def _with(self, values: dict) -> Call:
        arguments = copy.copy(self.arguments)
        arguments.arguments = {name: values.get(name, value) for name, value in self.arguments.arguments.items()}
        return dataclasses.replace(self, arguments=arguments)


def _full(mask):
    """Masks as distile.mask takes them, with all pixels active."""
    if isinstance(mask, dict):
        return {name: _full(one) for name, one in mask.items()}
    if isinstance(mask, masks.SharedMask):
        return masks.SharedMask(
            _full(mask.mask), stride=mask.grid.stride, offset=mask.grid.offset, windows=mask.windows
        )
    return mask if mask is None else torch.ones_like(mask, dtype=torch.bool)


@contextlib.contextmanager
def _recorded_calls(model: nn.Module) -> Iterator[list[Call]]:
    """The calls of masked layers, without those that are parts of others."""
    calls: list[Call] = []
    handles = []
    for name, layer in _masked_layers(model):

        def hook(layer, args, keywords, output, name=name):
            arguments = inspect.signature(layer.forward).bind(*args, **keywords)
            calls.append(Call(name or type(layer).__name__, layer, arguments, output))

        handles.append(layer.register_forward_hook(hook, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _masked_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Masked)]
    parts = {part for _, layer in found for part in layer.modules() if part is not layer}
    return [(name, layer) for name, layer in found if layer not in parts]


def _work(call: Call, active: torch.Tensor) -> tuple[int, float]:
    """The multiply-adds of the dense layer and of the masked one: those of products by weights, and of attention."""
    layer, density = call.layer, active.float().mean().item()
    if isinstance(layer, ATTENTION):
        batch, tokens, channels = call.arguments.args[0].shape
        keys = call.arguments.arguments.get("key_mask")
        keys = active if keys is None else masks.as_mask(keys)
        pairs = (active.sum(1) * keys.bool().sum(1)).sum().item()
        projected = 4 * batch * tokens * channels**2
        return projected + 2 * batch * tokens**2 * channels, projected * density + 2 * pairs * channels
    if isinstance(layer, masked.MaskedLinear):
        work = call.output.numel() * layer.in_features
    elif isinstance(layer, CONVOLUTIONS):
        taps = layer.kernel_size[0] * layer.kernel_size[1] * layer.in_channels // layer.groups
        if isinstance(layer, masked.MaskedConvTranspose2d):
            taps = -(-taps // (layer.stride[0] * layer.stride[1]))
        work = call.output.numel() * taps
    else:
        work = 0
    return work, work * density


def _kind(layer: nn.Module) -> str:
    name = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(layer).__name__.removeprefix("Masked").removesuffix("2d")).lower()
    if isinstance(layer, masked.MaskedLinear):
        return f"linear {layer.in_features}-{layer.out_features}"
    if isinstance(layer, ATTENTION):
        channels = layer.proj.in_features if isinstance(layer, masked.MaskedAttention) else layer.embed_dim
        return f"attention {layer.num_heads}x{channels // layer.num_heads}"
    if isinstance(layer, CONVOLUTIONS):
        name = "depthwise" if layer.groups == layer.in_channels == layer.out_channels else name
        return f"{name} {_window(layer)} {layer.in_channels}-{layer.out_channels}"
    return f"{name} {_window(layer)}" if hasattr(layer, "kernel_size") else name


def _window(layer: nn.Module) -> str:
    kernel, stride = (
        (value, value) if isinstance(value, int) else tuple(value) for value in (layer.kernel_size, layer.stride)
    )
    return "x".join(map(str, kernel)) + ("" if stride == (1, 1) else f"/{stride[0]}")


def _time(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The median time of a call in microseconds; on a GPU, until its work is done."""
    if device.type != "cuda":
        return median_us(run, seconds)

    def run_and_wait():
        run()
        torch.cuda.synchronize(device)

    return median_us(run_and_wait, seconds)


@torch.no_grad()
def explain(
    model: nn.Module,
    *example,
    mask,
    seconds: float = 0.2,
    dense: nn.Module | None = None,
    full: bool = False,
    html: str | pathlib.Path | None = None,
) -> tuple[list[Row], Whole | None]:
    """A row for each call of a layer that ran with a mask, and the times of the whole model, dense and masked, in
    microseconds. The model is of masked layers (distile.convert makes one); `mask` is as distile.mask takes it.

    Times are medians on this machine. Those of a layer are of it alone: dense is PyTorch's own layer on the same input.
    Predicted is the dense time times the share of the work that is left. For the whole, `dense` is the model before its
    conversion, or else the same model without a mask; None if its layers take their masks themselves. With `full`, all
    are measured with all pixels active, too, which shows the density at which each breaks even. `html` is the file of a
    page with all of it, and pictures of the masks.
    """
    model.eval()
    full = full or html is not None
    rows, own = [], False
    device = next((tensor.device for tensor in example if isinstance(tensor, torch.Tensor)), torch.device("cpu"))
    with masks.mask(mask):
        model(*example)  # A model that was converted without an example runs twice in its first call.
        with _recorded_calls(model) as calls:
            model(*example)
        for call in calls:
            with polykernels.recording() as missing, masks.resolving() as resolved, OwnWeightCalls() as own_weights:
                call.run()
            if not resolved or resolved[0] is None:
                continue
            own = own or call.arguments.arguments.get("mask") is not None
            row = _measure(call, resolved[0].bool(), device, seconds)
            dense_ones = [operator for operator in missing if not operator.has_general_code]
            row.runs_dense, row.why_dense = bool(dense_ones), _why_dense(dense_ones)
            row.zeros = _zeros(own_weights)
            row.leave_out(_skipped(own_weights))
            if full:
                with masks.mask(_full(mask)):
                    row.full_us = _time(call.with_full_mask().run, device, seconds)
            rows.append(row)
    whole = None if own and dense is None else _whole(model, example, mask, device, seconds, dense or model, full)
    if html is not None:
        change = "with distile.mask(mask):\n    y = model(x)"
        write_page(html, Found(type(model).__name__, _where(device), rows, whole, unsupported_layers(model), change))
    return rows, whole


def _measure(call: Call, active: torch.Tensor, device: torch.device, seconds: float) -> Row:
    with masks.mask(None):
        dense_us = _time(call.without_mask().run, device, seconds)
    masked_us = _time(call.run, device, seconds)
    density, (dense_work, work) = active.float().mean().item(), _work(call, active)
    predicted_us = dense_us * (work / dense_work if dense_work else density)
    row = Row(call.name, _kind(call.layer), density, dense_work, work, dense_us, masked_us, predicted_us, False)
    row.picture = levels(active.tolist())
    return row


def _why_dense(missing: Iterable[Operator]) -> str:
    known = polykernels.still_dense()
    return "; ".join(dict.fromkeys(known.get(operator, "no PolyKernel") for operator in missing))


def _zeros(calls: OwnWeightCalls) -> str:
    """What becomes of the zeros in the weights of calls."""
    pruned = {**calls.found, **calls.multiplied}.items()
    texts = [remark(one.plain, typical, numerics.math(), not polykernels.is_built(one)) for one, typical in pruned]
    return "; ".join(filter(None, dict.fromkeys(texts)))


def _skipped(calls: OwnWeightCalls) -> float:
    """The share of a layer's weights that its PolyKernel skips. None is counted of layers that multiply by several."""
    (one, typical), *others = {**calls.found, **calls.multiplied}.items() or [(None, {})]
    skips = one is not None and one.skips_zeros and polykernels.is_built(one)
    return typical["weight_zeros"] if skips and not others else 0.0


def _whole(model, example, mask, device, seconds: float, dense: nn.Module, full: bool) -> Whole:
    def time(module: nn.Module, mask) -> float:
        def run():
            with masks.mask(mask):
                module(*example)

        return _time(run, device, seconds)

    return Whole(time(dense, None), time(model, mask), time(model, _full(mask)) if full else None)


def _where(device: torch.device) -> str:
    if device.type == "cuda":
        return f"on {torch.cuda.get_device_name(device)}, with the wait for it"
    return f"on this CPU, with torch.get_num_threads() = {torch.get_num_threads()}"


def write_page(path: str | pathlib.Path, found: Found) -> None:
    if any(row.runs_dense for row in found.rows):
        note = "# Compiles what the layers lack that run dense, beside the program."
        found = dataclasses.replace(found, change=f'{found.change}\n\ndistile.set_build("background")  {note}')
    pathlib.Path(path).write_text(page(found), encoding="utf-8")


def unsupported_layers(model: nn.Module) -> list[str]:
    """The layers of a model with parameters that are not masked."""
    inside = {part for _, layer in _masked_layers(model) for part in layer.modules()}
    inside |= {
        part
        for layer in model.modules()
        if isinstance(layer, nn.MultiheadAttention)
        for part in layer.modules()
        if part is not layer
    }
    return [
        f"{name}: {type(layer).__name__}"
        for name, layer in model.named_modules()
        if layer not in inside
        and (not list(layer.children()) or isinstance(layer, nn.MultiheadAttention))
        and list(layer.parameters(recurse=False))
    ]


def _conversion_rules(texts: list[str]) -> list[tuple[str, object]]:
    """Rules for distile.convert, which gives attention no mask of its keys."""
    rules = read_rules(texts)
    for rule in rules:
        if rule.keys:
            raise ValueError(f"the rule for {rule.pattern!r} names a mask of keys, which only ONNX models have")
    return [(rule.pattern, _how(rule)) for rule in rules]


def _how(rule: Rule) -> str | bool | Said:
    if rule.mask is None or rule.grid is None:
        return rule.mask or False
    grid = rule.grid
    return tokens(rule.mask, grid=(grid.rows, grid.columns), before=grid.before, after=grid.after, stride=grid.stride)


def main(arguments=None) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    about = dict(description=__doc__, epilog=f"model.py has two functions. {EXAMPLE}", formatter_class=layout)
    parser = argparse.ArgumentParser("python -m distile explain", **about)
    parser.add_argument("model", help="a Python file with model() -> nn.Module and example() -> its inputs; or an ONNX "
        "file, with the options of python -m distile.onnx explain")  # fmt: skip
    parser.add_argument(
        "--masks",
        nargs="+",
        required=True,
        metavar="[MASK=]VALUE",
        help="a .npy file of masks, [H, W] or [N, H, W], of the images' size or a fraction of it, or of tokens, [T] or "
        "[N, T], with floating point active above .5; or a density, for a disc or random tokens of that density; for all "
        "masks, or for one by its name",
    )
    parser.add_argument(
        "--rules",
        nargs="+",
        metavar="PATTERN=MASK",
        help="the mask of layers whose names match a pattern with *, ? and []; the first rule that matches decides. "
        "PATTERN= leaves them as they are. Or JSON files with a list of such rules (default: *=mask)",
    )
    parser.add_argument("--device", default="cpu", help="where to run: cpu, or cuda (default: %(default)s)")
    parser.add_argument("--build", action="store_true", help="compile missing PolyKernels first")
    parser.add_argument("--seconds", type=float, default=0.2, help="to measure each time (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write what was found into a file, too")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write it as a page with pictures, too")
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument.endswith(".onnx") for argument in arguments):
        from .onnx import explain as of_onnx

        return of_onnx.main(arguments)
    options = parser.parse_args(arguments)
    path = pathlib.Path(options.model)
    with told(parser):
        check_device(options.device)
        if path.suffix != ".py" or not path.is_file():
            raise ValueError(f"there is no Python file {path}")
    program = _program(path)
    lacking = [f"{name}()" for name in ("model", "example") if not callable(getattr(program, name, None))]
    with told(parser):
        if lacking:
            raise ValueError(f"{path} has no {' and no '.join(lacking)}. {EXAMPLE}")
    model, example = program.model().eval(), program.example()
    example = example if isinstance(example, tuple) else (example,)
    dense, report = None, []
    with told(parser):
        if not _masked_layers(model):
            dense = copy.deepcopy(model)
            model = convert(model, _conversion_rules(options.rules or ["*=mask"]), report=report, example=example)
        elif options.rules:
            raise ValueError(f"{options.model} has masked layers already, and --rules is for a model without")
        else:
            trace(model, example)
        mask = _masks(model, options.masks, example[0])
    place = dict(device=options.device, memory_format=torch.channels_last)
    model, dense = model.to(**place), dense and dense.to(**place)
    example = tuple(_placed(value, options.device) for value in example)
    mask = {name: one.to(options.device) for name, one in mask.items()}
    if options.build:
        with told(parser):
            built = build(model, *example, mask=mask)
        for operator in built:
            print(f"built {operator}", file=sys.stderr)
    full = options.html is not None
    rows, whole = explain(model, *example, mask=mask, seconds=options.seconds, dense=dense, full=full)
    left = [f"{row.name}: {row.type}: {row.reason}" for row in report if isinstance(row, Left)]
    left = left if dense else unsupported_layers(model)
    seen = {row.name for row in rows}
    without = [(name or type(layer).__name__, layer) for name, layer in _masked_layers(model)]
    left += [f"{name}: {_kind(layer)}: it ran without a mask" for name, layer in without if name not in seen]
    print(table(rows, left))
    stages = find_stages(model, example)
    if any(isinstance(row, Fused) for row in stages):
        print(stage_table(stages))
    if whole:
        print(f"\nwhole model: dense {whole[0]:.0f} us, masked {whole[1]:.0f} us, gain {whole[0] / whole[1]:.2f}")
    if options.html:
        where, change = _where(torch.device(options.device)), _change(dense is not None, options.rules, list(mask))
        write_page(options.html, Found(path.stem, where, rows, whole, left, change))
    if options.json:
        found = {"layers": [row.described() for row in rows], "dense": left, "stages": list(map(_described, stages))}
        if whole:
            found["whole"] = whole._asdict()
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _described(row: Fused | NotFused) -> dict:
    return dataclasses.asdict(row)


def stage_table(rows: Iterable[Fused | NotFused]) -> str:
    """The stages that distile.fuse finds, why each ends, and why other masked layers are in none, as text."""
    lines = ["", "distile.fuse(model, example) runs these as stages:"]
    for row in rows:
        if isinstance(row, Fused):
            lines.append(f"  {row.layers[0]} to {row.layers[-1]}: {len(row.layers)} layers, {row.steps} steps; ends: {row.ends}")
    alone = [f"  {row.name}: {row.reason}" for row in rows if isinstance(row, NotFused)]
    return "\n".join(lines + (["These layers are in no stage:", *alone] if alone else []))


def _program(path: pathlib.Path) -> types.ModuleType:
    """The user's file, run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def _change(converted: bool, rules: list[str] | None, names: list[str]) -> str:
    """The lines of code that make a model masked."""
    how = f" {_conversion_rules(rules)!r}," if rules else ""
    mask = "mask" if names in (["mask"], []) else "{" + ", ".join(f"{name!r}: ..." for name in names) + "}"
    lines = [f"model = distile.convert(model.eval(),{how} example=x)"] if converted else []
    lines += [f"with distile.mask({mask}):  # bool, where the result is needed", "    y = model(x)"]
    return "\n".join(lines)


def _placed(value, device: str):
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, memory_format=torch.channels_last if value.dim() == 4 else torch.preserve_format)


def _masks(model: nn.Module, texts: list[str], example: torch.Tensor) -> dict[str, masks.SharedMask]:
    """The masks that a model's layers take, by their names."""
    values = {name: value for name, _, value in (text.rpartition("=") for text in texts)}
    names = dict.fromkeys(layer.mask_name for _, layer in _masked_layers(model))
    unknown = [name for name in values if name and name not in names]
    if unknown:
        raise ValueError(f"--masks names {', '.join(unknown)}, but the masks of the layers are {', '.join(names)}")
    lacking = [name for name in names if name not in values and "" not in values]
    if lacking:
        raise ValueError(f"--masks says nothing about the masks {', '.join(lacking)}")
    return {name: _read_masks(values.get(name, values.get("")), example) for name in names}


def _read_masks(text: str, example: torch.Tensor) -> masks.SharedMask:
    """Masks from a file or of a density, for the image of an example."""
    found = _masks_of(text, example)
    size = example.shape[2:] if example.dim() == 4 else example.shape[1:2]
    if any(whole % part for whole, part in zip(size, found.shape[1:])):
        raise ValueError(f"the masks in {text} are for {list(found.shape[1:])}, which does not divide {list(size)}")
    if example.dim() != 4:
        return masks.SharedMask(found)
    return masks.SharedMask(found, stride=tuple(whole // part for whole, part in zip(size, found.shape[1:])))


def _masks_of(text: str, example: torch.Tensor) -> torch.Tensor:
    batch, images = example.shape[0], example.dim() == 4
    density = density_of(text)
    if density is None:
        import numpy

        values = numpy.load(text)
        if numpy.isnan(values).any():
            raise ValueError(f"{text} holds values that are no numbers")
        found = torch.from_numpy(values > 0.5 if numpy.issubdtype(values.dtype, numpy.floating) else values != 0)
        found = found[None] if found.dim() == (2 if images else 1) else found
        if found.dim() != (3 if images else 2):
            wanted = "[H, W] or [N, H, W]" if images else "[T] or [N, T]"
            raise ValueError(f"{text} holds {list(found.shape)}, but masks are {wanted}")
        return (found[:1].expand(batch, *found.shape[1:]) if len(found) < batch else found[:batch]).contiguous()
    if not images:
        return torch.rand(example.shape[:2], generator=torch.Generator().manual_seed(1)) < density
    y, x = (torch.arange(extent) / extent - 0.5 + 0.5 / extent for extent in example.shape[2:])
    distance = y[:, None] ** 2 + x[None, :] ** 2
    return (distance <= distance.flatten().quantile(density)).expand(batch, -1, -1).contiguous()


if __name__ == "__main__":
    sys.exit(main())
