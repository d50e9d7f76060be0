"""What is there, what it gains on this machine, and what to do next: `python -m distile`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import sys

from . import pictures
from .mistakes import check_device, told
from .overview import WITHOUT_COMPILER, overview
from .overview import text as overview_text

EXAMPLES = """examples:
  python -m distile                                    what is there, and times of one layer, dense and masked
  python -m distile --picture mask.png                 also a picture of the mask, as a file
  python -m distile --json                             the same for programs
  python -m distile explain model.py --masks .3        would this model gain, with 3 of 10 pixels active?
  python -m distile explain model.onnx --masks masks.npy --html page.html
  python -m distile convert model.onnx --build         masked operators in an ONNX model (python -m distile.onnx)
  python -m distile prune layer.npy --zeros .9         weights of least magnitude become 0; also of ONNX models
  python -m distile weights layer.npz                  a pruned layer's weights as the command distile reads them
"""

NEXT = """Next:
  Would your model gain?  Write model.py with model() and example(), its input, and run
      python -m distile explain model.py --masks .3 --html page.html
  In your program, one line converts a model, and a context gives it a mask:
      model = distile.convert(model.eval(), example=x)
      with distile.mask(mask):    # bool, [N, H, W], where the result is needed
          y = model(x)
  """

BUILD = {
    True: "The PolyKernels that it lacks: distile.set_build(\"background\") compiles them while it runs.",
    False: f"Without a compiler {WITHOUT_COMPILER}: pip install \"distile[compiler]\"",
}  # fmt: skip

NEXT_WITHOUT_TORCH = """Next, for ONNX Runtime (for modules and operators of PyTorch: pip install torch):
      python -m distile explain model.onnx --masks .3    # would this model gain?
      python -m distile convert model.onnx               # masked operators in it
  """


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["explain"]:
        return _explain(arguments[1:])
    if arguments[:1] == ["convert"]:
        from .onnx.__main__ import main as onnx_main

        return onnx_main(arguments)
    if arguments[:1] == ["prune"]:
        from .pruned_files import main as prune_main

        return prune_main(arguments[1:])
    if arguments[:1] == ["weights"]:
        from .weight_files import main as weights_main

        return weights_main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m distile",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=("explain", "convert", "prune", "weights"), help="see --help of each")
    parser.add_argument("--device", default="cpu", help="where to measure: cpu, or cuda (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="to measure each mask (default: %(default)s)")
    parser.add_argument("--no-demonstration", action="store_true", help="only say what is there")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="write the mask as a PNG, too")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    options = parser.parse_args(arguments)
    with told(parser):
        return _show(options)


def _explain(arguments: list[str]) -> int:
    if any(argument.endswith(".onnx") for argument in arguments):
        from .onnx.explain import main as explain
    elif not importlib.util.find_spec("torch"):
        sys.stderr.write("python -m distile explain: error: models of Python need PyTorch: pip install torch\n")
        return 2
    else:
        from .explain import main as explain
    return explain(arguments)


def _show(options) -> int:
    found, demonstration = overview(), None
    if not options.json:
        print(overview_text(found), end="\n\n", flush=True)
    if importlib.util.find_spec("torch") and not options.no_demonstration:
        from .demonstration import demonstrate

        check_device(options.device)
        demonstration = demonstrate(options.device, options.seconds)
    if options.picture and demonstration:
        options.picture.write_bytes(pictures.png(pictures.levels(demonstration.mask)))
    if options.json:
        print(json.dumps({**found, "demonstration": _described(demonstration)}, indent=2))
        return 0
    if demonstration:
        from .demonstration import text

        print(_picture(demonstration.mask), text(demonstration), sep="\n\n", end="\n\n")
    print((NEXT if importlib.util.find_spec("torch") else NEXT_WITHOUT_TORCH) + BUILD[found["compiler"] is not None])
    return 0


def _described(demonstration) -> dict | None:
    if demonstration is None:
        return None
    return {name: value for name, value in dataclasses.asdict(demonstration).items() if name != "mask"}


def _picture(mask) -> str:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return pictures.for_terminal(pictures.levels(mask, 48), unicode)


if __name__ == "__main__":
    sys.exit(main())
