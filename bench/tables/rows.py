"""The committed results, as tables and figures in documents need them."""
import functools
import json
import math
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "bench/results"


@functools.cache
def read(name):
    """The content of a file of results: "h200" or "networks/video-cpu"."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def measured(name, **fields):
    """The measured rows of a file whose fields have these values."""
    rows = [row for row in read(name)["rows"] if row.get("status") == "measured"]
    return [row for row in rows if all(row.get(field) == value for field, value in fields.items())]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def number(value):
    """Two digits behind the point, one from 10 on."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def span(values, digits):
    """ "1.03 to 1.04", or "1.0"."""
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"
