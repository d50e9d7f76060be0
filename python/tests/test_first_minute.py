"""`python -m distile`, and pictures of masks."""

import json
import re
import struct
import subprocess
import sys
import zlib

import pytest

from distile import __main__, overview, pictures, toolchain


@pytest.mark.cpu
def test_show(tmp_path, capsys):
    assert __main__.main(["--seconds", ".001", "--picture", str(tmp_path / "mask.png")]) == 0
    text = capsys.readouterr().out
    for name in ("distile", "CPU", "GPUs", "types", "PolyKernels", "compiler", "set_build"):
        assert re.search(rf"^{name}: +\S", text, re.MULTILINE), name
    rows = re.findall(r"^ +(\d+)%   +([\d.]+) ms   +([\d.]+) ms   +([\d.]+)", text, re.MULTILINE)
    assert [row[0] for row in rows] == ["5", "10", "30", "60", "100"]
    assert all(abs(float(dense) / float(masked) - float(gain)) < 0.1 * float(gain) for _, dense, masked, gain in rows)
    error = re.search(r"largest error at active pixels is (\S+) of", text)
    assert float(error[1]) < 1e-5 and "ran dense" not in text
    assert "python -m distile explain" in text and (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.cpu
def test_json(capsys):
    assert __main__.main(["--json", "--seconds", ".001"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(name.startswith("conv3x3_256") for name in found["polykernels"]["shipped"]["cpu"])
    assert found["cpu"]["cores"] >= 1
    assert {"float32", "bfloat16", "float8_e5m2", "uint8"} < set(found["types"])
    times = found["demonstration"]["times"]
    assert len(times) == 5 and all(row["dense_us"] > 0 and row["masked_us"] > 0 for row in times)
    assert found["demonstration"]["has_polykernel"]


def test_tensor_cores(monkeypatch):
    """Where there is a GPU, what compiles code for tensor cores, or why nothing does."""
    monkeypatch.setenv("CUDACXX", "no-such-nvcc")
    found = overview.overview()
    found["compiler"] = found["compiler"] or "somewhere"
    assert "tensor cores" not in overview.text({**found, "gpus": []})
    gpu = {"gpus": [{"name": "a GPU", "capability": "9.0"}]}
    text = overview.text({**found, **gpu, "cuda_compiler": None})
    assert re.search(r"^tensor cores: +new PolyKernels have no code for them: .+", text, re.MULTILINE)
    assert re.search(r"^tensor cores: +NVRTC$", overview.text({**found, **gpu, "cuda_compiler": "NVRTC"}), re.MULTILINE)
    monkeypatch.setenv("CUDACXX", "'nvcc")
    assert overview.overview()["cuda_compiler"] is None


def test_commands(capsys):
    for command, words in (
        ([], "python -m distile explain model.py"),
        (["explain"], "--masks"),
        (["convert"], "--rules"),
    ):
        with pytest.raises(SystemExit) as ended:
            __main__.main([*command, "--help"])
        assert ended.value.code == 0 and words in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "distile", "--json", "--no-demonstration"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["demonstration"] is None and not done.stderr


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; import distile; from distile import __main__; "


@pytest.mark.parametrize("program, status, says", [
    ("__main__.main(['--no-demonstration'])", 0, "convert model.onnx  "),
    ("sys.exit(__main__.main(['explain', 'model.py', '--masks', '.3']))", 2, "need PyTorch: pip install torch"),
    ("distile.convert", 1, "no attribute 'convert' without PyTorch, which is not installed"),
    ("from distile import set_build", 1, "ImportError: cannot import name 'set_build'"),
    ("import distile.onnx; assert not hasattr(distile, '__path')", 0, ""),
])  # fmt: skip
def test_without_torch(program, status, says):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH + program], capture_output=True, text=True, check=False)
    assert done.returncode == status and says in done.stdout + done.stderr, done.stderr
    assert "model = distile.convert" not in done.stdout


def test_why_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "FOLDER", tmp_path)
    assert toolchain.why_no_compiler() == "this package was built without it"
    (tmp_path / "distile_builder").touch()
    monkeypatch.setattr(toolchain, "_halide_folder", lambda: None)
    monkeypatch.setattr(toolchain.importlib.metadata, "version", lambda _: "19.0.0")
    assert toolchain.why_no_compiler() == "version 19.0.0 of Halide's package is installed, and it needs 21.*"
    monkeypatch.setattr(toolchain, "_halide_folder", lambda: "somewhere")
    assert "no cc, no $CC" in toolchain.why_no_compiler()
    found = {**overview.overview(), "compiler": None, "no_compiler": "why"}
    assert re.search(r"^compiler: +not found \(why\): other shapes", overview.text(found), re.MULTILINE)


@pytest.mark.cpu
def test_failed_build(tmp_path, monkeypatch, capsys):
    """A folder that cannot be written, which is a file here."""
    (tmp_path / "distile_builder").touch()
    monkeypatch.setenv("DISTILE_COMPILER", str(tmp_path))
    monkeypatch.setenv("DISTILE_CACHE", str(tmp_path / "distile_builder"))
    (tmp_path / "model.py").write_text(
        "import torch\nmodel = lambda: torch.nn.Conv2d(3, 9, 3)\nexample = lambda: torch.ones(1, 3, 9, 9)\n"
    )
    with pytest.raises(SystemExit) as ended:
        __main__.main(["explain", str(tmp_path / "model.py"), "--masks", ".3", "--build"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and "cannot be written into" in told and told.startswith("python -m distile")


@pytest.mark.cpu
@pytest.mark.parametrize("words, says", [
    (["--device", "tpu"], "--device tpu: "),
    (["--seconds", ".001", "--picture", "nowhere/mask.png"], "nowhere/mask.png"),
    (["explain", "nowhere.py", "--masks", ".3"], "there is no Python file nowhere.py"),
    (["explain", "README.md", "--masks", ".3"], "there is no Python file README.md"),
    (["explain", "empty.py", "--masks", ".3"], "empty.py has no model() and no example(). For instance:"),
    (["explain", "model.py", "--masks", "30"], "--masks 30: a density is from 0 to 1"),
    (["explain", "model.py", "--masks", "nowhere.npy"], "nowhere.npy"),
    (["explain", "model.py", "--masks", ".3", "--device", "tpu"], "--device tpu: "),
    (["explain", "model.py", "--masks", ".3", "--rules", "0"], "the rule '0' is not PATTERN=MASK"),
    (["explain", "model.py", "--masks", ".3", "--build"], "pip install \"distile[compiler]\""),
])  # fmt: skip
def test_mistakes_are_told(words, says, tmp_path, monkeypatch, capsys):
    """In a line, and not by a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTILE_COMPILER", str(tmp_path / "none"))
    (tmp_path / "empty.py").write_text("import torch\n")
    (tmp_path / "model.py").write_text(
        "import torch\nmodel = lambda: torch.nn.Conv2d(3, 8, 3)\nexample = lambda: torch.ones(1, 3, 9, 9)\n"
    )
    with pytest.raises(SystemExit) as ended:
        __main__.main(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and says in told and told.startswith("python -m distile")


def pixels(png: bytes) -> list[list[tuple[int, ...]]]:
    """The pixels of a PNG of RGBA with unfiltered rows."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + length
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 6, 0, 0, 0] and list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    rows = zlib.decompress(chunks[b"IDAT"])
    assert len(rows) == height * (1 + 4 * width) and not any(rows[:: 1 + 4 * width])
    return [[tuple(rows[y * (1 + 4 * width) + 1 + 4 * x :][:4]) for x in range(width)] for y in range(height)]


def test_pictures():
    mask = [[[y >= 4 and x >= 2 for x in range(4)] for y in range(6)]]
    assert pictures.levels(mask) == [[float(active) for active in row] for row in mask[0]]
    assert pictures.levels(mask, 2) == [[0, 0], [0, 2 / 3]]
    found = pixels(pictures.png(pictures.levels(mask)))
    assert [[pixel[3] == 255 for pixel in row] for row in found] == mask[0]
    assert pictures.for_terminal(pictures.levels(mask)) == "····\n····\n··██"
    tokens = [[True, False, True, True, False]]
    assert pictures.levels(tokens) == [[1, 0, 1], [1, 0, 0]]
    assert pictures.for_terminal(pictures.levels(tokens), unicode=False) == '#."'
