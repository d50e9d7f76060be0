"""The page of distile.explain, also as a browser shows it, where one is installed (apt-get install chromium)."""

import functools
import html
import http.server
import json
import math
import re
import shutil
import subprocess
import threading

import pytest
import torch
from torch import nn

import distile
from distile import explain
from distile.page import Found, Whole, page
from distile.pictures import levels
from distile.report import Row
from pages import Page
from test_first_minute import pixels

pytestmark = pytest.mark.filterwarnings("ignore:distile")

HOSTILE = "<script>alert('1')</script>&amp;\""


MODEL = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.ConvTranspose2d(4, 128, 3, padding=1), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())

def example():
    return torch.randn(1, 4, 16, 12)
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


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (360, 800, 1400)
# Looks at the page in frames of several widths, and is then dumped.
LOOKING = """<!DOCTYPE html><pre id="found"></pre><script>
const wait = promise => new Promise(done => promise.addEventListener("load", done, {once: true}));
async function look(width) {
    const frame = document.createElement("iframe");
    frame.width = width;
    frame.src = "page.html";
    const loaded = wait(frame);
    document.body.append(frame);
    await loaded;
    const page = frame.contentDocument, all = selector => [...page.querySelectorAll(selector)];
    const box = one => one.getBoundingClientRect();
    return {
        blank: page.documentElement.scrollWidth - page.documentElement.clientWidth,
        title: page.title,
        pictures: all("img").map(one => [one.naturalWidth, one.naturalHeight, box(one).width, box(one).height]),
        bars: all("tbody .bar").map(one => box(one).width),
        cut: all("h1, p, li, .figures div").filter(one => one.scrollWidth > one.clientWidth).length,
        colour: frame.contentWindow.getComputedStyle(page.querySelector(".bar.m")).backgroundColor,
    };
}
(async () => {
    const found = [];
    for (const width of [WIDTHS]) found.push(await look(width));
    document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_in_a_browser(tmp_path):
    """Nothing is cut or wider than the window, pictures load and keep their shape, and bars are as long as the times."""
    whole, tokens = torch.ones(1, 24, 36, dtype=torch.bool), torch.rand(1, 197) < 0.5
    rows = [
        row(name="stem", picture=levels(whole.tolist()), full_us=160.0),
        row(name="blocks.11.attention_of_a_long_name.projection.of.many.parts", picture=levels(tokens.tolist())),
        row(name="norm", dense_work=0, work=0, masked_us=25.0, runs_dense=True, why_dense="no PolyKernel " * 9),
    ]
    text = page(Found("A" * 30, "on a CPU " * 30, rows, Whole(3e4, 1e4, 5e4), ["fc: " + "why " * 60], "model = x" * 40))
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "looking.html").write_text(LOOKING.replace("WIDTHS", ", ".join(map(str, WIDTHS))))
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *arguments):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        address = f"http://127.0.0.1:{server.server_port}/looking.html"
        command = [BROWSER, *flags, "--virtual-time-budget=20000", "--dump-dom", address]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
        server.shutdown()
    found = json.loads(html.unescape(re.search('<pre id="found">(.*?)</pre>', shown, re.DOTALL).group(1)))
    assert len(found) == len(WIDTHS)
    for one in found:
        assert one["blank"] <= 0 and one["cut"] == 0, one
        assert one["title"].startswith("AAA") and one["colour"] == "rgb(46, 125, 209)"
        assert len(one["pictures"]) == 2
        for width, height, wide, high in one["pictures"]:
            assert width and height and math.isclose((wide - 2) / (high - 2), width / height, rel_tol=0.1)
        dense, masked = one["bars"][::2], one["bars"][1::2]
        assert [round(part / all, 1) for all, part in zip(dense, masked)] == [0.4, 0.4, 0.2] or min(masked) < 10, one
    assert set(asked) <= {"/looking.html", "/page.html", "/favicon.ico"}
