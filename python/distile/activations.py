"""Activations as text: a name, or one with its slope behind it, NAME(0.2)."""

from __future__ import annotations

from ._facts import ACTIVATIONS, DEFAULT_SLOPE


def split_slope(text: str) -> tuple[str, float]:
    """The name of an activation, and its slope: the given one or the default. ValueError: there is no such activation,
    or it has no slope, or the slope is no number."""
    if not isinstance(text, str):
        raise ValueError(f"an activation is a name, as 'relu', not {text!r}")
    name, begun, slope = text.partition("(")
    if name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    if not begun:
        return name, DEFAULT_SLOPE
    value, _ = ACTIVATIONS[name]
    if "slope" not in value:
        raise ValueError(f"the activation {text!r} has a number in parentheses, but {name!r} has none to give")
    try:
        if not slope.endswith(")"):
            raise ValueError
        return name, float(slope[:-1])
    except ValueError:
        message = f"the activation {text!r} has no number in its parentheses, as in '{name}(0.2)'"
        raise ValueError(message) from None


def with_slope(name: str, slope: float) -> str:
    """An activation with a slope, which its name alone has if it is the default."""
    return name if slope == DEFAULT_SLOPE else f"{name}({slope!r})"
