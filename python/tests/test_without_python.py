"""Programs without Python: processes that load the library alone, as those in C++ do. Where no PolyKernel is, PyTorch's
dense operators run, and the mask after them."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import distile
from distile import _library, dense
from distile.nn import MaskedAttention, MaskedConv2d, MaskedConvTranspose2d, MaskedUpsampleConv2d

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
LIBRARY = str(_library.FOLDER / "distile_torch.so")


def run_alone(code, tmp_path):
    """Runs code in a process that knows the operators, and no PolyKernels but those that ship."""
    code = f"import torch\ntorch.ops.load_library({LIBRARY!r})\n{code}"
    environment = {**os.environ, "DISTILE_CACHE": str(tmp_path / "none")}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr


def image(*shape, **more):
    return torch.randn(shape, **more).to(memory_format=torch.channels_last)


def mask(*shape):
    return torch.rand(shape) < 0.5


def weighted(name, input, weight, result, bias=True, residual=False, **keywords):
    """A call of an operator with weights, and what it must give: `result` has the sizes of the latter."""
    channels = result[1] if len(result) == 4 else result[2]
    pixels = mask(result[0], *(result[2:] if len(result) == 4 else result[1:2]))
    like = dict(dtype=input.dtype)
    added = torch.randn(result, **like) if residual else None
    given = [input, weight, torch.randn(channels) if bias else None, pixels, added]
    defaults = dict(padding=[0] * 4, dilation=[1, 1], groups=1) if len(result) == 4 else {}
    defaults |= dict(stride=[1, 1]) if name.startswith("conv") else {}
    defaults |= dict(output_padding=[0, 0]) if name == "conv_transpose2d" else {}
    keywords = {**defaults, "activation": "none", **keywords}
    converted = [None if one is None else one.to(input.dtype) for one in given[1:3]]
    return name, given, keywords, getattr(dense, name)(input, *converted, *given[3:], **keywords)


def attention(queries, keys, key_mask=False, **keywords):
    tensors = [torch.randn(2, count, 3, 36).transpose(1, 2) for count in (queries, keys, keys)]
    given = [*tensors, mask(2, queries), mask(2, keys) if key_mask else None]
    if key_mask:
        given[4][0] = False  # Rows without a key are 0, and what inactive keys hold does not matter.
        tensors[2][0], tensors[2][1][:, ~given[4][1]] = torch.nan, torch.inf
    keywords = {"scale": 0.0, "causal": False, **keywords}
    return "attention", given, keywords, dense.attention(*given, **keywords)


def calls_in_float8():
    """PyTorch converts these types, but computes in none of them."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        for name, given, keywords, _ in (
            weighted("conv2d", image(2, 6, 9, 8), torch.randn(4, 6, 3, 3), (2, 4, 9, 8), True, True, padding=[1] * 4),
            weighted("upsample_conv2d", image(1, 6, 4, 3), torch.randn(4, 6, 1, 1), (1, 4, 8, 6), scale=[2, 2]),
            weighted("conv_transpose2d", image(1, 6, 3, 3), torch.randn(6, 4, 1, 1), (1, 4, 3, 3)),
            weighted("linear", torch.randn(2, 7, 6), torch.randn(4, 6), (2, 7, 4), residual=True, activation="relu"),
            attention(5, 7, causal=True),
        ):
            stored = range(3) if name == "attention" else (0, 4)
            given = [one.to(dtype) if one is not None and i in stored else one for i, one in enumerate(given)]
            wide = [one.float() if one is not None and i in stored else one for i, one in enumerate(given)]
            yield name, given, keywords, getattr(dense, name)(*wide, **keywords).to(dtype)


def calls():
    torch.manual_seed(0)
    window = dict(stride=[2, 1], padding=[1, 2, 0, 1], dilation=[1, 2])
    cut = dict(stride=[2, 3], padding=[1, 0, 0, 1], output_padding=[1, 0], activation="relu6")
    yield weighted("conv2d", image(2, 6, 9, 8), torch.randn(4, 3, 3, 3), (2, 4, 5, 5), groups=2, **window)
    yield weighted("conv2d", image(2, 6, 5, 5), torch.randn(4, 6, 1, 1), (2, 4, 5, 5), residual=True, activation="gelu")
    yield weighted("conv_transpose2d", image(2, 6, 4, 5), torch.randn(6, 4, 3, 3), (2, 4, 9, 14), **cut)
    yield weighted("conv_transpose2d", image(1, 6, 3, 3), torch.randn(6, 2, 2, 2), (1, 4, 4, 4), bias=False, groups=2)
    yield weighted("upsample_conv2d", image(1, 6, 4, 3), torch.randn(4, 6, 3, 3), (1, 4, 12, 6), scale=[3, 2],
                   padding=[1] * 4, activation="silu")  # fmt: skip
    for activation in ("none", "relu", "hardsigmoid", "hardswish", "sigmoid"):
        tokens, matrix = torch.randn(2, 7, 6), torch.randn(4, 6)
        yield weighted("linear", tokens, matrix, (2, 7, 4), residual=True, activation=activation)
    for dtype in (torch.bfloat16, torch.float64):
        x, filter = image(1, 6, 5, 5, dtype=dtype), torch.randn(4, 6, 1, 1).to(dtype)
        yield weighted("conv2d", x, filter, (1, 4, 5, 5), residual=True)
    yield weighted("linear", torch.randn(1, 5, 6, dtype=torch.bfloat16), torch.randn(4, 6), (1, 5, 4))
    yield from calls_in_float8()
    yield attention(5, 5)
    yield attention(4, 6, causal=True, scale=0.3)
    yield attention(5, 7, key_mask=True)
    yield attention(5, 7, key_mask=True, causal=True)


def written_in_place(name, like):
    """A tensor for `out`, with the strides that results have."""
    if name == "attention":
        return torch.randn(like.transpose(1, 2).shape).to(like.dtype).transpose(1, 2)
    out = torch.randn(like.shape).to(like.dtype)
    return out.to(memory_format=torch.channels_last) if out.dim() == 4 else out


def test_operators_without_polykernels(tmp_path):
    """The functional form, and `out`, which keeps or clears its inactive pixels."""
    cases = list(calls())
    outs = [written_in_place(name, expected) for name, *_, expected in cases]
    torch.save(([case[:3] for case in cases], outs), tmp_path / "calls.pt")
    run_alone(
        f"""
cases, outs = torch.load({str(tmp_path / "calls.pt")!r})
results = []
for (name, given, keywords), out in zip(cases, outs):
    operator = getattr(torch.ops.distile, name)
    outs = [out.clone(), out.clone()]
    for zero, one in zip((False, True), outs):
        assert operator.out(*given, **keywords, zero=zero, out=one) is one
    results.append((operator(*given, **keywords), *outs))
torch.save(results, {str(tmp_path / "results.pt")!r})
""",
        tmp_path,
    )
    results = torch.load(tmp_path / "results.pt")
    for (name, given, keywords, expected), out, found in zip(cases, outs, results):
        active = given[3].unsqueeze(1 if expected.dim() == 4 and name != "attention" else -1)
        active = active.unsqueeze(1) if name == "attention" else active
        bound = {torch.bfloat16: 2e-2, torch.float8_e4m3fn: 0.125, torch.float8_e5m2: 0.25}.get(expected.dtype, 1e-5)
        said = lambda text, name=name, keywords=keywords: f"{name} {keywords}: {text}"
        for result, wanted in zip(found, (expected, torch.where(active, expected, out), expected)):
            assert result.dtype == wanted.dtype
            torch.testing.assert_close(result.double(), wanted.double(), rtol=bound, atol=bound, msg=said)
        assert found[0].stride() == out.stride()


class Network(nn.Module):
    """Operators whose PolyKernels do not ship."""

    def __init__(self):
        super().__init__()
        self.first = MaskedConv2d(3, 12, 3, padding=1, activation="relu")
        self.grow, self.transposed = MaskedUpsampleConv2d(12, 12, 3, padding=1), MaskedConvTranspose2d(12, 12, 2, 2)
        self.attention = MaskedAttention(12, 2)

    def forward(self, x, mask):
        x = self.first(x, mask)
        tokens = self.attention(x.flatten(2).transpose(1, 2), mask.flatten(1))
        x = tokens.transpose(1, 2).unflatten(2, x.shape[2:])
        larger = mask.repeat_interleave(2, 1).repeat_interleave(2, 2)
        return self.grow(x, larger) + self.transposed(x, larger)


@torch.no_grad()
def test_exported_programs(tmp_path):
    """TorchScript and AOTInductor."""
    torch.manual_seed(1)
    net, x, active = Network().eval(), torch.randn(2, 3, 6, 8), mask(2, 6, 8)
    torch.save((x, active), tmp_path / "inputs.pt")
    names = ["network.ts"]
    torch.jit.trace(net, (x, active), check_trace=False).save(str(tmp_path / "network.ts"))
    if shutil.which("c++"):
        program = torch.export.export(net, (x, active))
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "network.pt2"))
        names.append("network.pt2")
    run_alone(
        f"""
import pathlib
folder = pathlib.Path({str(tmp_path)!r})
inputs = torch.load(folder / "inputs.pt")
for name in {names!r}:
    load = torch.jit.load if name.endswith(".ts") else torch._inductor.aoti_load_package
    with torch.no_grad():
        torch.save(load(str(folder / name))(*inputs), folder / (name + ".result"))
""",
        tmp_path,
    )
    for name in names:
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.result"), net(x, active), rtol=1e-4, atol=1e-5)
