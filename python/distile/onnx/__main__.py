"""Masked operators in ONNX models: `python -m distile.onnx convert model.onnx --rules '/layer*=mask'`."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

from ..mistakes import told
from ..rules import read_rules
from ..weight_zeros import remark
from . import building, explain, weights
from .conversion import Left, Replaced, convert
from .stages import gather


def add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=pathlib.Path, help="the ONNX file")
    parser.add_argument(
        "--rules",
        nargs="+",
        default=["*=mask"],
        metavar="PATTERN=MASK",
        help="the mask of nodes whose names match a pattern with *, ? and []; the first rule that matches decides. "
        "PATTERN= leaves them as they are, and PATTERN=MASK,KEYS gives attention a mask of its keys. Where the model "
        "does not show where outputs are over the image, @GRID behind says it: ROWSxCOLUMNS, or for tokens "
        "BEFORE+ROWSxCOLUMNS+AFTER. Or JSON files with a list of such rules (default: %(default)s)",
    )
    parser.add_argument(
        "--mask-size",
        nargs="+",
        default=[],
        metavar="MASK=H,W",
        help="the size of a new mask, or MASK=T for tokens (default: that of the largest output that it is for)",
    )
    parser.add_argument(
        "--image",
        nargs="+",
        default=None,
        metavar="NAME",
        help="the inputs that are the image which masks are for (default: those of rank 4, or else of rank 3)",
    )


def read_sizes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    wrong = next((text for text in texts if not re.fullmatch(r"[^=]+=\d+(,\d+)?", text)), None)
    if wrong is not None:
        raise ValueError(f"--mask-size {wrong} is neither MASK=H,W nor MASK=T")
    pairs = [text.rpartition("=") for text in texts]
    return {name: tuple(int(extent) for extent in extents.split(",")) for name, _, extents in pairs}


def table(report: list[Replaced | Left], device: str = "cpu") -> str:
    """What was replaced, and what was left and why."""
    lacking, wanted = building.missing(report, device), building.to_build(report, device)
    lines = [("node", "operator", "mask", "size", "place", "")]
    for row in report:
        if isinstance(row, Replaced):
            more = "; ".join(_remarks(row, device, lacking, wanted))
            lines.append((row.name, row.op, row.mask, "x".join(map(str, row.size)), str(row.mapping), more))
        else:
            lines.append((row.name, row.op, "-", "", "left: " + row.reason))
    widths = [max(len(line[column]) for line in lines if len(line) > 5) for column in range(5)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, [*widths, 0])).rstrip() for line in lines)


def _remarks(row: Replaced, device: str, lacking: dict, wanted: dict):
    taken = [node.op_type for node in row.nodes if (node.name or node.output[0]) != row.name]
    if taken:
        yield "with " + ", ".join(taken)
    operator = row.operator and row.operator.on(device)
    is_missing = operator in lacking
    if row.zeros:
        yield remark(operator, row.typical, "default", not is_missing and operator.built_for(row.typical) in wanted)
    if is_missing:
        yield "no PolyKernel: " + ("code for any shape" if operator.has_general_code else "dense, and then the mask")


def run_convert(options) -> int:
    folder, model, rules = options.model.parent, weights.load(options.model), read_rules(options.rules)
    more = dict(mask_sizes=read_sizes(options.mask_size), images=options.image, folder=folder)
    converted, report = convert(model, rules, reference=options.reference, **more)
    output = options.output or options.model.with_suffix(".masked.onnx")
    if options.build and not options.reference:
        building.build(report, progress=lambda line: print(line, flush=True), device=options.device)
    lacking = {} if options.reference else building.running_dense(report, options.device)
    if lacking:
        converted, report = convert(model, rules, dense=lacking, **more)
    stages = gather(converted, folder) if options.stages and not options.reference else []
    weights.save(converted, output, folder)
    print(table(report, options.device))
    for one in stages:
        print(f"stage of {len(one.nodes)} nodes, {one.nodes[0]} to {one.nodes[-1]}; ends: {one.ends}")
    replaced = sum(isinstance(row, Replaced) for row in report)
    print(f"\n{output}: {replaced} nodes replaced, {len(report) - replaced} left")
    return 0


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m distile.onnx", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("convert", help="replace marked nodes by masked operators, and write the model")
    add_rules(command)
    command.add_argument("-o", "--output", type=pathlib.Path, help="default: MODEL.masked.onnx")
    command.add_argument("--build", action="store_true", help="compile PolyKernels that are missing")
    command.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="whose PolyKernels count (default: %(default)s)"
    )
    command.add_argument(
        "--reference",
        action="store_true",
        help="write the model with the same result in standard operators: dense, and then the masks",
    )
    command.add_argument(
        "--stages", action="store_true", help="let chains of convolutions run as one node each, which only CPUs have"
    )
    command.set_defaults(run=run_convert)
    command = commands.add_parser("explain", help="would the model gain? A table of its layers")
    add_rules(command)
    explain.add_arguments(command)
    command.set_defaults(run=explain.run)
    options = parser.parse_args(arguments)
    with told(parser):
        return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
