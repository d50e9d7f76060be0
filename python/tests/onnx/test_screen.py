"""The example of a recorded screen, and models of the package onnx, converted, against themselves."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest

PYTHON = pathlib.Path(__file__).parents[2]
sys.path += [str(PYTHON / "examples"), str(PYTHON / "zoo")]

import check_onnx
import results


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_inception_v1"])
def test_light_models(name):
    result = check_onnx.check(name)
    assert results.is_exact(result), results.verdict(result)
    assert result["replaced"] > 10 and result["changed"] > 1e-3


def test_frames():
    pytest.importorskip("PIL")
    import onnx_screen

    first, second = (onnx_screen.frame(step, 736, 1280) for step in (0, 1))
    mask, exact = (onnx_screen.changed(first, second, margin) for margin in (48, 0))
    assert mask.shape == (1, 736, 1280) and 0.05 < mask.mean() < 0.15 and 0 < exact.mean() < 0.01
    assert not (exact & ~mask).any() and not onnx_screen.changed(first, first).any()
    y, x = (places[0] for places in exact[0].nonzero())
    assert mask[0, max(y - 48, 0), x] and mask[0, y, max(x - 48, 0)]


@pytest.mark.skipif(not importlib.util.find_spec("rapidocr_onnxruntime"), reason="the detector is not installed")
def test_screen(monkeypatch, tmp_path, capsys):
    pytest.importorskip("PIL")
    import onnx_screen

    picture, results = tmp_path / "screen.png", tmp_path / "rows.json"
    arguments = ["--size", "320", "640", "--frames", "1", "--seconds", "0", "--picture", str(picture)]
    arguments += ["--density", "0.3", "--json", str(results)]
    monkeypatch.setattr(sys, "argv", ["onnx_screen.py", *arguments])
    onnx_screen.main()
    assert "frame 1: active" in capsys.readouterr().out and picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(results.read_text())["rows"]
    assert [(row["mask"], row["height"]) for row in rows] == [("frame", 320), ("blobs", 320)]
    assert rows[1]["density"] == 0.3 and all(row["dense_ms"] > 0 and row["masked_ms"] > 0 for row in rows)


def test_blobs_have_their_density():
    pytest.importorskip("PIL")
    import onnx_screen

    for density in (0.1, 0.3, 1.0):
        assert abs(np.mean(onnx_screen.blobs(density, 64, 96)) - density) < 0.01
