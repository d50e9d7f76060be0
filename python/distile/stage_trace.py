"""Traces of stages: when each item of each step ran, as a file for trace viewers and as a picture (docs/stages.md)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ._library import ops


KINDS = ("convolution", "mask unit", "max pool", "average pool", "upsampling", "sum", "norm", "attention", "halt")


class Item(NamedTuple):
    """An item of a stage, as python/csrc/stage_trace.cpp writes it; times are nanoseconds from the stage's begin."""

    stage: int
    step: int
    kind: int  # As distile/stage.h numbers it.
    channels: int
    kernel_h: int
    kernel_w: int
    worker: int
    prepares: int  # 1: finds the pixels of the step's mask.
    listed: int
    open: int
    begun: int
    multiplied: int
    stored: int
    told: int

    def name(self) -> str:
        if self.prepares:
            return f"{self.step}: prepares its mask"
        if self.kind:
            return f"{self.step}: {KINDS[self.kind]}"
        return f"{self.step}: {self.kernel_h}x{self.kernel_w}, {self.channels} channels"


@contextlib.contextmanager
def trace_stages(path: str | os.PathLike) -> Iterator[None]:
    """A context in which stages are traced: those of distile.fuse and of distile.stage(), on a CPU or a GPU.

    At its end it writes PATH, a JSON file that chrome://tracing and ui.perfetto.dev show, and beside it the same name with
    .svg, a picture of each multiprocessor's items over time. Each stage waits until it is done, so a CUDA graph cannot
    capture one here. ValueError if PATH does not end with .json; RuntimeError within another trace.
    """
    file = pathlib.Path(path)
    if file.suffix != ".json":
        raise ValueError(f"a trace is a file that ends with .json, not {file}")
    with contextlib.ExitStack() as stack:
        numbers = torch.empty(0, device="cpu")
        ops._trace_stages(True, numbers)
        stack.callback(lambda: _write(file, [Item(*row) for row in ops._trace_stages(False, numbers).tolist()]))
        yield


def _write(file: pathlib.Path, items: list[Item]) -> None:
    file.write_text(json.dumps(chrome_trace(items)))
    file.with_suffix(".svg").write_text(picture(items))


def chrome_trace(items: list[Item]) -> dict:
    """Events of Chrome's trace format: a process for each stage, a thread for each worker."""
    events = []

    def add(name: str, item: Item, begin: int, end: int, **more) -> None:
        events.append(
            {"name": name, "ph": "X", "pid": item.stage, "tid": item.worker, "ts": begin / 1e3,
             "dur": max(end - begin, 0) / 1e3, "args": more}
        )  # fmt: skip

    for item in items:
        add(item.name(), item, item.open, max(item.stored, item.open), step=item.step, listed=item.listed / 1e3,
            told=item.told / 1e3)  # fmt: skip
        if item.multiplied:
            add("products", item, item.begun, item.multiplied)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948")
SCORES, PREPARES = "#e15759", "#9c9c9c"
WIDTH, LABEL, GAP = 1200, 60, 40


def picture(items: list[Item]) -> str:
    """An SVG: a row for each worker of each stage, time to the right, a box from an item's products to its end. Boxes of
    steps that follow each other have different colours; mask units are red and preparations grey."""
    stages: dict[int, list[Item]] = {}
    for item in items:
        stages.setdefault(item.stage, []).append(item)
    parts, top = [], 20
    for number, own in stages.items():
        end = max(max(item.told, item.stored) for item in own) or 1
        workers = sorted({item.worker for item in own})
        height = 4 if len(workers) > 8 else 16
        places = {worker: top + GAP / 2 + row * height for row, worker in enumerate(workers)}
        parts.append(f'<text x="4" y="{top + 12}">stage {number}: {len(own)} items, {end / 1e3:.1f} us</text>')
        for item in own:
            begin = item.begun or item.open
            left, width = LABEL + begin / end * WIDTH, max(item.stored - begin, 0) / end * WIDTH
            colour = PREPARES if item.prepares else SCORES if item.kind == 1 else COLOURS[item.step % len(COLOURS)]
            parts.append(
                f'<rect x="{left:.2f}" y="{places[item.worker]}" width="{width:.2f}" height="{height - 1}" '
                f'fill="{colour}"><title>{item.name()}, worker {item.worker}</title></rect>'
            )
        top += GAP + len(workers) * height
        for tick in range(5):
            parts.append(
                f'<text x="{LABEL + tick / 4 * WIDTH:.0f}" y="{top}" text-anchor="middle">{tick / 4 * end / 1e3:.1f} us</text>'
            )
        top += GAP / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * LABEL}" height="{top + 10:.0f}" '
        f'font-family="sans-serif" font-size="11">\n' + "\n".join(parts) + "\n</svg>\n"
    )
