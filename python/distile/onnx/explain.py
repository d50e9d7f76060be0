"""Will a model gain? A table of its layers in ONNX Runtime, with and without masks."""

from __future__ import annotations

import argparse
import pathlib
import shlex

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..mistakes import density_of, told
from ..page import Found, Whole, page
from ..pictures import levels
from ..report import Row, median_us, table
from ..rules import Rule, read_rules
from ..weight_zeros import remark
from .building import build, running_dense, to_build
from .conversion import Left, Replaced, convert
from .graph import Graph
from .library import has_polykernel, session_options
from .positions import with_fixed_image
from .weights import load

NO_POLYKERNEL = "no PolyKernel (--build compiles one)"
# Elements as ONNX Runtime takes them.
ARRAYS = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.UINT8: np.uint8,
    TensorProto.INT8: np.int8,
    TensorProto.BOOL: np.bool_,
}


def _extents(value: onnx.ValueInfoProto) -> list[int]:
    """The extents of an input; 1 where the model leaves them open."""
    return [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]


def _example(value: onnx.ValueInfoProto, generator) -> np.ndarray:
    """A value of an input: normally distributed, or zeros of an integer type."""
    kind = ARRAYS[value.type.tensor_type.elem_type]
    extents = _extents(value)
    if np.issubdtype(kind, np.floating):
        return generator.standard_normal(extents).astype(kind)
    return np.zeros(extents, kind)


def _active(values: np.ndarray, name: str) -> np.ndarray:
    """Where masks from a file are active: greys, from 0 to 1, above the middle."""
    if np.isnan(values).any():
        raise ValueError(f"{name} holds values that are no numbers")
    return values > 0.5 if np.issubdtype(values.dtype, np.floating) else values != 0


def make_mask(text: str, extents: list[int]) -> np.ndarray:
    """A mask [N, H, W] or [N, T] from a .npy file or a density: a disc of that density, or random tokens."""
    batch, *size = extents
    density = density_of(text)
    if density is None:
        found = _active(np.load(text), text)
        found = found.reshape(-1, *found.shape[-len(size) :])
        if any(have % want for have, want in zip(found.shape[1:], size)):
            raise ValueError(
                f"the masks in {text} are {list(found.shape[1:])}, but the model's are {size}, which does not divide "
                "that: give the mask another size by --mask-size"
            )
        for axis, (have, want) in enumerate(zip(found.shape[1:], size), 1):
            found = np.logical_or.reduceat(found, np.arange(0, have, have // want), axis)
        return np.resize(found, extents)
    if len(size) == 1:
        return np.random.default_rng(1).random(extents) < density
    axes = [((np.arange(extent) + 0.5) / extent - 0.5) ** 2 for extent in size]
    distance = axes[0][:, None] + axes[1]
    return np.broadcast_to(distance <= np.quantile(distance, density), extents).copy()


def _session(model: onnx.ModelProto):
    import onnxruntime

    options = session_options()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _with_stored_inputs(graph: Graph, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes behind the DequantizeLinear of what they read: ONNX Runtime computes with integers where it sees both."""
    before = (graph.producer.get(name) for node in nodes for name in node.input)
    found = {id(node): node for node in before if node is not None and node.op_type == "DequantizeLinear"}
    return [*found.values(), *nodes]


def _layer(graph: Graph, nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
    """A model of some nodes alone."""
    made = {name for node in nodes for name in node.output}
    names = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    constants = [name for name in names if graph.constant(name) is not None]

    def value(name: str) -> onnx.ValueInfoProto:
        extents = [extent if isinstance(extent, int) else 1 for extent in graph.shapes[name]]
        return helper.make_tensor_value_info(name, graph.types[name], extents)

    inputs = [value(name) for name in names if name not in constants]
    initializers = [numpy_helper.from_array(graph.constant(name), name) for name in constants]
    proto = helper.make_graph(nodes, "layer", inputs, [value(output)], initializers)
    model = helper.make_model(proto, opset_imports=graph.model.opset_import)
    model.ir_version = graph.model.ir_version
    return model


def _time(model: onnx.ModelProto, given: dict[str, np.ndarray], seconds: float) -> float:
    generator = np.random.default_rng(0)
    session = _session(model)
    feeds = {
        value.name: given[value.name] if value.name in given else _example(value, generator)
        for value in model.graph.input
    }
    return median_us(lambda: session.run(None, feeds), seconds)


def _masks_of(model: onnx.ModelProto, report: list[Replaced], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The masks of a converted model at all sizes, by a run of it."""
    names = list(dict.fromkeys(row.mask_tensor for row in report))
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    asked.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.BOOL, None)
        for name in names
        if name not in inputs and name not in outputs
    )
    made = [name for name in names if name not in inputs]
    results = _session(asked).run(made, feeds) if made else []
    return {**{name: feeds[name] for name in names if name in inputs}, **dict(zip(made, results))}


def _work(row: Replaced) -> int:
    """The multiply-adds of a dense layer."""
    params = dict(row.operator.params)
    batch = row.typical["batch"]
    if row.operator.generator == "masked_attention":
        return 2 * batch * row.typical["tokens"] * row.typical["key_tokens"] * params["heads"] * params["head_dim"]
    if row.operator.generator == "masked_linear":
        return batch * row.typical["tokens"] * params["in_channels"] * params["out_channels"]
    outer = params.get("channels", params.get("out_channels"))
    taps = params["kernel_h"] * params["kernel_w"]
    inner = 1 if "channels" in params else params["in_channels"] // params.get("groups", 1)
    if row.operator.generator == "masked_conv_transpose2d":
        taps = -(-taps // (params["stride_h"] * params["stride_w"]))
    return batch * int(np.prod(row.size)) * outer * inner * taps


def _kind(row: Replaced) -> str:
    params = dict(row.operator.params)
    name = row.operator.generator.removeprefix("masked_").removesuffix("_conv2d").removesuffix("2d")
    if "output_dtype" in params:
        name = f"{params['dtype']} {name}"
    if "heads" in params:
        return f"{name} {params['heads']}x{params['head_dim']}"
    inner, outer = (params.get(f"{end}_channels", params.get("channels")) for end in ("in", "out"))
    channels = f"{inner}-{outer}"
    if "kernel_h" not in params:
        return f"{name} {channels}"
    if "scale_h" in params:
        return f"{name} x{params['scale_h']} {params['kernel_h']}x{params['kernel_w']} {channels}"
    stride = "" if params["stride_h"] == params["stride_w"] == 1 else f"/{params['stride_h']}"
    return f"{name} {params['kernel_h']}x{params['kernel_w']}{stride} {channels}"


def explain(
    model: onnx.ModelProto,
    rules: list[Rule],
    masks,
    *,
    mask_sizes: dict[str, tuple[int, ...]] | None = None,
    images: list[str] | None = None,
    seconds: float = 0.2,
    compile_missing: bool = False,
    full: bool = False,
) -> tuple[list[Row], list[Left], Whole]:
    """A row for each layer that has a masked form with weights or attention, the nodes left, and the times of the whole
    model, dense and masked, in microseconds.

    `masks(name, extents)` gives the masks that become inputs. Times are medians on this machine in ONNX Runtime, of
    each layer alone, with what its masked operator takes in. Predicted is the dense time times the share of the work
    that is left: by the density, and by the zeros that code skips. With `full`, all are measured with all pixels active, too.
    """
    model = with_fixed_image(model, images)
    converted, report = convert(model, rules, mask_sizes=mask_sizes, images=images)
    replaced = [row for row in report if isinstance(row, Replaced)]
    if compile_missing:
        build(report, progress=lambda line: print(line, flush=True))
    lacking, multiplying = running_dense(report), to_build(report)
    known = {value.name for value in model.graph.input}
    generator = np.random.default_rng(0)
    feeds = {
        value.name: _example(value, generator) if value.name in known else masks(value.name, _extents(value))
        for value in converted.graph.input
    }
    at = _masks_of(converted, replaced, feeds)
    before, after = Graph(model), Graph(converted)
    rows = []
    for row in replaced:
        if row.operator is None:
            continue
        mask, work = at[row.mask_tensor], _work(row)
        density = float(mask.mean())
        dense_us = _time(_layer(before, _with_stored_inputs(before, row.nodes), row.output), {}, seconds)
        alone = _layer(after, [row.masked], row.masked.output[0])
        masked_us = _time(alone, {row.mask_tensor: mask}, seconds)
        times = dense_us, masked_us, dense_us * density
        found = Row(row.name, _kind(row), density, work, work * density, *times, row.operator in lacking)
        found.why_dense = NO_POLYKERNEL if found.runs_dense else ""
        built = row.operator.built_for(row.typical)
        read = row.operator not in lacking and built in multiplying
        found.zeros = remark(row.operator, row.typical, "default", read)
        found.leave_out(row.zeros if built.skips_zeros and has_polykernel(built) else 0)
        found.picture = levels(mask.reshape(-1, *mask.shape[-2:]) if mask.ndim > 3 else mask)
        if full:
            found.full_us = _time(alone, {row.mask_tensor: np.ones_like(mask)}, seconds)
        rows.append(found)
    plain = {name: value for name, value in feeds.items() if name in known}
    # As the command converts it: what has no PolyKernel stays.
    masked = convert(model, rules, mask_sizes=mask_sizes, images=images, dense=lacking)[0] if lacking else converted
    whole = Whole(_time(model, plain, seconds), _time(masked, feeds, seconds))
    if full:
        active = {name: value if name in known else np.ones_like(value) for name, value in feeds.items()}
        whole = whole._replace(full_us=_time(masked, active, seconds))
    return rows, [row for row in report if isinstance(row, Left)], whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--masks",
        nargs="+",
        required=True,
        metavar="[MASK=]VALUE",
        help="a .npy file of masks, [H, W] or [N, H, W] or tokens, or a density; for all masks, or for one by its name",
    )
    parser.add_argument("--build", action="store_true", help="compile missing PolyKernels first")
    parser.add_argument("--seconds", type=float, default=0.2, help="to measure each time (default: %(default)s)")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write a page with pictures, too")


def run(options) -> int:
    from .__main__ import read_sizes

    values = {name: value for name, _, value in (text.rpartition("=") for text in options.masks)}

    def mask(name: str, extents: list[int]) -> np.ndarray:
        if name not in values and "" not in values:
            raise ValueError(f"--masks says nothing about the mask '{name}'")
        return make_mask(values.get(name, values.get("")), extents)

    rows, left, whole = explain(
        load(options.model, whole=True),
        read_rules(options.rules),
        mask,
        mask_sizes=read_sizes(options.mask_size),
        images=options.image,
        seconds=options.seconds,
        compile_missing=options.build,
        full=options.html is not None,
    )
    reasons = [f"{row.name}: {row.op}: {row.reason}" for row in left]
    print(table(rows, reasons))
    if not rows:
        print("\nNo node got a masked form: the rules, or what is left above, say why.")
    print(f"\nwhole model: dense {whole[0]:.0f} us, masked {whole[1]:.0f} us, gain {whole[0] / whole[1]:.2f}")
    if options.html:
        change = _change(options, any(row.runs_dense for row in rows))
        found = Found(options.model.stem, "in ONNX Runtime on this CPU", rows, whole, reasons, change)
        options.html.write_text(page(found), encoding="utf-8")
    return 0


def _change(options, build: bool) -> str:
    """The command that makes the model masked, and the line that runs it."""
    words = ["python", "-m", "distile", "convert", str(options.model), "--rules", *options.rules]
    for option, given in (("--mask-size", options.mask_size), ("--image", options.image)):
        words += [option, *given] if given else []
    output = options.model.with_suffix(".masked.onnx").name
    run = f"session = onnxruntime.InferenceSession({output!r}, distile.onnx.session_options())"
    return shlex.join([*words, *(["--build"] if build else [])]) + f"\n\n{run}"


def main(arguments: list[str]) -> int:
    """`python -m distile.explain model.onnx ...`."""
    from .__main__ import add_rules

    parser = argparse.ArgumentParser(prog="python -m distile.explain", description=__doc__)
    add_rules(parser)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    with told(parser):
        return run(options)
