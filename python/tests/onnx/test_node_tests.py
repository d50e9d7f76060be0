"""ONNX's own tests of nodes, through the converter.

Each model with a node that could have a masked form is converted. Where all is active, its outputs are those that ONNX
says; with random masks, those of the reference in standard operators, run by ONNX Runtime. As a program, prints what
became of each; with --build, it compiles the PolyKernels that attention needs.
"""

import collections
import pathlib
import sys
import warnings

import numpy as np
import onnx
from networks import run
from onnx import numpy_helper

from distile.onnx import Replaced, Rule, convert
from distile.onnx.building import build, missing
from distile.onnx.graph import OLDEST_OPSET, nodes_in
from distile.onnx.units import MAKERS

# What a case may come to.
RIGHT, LEFT, WRONG, FAILING, CANNOT, LACKING = (
    "right", "left", "wrong", "failing", "not run: ONNX Runtime cannot", "not run: no PolyKernel",
)  # fmt: skip


def cases():
    """Name, model, inputs, outputs and tolerances of each case with a node that could have a masked form."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    for case in found:
        model = case.model or onnx.load(pathlib.Path(case.model_dir, "model.onnx"))
        if any(node.op_type in MAKERS for node in nodes_in(model.graph)):
            yield case.name, model, *_data(case, model), case.rtol, case.atol


def _data(case, model):
    if case.data_sets is not None:
        return tuple(list(values) for values in case.data_sets[0])
    folder = pathlib.Path(case.model_dir, "test_data_set_0")
    return tuple(
        [_value(folder / f"{kind}_{place}.pb", value) for place, value in enumerate(values)]
        for kind, values in (("input", model.graph.input), ("output", model.graph.output))
    )


def _value(path, value):
    if not value.type.HasField("tensor_type") or not path.exists():
        return None
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _with_constants(model, inputs):
    """The model with the values of all inputs but the first, which are weights in a model that is used."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.input[1:]
    for value, array in zip(model.graph.input[1:], inputs[1:]):
        fixed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
    return fixed


def outcome(name, model, inputs, outputs, rtol, atol, compiles=False):
    """What becomes of a case, and why."""
    if any(array is None for array in inputs + outputs):
        return CANNOT, "it has sequences or optional values"
    opset = next(one.version for one in model.opset_import if one.domain == "")
    if opset < OLDEST_OPSET:
        return CANNOT, f"its opset is {opset}"
    reasons = []
    for variant in (model, _with_constants(model, inputs)):
        try:
            converted, report = convert(variant, [Rule("*", "mask")])
        except Exception as error:
            return FAILING, f"{type(error).__name__}: {error}"
        if any(isinstance(row, Replaced) for row in report):
            return _compared(variant, converted, report, inputs, outputs, max(rtol, 1e-4), max(atol, 1e-5), compiles)
        reasons = [row.reason for row in report] or ["nothing to replace"]
    return LEFT, "; ".join(dict.fromkeys(reasons))


def _compared(variant, converted, report, inputs, outputs, rtol, atol, compiles):
    feeds = dict(zip([value.name for value in variant.graph.input], inputs))
    try:
        dense = run(variant, feeds)
    except Exception as error:
        return CANNOT, str(error).splitlines()[0]
    if any(_difference(*pair, rtol, atol) for pair in zip(dense, outputs)):
        return CANNOT, "its results are not ONNX's"
    lacking = [operator for operator in missing(report) if operator.generator == "masked_attention"]
    if lacking and not compiles:
        return LACKING, str(lacking[0])
    if lacking:
        build(report)
    try:
        reference, _ = convert(variant, [Rule("*", "mask")], reference=True)
        full = _results(converted, feeds, 1.0)
        different = [_difference(*pair, rtol, atol) for pair in zip(full, outputs)]
        for density in (0.0, 0.4):
            pairs = zip(_results(converted, feeds, density), _results(reference, feeds, density))
            different += [_difference(*pair, rtol, atol) for pair in pairs]
    except Exception as error:
        return FAILING, f"{type(error).__name__}: {error}"
    found = [one for one in different if one]
    return (WRONG, found[0]) if found else (RIGHT, ", ".join(row.op for row in report if isinstance(row, Replaced)))


def _results(model, feeds, density):
    random = np.random.default_rng(3)
    given = dict(feeds)
    for value in model.graph.input:
        if value.name == "mask":
            extents = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            given["mask"] = random.random(extents) < density
    return run(model, given)


def _difference(result, expected, rtol, atol):
    """How a result is not what it should be; None if it is."""
    expected = np.asarray(expected)
    if result.shape != expected.shape:
        return f"the shape is {result.shape} and not {expected.shape}"
    good = np.isclose(result.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True)
    return None if good.all() else f"{(~good).mean():.0%} of the elements differ"


def all_outcomes(compiles=False):
    return {case[0]: outcome(*case, compiles=compiles) for case in cases()}


def test_node_tests():
    """No case is wrong or fails, and at least this number is right, with the oldest versions too."""
    found = all_outcomes()
    bad = {name: what for name, what in found.items() if what[0] in (WRONG, FAILING)}
    assert not bad
    assert sum(what[0] == RIGHT for what in found.values()) >= 49


if __name__ == "__main__":
    results = all_outcomes(compiles="--build" in sys.argv)
    for key, (kind, why) in sorted(results.items(), key=lambda item: (item[1][0], item[0])):
        print(f"{kind:30}  {key}: {why}")
    print(collections.Counter(kind for kind, _ in results.values()))
    sys.exit(any(kind in (WRONG, FAILING) for kind, _ in results.values()))
