"""The table of distile.explain: what each layer of a model gains."""

from __future__ import annotations

import dataclasses
import statistics
import time


@dataclasses.dataclass
class Row:
    """What was found of a layer. Work in multiply-adds, times in microseconds."""

    name: str
    kind: str
    density: float
    dense_work: int
    work: float
    dense_us: float
    masked_us: float
    predicted_us: float
    runs_dense: bool
    why_dense: str = ""
    zeros: str = ""  # How many of its weights are 0, and whether code skips them.
    full_us: float | None = None  # The time of the masked layer with all pixels active.
    picture: list[list[float]] | None = None  # Its mask (pictures.levels).

    def leave_out(self, zeros: float) -> None:
        """Code skips this share of its weights: what is left of the work, and of the predicted time."""
        self.work, self.predicted_us = self.work * (1 - zeros), self.predicted_us * (1 - zeros)

    def described(self) -> dict:
        """What JSON says of it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "picture"}

    @property
    def break_even(self) -> float | None:
        """The density up to which the masked layer takes no longer than the dense one, by the line through its times at
        its mask and at all pixels; None if that says nothing."""
        if self.full_us is None:
            return None
        if self.full_us <= self.dense_us:
            return 1.0
        if self.density >= 1 or self.full_us <= self.masked_us:
            return None
        slope = (self.full_us - self.masked_us) / (1 - self.density)
        return max(self.density + (self.dense_us - self.masked_us) / slope, 0.0)


def median_us(run, seconds: float) -> float:
    """The median time of a call in microseconds, called for a while."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def total(rows: list[Row]) -> Row:
    fields = ("dense_work", "work", "dense_us", "masked_us", "predicted_us")
    sums = {field: sum(getattr(row, field) for row in rows) for field in fields}
    return Row("total", "", sums["work"] / max(sums["dense_work"], 1), runs_dense=False, **sums)


def table(rows: list[Row], unsupported: list[str]) -> str:
    """The rows as text, with their total and what stays dense."""
    width = max([len(row.name) for row in rows] + [5])
    kinds = max([len(row.kind) for row in rows] + [4])
    head = f"{'layer':{width}}  {'kind':{kinds}}  "
    head += "density  MMAC dense  MMAC masked  dense us  predicted us  masked us  gain"
    lines = [head, "-" * len(head)]
    for row in rows:
        lines.append(
            _line(row.name, row.kind, row, width, kinds)
            + (f"  runs dense: {row.why_dense or 'no PolyKernel'}" if row.runs_dense else "")
            + (f"  {row.zeros}" if row.zeros else "")
        )
    if rows:
        lines += ["-" * len(head), _line("total", "", total(rows), width, kinds)]
    if unsupported:
        lines += ["", "These stay dense:"] + [f"  {name}" for name in unsupported]
    if any(row.runs_dense for row in rows):
        lines += ["", "Run this again with --build, which compiles the PolyKernels that are missing."]
    return "\n".join(lines)


def _line(name, kind, row, width, kinds):
    return (
        f"{name:{width}}  {kind:{kinds}}  {row.density:7.3f}  {row.dense_work / 1e6:10.1f}  {row.work / 1e6:11.1f}  "
        f"{row.dense_us:8.0f}  {row.predicted_us:12.0f}  {row.masked_us:9.0f}  {row.dense_us / row.masked_us:4.2f}"
    )
