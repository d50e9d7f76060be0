"""What bare_root.sh runs where only Python and the wheel are: distile.build, a block of ResNet-50 in PyTorch and in ONNX
Runtime, and the command `distile`."""

import json
import pathlib
import shlex
import subprocess
import sys
import time
import warnings

import numpy as np
import onnxruntime
import torch
from torch import nn

import distile
from distile import polykernels, toolchain
from distile.nn import MaskedConv2d
from distile.onnx import session_options

SHAPE = (1, 256, 56, 56)
DATA = pathlib.Path(distile.__file__).parent / "data"
warnings.simplefilter("ignore")


def report(what: str, begin: float) -> None:
    print(f"{what}: {time.perf_counter() - begin:.1f} s", flush=True)


def run(*words) -> str:
    begin = time.perf_counter()
    command = [str(word) for word in words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report(f"$ {shlex.join([pathlib.Path(command[0]).name, *command[1:]])}", begin)
    return printed


@torch.no_grad()
def build_and_compare(layer: MaskedConv2d, **options) -> None:
    """A layer with its PolyKernel is the dense layer where the mask is active, and 0 elsewhere."""
    x = torch.randn(2, layer.in_channels, 33, 38)
    dense = layer(x)
    mask = torch.rand(2, *dense.shape[2:]) < 0.3
    begin = time.perf_counter()
    (operator,) = distile.build(layer, x, mask=mask, **options)
    report(f"distile.build{options or ''}", begin)
    with polykernels.recording() as missing:
        masked = layer(x, mask)
    assert not missing, f"{operator} ran dense"
    torch.testing.assert_close(masked, torch.where(mask[:, None], dense, 0.0), rtol=1e-4, atol=1e-4)
    print(f"{polykernels.shared_object(operator).stat().st_size / 1e6:.1f} MB: {operator}")


class Bottleneck(nn.Module):
    """A block of ResNet-50's first stage, none of whose convolutions ships."""

    def __init__(self, channels: int = 256, width: int = 64):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x):
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        return self.relu3(self.bn3(self.conv3(y)) + x)


def blob() -> torch.Tensor:
    mask = torch.zeros(1, *SHAPE[2:], dtype=torch.bool)
    mask[:, 12:30, 16:40] = True
    return mask


@torch.no_grad()
def build_block() -> None:
    """In PyTorch a converted block runs its PolyKernels, and is the dense one where the mask is active."""
    block, x, mask = Bottleneck().eval(), torch.randn(SHAPE), blob()
    dense = block(x)
    begin = time.perf_counter()
    block = distile.convert(block, [("conv1", "near"), ("*", "mask")], example=x)
    given = {"near": distile.masks.dilate(mask, 1), "mask": mask}
    built = distile.build(block, x, mask=given)
    report(f"distile.build(block): {len(built)} PolyKernels", begin)
    with distile.mask(given), polykernels.recording() as missing:
        masked = block(x)
    assert not missing and built
    active = mask[:, None].expand_as(dense)
    torch.testing.assert_close(masked[active], dense[active], rtol=1e-4, atol=1e-4)


def convert_block(folder: pathlib.Path) -> None:
    """`convert --build` compiles what the block in ONNX lacks, and its session computes what the reference does."""
    begin, path = time.perf_counter(), folder / "block.onnx"
    torch.onnx.export(Bottleneck().eval(), (torch.randn(SHAPE),), path, dynamo=True, verbose=False)
    report("torch.onnx.export", begin)
    command = [sys.executable, "-m", "distile", "convert", path, "--mask-size", "mask=56,56"]
    assert "PolyKernel 1 of 1" in run(*command, "--build")  # With the residual; the others are those of PyTorch.
    run(*command, "--reference", "-o", folder / "reference.onnx")
    session = onnxruntime.InferenceSession(folder / "block.masked.onnx", session_options())
    reference = onnxruntime.InferenceSession(folder / "reference.onnx")
    image = next(one.name for one in reference.get_inputs() if one.name != "mask")
    feeds = {image: np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32), "mask": blob().numpy()}
    np.testing.assert_allclose(session.run(None, feeds)[0], reference.run(None, feeds)[0], rtol=1e-4, atol=1e-4)


def use_command(folder: pathlib.Path) -> None:
    """Plans are read, compiled, measured, made and searched for."""
    command = pathlib.Path(sys.executable).parent / "distile"
    plan = DATA / "plans" / "conv1x1_96_576_avx2.json"
    assert "1x1 convolution" in run(command, "info", plan)
    run(command, "compile", plan, "-o", folder / "plan.so", "-q")
    times = ("--threads", 1, "--seconds", 0.01, "-q")
    run(command, "profile", plan, "--object", folder / "plan.so", "-o", folder / "times.json", *times)
    assert json.loads((folder / "times.json").read_text())["distile_times"]
    run(command, "plan", DATA / "operators" / "conv1x1_96_576.json", "--bound-only", "-o", folder / "plans")


def main() -> None:
    torch.manual_seed(0)
    assert toolchain.compiler_folder() == toolchain.FOLDER and "ziglang" in toolchain.environment(toolchain.FOLDER)["CC"]
    build_and_compare(MaskedConv2d(24, 40, 3, padding=1, activation="relu"))
    build_and_compare(MaskedConv2d(24, 56, 3, padding=1, activation="silu"))
    build_and_compare(MaskedConv2d(24, 72, 1), measure=True)
    folder = pathlib.Path("/tmp/bare")
    folder.mkdir()
    build_block()
    convert_block(folder)
    use_command(folder)
    kept = sum(path.stat().st_size for path in distile.cache_folder().iterdir())
    print(f"all right; {kept / 1e6:.1f} MB of PolyKernels")


main()
