"""Rules as commands take them: which layers of a model, or nodes of an ONNX graph, take which mask."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import pathlib
import re


@dataclasses.dataclass(frozen=True)
class Grid:
    """The place of outputs as a rule says it: cells in rows and columns over the whole image, each `stride` of its
    pixels high and wide, or as many as divide it. As tokens, after `before` and before `after` tokens that are no part
    of it and always active."""

    rows: int
    columns: int
    before: int = 0
    after: int = 0
    stride: int | None = None

    @staticmethod
    def parse(text: str) -> Grid:
        """ROWSxCOLUMNS, BEFORE+ROWSxCOLUMNS+AFTER, and with /STRIDE behind."""
        found = re.fullmatch(r"(?:(\d+)\+)?(\d+)x(\d+)(?:\+(\d+))?(?:/(\d+))?", text)
        if not found:
            raise ValueError(f"the grid {text!r} is not ROWSxCOLUMNS, BEFORE+ROWSxCOLUMNS+AFTER or one of them/STRIDE")
        before, rows, columns, after, stride = (None if number is None else int(number) for number in found.groups())
        if 0 in (rows, columns, stride):
            raise ValueError(f"the grid {text!r} has no cells")
        return Grid(rows, columns, before or 0, after or 0, stride)

    def __str__(self) -> str:
        more = f"{self.before}+{self.rows}x{self.columns}+{self.after}"
        return more if self.stride is None else f"{more}/{self.stride}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A pattern of names and the name of the mask of what it matches; None leaves that as it is. In ONNX, the mask is a
    tensor of the graph or a new input of it. `keys`: the keys of attention that are active, by a mask in the same way.
    `grid`: where outputs are over the mask's image, where a model does not show that."""

    pattern: str
    mask: str | None
    keys: str | None = None
    grid: Grid | None = None

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)

    @staticmethod
    def parse(text: str) -> Rule:
        """PATTERN=MASK, PATTERN=MASK,KEYS, or PATTERN= for what to leave; and with @GRID behind."""
        pattern, separator, masks = text.rpartition("=")
        if not separator or not pattern:
            raise ValueError(f"the rule {text!r} is not PATTERN=MASK; an empty MASK leaves what matches as it is")
        masks, at, grid = masks.partition("@")
        mask, _, keys = masks.partition(",")
        return Rule(pattern, mask or None, keys or None, Grid.parse(grid) if at else None)


def read_rules(texts: list[str]) -> list[Rule]:
    """Rules from texts PATTERN=MASK, or from JSON files that hold a list of them."""
    rules = []
    for text in texts:
        if text.endswith(".json"):
            rules += _read_file(pathlib.Path(text))
        else:
            rules.append(Rule.parse(text))
    return rules


def _read_file(path: pathlib.Path) -> list[Rule]:
    try:
        lines = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"the file of rules '{path}' is not JSON: {error}") from None
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"the file of rules '{path}' does not hold a list of texts PATTERN=MASK")
    return [Rule.parse(line) for line in lines]


def first(rules: list[Rule], name: str) -> Rule | None:
    """The rule that decides about a name: the first that matches."""
    return next((rule for rule in rules if rule.matches(name)), None)
