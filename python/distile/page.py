"""The page of distile.explain: what each layer of a model gains, with pictures of its masks. It loads nothing."""

from __future__ import annotations

import base64
import dataclasses
import html
from typing import NamedTuple

from . import pictures
from .report import Row, total

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b2330; --soft: #667085; --line: #dfe3e8; --card: #f5f7fa;
    --masked: #2e7dd1; --dense: #b3bcc8; --bad: #b3541e; }
@media (prefers-color-scheme: dark) { :root { --back: #14181f; --text: #e6e9ee; --soft: #97a1b0; --line: #2c3440;
    --card: #1c222c; --masked: #5aa2ee; --dense: #56606f; --bad: #e8945f; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2em auto;
    max-width: 80em; overflow-wrap: anywhere; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: .2em; } h2 { font-size: 1.15em; margin-top: 2em; }
.soft { color: var(--soft); } .bad { color: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: 1em; margin: 1.5em 0; }
.figures div { background: var(--card); border-radius: 8px; padding: .7em 1.2em; }
.figures b { display: block; font-size: 1.5em; }
pre { background: var(--card); border-radius: 8px; overflow-x: auto; padding: 1em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .35em .6em; text-align: right; white-space: nowrap; }
td:first-child { white-space: normal; min-width: 12em; }
th { color: var(--soft); font-weight: normal; vertical-align: bottom; }
th:nth-child(-n+2), td:nth-child(-n+2), td.bars, th.bars { text-align: left; }
img { display: block; height: 40px; image-rendering: pixelated; border: 1px solid var(--line); min-width: 20px; }
.bar { border-radius: 2px; height: 8px; margin: 3px 0; min-width: 1px; }
.bars { min-width: 8em; } .d { background: var(--dense); } .m { background: var(--masked); }
.key { display: inline-block; height: .7em; width: 1.2em; border-radius: 2px; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Whole(NamedTuple):
    """Times of a whole model in microseconds: dense, masked, and if they were measured, with all pixels active."""

    dense_us: float
    masked_us: float
    full_us: float | None = None


@dataclasses.dataclass
class Found:
    """What the page is about."""

    name: str  # The model's.
    where: str  # The words behind "Measured".
    rows: list[Row]
    whole: Whole | None
    left: list[str]  # What stays dense, and why.
    change: str  # The lines of code that make the model masked.


def page(found: Found) -> str:
    """The page as HTML."""
    title = f"{html.escape(found.name)}: would it gain?"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="soft">Measured {html.escape(found.where)}.</p>
{_summary(found)}
<h2>What to change</h2>
<pre>{html.escape(found.change)}</pre>
<h2>Layers</h2>
{_table(found.rows)}
{_left(found.left)}
<h2>How to read this</h2>
<p>Times are medians of each layer alone, on the same input: <span class="key d"></span> dense and
<span class="key m"></span> masked. The picture is the layer's mask, of the first image of the batch: full colour where
the result is computed. Work is multiply-adds of weights and attention. The break-even density is the share of active
pixels up to which the masked layer takes no longer than the dense one, by the line through its times at this mask and
with all pixels active.</p>
</body>
</html>
"""


def _summary(found: Found) -> str:
    sums = total(found.rows)
    figures = [(f"{sums.density:.0%}", "of the work of these layers is left")] if sums.dense_work else []
    if found.whole:
        whole = found.whole
        row = dataclasses.replace(sums, dense_us=whole.dense_us, masked_us=whole.masked_us, full_us=whole.full_us)
        gain = whole.dense_us / whole.masked_us
        text = "times as fast" if gain >= 1 else "times as fast: it loses with this mask"
        figures = [
            (f"{gain:.2f}", text),
            (f"{_ms(whole.dense_us)} → {_ms(whole.masked_us)}", "the whole model, dense and masked"),
            *figures,
        ]
        if row.break_even is not None and sums.dense_work:
            text = (
                "of the work left is where the model breaks even" if row.break_even < 1 else "active: even so it gains"
            )
            figures.append((f"{row.break_even:.0%}", text))
    return f'<div class="figures">{"".join(f"<div><b>{value}</b>{what}</div>" for value, what in figures)}</div>'


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3g} ms"


def _table(rows: list[Row]) -> str:
    if not rows:
        return "<p>No layer ran with a mask.</p>"
    longest = max(max(row.dense_us, row.masked_us) for row in rows)
    heads = ("layer", "kind", "mask", "active", "MMAC", "time", "dense", "masked", "gain", "breaks even at")
    head = "".join(f"<th{' class=bars' if name == 'time' else ''}>{name}</th>" for name in heads)
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(_row(row, longest) for row in rows)
        + "\n</tbody>\n</table></div>"
    )


def _row(row: Row, longest: float) -> str:
    gain = row.dense_us / row.masked_us
    bars = "".join(
        f'<div class="bar {kind}" style="width: {100 * time / longest:.1f}%"></div>'
        for kind, time in (("d", row.dense_us), ("m", row.masked_us))
    )
    even = "" if row.break_even is None else f"{row.break_even:.0%}"
    note = f'<br><span class="bad">runs dense: {html.escape(row.why_dense)}</span>' if row.runs_dense else ""
    note += f'<br><span class="soft">{html.escape(row.zeros)}</span>' if row.zeros else ""
    cells = [
        html.escape(row.name) + note,
        html.escape(row.kind),
        _image(row),
        f"{row.density:.0%}",
        f"{row.dense_work / 1e6:.1f} → {row.work / 1e6:.1f}" if row.dense_work else "",
        None,
        _ms(row.dense_us),
        _ms(row.masked_us),
        f"{gain:.2f}" if gain >= 1 else f'<span class="bad">{gain:.2f}</span>',
        even,
    ]
    written = (f'<td class="bars">{bars}</td>' if cell is None else f"<td>{cell}</td>" for cell in cells)
    return f"<tr>{''.join(written)}</tr>"


def _image(row: Row) -> str:
    if row.picture is None:
        return ""
    data = base64.b64encode(pictures.png(row.picture)).decode()
    return f'<img alt="the mask: {row.density:.0%} active" src="data:image/png;base64,{data}">'


def _left(left: list[str]) -> str:
    if not left:
        return ""
    items = "".join(f"<li>{html.escape(name)}</li>" for name in left)
    return f"<h2>What stays dense</h2>\n<ul>{items}</ul>"
