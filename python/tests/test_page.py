"""The page of distile.explain."""

import math

import pytest
import torch
from torch import nn

import distile
from distile import explain
from distile.page import Found, Whole, page
from distile.report import Row
from pages import Page
from test_first_minute import pixels

pytestmark = pytest.mark.filterwarnings("ignore:distile")

HOSTILE = "<script>alert('1')</script>&amp;\""


MODEL = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())

def example():
    return torch.randn(1, 3, 16, 12)
"""


def row(**more) -> Row:
    given = dict(name="a", kind="conv", density=0.25, dense_work=4e6, work=1e6, dense_us=100.0, masked_us=40.0)
    return Row(**{**given, "predicted_us": 25.0, "runs_dense": False, **more})


def test_names_are_escaped():
    layer = row(name=HOSTILE, kind=HOSTILE, runs_dense=True, why_dense=HOSTILE)
    found = Page(page(Found(HOSTILE, HOSTILE, [layer], None, [HOSTILE], HOSTILE)))
    cells = found.rows[1]
    assert cells[0] == f"{HOSTILE}runs dense: {HOSTILE}" and cells[1] == HOSTILE
    assert found.texts["li"] == [HOSTILE] and found.texts["pre"] == [HOSTILE] and HOSTILE in found.texts["h1"][0]


@pytest.mark.parametrize(
    "times, even",
    [
        (dict(full_us=None), None),
        (dict(full_us=90.0), 1.0),
        (dict(full_us=160.0), 0.625),  # From 40 at a quarter, by 160 for all pixels, to 100.
        (dict(full_us=160.0, density=1.0), None),
        (dict(full_us=160.0, masked_us=170.0), None),
        (dict(full_us=280.0, masked_us=190.0), 0.0),
    ],
)
def test_break_even(times, even):
    assert row(**times).break_even == even
    assert math.isclose(row(**times).described()["density"], row(**times).density)


def test_summary():
    rows = [row(full_us=160.0), row(runs_dense=True, why_dense="no reason")]
    found = Page(page(Found("m", "here", rows, Whole(300.0, 100.0, 500.0), [], "x")))
    assert found.texts["b"] == ["3.00", "0.3 ms → 0.1 ms", "25%", "62%"]
    assert [cells[-1] for cells in found.rows[1:]] == ["62%", ""]
    found = Page(page(Found("m", "here", [], Whole(100.0, 200.0), [], "x")))
    assert "it loses" in "".join(found.texts["div"]) and not found.rows


@pytest.mark.cpu
def test_of_a_model(tmp_path):
    """By the command and by the function: the pictures are the masks."""
    (tmp_path / "model.py").write_text(MODEL)
    path = tmp_path / "page.html"
    arguments = ["--masks", ".25", "--seconds", ".001", "--rules", "0=near", "*=mask", "--html", str(path)]
    assert explain.main([str(tmp_path / "model.py"), *arguments]) == 0
    found = Page(path.read_text())
    assert [cells[0].partition("runs dense: ")[::2] for cells in found.rows[1:]] == [
        ("0", "no PolyKernel (distile.build compiles one)"), ("1", "")
    ]  # fmt: skip
    assert "distile.convert(model.eval(), [('0', 'near'), ('*', 'mask')], example=x)" in found.texts["pre"][0]
    assert "'near': ...," in found.texts["pre"][0] and "distile.set_build" in found.texts["pre"][0]
    assert len(found.images) == 2

    model = distile.convert(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)), fuse=False)
    mask = torch.zeros(1, 5, 7, dtype=torch.bool)
    mask[0, 1:3, 2:6] = True
    rows, whole = explain.explain(model, torch.randn(1, 4, 5, 7), mask=mask, seconds=0.001, html=path)
    assert all(one.full_us > 0 for one in rows) and whole.full_us > 0
    assert len(rows) == 2
    (picture, _) = Page(path.read_text()).images
    assert [[pixel[3] == 255 for pixel in line] for line in pixels(picture)] == mask[0].tolist()
