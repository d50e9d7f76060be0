"""Stages as described things: steps with fixed channels, joined by the names of their images and masks. Sizes, batches
and masks are those of a call. docs/stage_files.md says what a file holds.

PyTorch and ONNX models name them here, so the one reader of files is in Python; the library gets the numbers of
`Stage.numbers` (bindings/stage_program.h).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Union

from .activations import split_slope

VERSION = 1
LARGEST = 32767  # The largest number of a window.
CONVOLUTION, SCORES, ALGEBRA, LAYER, NORM, ATTENTION, HALT = range(7)
# How masks follow from others, in the order of the numbers: of how many, and what their size is.
ALGEBRAS = {
    "or": (2, ""), "and": (2, ""), "and not": (2, ""), "not": (1, ""), "dilate": (1, "radius"), "pool": (1, "factor")
}  # fmt: skip
# Other layers, in the order of the numbers, and what each has.
LAYERS = {"max_pool": "window", "average_pool": "window", "upsample": "scale", "sum": "other"}
NORMS = ("layer_norm", "rms_norm")  # In the order of the numbers.


@dataclasses.dataclass(frozen=True)
class Window:
    """A convolution's window, for rows and columns. Padding is top, bottom, left, right."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of what a convolution makes of an image of these."""
        top, bottom, left, right = self.padding
        axes = zip((height + top + bottom, width + left + right), self.kernel, self.stride, self.dilation)
        return tuple((extent - dilation * (kernel - 1) - 1) // stride + 1 for extent, kernel, stride, dilation in axes)


@dataclasses.dataclass(frozen=True)
class Reader:
    """The window of a later convolution, which reads what this step computes. Padding is top, left. A dilation by r is
    a window of 2 r + 1 pixels with a padding of r."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True)
class Convolution:
    """output = activation(convolution + bias + residual) at the pixels of the mask; elsewhere that of `base`, or 0.

    Without a mask, it computes every pixel. With a reader, it computes the pixels that this window reads where the mask
    is active. Pixels of `later` stay without the activation, because a later step adds to them. Each output channel reads
    the input channels of its own group. A linear layer is one of tokens: its window is 1 x 1, and its weights have two
    dimensions."""

    output: str
    input: str
    channels: int
    window: Window
    weights: str
    bias: str | None = None
    residual: str | None = None
    base: str | None = None
    mask: str | None = None
    reader: Reader | None = None
    later: str | None = None
    activation: str = "none"
    groups: int = 1


@dataclasses.dataclass(frozen=True)
class Scores:
    """A mask from an image, at every stride-th pixel: the sum of channels times weights, and the bias, above the
    threshold."""

    mask: str
    input: str
    weights: str
    stride: tuple[int, int] = (1, 1)
    bias: float = 0.0
    threshold: float = 0.0


@dataclasses.dataclass(frozen=True)
class Combined:
    """A mask from others: "or", "and", "and not" of two, "not" of one, or one dilated by a radius or pooled by a
    factor, for rows and columns."""

    mask: str
    how: str
    of: tuple[str, ...]
    size: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Layer:
    """An image from others at the pixels of the mask, or at every pixel; elsewhere it is 0. Max and average pooling have
    a window, whose padding an average counts; nearest upsampling a factor for rows and columns; a sum another image and
    an activation."""

    output: str
    input: str
    how: str
    window: Window | None = None
    scale: tuple[int, int] | None = None
    other: str | None = None
    mask: str | None = None
    activation: str = "none"


@dataclasses.dataclass(frozen=True)
class Norm:
    """A layer norm or an RMS norm, by `how`, over the channels at the pixels or tokens of the mask, or at all; elsewhere
    it is 0. Without an epsilon, it is that of the input's type, as torch.nn.RMSNorm has it."""

    output: str
    input: str
    how: str
    weights: str | None = None
    bias: str | None = None
    epsilon: float | None = None
    mask: str | None = None


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention of the tokens of the mask to each other, or with `all_keys` to all tokens of their image, without a mask
    of all; elsewhere it is 0. The input has the channels of queries, keys and values side by side, each those of one
    head after those of the other. Without a scale, it is 1 / sqrt(channels of a head)."""

    output: str
    input: str
    heads: int
    scale: float | None = None
    mask: str | None = None
    all_keys: bool = False


@dataclasses.dataclass(frozen=True)
class Halt:
    """A mask of the tokens that go on, of those of the mask `of`, or of all. A token's score is the sigmoid of its
    channels times weights plus the bias, at most its `limits`, a number for each token. The totals, which begin with
    those of `before` or with 0, are made larger by it, and a token goes on while its own is below the threshold. `sums`
    are those of `base`, [N, F, C], to which each of the first F tokens is added: times its score, or where it halts,
    times what its total was below 1."""

    mask: str
    input: str
    weights: str
    totals: str
    bias: float = 0.0
    threshold: float = 0.99
    of: tuple[str, ...] = ()
    limits: str | None = None
    before: str | None = None
    sums: str | None = None
    base: str | None = None


Step = Union[Convolution, Scores, Combined, Layer, Norm, Attention, Halt]


def images_of(step: Step) -> tuple[str, ...]:
    """The names of the images that a step makes, in their order; totals are some, too."""
    if isinstance(step, Halt):
        return (step.totals,) if step.sums is None else (step.totals, step.sums)
    return () if mask_of(step) else (step.output,)


def mask_of(step: Step) -> str | None:
    """The name of the mask that a step makes."""
    return step.mask if isinstance(step, (Scores, Combined, Halt)) else None


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A stage as the library takes it, and the names of its parameters in their order."""

    steps: tuple[int, ...]
    numbers: tuple[float, ...]
    activations: str
    outputs: tuple[int, ...]
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps in their order. `inputs` are names of images and their channels, `masks` names of masks, `outputs` names of
    images and masks that steps make, `tokens` names of inputs that are tokens [N, T, C] instead, with masks [N, T]. So
    is what steps make of them. `totals` are names of inputs with a float32 number for each token, [N, T], that halts
    begin with; they have one channel. Raises ValueError for what does not fit together."""

    inputs: tuple[tuple[str, int], ...]
    masks: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()

    def __post_init__(self):
        _Check(self).run()

    def json(self) -> str:
        """What a file holds: a JSON object."""
        found = {
            "distile_stage": VERSION,
            "inputs": [self._written_input(*one) for one in self.inputs],
            "masks": list(self.masks),
            "steps": [_written(step) for step in self.steps],
            "outputs": list(self.outputs),
        }
        return json.dumps(found, indent=2) + "\n"

    def _written_input(self, name: str, channels: int) -> dict:
        if name in self.totals:
            return {"name": name, "totals": True}
        return {"name": name, "channels": channels, **({"tokens": True} if name in self.tokens else {})}

    def numbers(self) -> Numbers:
        """What operators get."""
        images = {name: place for place, (name, _) in enumerate(self.inputs)}
        masks = {name: place for place, name in enumerate(self.masks)}
        parameters: dict[str, int] = {}
        steps, numbers, activations = [], [], []

        def parameter(name):
            return -1 if name is None else parameters.setdefault(name, len(parameters))

        for step in self.steps:
            if isinstance(step, Combined):
                a, b = (*(masks[name] for name in step.of), -1)[:2]
                rows, columns = step.size or (0, 0)
                steps += [ALGEBRA, list(ALGEBRAS).index(step.how), -1, -1, a, b]
                steps += [*[0] * 6, rows, 0, columns, 0, *[0] * 8, -1, -1, 0]
                numbers += [0.0, 0.0]
                activations.append("none")
                masks[step.mask] = len(masks)
                continue
            if isinstance(step, Layer):
                other, mask = (-1 if name is None else of[name] for name, of in ((step.other, images), (step.mask, masks)))
                steps += [LAYER, images[step.input], other, -1, mask, list(LAYERS).index(step.how)]
                window, (rows, columns) = step.window, step.scale or (0, 0)
                if window is None:
                    steps += [*[0] * 6, rows, 0, columns, 0]
                else:
                    steps += [*window.kernel, *window.stride, *window.dilation, *window.padding]
                steps += [*[0] * 8, -1, -1, 0]
                numbers += [0.0, 0.0]
                activations.append(step.activation)
                images[step.output] = len(images)
                continue
            if isinstance(step, (Norm, Attention)):
                mask = -1 if step.mask is None else masks[step.mask]
                of_norm = isinstance(step, Norm)
                how = NORMS.index(step.how) if of_norm else int(step.all_keys)
                steps += [NORM if of_norm else ATTENTION, images[step.input], -1, -1, mask, how]
                steps += [*[1] * 6, *[0] * 4, *[0] * 8]
                steps += [parameter(step.weights), parameter(step.bias), 0] if of_norm else [-1, -1, step.heads]
                number = step.epsilon if of_norm else step.scale
                numbers += [-1.0 if number is None else number, 0.0]
                activations.append("none")
                images[step.output] = len(images)
                continue
            if isinstance(step, Halt):
                sums, before = (-1 if name is None else images[name] for name in (step.base, step.before))
                steps += [HALT, images[step.input], sums, before, masks[step.of[0]] if step.of else -1, -1]
                steps += [*[1] * 6, *[0] * 4, *[0] * 8, parameter(step.weights), parameter(step.limits), 0]
                numbers += [step.bias, step.threshold]
                activations.append("none")
                images |= {name: len(images) + place for place, name in enumerate(images_of(step))}
                masks[step.mask] = len(masks)
                continue
            if isinstance(step, Scores):
                window = [1, 1, *step.stride, 1, 1, 0, 0, 0, 0]
                steps += [SCORES, images[step.input], -1, -1, -1, -1, *window, *[0] * 8, parameter(step.weights), -1, 0]
                numbers += [step.bias, step.threshold]
                activations.append("none")
                masks[step.mask] = len(masks)
                continue
            window, reader = step.window, step.reader
            steps += [CONVOLUTION, images[step.input]]
            steps += [-1 if name is None else images[name] for name in (step.residual, step.base)]
            steps += [-1 if name is None else masks[name] for name in (step.mask, step.later)]
            steps += [*window.kernel, *window.stride, *window.dilation, *window.padding]
            steps += [*reader.kernel, *reader.stride, *reader.dilation, *reader.padding] if reader else [0] * 8
            steps += [parameter(step.weights), parameter(step.bias), step.groups]
            numbers += [0.0, 0.0]
            activations.append(step.activation)
            images[step.output] = len(images)
        outputs = [images[name] if name in images else -1 - masks[name] for name in self.outputs]
        return Numbers(tuple(steps), tuple(numbers), ",".join(activations), tuple(outputs), tuple(parameters))


def read_stage(text: str) -> Stage:
    """The stage that a file holds. Raises ValueError with the place of what is wrong."""
    try:
        found = json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise ValueError("a stage is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"a stage is no JSON: {error}") from None
    root = _Object("a stage", found)
    version = root.take("distile_stage", _any)
    if type(version) is not int or version != VERSION:
        raise ValueError(f"a stage has 'distile_stage': {VERSION}, and this one has {_shown(version)}")
    given = root.take("inputs", _list_of(_input))
    masks = root.take("masks", _list_of(_name), ())
    steps = root.take("steps", _list_of(_step))
    outputs = root.take("outputs", _list_of(_name))
    root.finish()
    inputs = tuple((name, channels) for name, channels, _ in given)
    tokens, totals = (tuple(name for name, _, kind in given if kind == wanted) for wanted in ("tokens", "totals"))
    return Stage(inputs, masks, steps, outputs, tokens, totals)


# ---- What fits together ------------------------------------------------------------------------


class _Check:
    """Whether all names are those of what is there, with the channels that steps have."""

    def __init__(self, stage: Stage):
        self.stage = stage
        self.channels: dict[str, int] = {}
        self.masks: set[str] = set()
        self.tokens: set[str] = set(stage.tokens)
        self.totals: set[str] = set(stage.totals)
        self.parameters: dict[str, tuple] = {}

    def run(self) -> None:
        stage = self.stage
        if not stage.inputs or not any(isinstance(step, Convolution) for step in stage.steps):
            raise ValueError("a stage has inputs and convolutions")
        for name, channels in stage.inputs:
            self._make(name, channels, "inputs")
        for name in stage.masks:
            self._make(name, None, "masks")
        if unknown := {*stage.tokens, *stage.totals} - {name for name, _ in stage.inputs}:
            raise ValueError(f"tokens or totals: no input has the name {min(unknown)!r}")
        if stage.inputs[0][0] in self.totals or any(count != 1 for name, count in stage.inputs if name in self.totals):
            raise ValueError("inputs: totals have one channel, and another input is before them")
        made = set()
        for place, step in enumerate(stage.steps):
            where = f"steps[{place}]"
            if isinstance(step, Combined):
                self._combined(step, where)
                self._make(step.mask, None, where)
                made.add(step.mask)
            elif isinstance(step, Scores):
                self._refuse_tokens(step.input, f"{where}.input")
                self._parameter(step.weights, ("scores", self._image(step.input, f"{where}.input")), where)
                self._make(step.mask, None, where)
                made.add(step.mask)
            elif isinstance(step, Halt):
                self._halt(step, where)
                made.update((*images_of(step), step.mask))
            else:
                checks = {Layer: self._layer, Norm: self._norm, Attention: self._attention, Convolution: self._convolution}
                checks[type(step)](step, where)
                made.add(step.output)
                if step.input in self.tokens:
                    self.tokens.add(step.output)
        for name in stage.outputs:
            if name not in made:
                raise ValueError(f"outputs: no step makes {name!r}")
        if not stage.outputs or len(set(stage.outputs)) != len(stage.outputs):
            raise ValueError("outputs: there are none, or one is there twice")

    def _combined(self, step: Combined, where: str) -> None:
        if step.how not in ALGEBRAS:
            raise ValueError(f"{where}.how: there is no {step.how!r}; there are {', '.join(map(repr, ALGEBRAS))}")
        count, size = ALGEBRAS[step.how]
        if len(step.of) != count:
            raise ValueError(f"{where}.of: {step.how!r} takes {count} masks, and there are {len(step.of)}")
        for name in step.of:
            if name not in self.masks:
                raise ValueError(f"{where}.of: no mask before this step has the name {name!r}")
        if (step.size is not None) != bool(size) or (size == "factor" and min(step.size) < 1):
            raise ValueError(f"{where}.size: {step.how!r} has {f'a {size} of two numbers' if size else 'none'}")

    def _layer(self, step: Layer, where: str) -> None:
        if step.how not in LAYERS:
            raise ValueError(f"{where}.how: there is no {step.how!r}; there are {', '.join(map(repr, LAYERS))}")
        channels = self._image(step.input, f"{where}.input")
        for what in ("window", "scale", "other"):
            if (getattr(step, what) is not None) != (LAYERS[step.how] == what):
                has = "has" if LAYERS[step.how] == what else "has no"
                raise ValueError(f"{where}.{what}: {step.how!r} {has} {what}")
        if step.how != "sum":
            self._refuse_tokens(step.input, f"{where}.input")
        if step.other is not None and (have := self._image(step.other, f"{where}.other")) != channels:
            raise ValueError(f"{where}.other: {step.other!r} has {have} channels, and the input {channels}")
        self._alike(step.other, step.input, f"{where}.other")
        self._known(step.mask, f"{where}.mask")
        if step.activation != "none" and step.how != "sum":
            raise ValueError(f"{where}.activation: only a sum has one")
        self._activation(step.activation, where)
        self._make(step.output, channels, where)

    def _norm(self, step: Norm, where: str) -> None:
        if step.how not in NORMS:
            raise ValueError(f"{where}.how: there is no {step.how!r}; there are {', '.join(map(repr, NORMS))}")
        channels = self._image(step.input, f"{where}.input")
        for name in (step.weights, step.bias):
            if name is not None:
                self._parameter(name, ("bias", channels), where)
        if step.bias is not None and step.how == "rms_norm":
            raise ValueError(f"{where}.bias: an RMS norm has none")
        if step.epsilon is not None and step.epsilon < 0:
            raise ValueError(f"{where}.epsilon: it is less than 0")
        self._known(step.mask, f"{where}.mask")
        self._make(step.output, channels, where)

    def _attention(self, step: Attention, where: str) -> None:
        channels = self._image(step.input, f"{where}.input")
        if step.input not in self.tokens:
            raise ValueError(f"{where}.input: {step.input!r} are no tokens")
        if step.heads < 1 or channels % (3 * step.heads):
            raise ValueError(f"{where}.heads: {step.heads} heads do not divide a third of {channels} channels")
        if step.scale is not None and step.scale <= 0:
            raise ValueError(f"{where}.scale: it is not above 0")
        self._known(step.mask, f"{where}.mask")
        self._make(step.output, channels // 3, where)

    def _halt(self, step: Halt, where: str) -> None:
        channels = self._image(step.input, f"{where}.input")
        if step.input not in self.tokens:
            raise ValueError(f"{where}.input: {step.input!r} are no tokens")
        if len(step.of) > 1:
            raise ValueError(f"{where}.of: a halt takes one mask, and there are {len(step.of)}")
        for name in step.of:
            self._known(name, f"{where}.of")
        if (step.sums is None) != (step.base is None):
            raise ValueError(f"{where}.sums: it has sums and no base, or a base and no sums")
        if step.base is not None:
            if self._image(step.base, f"{where}.base") != channels:
                raise ValueError(f"{where}.base: {step.base!r} has other channels than the input")
            self._alike(step.base, step.input, f"{where}.base")
        if step.before is not None and step.before not in self.totals:
            raise ValueError(f"{where}.before: no totals before this step have the name {step.before!r}")
        self._parameter(step.weights, ("scores", channels), where)
        if step.limits is not None:
            self._parameter(step.limits, ("limits",), where)
        for name, count in zip(images_of(step), (1, channels)):
            self._make(name, count, where)
        self._make(step.mask, None, where)
        self.totals.add(step.totals)
        if step.sums is not None:
            self.tokens.add(step.sums)

    def _known(self, mask: str | None, where: str) -> None:
        if mask is not None and mask not in self.masks:
            raise ValueError(f"{where}: no mask before this step has the name {mask!r}")

    def _refuse_tokens(self, name: str, where: str) -> None:
        if name in self.tokens:
            raise ValueError(f"{where}: {name!r} are tokens, which this step does not take")

    def _alike(self, name: str | None, other: str, where: str) -> None:
        if name is not None and (name in self.tokens) != (other in self.tokens):
            raise ValueError(f"{where}: one of {name!r} and {other!r} is an image, and the other tokens")

    @staticmethod
    def _activation(name: str, where: str) -> None:
        try:
            split_slope(name)
        except ValueError as error:
            raise ValueError(f"{where}.activation: {error}") from None

    def _convolution(self, step: Convolution, where: str) -> None:
        channels = self._image(step.input, f"{where}.input")
        for what in ("residual", "base"):
            name = getattr(step, what)
            if name is not None and (have := self._image(name, f"{where}.{what}")) != step.channels:
                raise ValueError(f"{where}.{what}: {name!r} has {have} channels, and the output {step.channels}")
            self._alike(name, step.input, f"{where}.{what}")
        for what in ("mask", "later"):
            self._known(getattr(step, what), f"{where}.{what}")
        of_tokens = step.input in self.tokens
        if of_tokens and (step.window != Window((1, 1)) or step.reader is not None or step.groups != 1):
            raise ValueError(f"{where}: of tokens, a convolution has a window of 1 x 1, one group and no reader")
        for what in ("reader", "base"):
            if getattr(step, what) is not None and step.mask is None:
                raise ValueError(f"{where}.{what}: it is there, but no mask")
        self._activation(step.activation, where)
        if channels % step.groups or step.channels % step.groups:
            raise ValueError(f"{where}.groups: {step.groups} do not divide {channels} and {step.channels} channels")
        kernel = () if of_tokens else step.window.kernel
        self._parameter(step.weights, (step.channels, channels // step.groups, *kernel), where)
        if step.bias is not None:
            self._parameter(step.bias, ("bias", step.channels), where)
        self._make(step.output, step.channels, where)

    def _make(self, name: str, channels: int | None, where: str) -> None:
        if name in self.channels or name in self.masks:
            raise ValueError(f"{where}: there are two of the name {name!r}")
        if channels is None:
            self.masks.add(name)
        else:
            self.channels[name] = channels

    def _image(self, name: str, where: str) -> int:
        if name not in self.channels:
            raise ValueError(f"{where}: no image before this step has the name {name!r}")
        if name in self.totals:
            raise ValueError(f"{where}: {name!r} are totals, which only halts take")
        return self.channels[name]

    def _parameter(self, name: str, shape: tuple, where: str) -> None:
        if self.parameters.setdefault(name, shape) != shape:
            raise ValueError(f"{where}: the parameter {name!r} has another shape in a step before")


# ---- JSON --------------------------------------------------------------------------------------


def _without_twins(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"a stage has the key {twice!r} twice in one object")
    return found


def _shown(value) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Object:
    """A JSON object that is read key by key."""

    def __init__(self, where: str, value):
        if not isinstance(value, dict):
            raise ValueError(f"{where}: it is no JSON object, but {_shown(value)}")
        self.where, self._rest = where, dict(value)

    def take(self, key: str, read: Callable, *default):
        if key not in self._rest:
            if default:
                return default[0]
            raise ValueError(f"{self.where}: it has no {key!r}")
        where = key if self.where == "a stage" else f"{self.where}.{key}"
        return read(where, self._rest.pop(key))

    def finish(self) -> None:
        if self._rest:
            raise ValueError(f"{self.where}: nobody knows its {', '.join(map(repr, self._rest))}")


def _any(where: str, value):
    return value


def _name(where: str, value) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: it is no name, but {_shown(value)}")
    return value


def _number(where: str, value) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{where}: it is no number, but {_shown(value)}")
    return float(value)


def _whole(least: int, most: int) -> Callable[[str, object], int]:
    def read(where: str, value) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{where}: it is no whole number from {least} to {most}, but {_shown(value)}")
        return value

    return read


def _wholes(count: int, least: int) -> Callable[[str, object], tuple[int, ...]]:
    one = _whole(least, LARGEST)

    def read(where: str, value) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) != count:
            raise ValueError(f"{where}: it is no list of {count} whole numbers, but {_shown(value)}")
        return tuple(one(f"{where}[{place}]", number) for place, number in enumerate(value))

    return read


def _list_of(read: Callable) -> Callable[[str, object], tuple]:
    def read_all(where: str, value) -> tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: it is no list, but {_shown(value)}")
        return tuple(read(f"{where}[{place}]", one) for place, one in enumerate(value))

    return read_all


_channels = _whole(1, 2**31 - 1)


def _flag(where: str, value) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{where}: it is neither true nor false, but {_shown(value)}")
    return value


def _input(where: str, value) -> tuple[str, int, str]:
    found = _Object(where, value)
    name, are_totals = found.take("name", _name), found.take("totals", _flag, False)
    channels = 1 if are_totals else found.take("channels", _channels)
    are_tokens = False if are_totals else found.take("tokens", _flag, False)
    found.finish()
    return name, channels, "totals" if are_totals else "tokens" if are_tokens else ""


def _windowed(found: _Object, kind, paddings: int):
    return kind(
        found.take("kernel", _wholes(2, 1)),
        found.take("stride", _wholes(2, 1), (1, 1)),
        found.take("dilation", _wholes(2, 1), (1, 1)),
        found.take("padding", _wholes(paddings, 0), (0,) * paddings),
    )


def _reader(where: str, value) -> Reader:
    found = _Object(where, value)
    read = _windowed(found, Reader, 2)
    found.finish()
    return read


def _step(where: str, value) -> Step:
    found = _Object(where, value)
    kind = found.take("kind", _name)
    if kind == "conv2d":
        step = Convolution(
            found.take("output", _name),
            found.take("input", _name),
            found.take("channels", _channels),
            _windowed(found, Window, 4),
            found.take("weights", _name),
            **{key: found.take(key, _name, None) for key in ("bias", "residual", "base", "mask", "later")},
            reader=found.take("reader", _reader, None),
            activation=found.take("activation", _name, "none"),
            groups=found.take("groups", _whole(1, LARGEST), 1),
        )
    elif kind == "mask_unit":
        step = Scores(
            found.take("mask", _name),
            found.take("input", _name),
            found.take("weights", _name),
            found.take("stride", _wholes(2, 1), (1, 1)),
            found.take("bias", _number, 0.0),
            found.take("threshold", _number, 0.0),
        )
    elif kind == "mask":
        step = Combined(
            found.take("mask", _name),
            found.take("how", _name),
            found.take("of", _list_of(_name)),
            found.take("size", _wholes(2, 0), None),
        )
    elif kind == "layer":
        how = found.take("how", _name)
        if how not in LAYERS:
            raise ValueError(f"{where}.how: there is no {how!r}; there are {', '.join(map(repr, LAYERS))}")
        step = Layer(
            found.take("output", _name),
            found.take("input", _name),
            how,
            _windowed(found, Window, 4) if LAYERS[how] == "window" else None,
            found.take("scale", _wholes(2, 1), None),
            **{key: found.take(key, _name, None) for key in ("other", "mask")},
            activation=found.take("activation", _name, "none"),
        )
    elif kind == "norm":
        step = Norm(
            found.take("output", _name),
            found.take("input", _name),
            found.take("how", _name),
            **{key: found.take(key, _name, None) for key in ("weights", "bias")},
            epsilon=found.take("epsilon", _number, None),
            mask=found.take("mask", _name, None),
        )
    elif kind == "attention":
        step = Attention(
            found.take("output", _name),
            found.take("input", _name),
            found.take("heads", _whole(1, LARGEST)),
            found.take("scale", _number, None),
            found.take("mask", _name, None),
            found.take("all_keys", _flag, False),
        )
    elif kind == "halt":
        step = Halt(
            **{key: found.take(key, _name) for key in ("mask", "input", "weights", "totals")},
            bias=found.take("bias", _number, 0.0),
            threshold=found.take("threshold", _number, 0.99),
            of=found.take("of", _list_of(_name), ()),
            **{key: found.take(key, _name, None) for key in ("limits", "before", "sums", "base")},
        )
    else:
        kinds = ", ".join(map(repr, _KINDS.values()))
        raise ValueError(f"{where}.kind: there is no step {kind!r}; there are {kinds}")
    found.finish()
    return step


def _plain(value):
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _fields(value) -> dict:
    """The fields of a step that are not their defaults, in JSON's types."""
    found = {}
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        if field.default is not dataclasses.MISSING and one == field.default:
            continue
        if isinstance(one, Window):
            found |= _fields(one)
        else:
            found[field.name] = _fields(one) if isinstance(one, Reader) else _plain(one)
    return found


_KINDS = {
    Convolution: "conv2d", Scores: "mask_unit", Combined: "mask", Layer: "layer", Norm: "norm", Attention: "attention",
    Halt: "halt",
}  # fmt: skip


def _written(step: Step) -> dict:
    return {"kind": _KINDS[type(step)], **_fields(step)}
