"""Known networks as PyTorch exports them: converted, against the dense graph with the masks after its nodes."""

import pytest
from exported import mobilenet, resnet, unet, vision_transformer
from test_conversion import compare, ops

from distile.onnx import Left, Replaced, Rule


def taken(report):
    """What each replaced node took in."""
    return {row.name: [node.op_type for node in row.nodes[1:]] for row in report if isinstance(row, Replaced)}


def left(report):
    return {row.name: row.reason for row in report if isinstance(row, Left)}


@pytest.mark.parametrize("folded", [False, True])
def test_resnet(folded):
    converted, report = compare(resnet(folded), [Rule("/layer/*", "mask")], tolerance=1e-4)
    assert left(report) == {"/stem/conv/Conv": "no rule", "/maxpool/MaxPool": "no rule", "/fc/Gemm": "no rule"}
    norm = [] if folded else ["BatchNormalization"]
    found = taken(report)
    assert found["/layer/layer.0/1/conv/Conv"] == [*norm, "Relu"]
    assert found["/layer/layer.1/3/conv/Conv"] == [*norm, "Add", "Relu"] and len(found) == 8
    # All of the layers and the pooling are one chain in NHWC: images enter it, and one pixel leaves it.
    assert ops(converted).count("Transpose") == 2 and "MaskedGlobalAveragePool" in ops(converted)
    assert ops(converted).count("MaskPool") == 1


@pytest.mark.parametrize("excite", [None, "GlobalAveragePool", "ReduceMean"])
def test_mobilenet(excite):
    rules = [Rule("*/se/*", None), Rule("*", "mask")]
    converted, report = compare(mobilenet(excite), rules, tolerance=1e-4)
    found = taken(report)
    assert set(left(report).values()) == ({"by rule"} if excite else set())
    activation = "HardSwish" if excite else "Clip"
    assert found["/features.0/0/0/Conv"] == found["/features.1/1/0/Conv"] == [activation]
    assert found["/features.0/2/Conv"] == ["Add"] and len(found) == 6
    # One pixel of each block goes to squeeze-excite in NCHW and back.
    assert ops(converted).count("Transpose") == (6 if excite else 2)
    assert ops(converted).count("MaskedGlobalAveragePool") == (2 if excite else 0)


def test_vision_transformer():
    rules = [Rule("/block/*", "mask")]
    converted, report = compare(vision_transformer(), rules, tolerance=1e-4)
    found = taken(report)
    assert set(left(report)) == {"/patch_embed/proj/Conv", "/norm/LayerNormalization", "/head/Gemm"}
    assert found["/block/attn/MatMul"] == ["Softmax", "MatMul", "Transpose", "Reshape"]
    assert found["/block/attn/qkv/MatMul"] == ["Add"] and found["/block/attn/proj/MatMul"] == ["Add", "Add"]
    assert found["/block/mlp/fc1/MatMul"][-1] == "Mul" and len(found) == 7
    (mask,) = [value for value in converted.graph.input if value.name == "mask"]
    assert [dim.dim_value for dim in mask.type.tensor_type.shape.dim] == [2, 17]


@pytest.mark.parametrize("norm", ["InstanceNormalization", "GroupNormalization"])
def test_unet(norm):
    converted, report = compare(unet(norm), [Rule("*/time_emb_proj/*", None), Rule("*", "mask")], tolerance=1e-4)
    assert set(left(report).values()) == {"by rule"}
    found = ops(converted)
    assert found.count("MaskedGroupNorm") == found.count("MaskedGroupStatistics") == 7
    assert found.count("MaskedUpsampleConv") == 1 and "Resize" not in found and "Sigmoid" not in found
    assert found.count("InstanceNormalization") == found.count("Reshape") == 0
    # The image enters and leaves the chain, and so do the embeddings, a pixel each.
    assert found.count("Transpose") == 2 + 3
