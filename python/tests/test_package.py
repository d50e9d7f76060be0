"""Building PolyKernels, and mmcv's signature."""

import json
import threading
import time

import pytest
import torch
from torch import nn

import distile
from distile import compiler, mmcv, operators, polykernels
from distile.nn import MaskedConv2d, MaskedLinear

pytestmark = pytest.mark.filterwarnings("ignore:distile")


@torch.no_grad()
def test_mmcv():
    layer = mmcv.MaskedConv2d(4, 6, 3, padding=1)
    x, mask = torch.randn(1, 4, 7, 7), (torch.rand(1, 7, 7) < 0.4).float()
    expected = nn.Conv2d.forward(layer, x) * mask[:, None]
    torch.testing.assert_close(layer(x, mask), expected)
    torch.testing.assert_close(mmcv.masked_conv2d(x, mask, layer.weight, layer.bias, 1), expected)
    assert not layer(x, torch.zeros_like(mask)).any()


@pytest.mark.cpu
@pytest.mark.skipif(compiler.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_build():
    layers = [
        MaskedConv2d(5, 16, 3, stride=2, padding=1, activation="silu"),
        MaskedConv2d(16, 16, 3, groups=16),
        distile.nn.MaskedConvTranspose2d(5, 16, 4, stride=2, padding=1, output_padding=1),
        distile.nn.MaskedUpsampleConv2d(5, 16, 3, padding=1),
        MaskedLinear(24, 40),
        MaskedConv2d(8, 16, 3, groups=2),
    ]
    operators = []
    for layer in layers:
        x = torch.randn(2, 9, 24) if isinstance(layer, MaskedLinear) else torch.randn(2, layer.in_channels, 9, 8)
        whole = layer(x)
        mask = torch.rand(whole.shape[:2] if whole.dim() == 3 else (2, *whole.shape[2:])) < 0.5
        spread = mask[..., None] if whole.dim() == 3 else mask[:, None]
        (operator,) = distile.build(layer, x, mask=mask)
        operators.append(operator)
        with polykernels.recording() as missing:
            result = layer(x, mask)
        assert not missing, operator
        torch.testing.assert_close(result, torch.where(spread, whole, 0.0), rtol=1e-4, atol=1e-4)
    assert not distile.build(layers[0], torch.randn(1, 5, 9, 8), mask=torch.ones(1, 5, 4, dtype=torch.bool))
    # What an interrupted build left in the folder is not built again.
    lines: list[str] = []
    other = operator.make("masked_linear", **{**dict(operators[4].params), "out_channels": 48})
    assert distile.build(*operators, other, progress=lines.append) == [other]
    assert len(lines) == 1 and lines[0].startswith("PolyKernel 1 of 1: masked_linear")


@pytest.mark.cpu
@pytest.mark.skipif(compiler.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_build_measured(monkeypatch):
    measured = []

    def run(command, operator, before=compiler._run):
        if command[1] == "build":
            plans = [json.loads(path.read_text()) for path in command[command.index("--plan") + 1 :]]
            measured.extend(plan["profile"]["device"] for plan in plans if "profile" in plan)
        printed = before(command, operator)
        if command[1] == "profile":
            plan = json.loads(command[2].read_text())
            command[2].write_text(json.dumps({**plan, "profile": {**plan["profile"], "doubt": "the machine was busy"}}))
        return printed

    monkeypatch.setattr(compiler, "_run", run)
    layer, x, mask = MaskedLinear(24, 56), torch.randn(2, 9, 24), torch.rand(2, 9) < 0.5
    with pytest.warns(UserWarning, match=r"doubtful; the machine was busy;.*remove .*\.so and build it again"):
        (operator,) = distile.build(layer, x, mask=mask, measure=True)
    assert any(not device.startswith("none") for device in measured), measured
    with polykernels.recording() as missing:
        result = layer(x, mask)
    assert not missing
    torch.testing.assert_close(result, torch.where(mask[..., None], layer(x), 0.0), rtol=1e-4, atol=1e-4)


def test_compiler_of_environment(monkeypatch, tmp_path):
    spaced = tmp_path / "some compilers" / "cc"
    spaced.parent.mkdir()
    spaced.write_text("")
    spaced.chmod(0o755)
    for given, words in (
        (None, ["cc"]),
        ("", ["cc"]),
        ("ccache gcc", ["ccache", "gcc"]),
        (str(spaced), [str(spaced)]),
        (f"ccache '{spaced}' -m64", ["ccache", str(spaced), "-m64"]),
    ):
        monkeypatch.delenv("CC", raising=False)
        if given is not None:
            monkeypatch.setenv("CC", given)
        assert compiler._program("CC", "cc") == words
    monkeypatch.setenv("CC", "'cc")
    with pytest.raises(RuntimeError, match="variable CC names no program"):
        compiler._program("CC", "cc")


def test_measuring_is_alone():
    machine, inside, seen = compiler.Machine(), [], []

    def enter(context, name):
        with context():
            inside.append(name)
            time.sleep(0.001)
            seen.append(list(inside))
            inside.remove(name)

    threads = [
        threading.Thread(target=enter, args=(machine.alone if number % 3 == 0 else machine.shared, number % 3))
        for number in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == 60
    assert all(len(names) == 1 for names in seen if 0 in names)


@pytest.mark.cpu
@pytest.mark.skipif(compiler.compiler_folder() is None, reason="distile's compiler is not installed")
def test_build_for_gpus(monkeypatch):
    monkeypatch.setenv("CUDACXX", "no-such-nvcc")  # Without tensor cores, which take longer.
    x, weight = torch.randn(1, 8, 6, 5), torch.randn(16, 8, 1, 1)
    operator = operators.conv2d_operator(x, weight, None, (1, 1), (0,) * 4, (1, 1), 1, "none")
    for_gpu = operator.on("cuda")
    assert operator == operator.on("cpu") and for_gpu.name != operator.name and str(for_gpu).endswith("on cuda")
    assert distile.build(for_gpu) == [for_gpu]
    assert polykernels.shared_object(for_gpu).is_file() and not polykernels.shared_object(operator).is_file()


@pytest.mark.cpu
@pytest.mark.skipif(compiler.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_build_attention():
    query, key, value = torch.randn(3, 2, 2, 11, 16).unbind(0)
    mask = torch.rand(2, 11) < 0.5
    run = lambda: torch.ops.distile.attention(query, key, value, mask, mask, causal=True)
    with polykernels.recording() as missing:
        expected = run()
    assert distile.build(*missing) == list(missing)
    with polykernels.recording() as missing:
        torch.testing.assert_close(run(), expected, rtol=1e-5, atol=1e-5)
    assert not missing
