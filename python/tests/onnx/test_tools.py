"""The commands, building, and calls from several threads."""

import concurrent.futures
import pathlib
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import unet
from networks import Builder, feeds_of, run
from pages import Page
from test_conversion import residual_network

from distile.onnx import Rule, cache_folder, convert, session_options
from distile.onnx import __main__ as command
from distile.onnx.building import missing
from distile.onnx.explain import make_mask
from distile.rules import Grid, read_rules
from distile.toolchain import compiler_folder


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(residual_network(), path)
    return path


def test_convert(model, capsys):
    arguments = ["convert", str(model), "--rules", "b1*=mask", "b2/*=other", "--mask-size", "other=22,18"]
    assert command.main(arguments) == 0
    text = capsys.readouterr().out
    place = "stride 2x2, offset 0x0, grid 11x9"
    general = "no PolyKernel: code for any shape"
    assert re.search(rf"b1/conv2 +MaskedConv +mask +11x9 +{place} +with Add, Relu; {general}", text)
    assert re.search(r"stem +Conv +- +left: no rule", text)
    assert "5 nodes replaced, 2 left" in text
    converted = onnx.load(model.with_suffix(".masked.onnx"))
    assert {value.name for value in converted.graph.input} == {"x", "mask", "other"}
    assert command.main([*arguments, "--reference", "-o", str(model.with_name("reference.onnx"))]) == 0
    feeds = feeds_of(converted, 0.4)
    paths = model.with_suffix(".masked.onnx"), model.with_name("reference.onnx")
    results = [run(onnx.load(path), feeds)[0] for path in paths]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_example():
    """The program of docs/onnx.md."""
    program = pathlib.Path(__file__).parents[2] / "examples/onnx_block.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    found = re.fullmatch(r"2 layers replaced, active: 12%, largest error there: (.*)", done.stdout.strip())
    assert found and float(found[1]) < 1e-4 and not done.stderr


@pytest.mark.parametrize("words, says", [
    (["convert", "nowhere.onnx"], "nowhere.onnx"),
    (["convert", "bad.onnx"], "bad.onnx holds no ONNX model"),
    (["explain", "bad.onnx", "--masks", ".3"], "bad.onnx holds no ONNX model"),
    (["convert", "model.onnx", "--rules", "x"], "the rule 'x' is not PATTERN=MASK"),
    (["convert", "model.onnx", "--mask-size", "9,9"], "--mask-size 9,9 is neither MASK=H,W nor MASK=T"),
    (["convert", "model.onnx", "--mask-size", "m=9,9"], "a size of the mask m, but the masks of the rules are: mask"),
    (["convert", "model.onnx", "--image", "q"], "'q' is no input"),
    (["convert", "model.onnx", "-o", "nowhere/masked.onnx"], "nowhere/masked.onnx"),
    (["convert", "model.onnx", "--build"], "pip install \"distile[compiler]\""),
    (["explain", "model.onnx", "--masks", "30"], "--masks 30: a density is from 0 to 1"),
    (["explain", "model.onnx", "--masks", "nowhere.npy"], "nowhere.npy"),
    (["explain", "model.onnx", "--masks", "m=.3"], "says nothing about the mask 'mask'"),
])  # fmt: skip
def test_mistakes_are_told(words, says, tmp_path, monkeypatch, capsys):
    """In a line, and not by a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTILE_COMPILER", str(tmp_path / "none"))
    (tmp_path / "bad.onnx").write_text("no model")
    onnx.save(residual_network(), tmp_path / "model.onnx")
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and says in told and told.startswith("python -m distile")


def test_rules_that_match_nothing():
    with pytest.warns(UserWarning, match=r"'body\*' matches no node"):
        convert(residual_network(), [Rule("body*", "mask"), Rule("*", "mask")])


def test_rules(tmp_path):
    (tmp_path / "rules.json").write_text('["a=b=m", "c*="]')
    rules = read_rules([str(tmp_path / "rules.json"), "d=m,k", "e=m@64x48", "f=m,k@1+64x48+32/16"])
    assert rules == [
        Rule("a=b", "m"), Rule("c*", None), Rule("d", "m", "k"), Rule("e", "m", grid=Grid(64, 48)),
        Rule("f", "m", "k", Grid(64, 48, 1, 32, 16)),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not PATTERN=MASK"):
        read_rules(["mask"])
    with pytest.raises(ValueError, match="not ROWSxCOLUMNS"):
        read_rules(["a=m@64"])
    with pytest.raises(ValueError, match="no cells"):
        read_rules(["a=m@0x4"])
    for text, reason in (('{"b*": "mask"}', "list of texts"), ("[7]", "list of texts"), ("[b*=mask]", "not JSON")):
        (tmp_path / "rules.json").write_text(text)
        with pytest.raises(ValueError, match=f"rules.json.*{reason}"):
            read_rules([str(tmp_path / "rules.json")])


def test_explain(model, capsys):
    arguments = ["explain", str(model), "--rules", "b*=mask", "--masks", ".25", "--seconds", ".005"]
    assert command.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    row = lines[2].split()
    assert row[:4] == ["b1/conv1", "conv", "3x3", "12-12"] and "runs dense" not in lines[2]
    active = float(row[4]) * 99
    assert abs(active - round(active)) < 0.1 and abs(active - 0.25 * 99) <= 4
    assert float(row[5]) == round(99 * 12 * 12 * 9 / 1e6, 1)
    assert lines[8].startswith("total") and any(line.startswith("whole model: dense") for line in lines)


def test_explain_upsampling(tmp_path, capsys):
    onnx.save(unet("InstanceNormalization"), tmp_path / "unet.onnx")
    arguments = ["explain", str(tmp_path / "unet.onnx"), "--rules", "*/time_emb_proj/*=", "*=mask"]
    assert command.main([*arguments, "--masks", ".5", "--seconds", ".001"]) == 0
    assert re.search(r"/up/sampler/conv/Conv +upsample x2 3x3 32-32 ", capsys.readouterr().out)


def test_explain_images_of_any_size(tmp_path, capsys):
    b = Builder()
    b.conv("c", "x", 4, 3, stride=4)
    onnx.save(b.model({"x": ["n", 3, "h", "w"]}, {"c.out": ["n", 4, "u", "v"]}), tmp_path / "model.onnx")
    assert command.main(["explain", str(tmp_path / "model.onnx"), "--masks", ".5", "--seconds", ".001"]) == 0
    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[:4] == ["c", "conv", "3x3/4", "3-4"] and float(row[5]) == round(80 * 112 * 27 * 4 / 1e6, 1)


def test_masks_for_explain(tmp_path):
    np.save(tmp_path / "masks.npy", np.eye(6, dtype=np.uint8))
    mask = make_mask(str(tmp_path / "masks.npy"), [2, 3, 2])
    assert (mask == np.array([[1, 0], [1, 1], [0, 1]], bool)).all() and mask.shape == (2, 3, 2)
    with pytest.raises(ValueError, match=r"are \[6, 6\], but the model's are \[4, 4\]"):
        make_mask(str(tmp_path / "masks.npy"), [1, 4, 4])
    assert abs(make_mask(".5", [1, 100]).mean() - 0.5) < 0.2
    greys = np.array([[0, 0.1, 0.5], [0.6, 1, 0.2]], np.float32)
    np.save(tmp_path / "greys.npy", greys)
    assert (make_mask(str(tmp_path / "greys.npy"), [1, 2, 3])[0] == [[0, 0, 0], [1, 1, 0]]).all()
    greys[0, 0] = np.nan
    np.save(tmp_path / "greys.npy", greys)
    with pytest.raises(ValueError, match="no numbers"):
        make_mask(str(tmp_path / "greys.npy"), [1, 2, 3])


@pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")
def test_build(tmp_path):
    """Builds PolyKernels, with which results stay the same."""
    b = Builder()
    b.conv("up", "x", 5, 8, 2, 2, op="ConvTranspose", pads=[0] * 4, output_padding=[1, 0])
    b.add("Transpose", ["x"], "t", perm=[0, 2, 3, 1])
    b.add("MatMul", ["t", b.weights("w", 8, 3)], "y", "linear")
    onnx.save(b.model({"x": [1, 8, 9, 9]}, {"y": [1, 9, 9, 3], "up.out": None}), tmp_path / "model.onnx")
    arguments = ["convert", str(tmp_path / "model.onnx"), "--rules", "up=large", "*=mask", "--build"]
    converted, report = convert(onnx.load(tmp_path / "model.onnx"), read_rules(arguments[3:5]))
    assert len(missing(report)) == 2
    known = set(cache_folder().glob("*.so"))
    feeds = feeds_of(converted, 0.4)
    dense = run(converted, feeds)
    assert command.main(arguments) == 0
    assert not missing(report) and len({*cache_folder().glob("*.so")} - known) == 2
    for result, expected in zip(run(onnx.load(tmp_path / "model.masked.onnx"), feeds), dense):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_calls_from_threads():
    """One session, called by many threads with other masks."""
    converted, _ = convert(residual_network(), [Rule("b*", "mask")])
    options = session_options()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(converted.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = [feeds_of(converted, 0.1 * seed, seed) for seed in range(8)]
    expected = [session.run(None, one)[0] for one in feeds]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        places = list(range(8)) * 20
        for place, result in zip(places, pool.map(lambda place: session.run(None, feeds[place])[0], places)):
            np.testing.assert_array_equal(result, expected[place])


def test_page(model, tmp_path):
    path = tmp_path / "page.html"
    arguments = ["explain", str(model), "--rules", "b1*=mask", "--masks", ".3", "--seconds", ".001"]
    assert command.main([*arguments, "--html", str(path)]) == 0
    found = Page(path.read_text())
    assert len(found.images) == len(found.rows) - 1 > 0
    assert "convert" in found.texts["pre"][0] and "distile.onnx.session_options()" in found.texts["pre"][0]
    assert all(cells[0].startswith("b1/") for cells in found.rows[1:])
    assert any("stem: Conv: no rule" in text for text in found.texts["li"])
