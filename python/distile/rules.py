"""Rules as commands take them: which layers of a model, or nodes of an ONNX graph, take which mask."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import pathlib


@dataclasses.dataclass(frozen=True)
class Rule:
    """A pattern of names and the name of the mask of what it matches; None leaves that as it is. In ONNX, the mask is a
    tensor of the graph or a new input of it. `keys`: the keys of attention that are active, by a mask in the same way."""

    pattern: str
    mask: str | None
    keys: str | None = None

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)

    @staticmethod
    def parse(text: str) -> Rule:
        """PATTERN=MASK, PATTERN=MASK,KEYS, or PATTERN= for what to leave."""
        pattern, separator, masks = text.rpartition("=")
        if not separator or not pattern:
            raise ValueError(f"the rule {text!r} is not PATTERN=MASK; an empty MASK leaves what matches as it is")
        mask, _, keys = masks.partition(",")
        return Rule(pattern, mask or None, keys or None)


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
