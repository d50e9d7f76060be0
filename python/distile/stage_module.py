"""The operator of described stages, and the module that calls it in the place of layers."""

from __future__ import annotations

import dataclasses

import torch
import torch.fx
from torch import nn
from torch.autograd import forward_ad

from . import dense, halting, masks, stage_description
from ._library import ops
from .mappings import Layer
from .nn_base import Place
from .shapes import _images
from .stage_description import (
    ALGEBRA,
    ALGEBRAS,
    ATTENTION,
    CONVOLUTION,
    HALT,
    LAYER,
    NORM,
    NORMS,
    SCORES,
    Combined,
    Halt,
    Numbers,
    Scores,
    Stage,
    Window,
    images_of,
    mask_of,
)
from .stage_measuring import blob, density_of, fastest, times_of

INTEGERS, REALS = 27, 2  # Numbers of a step, as bindings/stage_program.h has them.
POOL = list(ALGEBRAS).index("pool")
MAX_POOL, AVERAGE_POOL, UPSAMPLE, SUM = range(len(stage_description.LAYERS))
STAGE, LAYERS, DENSE = WAYS = range(3)
BY_TIME = -1


def sizes_of(steps, images, channels, masks=None) -> tuple[list[tuple], list[tuple]]:
    """The sizes of all images of a stage, and if those of given `masks` are, of all masks, by the numbers of its steps.
    `images` are the sizes of those that are given, `channels` how many a parameter makes. Those of tokens are [N, C, T]
    here, those of their masks [N, T], and so are those of totals."""
    images, known = [tuple(sizes) for sizes in images], [tuple(sizes) for sizes in masks or ()]
    for at in range(0, len(steps), INTEGERS):
        if steps[at] == ALGEBRA:
            if masks is not None and steps[at + 1] != POOL:
                known.append(known[steps[at + 4]])
            elif masks is not None:
                n, height, width = known[steps[at + 4]]
                known.append((n, -(-height // steps[at + 12]), -(-width // steps[at + 14])))
            continue
        n, before, *extents = images[steps[at + 1]]
        if steps[at] == HALT:
            images += [(n, *extents), *([] if steps[at + 2] < 0 else [images[steps[at + 2]]])]
            known.append((n, *extents))
            continue
        if steps[at] in (NORM, ATTENTION) or len(extents) == 1:
            made = channels[steps[at + 24]] if steps[at] == CONVOLUTION else before // (3 if steps[at] == ATTENTION else 1)
            images.append((n, made, *extents))
            continue
        height, width = extents
        kernel, stride, dilation, padding = (
            tuple(steps[at + first : at + last]) for first, last in ((6, 8), (8, 10), (10, 12), (12, 16))
        )
        if steps[at] == SCORES:
            known.append((n, -(-height // stride[0]), -(-width // stride[1])))
        elif steps[at] == LAYER:
            size = (height, width)
            if steps[at + 5] in (MAX_POOL, AVERAGE_POOL):
                size = Window(kernel, stride, dilation, padding).outputs(height, width)
            elif steps[at + 5] == UPSAMPLE:
                size = (height * padding[0], width * padding[2])
            images.append((n, before, *size))
        else:
            extents = Window(kernel, stride, dilation, padding).outputs(height, width)
            images.append((n, channels[steps[at + 24]], *extents))
    return images, known


@torch.library.register_fake("distile::stage_inference")
@torch.library.register_fake("distile::stage")
def _stage(tensors, masks, parameters, *, steps, numbers, activations, outputs, places, times=(), way=-1):
    channels = [one.shape[0] for one in parameters]
    images, known = sizes_of(steps, map(size_of, tensors), channels, [one.shape for one in masks])
    like = tensors[0]

    def made(output):
        if output < 0:
            return like.new_empty(known[-1 - output], dtype=torch.bool)
        if len(images[output]) == 2:
            return like.new_empty(images[output], dtype=torch.float32)
        n, channels, *extents = images[output]
        return _images(like, n, channels, *extents) if len(extents) == 2 else like.new_empty(n, *extents, channels)

    return list(map(made, outputs))


def size_of(tensor: torch.Tensor) -> tuple:
    """The sizes of an image, [N, C, H, W], or of tokens, which are [N, T, C], as [N, C, T]."""
    if tensor.dim() == 3:
        n, tokens, channels = tensor.shape
        return n, channels, tokens
    return tuple(tensor.shape)


def stage(tensors, masks, parameters, *, steps, numbers, activations, outputs, **_) -> list[torch.Tensor]:
    """What torch.ops.distile.stage computes, step by step, with gradients."""
    images, known, names = list(tensors), list(masks), activations.split(",")
    for step in range(len(names)):
        kind, input, residual, base, mask, later, *window = steps[INTEGERS * step : INTEGERS * (step + 1)]
        kernel, stride, dilation, padding = window[:2], window[2:4], window[4:6], window[6:10]
        reader, (weight, bias, groups) = window[10:18], window[18:]
        if kind == ALGEBRA:
            second = None if later < 0 else known[later].bool()
            known.append(_combined(input, known[mask].bool(), second, padding[0], padding[2]))
            continue
        x = images[input]
        if kind == HALT:
            totals = x.new_zeros(x.shape[:2], dtype=torch.float32) if base < 0 else images[base]
            left, limits = None if mask < 0 else known[mask], None if bias < 0 else parameters[bias]
            halts = numbers[REALS * step : REALS * (step + 1)]
            going, totals, part = halting.halted(x, parameters[weight], left, totals, limits, *halts)
            images += [totals, *([] if residual < 0 else [halting.summed(images[residual], part, x)])]
            known.append(going)
            continue
        if kind == LAYER:
            images.append(_layer(later, x, images[residual], None if mask < 0 else known[mask], names[step], window))
            continue
        if kind in (NORM, ATTENTION):
            extents = (x.shape[0], *(x.shape[1:2] if x.dim() == 3 else x.shape[2:]))
            active = x.new_ones(extents, dtype=torch.bool) if mask < 0 else known[mask]
            number = numbers[REALS * step]
            if kind == ATTENTION:
                images.append(_attended(x, active, groups, number, bool(later)))
            else:
                vectors = [None if one < 0 else parameters[one] for one in (weight, bias)]
                images.append(_normalized(later, x, active, vectors, number))
            continue
        weight = parameters[weight]
        if x.dim() == 3:
            images.append(_linear(x, weight, None if bias < 0 else parameters[bias],
                                  x.new_ones(x.shape[:2], dtype=torch.bool) if mask < 0 else known[mask],
                                  None if residual < 0 else images[residual], None if base < 0 else images[base],
                                  None if later < 0 else known[later], names[step]))  # fmt: skip
            continue
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
            dilation=dilation, groups=groups, activation=names[step] if later < 0 else "none",
        )  # fmt: skip
        if later >= 0:
            done = dense.ACTIVATIONS[names[step]](result)
            result = torch.where((active & ~known[later].bool())[:, None], done, result)
        images.append(result if base < 0 else torch.where(active.bool()[:, None], result, images[base]))
    return [images[output] if output >= 0 else known[-1 - output] for output in outputs]


def _layer(how: int, x, other, mask, activation: str, window) -> torch.Tensor:
    """An image from others, by the number of the layer."""
    kernel, stride, dilation, (top, _, left, _) = window[:2], window[2:4], window[4:6], window[6:10]
    size = tuple(x.shape[1:2] if x.dim() == 3 else x.shape[2:])
    if how in (MAX_POOL, AVERAGE_POOL):
        size = Window(kernel, stride, dilation, window[6:10]).outputs(*size)
    elif how == UPSAMPLE:
        size = size[0] * top, size[1] * left
    active = x.new_ones((x.shape[0], *size), dtype=torch.bool) if mask is None else mask
    ways = {
        MAX_POOL: lambda: ops.max_pool2d(x, active, kernel, stride=stride, padding=[top, left], dilation=dilation),
        AVERAGE_POOL: lambda: ops.avg_pool2d(x, active, kernel, stride=stride, padding=[top, left], count_padding=True),
        UPSAMPLE: lambda: ops.upsample_nearest(x, active, scale=[top, left]),
        SUM: lambda: ops.add(x, other, active, activation=activation),
    }
    return ways[how]()


def _linear(x, weight, bias, active, residual, base, later, activation: str) -> torch.Tensor:
    result = ops.linear(x, weight, bias, active, residual, activation=activation if later is None else "none")
    if later is not None:
        done = dense.ACTIVATIONS[activation](result)
        result = torch.where((active & ~later.bool())[..., None], done, result)
    return result if base is None else torch.where(active.bool()[..., None], result, base)


def _normalized(how: int, x, active, vectors, epsilon: float) -> torch.Tensor:
    epsilon = torch.finfo(x.dtype).eps if epsilon < 0 else epsilon
    if NORMS[how] == "layer_norm":
        return ops.layer_norm(x, active, *vectors, epsilon=epsilon)
    return ops.rms_norm(x, active, vectors[0], epsilon=epsilon)


def _attended(qkv, active, heads: int, scale: float, all_keys: bool) -> torch.Tensor:
    parts = qkv.unflatten(2, (3, heads, -1)).unbind(2)
    query, key, value = (part.transpose(1, 2) for part in parts)
    result = ops.attention(query, key, value, active, None if all_keys else active, scale=max(scale, 0.0))
    return result.transpose(1, 2).flatten(2)


def _combined(how: int, a, b, rows: int, columns: int) -> torch.Tensor:
    """A mask from others, by the number of the algebra."""
    ways = {
        "or": lambda: a | b,
        "and": lambda: a & b,
        "and not": lambda: a & ~b,
        "not": lambda: ~a,
        "dilate": lambda: ops.mask_dilate(a, rows, columns),
        "pool": lambda: ops.mask_pool(a, rows, columns),
    }
    return ways[list(ALGEBRAS)[how]]()


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


def run_stage(stage: Stage, images: dict, masks: dict, parameters: dict) -> dict[str, torch.Tensor]:
    """What a stage makes of tensors by the names that it has for them: its outputs, by theirs. Weights are packed in
    each call; distile.fuse makes modules that keep them."""
    numbers = stage.numbers()
    names = [name for name, _ in stage.inputs]
    for given, wanted in ((images, names), (masks, stage.masks), (parameters, numbers.parameters)):
        if given.keys() != set(wanted):
            raise ValueError(f"a stage takes the tensors {', '.join(wanted) or 'none'}, and not {', '.join(given)}")
    for name, channels in stage.inputs:
        rank, shape = (3, f"[N, T, {channels}]") if name in stage.tokens else (4, f"[N, {channels}, H, W]")
        rank, shape = (2, "[N, T]") if name in stage.totals else (rank, shape)
        if images[name].dim() != rank or (rank > 2 and size_of(images[name])[1] != channels):
            raise ValueError(f"the image {name!r} is {shape}, and not {list(images[name].shape)}")
    found = ops.stage(
        [images[name] for name in names],
        [masks[name] for name in stage.masks],
        [parameters[name] for name in numbers.parameters],
        steps=numbers.steps,
        numbers=numbers.numbers,
        activations=numbers.activations,
        outputs=numbers.outputs,
        places=[0] * len(stage.steps),
    )
    return dict(zip(stage.outputs, found))


@dataclasses.dataclass(frozen=True)
class GivenMask:
    """Where a mask of a stage is from: an argument, or None for that of a context; and of which layer it is."""

    argument: int | None
    name: str
    mapping: Layer
    image: int | None  # The number of an image of its size; None of an argument that says its own.


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class FusedStage(nn.Module):
    """Layers of a model as one call of torch.ops.distile.stage.

    Where no stage can take their place, the layers run: with gradients, in training mode, without a mask, in autocast,
    and with sizes that do not fit. The operator itself runs them where the device has no stage for the types or the sizes.
    """

    def __init__(
        self,
        stage: Stage,
        layers: torch.fx.GraphModule,
        images: list[int],
        given: list[GivenMask],
        units: list[tuple[int, nn.Module]],
        places: list[Place],
        parameters: list[tuple[nn.Module, str] | int],
    ):
        super().__init__()
        self.stage = stage
        self._numbers: Numbers = stage.numbers()
        self._ranks = [2 if name in stage.totals else 3 if name in stage.tokens else 4 for name, _ in stage.inputs]
        self._image_arguments, self._given, self._units = images, given, units
        self._place_of_step = places  # Steps have the places of their layers.
        # Layers, and the names that they have for parameters: the model's names would be looked up part by part. Those
        # of halts are arguments.
        self._parameter_sources = parameters
        self._last_sizes: tuple | None = None
        self.times: list[float] = []  # What measure() finds.
        self.way = BY_TIME
        self.measures: tuple[float, ...] = ()  # The densities at which the next call measures.
        # The model has the layers by names of its own.
        self.__dict__["_layers"], self.__dict__["_units"] = layers, units

    def extra_repr(self) -> str:
        return f"steps={len(self.stage.steps)}, inputs={len(self.stage.inputs)}, outputs={list(self.stage.outputs)}"

    def forward(self, *arguments):
        """Images, masks and whatever else the layers read."""
        sources = self._parameter_sources
        parameters = [arguments[one] if isinstance(one, int) else getattr(*one) for one in sources]
        tensors = [arguments[place] for place in self._image_arguments]
        first = tensors[0]
        if not self._can_take(tensors, parameters):
            return self._layers(*arguments)
        images = self._sizes(list(map(size_of, tensors)), parameters)
        if images is None:
            return self._layers(*arguments)
        given = []
        for one in self._given:
            mask = None if one.argument is None else arguments[one.argument]
            n, _, *size = images[one.image or 0]
            if one.image is None and not isinstance(mask, torch.Tensor):
                return self._layers(*arguments)
            found = masks.resolve(mask, n, *size, name=one.name, mapping=one.mapping)
            if found is None:
                return self._layers(*arguments)
            given.append(found)
        if self.measures and not torch.compiler.is_compiling() and not _is_capturing(first):
            densities, self.measures = self.measures, ()
            measure(self, densities, tensors, given, parameters)
        return tuple(self._call(tensors, given, parameters))

    def _sizes(self, given: list[tuple], parameters) -> list[tuple] | None:
        """The sizes of all images, or None if the steps do not fit. Those of the last call are kept."""
        keeps = not torch.compiler.is_compiling()
        if keeps and self._last_sizes is not None and self._last_sizes[0] == given:
            return self._last_sizes[1]
        images, _ = sizes_of(self._numbers.steps, given, [one.shape[0] for one in parameters])
        found = images if self._fit(images) else None
        if keeps:
            self._last_sizes = given, found
        return found

    def _call(self, tensors, given, parameters) -> list[torch.Tensor]:
        numbers = self._numbers
        if self._units:
            reals = list(numbers.numbers)
            for step, unit in self._units:
                reals[REALS * step : REALS * (step + 1)] = [float(unit.bias), float(unit.threshold)]
            numbers = dataclasses.replace(numbers, numbers=tuple(reals))
        return self.run(numbers, self._places(), tensors, given, parameters, times=self.times, way=self.way)

    def _places(self) -> list[int]:
        return [place.number for place in self._place_of_step]

    @staticmethod
    def run(numbers: Numbers, places, tensors, given, parameters, **keywords) -> list[torch.Tensor]:
        """Calls the operator."""
        operator = ops.stage if torch.compiler.is_compiling() else ops.stage_inference
        return operator(
            tensors,
            given,
            list(parameters),
            steps=numbers.steps,
            numbers=numbers.numbers,
            activations=numbers.activations,
            outputs=numbers.outputs,
            places=places,
            **keywords,
        )

    def _can_take(self, tensors, parameters) -> bool:
        first = tensors[0]
        if first.device.type not in ("cpu", "cuda") or torch.is_autocast_enabled(first.device.type):
            return False
        if self.training or torch.onnx.is_in_onnx_export():
            return False
        if [one.dim() for one in tensors] != self._ranks:
            return False
        types = [torch.float32 if rank == 2 else first.dtype for rank in self._ranks]
        if any(one.dtype != due or one.device != first.device for one, due in zip(tensors, types)):
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
            if steps[at] in (SCORES, ALGEBRA):
                continue
            if steps[at] == HALT:
                (n, channels, *extents), (_, _, sums, before) = images[steps[at + 1]], steps[at : at + 4]
                if before >= 0 and images[before] != (n, *extents):
                    return False
                if sums >= 0 and (images[sums][:2] != (n, channels) or not 1 <= images[sums][2] <= extents[0]):
                    return False
                result += 1 if sums < 0 else 2
                continue
            if any(number >= 0 and images[number] != images[result] for number in steps[at + 2 : at + 4]):
                return False
            if min(images[result][2:]) < 1:
                return False
            result += 1
        return True

    def made_masks(self, tensors, given, parameters) -> list[torch.Tensor]:
        """The masks that the stage makes of these tensors."""
        count = len(self._given)
        made = sum(mask_of(step) is not None for step in self.stage.steps)
        outputs = tuple(-1 - count - number for number in range(made))
        numbers = dataclasses.replace(self._numbers, outputs=outputs)
        return self.run(numbers, self._places(), tensors, given, parameters, way=BY_TIME)

    def given_masks(self) -> tuple[Numbers, list[int]]:
        """The stage with the masks given that it makes, and the places of its steps. Halts make others, which nobody
        reads."""
        stage = self.stage
        made = tuple(mask_of(step) for step in stage.steps if mask_of(step) is not None)
        steps = [
            (dataclasses.replace(step, mask=f"{step.mask} unread") if isinstance(step, Halt) else step, place)
            for step, place in zip(stage.steps, self._places())
            if not isinstance(step, (Scores, Combined))
        ]
        outputs = tuple(name for name in stage.outputs if name not in made)
        outputs = outputs or images_of(steps[-1][0])[:1]
        without = Stage(
            stage.inputs, stage.masks + made, tuple(step for step, _ in steps), outputs, stage.tokens, stage.totals
        )
        return without.numbers(), [place for _, place in steps]


def measure(fused: FusedStage, densities, tensors, given, parameters) -> None:
    """Measures a stage, its layers and their dense form with masks of these densities: a row for each, of the density
    and the times in microseconds. On a CPU, later calls choose by the density of their masks. On a GPU the choice is
    made here, by the density of the masks of this call, because nothing may wait for those of others."""
    numbers, places = fused.given_masks()
    by_name = dict(zip(fused._numbers.parameters, parameters))
    parameters = [by_name[name] for name in numbers.parameters]
    channels, known = [one.shape[0] for one in by_name.values()], [one.shape for one in given]
    _, shapes = sizes_of(fused._numbers.steps, map(size_of, tensors), channels, known)
    rows: list[list[float]] = []
    for density in sorted(densities):
        drawn = [blob(shape, density, tensors[0].device) for shape in shapes]
        calls = [lambda way=way, drawn=drawn: fused.run(numbers, places, tensors, drawn, parameters, way=way)
                 for way in WAYS]  # fmt: skip
        rows.append([density, *times_of(calls, tensors[0].device)])
    fused.times = [number for row in rows for number in row]
    if tensors[0].is_cuda:
        masks_now = given or fused.made_masks(tensors, given, list(by_name.values()))
        fused.way = fastest(rows, density_of(masks_now))
