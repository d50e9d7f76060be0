"""Models whose PolyKernels are missing: their nodes stay, and the mask comes after them."""

import numpy as np
import pytest
from exported import mobilenet, resnet, unet, vision_transformer
from networks import Builder, feeds_of, run
from test_conversion import ops, residual_network

from distile.onnx import Replaced, Rule, convert
from distile.onnx.building import missing


def compare(model, rules, lacking=None):
    """With none of the PolyKernels that it needs, or without those that `lacking` chooses."""
    _, report = convert(model, rules)
    needed = [row.operator for row in report if isinstance(row, Replaced) and row.operator]
    converted, report = convert(model, rules, dense=needed if lacking is None else lacking(needed))
    reference, _ = convert(model, rules, reference=True)
    for density in (0.0, 0.3, 1.0):
        feeds = feeds_of(converted, density)
        for result, expected in zip(run(converted, feeds), run(reference, feeds)):
            bound = 1e-4 * max(1, np.abs(expected).max())
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=bound)
    return converted, report


MODELS = {
    "residual": (residual_network, [Rule("b*", "mask")]),
    "resnet": (lambda: resnet(False), [Rule("/layer/*", "mask")]),
    "mobilenet": (lambda: mobilenet("GlobalAveragePool"), [Rule("*/se/*", None), Rule("*", "mask")]),
    "unet": (lambda: unet("InstanceNormalization"), [Rule("*/time_emb_proj/*", None), Rule("*", "mask")]),
    "transformer": (vision_transformer, [Rule("/block/*", "mask")]),
}


@pytest.mark.parametrize("name", MODELS)
def test_without_polykernels(name):
    converted, report = compare(MODELS[name][0](), MODELS[name][1])
    masked = {"MaskedConv", "MaskedConvTranspose", "MaskedUpsampleConv", "MaskedLinear", "MaskedAttention"}
    assert not masked & set(ops(converted))
    if name in ("residual", "resnet", "mobilenet"):
        # Nothing is in NHWC, so ONNX Runtime joins convolutions and activations as in the model itself.
        assert "Transpose" not in ops(converted) and ops(converted).count("MaskedActivation") == len(
            [row for row in report if isinstance(row, Replaced)]
        )


@pytest.mark.parametrize("kept", [0, 1])
def test_without_some_polykernels(kept):
    converted, _ = compare(*[MODELS["residual"][0](), MODELS["residual"][1]], lambda needed: needed[kept::2])
    assert "MaskedConv" in ops(converted) and "Conv" in ops(converted)
    compare(unet("InstanceNormalization"), MODELS["unet"][1], lambda needed: needed[kept::2])


def test_a_mask_before_a_residual_that_stays():
    b = Builder()
    b.add("Relu", [b.add("Add", [b.conv("conv", "x", 4, 4), "x"], "sum")], "y")
    converted, _ = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}), [Rule("*", "mask")])
    assert ops(converted) == ["Conv", "MaskedActivation", "Add", "Relu"]


def test_nodes_for_gpus_are_standard():
    """The operators have no images in NCHW there."""
    model, rules = residual_network(), [Rule("b*", "mask")]
    _, report = convert(model, rules)
    lacking = [row.operator.on("cuda") for row in report if isinstance(row, Replaced)]
    converted, _ = convert(model, rules, dense=lacking)
    assert {op for op in ops(converted) if op.startswith("Mask")} == {"MaskPool"} and "Where" in ops(converted)


def test_attention_that_has_no_polykernel_runs():
    b = Builder()
    b.add("Attention", ["x", "x", "x"], "y", "attention", q_num_heads=2, kv_num_heads=2)
    model = b.model({"x": [2, 5, 16]}, {"y": [2, 5, 16]}, opset=23)
    _, report = convert(model, [Rule("*", "mask")])
    assert missing(report)
    compare(model, [Rule("*", "mask")], lambda needed: missing(report))
