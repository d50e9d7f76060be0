"""Building PolyKernels, and mmcv's signature."""

import json
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import distile
from distile import building, compiler, mmcv, operators, polykernels, toolchain
from distile.nn import MaskedConv2d, MaskedLinear

pytestmark = pytest.mark.filterwarnings("ignore:distile")


@pytest.mark.cpu
@pytest.mark.parametrize("name, expected", [
    ("block", r"active: 12%, largest error there: [\d.]+e-0[67]"),
    ("several_devices", r"[2-9] devices, an imbalance of [\d.]+%"),
    ("first_lines", "11% of the result was computed, for a mask of 11%"),
])  # fmt: skip
def test_examples(name, expected):
    """The programs of docs/python.md and the README."""
    program = pathlib.Path(__file__).parents[1] / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert re.fullmatch(expected, done.stdout.strip()), done.stdout


@torch.no_grad()
def test_mmcv():
    layer = mmcv.MaskedConv2d(4, 6, 3, padding=1)
    x, mask = torch.randn(1, 4, 7, 7), (torch.rand(1, 7, 7) < 0.4).float()
    expected = nn.Conv2d.forward(layer, x) * mask[:, None]
    torch.testing.assert_close(layer(x, mask), expected)
    torch.testing.assert_close(mmcv.masked_conv2d(x, mask, layer.weight, layer.bias, 1), expected)
    assert not layer(x, torch.zeros_like(mask)).any()


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
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
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_build_measured(monkeypatch):
    measured = []

    def run(command, operator, *how, before=compiler._run):
        if command[1] == "build":
            plans = [json.loads(path.read_text()) for path in command[command.index("--plan") + 1 :]]
            measured.extend(plan["profile"]["device"] for plan in plans if "profile" in plan)
        printed = before(command, operator, *how)
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


@pytest.fixture
def empty_path(monkeypatch, tmp_path):
    """No program but those that a test puts there."""
    for variable in ("CC", "CUDACXX", "DISTILE_COMPILER", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    return tmp_path / "programs"


def make_program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return path


def test_cuda_compiler(monkeypatch, empty_path, tmp_path):
    monkeypatch.setattr(toolchain, "_nvrtc_folder", lambda: None)
    monkeypatch.setattr(toolchain, "_can_load_nvrtc", lambda: False)
    assert not toolchain.cuda_compiler() and "pip install nvidia-cuda-nvrtc" in toolchain.why_no_cuda_compiler()
    make_program(empty_path / "ccache")
    spaced = make_program(tmp_path / "some compilers" / "nvcc")
    for given in ("ccache nvcc", str(spaced), f"ccache '{spaced}' -m64"):
        monkeypatch.setenv("CUDACXX", given)
        assert toolchain.cuda_compiler() and not toolchain.why_no_cuda_compiler(), given
    monkeypatch.setenv("CUDACXX", "'nvcc")
    with pytest.raises(RuntimeError, match="variable CUDACXX names no program"):
        toolchain.cuda_compiler()
    monkeypatch.setattr(toolchain, "_nvrtc_folder", lambda: "/nvrtc")
    for given, expected in (("", "NVRTC"), ("nvrtc", "NVRTC"), ("no-such-nvcc", None)):
        monkeypatch.setenv("CUDACXX", given)
        assert toolchain.cuda_compiler() == expected, given
    assert "CUDACXX names the program 'no-such-nvcc', which does not exist" in toolchain.why_no_cuda_compiler()
    assert toolchain.environment(tmp_path)["LD_LIBRARY_PATH"] == "/nvrtc"


def test_folder_of_zig(monkeypatch, empty_path, tmp_path):
    """What zig keeps is in the cache folder that the user names, for the home folder may not be writable."""
    monkeypatch.setattr(toolchain, "_package", lambda name: tmp_path if name == "ziglang" else None)
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    monkeypatch.delenv("DISTILE_CACHE", raising=False)
    assert "ZIG_GLOBAL_CACHE_DIR" not in toolchain.environment(tmp_path)
    monkeypatch.setenv("DISTILE_CACHE", str(tmp_path / "cache"))
    assert toolchain.environment(tmp_path)["ZIG_GLOBAL_CACHE_DIR"] == str(tmp_path / "cache" / "zig")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "own")
    assert toolchain.environment(tmp_path)["ZIG_GLOBAL_CACHE_DIR"] == "own"
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR")
    monkeypatch.setenv("CC", "gcc")
    assert "ZIG_GLOBAL_CACHE_DIR" not in toolchain.environment(tmp_path)


def test_c_compiler(monkeypatch, empty_path, tmp_path):
    """$CC, `cc`, or that of ziglang, for every CPU."""
    monkeypatch.setattr(toolchain, "_package", lambda name: tmp_path / "a package" if name == "ziglang" else None)
    words = shlex.split(toolchain.environment(tmp_path)["CC"])
    assert words[:3] == [str(tmp_path / "a package" / "zig"), "cc", "-target"] and words[3].startswith(platform.machine())
    make_program(empty_path / "cc")
    assert toolchain.environment(tmp_path)["CC"] == "cc"
    monkeypatch.setenv("CC", "ccache gcc")
    assert toolchain.environment(tmp_path)["CC"] == "ccache gcc"


def test_compiler_folder(monkeypatch, empty_path, tmp_path):
    """The environment names it, the wheel with its extra has it, or a command on the PATH, which may be a link."""
    wheel, installed, named = (tmp_path / name for name in ("wheel", "installed", "named"))
    for folder in (wheel, installed, named):
        make_program(folder / "distile_builder")
    monkeypatch.setattr(toolchain, "FOLDER", wheel)
    monkeypatch.setattr(toolchain, "_package", lambda name: None)
    assert toolchain.compiler_folder() is None
    with pytest.raises(FileNotFoundError, match=r'it needs .* pip install "distile\[compiler\]"'):
        toolchain.find_compiler("it")
    make_program(empty_path / "cc")  # The wheel's lacks Halide.
    make_program(installed / "distile")
    (empty_path / "distile").symlink_to(installed / "distile")
    assert toolchain.compiler_folder() == installed
    monkeypatch.setattr(toolchain, "_halide_folder", lambda: "/halide")
    assert toolchain.compiler_folder() == wheel
    assert toolchain.environment(wheel)["LD_LIBRARY_PATH"].startswith("/halide")
    assert not toolchain.environment(installed).get("LD_LIBRARY_PATH", "").startswith("/halide")
    monkeypatch.setenv("DISTILE_COMPILER", str(named))
    assert toolchain.compiler_folder() == named


def test_halide_of_the_wheel(monkeypatch, tmp_path):
    """Only the release that the extra names will do."""
    project = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    assert f'"halide=={toolchain.HALIDE}*"' in project.read_text()
    make_program(tmp_path / "lib64" / "libHalide.so")
    monkeypatch.setattr(toolchain, "_package", lambda name: tmp_path)
    for version, folder in (("21.0.0", str(tmp_path / "lib64")), ("22.0.0", None)):
        monkeypatch.setattr(toolchain.importlib.metadata, "version", lambda name, version=version: version)
        assert toolchain._halide_folder() == folder


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
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.parametrize("cuda_compiler", ["no-such-nvcc", "nvrtc"])
def test_build_for_gpus(monkeypatch, cuda_compiler):
    """Without kernels for tensor cores, and with them."""
    monkeypatch.setenv("CUDACXX", cuda_compiler)
    monkeypatch.setattr(compiler, "_told", set())
    with_tensor_cores = toolchain.cuda_compiler() is not None
    if with_tensor_cores != (cuda_compiler == "nvrtc"):
        pytest.skip("there is no NVRTC")
    x, weight = torch.randn(1, 8, 6, 5).half(), torch.randn(16 + 8 * with_tensor_cores, 8, 1, 1)
    operator = operators.conv2d_operator(x, weight, None, (1, 1), (0,) * 4, (1, 1), 1, "none")
    for_gpu = operator.on("cuda")
    assert operator == operator.on("cpu") and for_gpu.name != operator.name and str(for_gpu).endswith("on cuda")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert distile.build(for_gpu) == [for_gpu]
    messages = [str(one.message) for one in warned]
    assert len(messages) == 1 - with_tensor_cores and all("without code for tensor cores" in one for one in messages)
    assert not polykernels.shared_object(operator).is_file()
    code = polykernels.shared_object(for_gpu).read_bytes()
    assert (b".target sm_80" in code and b"sm_90a" in code) == with_tensor_cores


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.filterwarnings("default:distile")
@pytest.mark.parametrize("part, says", [(2, "is cut off"), (1000, "is cut off"), (10**9, "file too short")])
@torch.no_grad()
def test_broken_file(part, says):
    """A PolyKernel that cannot be loaded is as none, and is built again."""
    layer = MaskedLinear(5, 30 + len(str(part)))
    x, mask = torch.randn(1, 6, layer.in_features), torch.rand(1, 6) < 0.5
    dense = torch.where(mask[..., None], layer(x), 0.0)
    (operator,) = building.needed_by(nn.Sequential(layer), x, mask=mask)
    polykernels.forget(operator)
    path = polykernels.shared_object(operator)
    compiler.compile_polykernel(operator, None, path, toolchain.compiler_folder())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // part])
    with pytest.warns(UserWarning, match=f"{says}.*; remove the file, and distile.build makes it again"):
        torch.testing.assert_close(layer(x, mask), dense)
    layer(x, mask)
    assert distile.build(operator) == [operator]
    with polykernels.recording() as missing:
        torch.testing.assert_close(layer(x, mask), dense)
    assert not missing


@pytest.mark.parametrize("what, says", [
    (["model"], "not str"),
    ([[]], "build.*distile.missing.*, not list"),
    ([None, "x"], "not NoneType"),
])  # fmt: skip
def test_build_of_no_operators(what, says):
    with pytest.raises(TypeError, match=says):
        distile.build(*what)


def test_no_home(monkeypatch):
    """Layers run without a cache folder, and a build says what to do."""
    for variable in ("DISTILE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", no_home)
    layer, x, mask = MaskedLinear(5, 27), torch.randn(1, 6, 5), torch.rand(1, 6) < 0.5
    torch.testing.assert_close(layer(x, mask), torch.where(mask[..., None], layer(x), 0.0))
    with pytest.raises(RuntimeError, match="no home folder.*DISTILE_CACHE"):
        distile.build(nn.Sequential(layer), x, mask=mask)


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
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
