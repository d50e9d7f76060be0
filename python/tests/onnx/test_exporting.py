"""torch.onnx.export of every operator that has nodes, against PyTorch, and of modules."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn

import distile
from distile.nn import MaskedAttention, MaskedConv2d, MaskedLayerNorm
from distile.onnx import exporting, session_options, translations

pytestmark = pytest.mark.filterwarnings("ignore")


def export(model, arguments, **more) -> onnx.ModelProto:
    program = torch.onnx.export(
        model, arguments, dynamo=True, verbose=False, custom_translation_table=translations(), **more
    )
    return program.model_proto


def run(model: onnx.ModelProto, arguments, optimized: str = "") -> list[np.ndarray]:
    options = session_options()
    options.log_severity_level = 3
    options.optimized_model_filepath = optimized
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, (argument.numpy() for argument in arguments), strict=True)))


def parameter(*shape):
    return nn.Parameter(torch.randn(shape) / 4)


class Everything(nn.Module):
    """Calls each operator that has a translation, with arguments that are not the defaults."""

    def __init__(self):
        super().__init__()
        self.conv, self.grouped, self.up = parameter(8, 6, 3, 3), parameter(8, 4, 3, 2), parameter(4, 8, 3, 3)
        self.transposed, self.bias, self.vector = parameter(8, 4, 4, 4), parameter(8), parameter(8)
        self.strided = parameter(8, 8, 3, 3)
        self.linear, self.scores = parameter(192, 8), parameter(8)

    def forward(self, x, mask, tokens, rows):
        ops = torch.ops.distile
        half = ops.mask_pool(mask, 2, 1)
        a = ops.conv2d(x, self.conv, self.bias, mask, padding=[1] * 4, activation="silu")
        b = ops.conv2d(a, self.grouped, self.bias, mask, a, groups=2, padding=[1, 1, 1, 0])
        window = dict(stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), activation="leaky_relu(0.2)")
        strided = ops.conv2d(b, self.strided, None, half[:, :, 1:], **window)
        small = ops.mask_needed_input(mask, [5, 10], (3, 3), stride=(2, 1), padding=(1, 1))
        pooled = ops.max_pool2d(b, half, (3, 3), stride=(2, 1), padding=(1, 1))
        mean = ops.avg_pool2d(b, half, (2, 1), stride=(2, 1), count_padding=False)
        total = ops.add(pooled, mean, half, activation="relu")
        gate = ops.global_pool(total, half, maximum=True)
        gated = ops.multiply(total, gate, half, other_activation="sigmoid")
        up = ops.upsample_conv2d(gated, self.up, None, mask, scale=(2, 1), padding=[1] * 4, activation="tanh")
        back = ops.conv_transpose2d(
            gated, self.transposed, None, mask, stride=(2, 1), padding=[1, 1, 1, 2], activation="gelu"
        )
        large = ops.upsample_nearest(gated, mask, scale=(2, 1))
        normal = ops.group_norm(large, mask, self.vector, self.bias, groups=4, activation="relu6")
        statistics = ops.group_statistics(large, mask, groups=2)
        image_norm = ops.layer_norm(large, mask, self.vector, self.bias, epsilon=1e-3)
        norm = ops.rms_norm(ops.activate(tokens, rows, activation="mish"), rows, self.vector, epsilon=1e-4)
        wide = ops.linear(norm, self.linear, None, rows, activation="hardswish").unflatten(2, (3, 64)).transpose(1, 2)
        keys = ops.mask_scores(tokens, self.scores, bias=0.5, threshold=-0.5)
        attended = ops.attention(wide, wide, wide * 2, rows, keys, scale=0.2)
        found = ops.mask_scores(large, self.scores, threshold=0.1)
        changed = ops.mask_difference(large, normal, 0.25)
        spread = ops.mask_affected_output(ops.mask_dilate(mask, 0, 1), [5, 10], (3, 3), stride=(2, 1), padding=(1, 1))
        packed = ops.pack(norm, rows), ops.cumulative_lengths(rows)
        return (b, strided, up, back, normal, *statistics, image_norm, attended, found, changed, spread, small, *packed)


def given():
    generator = torch.Generator().manual_seed(0)
    mask, rows = (torch.rand(shape, generator=generator) < 0.5 for shape in ((2, 10, 10), (2, 9)))
    return torch.randn(2, 6, 10, 10, generator=generator), mask, torch.randn(2, 9, 8, generator=generator), rows


@torch.no_grad()
def test_every_operator():
    model, arguments = Everything().eval(), given()
    exported = export(model, arguments)
    results = run(exported, arguments)
    for number, (result, expected) in enumerate(zip(results, model(*arguments), strict=True)):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4, err_msg=str(number))
    called = {node.op_type for node in exported.graph.node if node.domain == "distile"}
    assert len(called) == len(exporting._TRANSLATED)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = MaskedConv2d(6, 192, 3, padding=1, activation="relu")
        self.second = MaskedConv2d(192, 192, 1)
        self.norm, self.attention = MaskedLayerNorm(192), MaskedAttention(192, 3)

    def forward(self, x, mask):
        y = self.second(self.first(x, mask), mask)
        tokens, rows = y.flatten(2).transpose(1, 2), mask.flatten(1)
        return self.attention(self.norm(tokens, rows), rows, residual=tokens)


@torch.no_grad()
def test_modules(tmp_path):
    """For a batch of any size; the transposes between the convolutions cancel out."""
    model, (x, mask, _, _) = Block().eval(), given()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = export(model, (x, mask), dynamic_shapes={"x": {0: batch}, "mask": {0: batch}})
    for arguments in ((x, mask), (torch.cat([x, x + 1, x]), torch.cat([mask, ~mask, mask]))):
        (result,) = run(exported, arguments, str(tmp_path / "optimized.onnx"))
        np.testing.assert_allclose(result, model(*arguments), rtol=1e-4, atol=1e-4)
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    first, second = (node for node in nodes if node.op_type == "MaskedConv")
    assert first.output[0] == second.input[0]


def test_fused_models():
    """Their layers are exported, because ONNX models have stages of their own (convert --stages)."""
    model, (x, mask, _, _) = Block().eval(), given()
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    exported = export(fused, (x, mask))
    assert sum(node.op_type == "MaskedConv" for node in exported.graph.node) == 2
    (result,) = run(exported, (x, mask))
    np.testing.assert_allclose(result, model(x, mask).detach(), rtol=1e-4, atol=1e-4)


def test_causal():
    class Causal(nn.Module):
        def forward(self, x, rows):
            return torch.ops.distile.attention(x, x, x, rows, causal=True)

    exported = export(Causal(), (torch.randn(1, 2, 5, 8), torch.ones(1, 5, dtype=torch.bool)))
    (node,) = (node for node in exported.graph.node if node.domain == "distile")
    assert {one.name: one.i for one in node.attribute if one.name != "scale"} == dict(
        num_heads=2, head_dim=8, is_causal=1
    )


def test_table_is_complete():
    """What has no nodes: forms that write, and operators that the table's page does not name."""
    names = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("distile::")}  # fmt: skip
    public = {name for name in names if not name.startswith("_") and not name.endswith(("_into", "_inference"))}
    public -= {name for name in public if name.endswith("_backward")}
    assert public - set(exporting._TRANSLATED) == {
        "mask_from_bits", "mask_from_indices", "mask_to_bits", "stage", "unpack"
    }  # fmt: skip
    assert all(hasattr(distile.autograd.ops, name) for name in exporting._TRANSLATED)
