"""The results of the zoo as text."""

from __future__ import annotations

import collections
import json
import pathlib

BOUND = 1e-4
"""The largest error of an exact result, over the largest value."""
ERRORS = {"without": "no mask", "full": "full mask", "blobs": "blobs"}


def is_exact(result: dict) -> bool:
    """Whether an architecture ran, and computed what the dense model does."""
    return "fault" not in result and all(result[name] < BOUND for name in ERRORS) and not result.get("unplaced")


def verdict(result: dict) -> str:
    """What became of an architecture, in a line."""
    if "fault" in result:
        return result["fault"]
    text = f"{result['replaced']} layers replaced, {sum(result['left'].values())} left"
    worst = max(result[name] for name in ERRORS)
    text += f", largest error {worst:.0e}"
    if result.get("differs"):
        text += f", first in {result['differs']}"
    if result.get("unplaced"):
        text += f", masked where the reference knows no places: {', '.join(result['unplaced'][:3])}"
    if result["replaced"] and not result["changed"] > 1e-3:
        text += ", the mask changes nothing"
    return text


def summary(results: list[dict]) -> str:
    exact = sum(map(is_exact, results))
    ran = sum("fault" not in result for result in results)
    replaced = sum(result.get("replaced", 0) for result in results)
    left = collections.Counter()
    for result in results:
        left.update(result.get("left", {}))
    lines = [
        f"{len(results)} architectures: {ran} run under a mask of the image, {exact} are exact.",
        f"{replaced} layers replaced, {left.total()} left:",
        "",
        "| layers | left because |",
        "|---|---|",
        *(f"| {count} | {reason} |" for reason, count in left.most_common()),
    ]
    return "\n".join(lines)


def table(results: list[dict]) -> str:
    lines = [
        "| architecture | input | replaced | left | error: no mask | full mask | blobs | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in sorted(results, key=lambda one: one["architecture"]):
        size = "x".join(map(str, result["size"]))
        errors = [f"{result[name]:.0e}" if name in result else "-" for name in ERRORS]
        left = sum(result["left"].values()) if "left" in result else "-"
        note = "" if is_exact(result) else verdict(result).replace("|", "\\|")
        cells = [result["architecture"], size, result.get("replaced", "-"), left, *errors, note]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def write(results: list[dict], path: pathlib.Path) -> None:
    """Writes results as JSON, and as Markdown beside it."""
    results = sorted(results, key=lambda one: one["architecture"])
    path.write_text("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")
    path.with_suffix(".md").write_text(f"# The zoo\n\n{summary(results)}\n\n{table(results)}\n")
