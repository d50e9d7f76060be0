"""The operator of described stages, and the module that calls it in the place of layers."""

from __future__ import annotations

import dataclasses

import torch
import torch.fx
from torch import nn
from torch.autograd import forward_ad

from . import dense, masks
from ._library import ops
from .mappings import Layer
from .nn_base import Place
from .shapes import _images
from .stage_description import SCORES, Numbers, Stage, Window

INTEGERS, REALS = 26, 2  # Numbers of a step, as bindings/stage_program.h has them.
STAGE, LAYERS, DENSE = WAYS = range(3)
BY_TIME = -1


def sizes_of(steps, images, channels) -> tuple[list[tuple], list[tuple]]:
    """The sizes of all images of a stage, and of the masks that it makes, by the numbers of its steps. `images` are the
    sizes of those that are given, `channels` how many a parameter makes."""
    images, made = [tuple(sizes) for sizes in images], []
    for at in range(0, len(steps), INTEGERS):
        n, _, height, width = images[steps[at + 1]]
        kernel, stride, dilation, padding = (
            tuple(steps[at + first : at + last]) for first, last in ((6, 8), (8, 10), (10, 12), (12, 16))
        )
        if steps[at] == SCORES:
            made.append((n, -(-height // stride[0]), -(-width // stride[1])))
        else:
            extents = Window(kernel, stride, dilation, padding).outputs(height, width)
            images.append((n, channels[steps[at + 24]], *extents))
    return images, made


@torch.library.register_fake("distile::stage_inference")
@torch.library.register_fake("distile::stage")
def _stage(tensors, masks, parameters, *, steps, numbers, activations, outputs, places, times=(), way=-1):
    images, made = sizes_of(steps, [tensor.shape for tensor in tensors], [one.shape[0] for one in parameters])
    like = tensors[0]
    return [
        _images(like, *images[output])
        if output >= 0
        else like.new_empty(made[-1 - output - len(masks)], dtype=torch.bool)
        for output in outputs
    ]


def stage(tensors, masks, parameters, *, steps, numbers, activations, outputs, **_) -> list[torch.Tensor]:
    """What torch.ops.distile.stage computes, step by step, with gradients."""
    images, known, names = list(tensors), list(masks), activations.split(",")
    for step in range(len(names)):
        kind, input, residual, base, mask, later, *window = steps[INTEGERS * step : INTEGERS * (step + 1)]
        kernel, stride, dilation, padding = window[:2], window[2:4], window[4:6], window[6:10]
        reader, (weight, bias) = window[10:18], window[18:20]
        x, weight = images[input], parameters[weight]
        if kind == SCORES:
            scored = x.detach()[..., :: stride[0], :: stride[1]]
            bias, threshold = numbers[REALS * step : REALS * (step + 1)]
            known.append(ops.mask_scores(scored, weight.detach(), bias=bias, threshold=threshold))
            continue
        size = Window(kernel, stride, dilation, padding).outputs(*x.shape[2:])
        active = x.new_ones((x.shape[0], *size), dtype=torch.bool) if mask < 0 else known[mask]
        if reader[0]:
            active = ops.mask_needed_input(
                active, size, reader[:2], stride=reader[2:4], dilation=reader[4:6], padding=reader[6:]
            )
        added = None if residual < 0 else images[residual]
        result = ops.conv2d(
            x, weight, None if bias < 0 else parameters[bias], active, added, stride=stride, padding=padding,
            dilation=dilation, activation=names[step] if later < 0 else "none",
        )  # fmt: skip
        if later >= 0:
            done = dense.ACTIVATIONS[names[step]](result)
            result = torch.where((active & ~known[later].bool())[:, None], done, result)
        images.append(result if base < 0 else torch.where(active.bool()[:, None], result, images[base]))
    return [images[output] if output >= 0 else known[-1 - output] for output in outputs]


def _keep(ctx, inputs, keyword_only_inputs, output):
    ctx.counts, ctx.keywords = [len(one) for one in inputs], keyword_only_inputs
    ctx.save_for_backward(*(tensor for list in inputs for tensor in list))


def _of_stage(ctx, gradients):
    saved, lists = list(ctx.saved_tensors), []
    for count in ctx.counts:
        lists.append(saved[:count])
        del saved[:count]
    wanted = [[one.detach().requires_grad_() for one in lists[place]] for place in (0, 2)]
    with torch.enable_grad():
        results = stage(wanted[0], lists[1], wanted[1], **ctx.keywords)
    pairs = [(one, given) for one, given in zip(results, gradients) if one.requires_grad and given is not None]
    leaves = [one for list in wanted for one in list]
    found = [None] * len(leaves)
    if pairs:
        roots, given = zip(*pairs)
        found = torch.autograd.grad(roots, leaves, given, allow_unused=True)
    first = len(wanted[0])
    return list(found[:first]), [None] * len(lists[1]), list(found[first:])


torch.library.register_autograd("distile::stage", _of_stage, setup_context=_keep)


@dataclasses.dataclass(frozen=True)
class GivenMask:
    """Where a mask of a stage is from: an argument, or None for that of a context; and of which layer it is."""

    argument: int | None
    name: str
    mapping: Layer
    image: int  # The number of an image of its size.


class FusedStage(nn.Module):
    """Layers of a model as one call of torch.ops.distile.stage.

    Where no stage can take their place, the layers run: with gradients, without a mask, in autocast, and with sizes that
    do not fit. The operator itself runs them where the device has no stage for the types or the sizes.
    """

    def __init__(
        self,
        stage: Stage,
        layers: torch.fx.GraphModule,
        images: list[int],
        given: list[GivenMask],
        units: list[tuple[int, nn.Module]],
        places: list[int | None],
    ):
        super().__init__()
        self.stage = stage
        self._numbers: Numbers = stage.numbers()
        self._image_arguments, self._given, self._units = images, given, units
        self._own_places = [Place() if number is None else None for number in places]
        self._places = [own.number if own else number for own, number in zip(self._own_places, places)]
        self.times: list[float] = []  # Rows: a density, and the times of the stage, of its layers and of the dense form.
        self.way = BY_TIME
        self.measures: tuple[float, ...] = ()  # At these densities, in the next call that can.
        # The model has the layers by names of its own.
        self.__dict__["_layers"], self.__dict__["_units"] = layers, units

    def extra_repr(self) -> str:
        return f"steps={len(self.stage.steps)}, inputs={len(self.stage.inputs)}, outputs={list(self.stage.outputs)}"

    def forward(self, *arguments):
        """Images, masks and whatever else the layers read; and then the parameters."""
        last = len(arguments) - len(self._numbers.parameters)
        arguments, parameters = arguments[:last], arguments[last:]
        tensors = [arguments[place] for place in self._image_arguments]
        if not self._can_take(tensors, parameters):
            return self._layers(*arguments)
        images, _ = sizes_of(self._numbers.steps, [one.shape for one in tensors], [one.shape[0] for one in parameters])
        if not self._fit(images):
            return self._layers(*arguments)
        given = []
        for one in self._given:
            n, _, height, width = images[one.image]
            mask = None if one.argument is None else arguments[one.argument]
            found = masks.resolve(mask, n, height, width, name=one.name, mapping=one.mapping)
            if found is None:
                return self._layers(*arguments)
            given.append(found)
        return tuple(self._call(tensors, given, parameters))

    def _call(self, tensors, given, parameters, numbers: Numbers | None = None, **keywords) -> list[torch.Tensor]:
        reals = list((numbers or self._numbers).numbers)
        for step, unit in self._units if numbers is None else ():
            reals[REALS * step : REALS * (step + 1)] = [float(unit.bias), float(unit.threshold)]
        numbers = numbers or self._numbers
        keywords = {"times": self.times, "way": self.way, "places": self._places, **keywords}
        operator = ops.stage if torch.compiler.is_compiling() else ops.stage_inference
        return operator(
            tensors,
            given,
            list(parameters),
            steps=numbers.steps,
            numbers=reals,
            activations=numbers.activations,
            outputs=numbers.outputs,
            **keywords,
        )

    def _can_take(self, tensors, parameters) -> bool:
        first = tensors[0]
        if first.device.type not in ("cpu", "cuda") or torch.is_autocast_enabled(first.device.type):
            return False
        if any(one.dim() != 4 or one.dtype != first.dtype or one.device != first.device for one in tensors):
            return False
        if forward_ad._current_level >= 0:
            return False
        if not torch.is_grad_enabled() or torch.compiler.is_exporting():
            return True
        return not any(one.requires_grad for one in (*tensors, *parameters))

    def _fit(self, images) -> bool:
        """Whether sums are of images of one shape, and no image is without pixels: layers say what is wrong."""
        steps, result = self._numbers.steps, len(self._image_arguments)
        for at in range(0, len(steps), INTEGERS):
            if steps[at] == SCORES:
                continue
            if any(number >= 0 and images[number] != images[result] for number in steps[at + 2 : at + 4]):
                return False
            if min(images[result][2:]) < 1:
                return False
            result += 1
        return True
