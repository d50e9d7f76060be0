"""The results of the zoo as text."""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench/python"))
import json_rows

BOUND = 1e-4
"""The largest error of an exact result, over the largest value."""
ERRORS = {"without": "no mask", "full": "full mask", "blobs": "blobs"}


def code() -> str:
    """A digest of what results come from: the files of distile, its libraries among them, and of the zoo."""
    digest = hashlib.sha256()
    for file in (importlib.util.find_spec("distile").origin, __file__):
        folder = pathlib.Path(file).resolve().parent
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.so")]):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def errors(result: dict) -> list[float]:
    return [result[name] for name in ERRORS if name in result]


def is_exact(result: dict) -> bool:
    """Whether a model ran under masks, and computed what it should."""
    return "blobs" in result and all(one < BOUND for one in errors(result)) and not faults(result)


def faults(result: dict) -> list[str]:
    """What is wrong with a result, except errors."""
    found = [result["fault"]] if "fault" in result else []
    if result.get("differs"):
        found.append(f"first differs in {result['differs']}")
    return found


def verdict(result: dict) -> str:
    """What became of a model, in a line."""
    parts = []
    if "replaced" in result:
        parts.append(f"{result['replaced']} layers replaced, {sum(result['left'].values())} left")
    if errors(result):
        parts.append(f"largest error {max(errors(result)):.0e}")
    if "changed" in result and not result["changed"] > 1e-3:
        parts.append("the mask changes nothing")
    if "times" in result:
        parts.append(f"{result['times']['masked']['0.3'] / result['times']['dense']:.2f} of the dense time at .3")
    return "; ".join(parts + faults(result))


def summary(results: list[dict], most: int | None = None) -> str:
    """How many models are exact, and which layers are left, by reason: all reasons, or those of the most layers."""
    masked = [result for result in results if result.get("replaced") and "blobs" in result]
    left: collections.Counter = collections.Counter()
    for result in results:
        left.update(result.get("left", {}))
    replaced = sum(result.get("replaced", 0) for result in results)
    lines = [
        f"{len(results)} models: {len(masked)} run under a mask of the image, and "
        f"{sum(map(is_exact, masked))} of them are exact.",
        f"{replaced} layers are replaced, and {left.total()} left:",
        "",
        "| layers | left because |",
        "|---|---|",
        *(f"| {count} | {reason} |" for reason, count in left.most_common(most)),
    ]
    return "\n".join(lines)


def table(results: list[dict]) -> str:
    lines = [
        "| model | input | replaced | left | error: no mask | full mask | blobs | time at .3 | at 1.0 | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        size = "x".join(map(str, result.get("size", ())))
        found = [f"{result[name]:.0e}" if name in result else "-" for name in ERRORS]
        left = sum(result["left"].values()) if "left" in result else "-"
        times = result.get("times")
        shares = [f"{times['masked'][density] / times['dense']:.2f}" if times else "-" for density in ("0.3", "1.0")]
        note = "; ".join(faults(result)).replace("|", "\\|").replace("\n", " ")
        cells = [result["architecture"], size, result.get("replaced", "-"), left, *found, *shares, note]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def page(results: list[dict]) -> str:
    return f"# The models of the zoo\n\nSee docs/zoo.md.\n\n{summary(results)}\n\n{table(results)}\n"


def write(results: list[dict], path: pathlib.Path) -> None:
    """Writes results as JSON, and as Markdown beside it."""
    results = [{key: value for key, value in one.items() if key != "code"} for one in results]
    results.sort(key=lambda one: one["architecture"])
    path.parent.mkdir(parents=True, exist_ok=True)
    json_rows.write(path, results)
    path.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    print(page(json.loads(pathlib.Path(sys.argv[1]).read_text())), end="")
