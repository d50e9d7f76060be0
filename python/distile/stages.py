"""Stages: masked layers that run in one launch on a GPU (docs/stages.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from . import _facts, halting, numerics  # noqa: F401 halting defines an operator.
from ._library import ops
from .activations import split_slope
from .shapes import convolved

aten = torch.ops.aten

# The library's numbers.
TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
ACTIVATIONS = {name: number for number, name in enumerate(_facts.ACTIVATIONS)}
CONVOLUTION, SCORES, MAX_POOL, AVERAGE_POOL, UPSAMPLE, SUM, NORMALIZE, ATTENTION, HALT = range(9)
LAYER_NORM, RMS_NORM = range(2)

OLDEST_CAPABILITY = (8, 0)
HEAD_CHANNELS, MOST_HEAD_BYTES, MOST_NORMALIZED = 8, 256, 2048  # Heads have multiples of these channels.
MOST_TOKENS = 65535  # A mask has no more columns, and tokens of a stage are one row.
MOST_WORDS, MOST_ATTENTION_WORDS = ops._most_stage_words(False), ops._most_stage_words(True)
OWN_BORDER = 1  # Around results that layers allocate in a stage, for windows of 3 x 3 behind them.
_NO_WINDOW = (0,) * 8
_POINT = (1, 1, 1, 1, 1, 1, 0, 0)


def bordered(
    like: torch.Tensor, channels: int, height: int, width: int, border: int, scratch: bool = False
) -> torch.Tensor:
    """Zeros [N, channels, height, width] of the type and batch of `like`, channels innermost, inside a border of zeros.

    Convolutions of a stage read outside the image only in tensors with such a border. Layers write the image alone.
    With `scratch`, nobody cares what pixels hold that the mask of the last layer written has not: a stage may write them,
    too, where it is faster.
    """
    n = like.shape[0]
    whole = torch.zeros(n, height + 2 * border, width + 2 * border, channels, dtype=like.dtype, device=like.device)
    image = whole[:, border : border + height, border : border + width].permute(0, 3, 1, 2)
    image._distile_border = border
    return mark_scratch(image, scratch)


def mark_scratch(tensor: torch.Tensor, scratch: bool = True) -> torch.Tensor:
    """Says whether nobody cares what a result of a layer holds outside its mask, and returns the result: with
    `scratch`, a stage may write all of it where that is faster. Views of it say nothing."""
    tensor._distile_scratch = scratch
    return tensor


@dataclasses.dataclass(eq=False)
class _Step:
    kind: int
    input: torch.Tensor
    again: Callable[[], object]  # Runs it alone.
    output: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    mask: torch.Tensor | None = None  # None: every pixel.
    later: torch.Tensor | None = None
    window: tuple = _NO_WINDOW
    reader: tuple = _NO_WINDOW
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    activation: str = "none"
    score_bias: float = 0.0
    threshold: float = 0.0
    groups: int = 0
    norm: int = LAYER_NORM
    epsilon: float = 0.0
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    heads: int = 0
    scale: float = 0.0
    all_keys: bool = False
    going: torch.Tensor | None = None  # The mask of those that may go on.
    totals: torch.Tensor | None = None
    limits: torch.Tensor | None = None
    fresh: bool = False  # Whether the output was made for it, of zeros.

    def spreads(self) -> bool:
        """Whether a convolution or a norm may write other pixels, too."""
        free = getattr(self.output, "_distile_scratch", False) and self.residual is None and self.later is None
        return free and self.kind in (CONVOLUTION, NORMALIZE)


class _Arguments(dict):
    """The arguments of an operator by name, with its defaults."""

    def __init__(self, func, args, kwargs):
        defaults = _defaults(func)
        super().__init__(defaults)
        self.update(zip(defaults, args))
        self.update(kwargs)

    def __getattr__(self, name):
        return self[name]


@functools.cache
def _defaults(func) -> dict:
    """An operator's arguments by name, in order, with their defaults."""
    return {argument.name: argument.default_value for argument in func._schema.arguments}


def _pair(numbers) -> tuple[int, int]:
    return (numbers[0], numbers[-1])


def _entry(made: dict[int, tuple], tensor: torch.Tensor) -> tuple | None:
    """What is kept for a tensor by its id, which another may have had before."""
    found = made.get(id(tensor))
    return found if found is not None and found[0]() is tensor else None


def channels_at_once(dtype: torch.dtype) -> int:
    """Tensors of a stage on a GPU have multiples of these channels: 16 bytes."""
    return 16 // dtype.itemsize


def _multiplies(x: torch.Tensor, by_default: bool) -> bool:
    """Whether a stage may multiply tensors like x: float32 as TF32, where set_math() allows it."""
    return x.dtype != torch.float32 or numerics.math() == "tf32" or (by_default and numerics.math() == "default")


def _is_read_in_place(x: torch.Tensor) -> bool:
    """Whether a stage takes an image as it lies in memory."""
    return (
        x.dim() == 4
        and x.dtype in TYPES
        and x.numel() > 0
        and x.stride(1) == 1
        and _is_in_order(x)
        and all(x.stride(axis) % channels_at_once(x.dtype) == 0 or x.shape[axis] == 1 for axis in (0, 2, 3))
        and x.data_ptr() % 16 == 0
    )


def _is_in_order(x: torch.Tensor) -> bool:
    """Whether each pixel, row and image begins behind the one before."""
    n, c, h, w = x.shape
    return x.stride(3) >= c and x.stride(2) >= x.stride(3) * w and (n == 1 or x.stride(0) >= x.stride(2) * h)


def _unsliced(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """An image in which every s-th pixel of every s-th row is one of x, and s: what x[..., ::s, ::s] was taken from,
    as far as it is between those."""
    for s in range(1, 9):
        if x.dim() != 4 or x.stride(2) % s or x.stride(3) % s:
            continue
        shape = (*x.shape[:2], (x.shape[2] - 1) * s + 1, (x.shape[3] - 1) * s + 1)
        whole = x.as_strided(shape, (*x.stride()[:2], x.stride(2) // s, x.stride(3) // s))
        if _is_in_order(whole):
            return whole, s
    return x, 1


def _image(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens [N, T, C] as an image [N, C, 1, T]."""
    image = tokens.transpose(1, 2).unsqueeze(2)
    image._distile_scratch = getattr(tokens, "_distile_scratch", False)
    return image


def _heads_as_image(x: torch.Tensor) -> torch.Tensor | None:
    """Tokens [N, H, T, D] as an image [N, H * D, 1, T], if the heads of a token lie side by side."""
    n, heads, tokens, channels = x.shape
    if x.stride(3) != 1 or (heads > 1 and x.stride(1) != channels):
        return None
    row = x.stride(2)
    return x.as_strided((n, heads * channels, 1, tokens), (x.stride(0), 1, row * tokens, row))


def _made(like: torch.Tensor, channels: int, extents) -> torch.Tensor:
    """Memory for an image, channels innermost."""
    shape = (like.shape[0], channels, *extents)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _words(n: int, height: int, width: int) -> int:
    return n * height * -(-width // 32)


def _border(x: torch.Tensor) -> int:
    return getattr(x, "_distile_border", 0)


def _written(call: _Arguments) -> torch.Tensor | None:
    """The tensor that a call is given to write into."""
    return call.get("out") if call.get("into") is None else call.into


def _share_memory(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    """Whether two tensors may, because one allocation holds both."""
    return b is not None and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _extents(x: torch.Tensor, window, behind) -> tuple[int, int]:
    """Height and width of a convolution's output, with this padding at the bottom and right."""
    kernel, stride, dilation, before = (window[i : i + 2] for i in (0, 2, 4, 6))
    return tuple(map(convolved, x.shape[2:], before, behind, dilation, kernel, stride))


def _reach(x, extents, window) -> int:
    """How far outside the image windows of outputs of these extents read, on the side where they read the most."""
    kernel, stride, dilation, pad = (window[i : i + 2] for i in (0, 2, 4, 6))
    found = 0
    for axis in (0, 1):
        last = (extents[axis] - 1) * stride[axis] - pad[axis] + (kernel[axis] - 1) * dilation[axis]
        found = max(found, pad[axis], last - (x.shape[2 + axis] - 1))
    return found


def _reaches_outside(x, extents, window) -> bool:
    """Whether windows of outputs of these extents read pixels that are neither of the image nor of its border."""
    return _reach(x, extents, window) > _border(x)


class _Packed:
    """The weights and biases of stages, packed once for each state of a parameter."""

    def __init__(self):
        self._kept = WeakTensorKeyDictionary()

    def can_have(self, *parameters) -> bool:
        # Tensors of inference mode do not count how often they are written.
        return not any(parameter is not None and parameter.is_inference() for parameter in parameters)

    def get(self, key, make, *more) -> torch.Tensor:
        state = (key._version, key.data_ptr(), *more)
        kept = self._kept.get(key, {})
        if kept.get(more, (None,))[0] != state:
            kept[more] = (state, make())
            self._kept[key] = kept
        return kept[more][1]

    def weight(self, weight, dtype, device, groups) -> torch.Tensor:
        def make():
            whole = weight.detach().to("cpu", torch.float32).contiguous()
            whole = whole if whole.dim() == 4 else whole[:, :, None, None]  # A linear layer's has two dimensions.
            return ops._pack_stage_weights(whole, TYPES[dtype], groups, torch.empty(0, device=device)).to(device)

        return self.get(weight, make, dtype, groups, device)

    @staticmethod
    def is_vector(vector, device) -> bool:
        """Whether steps read a tensor as it is."""
        return vector.dtype == torch.float32 and vector.device == device and vector.is_contiguous()

    def vector(self, vector, device) -> torch.Tensor:
        if self.is_vector(vector, device):
            return vector
        return self.get(vector, lambda: vector.detach().to(device, torch.float32).contiguous(), device)

    def has(self, key, *more) -> bool:
        return more in self._kept.get(key, {})


_packed = _Packed()


class _Lists:
    """Tensors by their numbers."""

    def __init__(self):
        self.tensors, self._numbers = [], {}

    def number(self, tensor) -> int:
        if tensor is None:
            return -1
        found = self._numbers.setdefault(id(tensor), len(self.tensors))
        if found == len(self.tensors):
            self.tensors.append(tensor)
        return found


_run = ops._run_stage


def _launch(steps: list[_Step]) -> None:
    tensors, parameters, masks = _Lists(), _Lists(), _Lists()
    program, numbers, made = [], [], set()
    for step in steps:
        device = step.input.device
        activation, slope = split_slope(step.activation)
        weight = bias = None
        if step.kind == SCORES:
            weight = _packed.vector(step.weight, device)
            made.add(masks.number(step.mask))
        elif step.kind in (NORMALIZE, HALT):
            weight, bias = (
                None if vector is None else _packed.vector(vector, device) for vector in (step.weight, step.bias)
            )
            if step.kind == HALT:
                made.add(masks.number(step.mask))
        elif step.kind == CONVOLUTION:
            weight = _packed.weight(step.weight, step.input.dtype, device, step.groups)
            bias = None if step.bias is None else _packed.vector(step.bias, device)
        program += [
            step.kind,
            *(tensors.number(tensor) for tensor in (step.input, step.output, step.residual)),
            *(masks.number(mask) for mask in (step.mask, step.later)),
            *step.window,
            *step.reader,
            parameters.number(weight),
            parameters.number(bias),
            ACTIVATIONS[activation],
            int(step.spreads()),
            step.groups,
            step.norm,
            tensors.number(step.key),
            tensors.number(step.value),
            step.heads,
            int(step.all_keys),
            masks.number(step.going),
            parameters.number(step.totals),
            parameters.number(None if step.limits is None else _packed.vector(step.limits, device)),
        ]
        numbers += [slope, step.score_bias, step.threshold, step.epsilon, step.scale]
    _run(
        tensors.tensors,
        parameters.tensors,
        masks.tensors,
        [_border(tensor) for tensor in tensors.tensors],
        [int(number in made) for number in range(len(masks.tensors))],
        program,
        numbers,
    )


@functools.cache
def _runs_on(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY


def _has_device() -> bool:
    """Whether there is a device on which stages run: elsewhere, a context costs nothing."""
    return torch.cuda.is_available() and any(
        _runs_on(torch.device("cuda", number)) for number in range(torch.cuda.device_count())
    )


@contextlib.contextmanager
def stage_teams(wanted: bool = True) -> Iterator[None]:
    """A context in which stages of this thread let teams of a GPU's blocks compute residual blocks of small images
    (docs/cuda.md), or never do. Outside, the number of images decides. Teams are faster where few pixels are active."""
    before = ops._set_stage_teams(1 if wanted else -1)
    try:
        yield
    finally:
        ops._set_stage_teams(before)


class stage(TorchDispatchMode):
    """A context in which masked layers run together: in one launch, at its end or before anything else needs them.

        with torch.inference_mode(), distile.stage():
            for block in blocks:
                x = block(x)

    Results are those of the layers one by one, rounded at the same places. Convolutions, masks from scores, windows of
    masks, and what pools, upsamples, adds and copies images between them go into a launch, on a GPU of compute
    capability 8.0 or later and without gradients. Tensors are of float16 or bfloat16, or of float32 where set_math()
    allows TF32; whatever else is called runs as always, after what it may read. A convolution that reads outside its image needs an input from distile.bordered(). Code that reads memory
    past PyTorch's dispatcher must come after the context.
    """

    def __init__(self):
        super().__init__()
        self._records = False
        self._promised: torch.Tensor | None = None
        self._steps: list[_Step] = []
        # Masks that nobody has made yet, from those that they follow from: what a window reads, and inverses.
        self._needed: dict[int, tuple] = {}
        self._inverse: dict[int, tuple] = {}
        # Masks of tokens [N, T], as masks [N, 1, T].
        self._token_masks: dict[int, tuple] = {}
        # The indices of the pool recorded last, which nobody makes if nobody holds them.
        self._indices: weakref.ref | None = None

    def __enter__(self):
        self._records = _has_device()
        return super().__enter__() if self._records else self

    def __exit__(self, *exception):
        if self._records:
            super().__exit__(*exception)
            self.flush()

    def flush(self) -> None:
        """Runs what is recorded."""
        self._run_pool_with_indices()
        needed, self._needed = self._needed, {}
        inverse, self._inverse = self._inverse, {}
        self._token_masks = {}
        self._run_steps()
        for mask, *_, make in (*needed.values(), *inverse.values()):
            if (alive := mask()) is not None:
                make(alive)

    def _run_pool_with_indices(self) -> None:
        """Runs the step recorded last by itself if it is a pool and somebody holds its indices."""
        indices, self._indices = self._indices, None
        if indices is not None and (held := indices()) is not None:
            pool = self._steps.pop()
            self._run_steps()
            held.copy_(pool.again())

    def _run_steps(self) -> None:
        """Runs the steps, which hold their masks until it returns."""
        steps, self._steps = self._steps, []
        if sum(step.kind == CONVOLUTION for step in steps) > 1:
            _launch(steps)
        else:
            for step in steps:
                step.again()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._run_pool_with_indices()
        if func is ops._fix_result.default:
            # Passed on with the mask's operator, if that runs alone: nothing is made of a mask that a stage makes.
            self._promised = args[0] if args[1] else None
            return None if args[1] else func(*args)
        if func is ops._fix_mask.default:
            mask = self._mask_of_tokens(args[0])
            return None if any(step.mask is mask for step in self._steps) else func(*args)
        record = None if torch.is_grad_enabled() else _RECORDED.get(func)
        if record is not None:
            result = record(self, func, _Arguments(func, args, kwargs))
            if result is not NotImplemented:
                return result[0]
        elif _reads_nothing(func, args, kwargs) or self._is_apart(func, args, kwargs):
            return func(*args, **kwargs)
        self.flush()
        if self._promised is not None:
            ops._fix_result(self._promised, True)
            self._promised = None
        return func(*args, **kwargs)

    def _is_apart(self, func, args, kwargs) -> bool:
        """Whether a call of PyTorch writes nothing, and reads nothing that is still to be made: as where parameters are
        converted before the first call of a layer."""
        if func.namespace != "aten" or func._schema.is_mutable:
            return False
        makes = [tensor for step in self._steps for tensor in (step.output, step.totals, step.mask)]
        makes += [entry[0]() for entry in (*self._needed.values(), *self._inverse.values())]
        read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        return not any(_share_memory(one, other) for one in read for other in makes)

    # Each of these records a call and returns its result in a tuple, or NotImplemented.

    def _takes(self, x: torch.Tensor) -> bool:
        if not _runs_on(x.device) or not _is_read_in_place(x) or not _multiplies(x, by_default=True):
            return False
        first = self._steps[0].input if self._steps else x
        return first.dtype == x.dtype and first.device == x.device

    def _takes_mask(self, mask, device, shape) -> bool:
        """Whether a mask is one of an output of this shape, or of a window that reads it."""
        return (
            mask.device == device
            and mask.dtype == torch.bool
            and mask.dim() == 3
            and _entry(self._inverse, mask) is None
            and (_entry(self._needed, mask) is not None or tuple(mask.shape) == (shape[0], *shape[2:]))
        )

    def _convolves(self, x, weight, bias, extents, window, groups) -> bool:
        """Whether a stage has a convolution with an output of these extents."""
        return (
            self._takes(x)
            and weight.dim() == 4
            and weight.shape[1] * groups == x.shape[1]
            and (groups == 1 or groups == weight.shape[0] == x.shape[1])
            and x.shape[1] % channels_at_once(x.dtype) == 0
            and weight.shape[0] % channels_at_once(x.dtype) == 0
            and _words(x.shape[0], *extents) <= MOST_WORDS
            and _packed.can_have(weight, bias)
            and not _reaches_outside(x, extents, window)
            and self._may_pack(weight, x.device, x.dtype, groups)
        )

    def _masked_conv2d(self, func, call):
        if call.weight.dim() != 4 or call.get("zero") or call.input.dim() != 4:
            return NotImplemented
        output, x, residual = _written(call), call.input, call.residual
        top, bottom, left, right = call.padding if len(call.padding) == 4 else call.padding * 4
        window = (*call.weight.shape[2:], *_pair(call.stride), *_pair(call.dilation), top, left)
        extents = _extents(x, window, (bottom, right)) if output is None else tuple(output.shape[2:])
        shape = (x.shape[0], call.weight.shape[0], *extents)
        if (
            not self._convolves(x, call.weight, call.bias, extents, window, call.groups)
            or not self._takes_mask(call.mask, x.device, shape)
            or not (output is None or (output.dtype == x.dtype and _is_read_in_place(output)))
            or not (residual is None or (_is_read_in_place(residual) and residual.shape == shape))
        ):
            return NotImplemented
        if fresh := output is None:
            output = bordered(x, *shape[1:], border=OWN_BORDER)
        arguments = {name: value for name, value in call.items() if name not in ("out", "into", "zero")}

        def again():
            ops.conv2d_into(**arguments, into=output)

        mask, reader = call.mask, _NO_WINDOW
        if (needed := _entry(self._needed, mask)) is not None:
            _, mask, reader, _ = needed
        self._steps.append(
            _Step(CONVOLUTION, x, again, output, residual, mask, None, window, reader, call.weight, call.bias,
                  call.activation, groups=call.groups, fresh=fresh)
        )  # fmt: skip
        return (None if call.get("into") is not None else output,)

    def _dense_conv2d(self, func, call):
        x = call.input
        if call.get("transposed") or isinstance(call.padding, str) or x.dim() != 4 or call.weight.dim() != 4:
            return NotImplemented
        padding = _pair(call.padding)
        window = (*call.weight.shape[2:], *_pair(call.stride), *_pair(call.dilation), *padding)
        extents = _extents(x, window, padding)
        if not self._convolves(x, call.weight, call.bias, extents, window, call.groups):
            return NotImplemented
        output = _made(x, call.weight.shape[0], extents)

        def again():
            output.copy_(func(**call))

        self._steps.append(
            _Step(CONVOLUTION, x, again, output, window=window, weight=call.weight, bias=call.bias, groups=call.groups)
        )
        return (output,)

    def _has_layer(self, x, extents) -> bool:
        """Whether a stage pools, upsamples or adds to an image, with an output of these extents."""
        return (
            bool(self._steps)
            and self._takes(x)
            and x.shape[1] % channels_at_once(x.dtype) == 0
            and min(extents) > 0
            and _words(x.shape[0], *extents) <= MOST_WORDS
        )

    def _add_layer(self, kind, func, call, x, output, window, residual=None) -> _Step:
        def again():
            output.copy_(func(**call))

        self._steps.append(_Step(kind, x, again, output, residual, window=window))
        return self._steps[-1]

    def _pool(self, func, call):
        x = call["self"]
        kernel, dilation, padding = _pair(call.kernel_size), _pair(call.get("dilation", (1,))), _pair(call.padding)
        stride = _pair(call.stride) if call.stride else kernel
        averages = func is aten.avg_pool2d.default
        plain = not call.ceil_mode and call.get("divisor_override") is None
        if x.dim() != 4 or not plain or (averages and not call.count_include_pad and any(padding)):
            return NotImplemented
        window = (*kernel, *stride, *dilation, *padding)
        extents = _extents(x, window, padding)
        if not self._has_layer(x, extents) or (averages and _reaches_outside(x, extents, window)):
            return NotImplemented
        if not averages:
            x = self._with_less_outside(x, _reach(x, extents, window))
        output = _made(x, x.shape[1], extents)
        step = self._add_layer(AVERAGE_POOL if averages else MAX_POOL, func, call, x, output, window)
        if func is not aten.max_pool2d_with_indices.default:
            return (output,)
        indices = torch.empty_like(output, dtype=torch.int64)
        self._indices = weakref.ref(indices)

        def again():
            largest, found = func(**call)
            output.copy_(largest)
            return found

        step.again = again
        return ((output, indices),)

    def _with_less_outside(self, x, reach: int) -> torch.Tensor:
        """The image, or a copy of it in a border of minus infinity, if a max pool that reads so far outside must not
        read what is there."""
        if reach == 0 or (reach <= _border(x) and self._is_at_least_0(x)):
            return x
        n, channels, height, width = x.shape
        whole = torch.full(
            (n, height + 2 * reach, width + 2 * reach, channels), -math.inf, dtype=x.dtype, device=x.device
        )
        inside = whole[:, reach : reach + height, reach : reach + width].permute(0, 3, 1, 2)
        inside._distile_border = reach
        self._steps.append(_Step(SUM, x, lambda: inside.copy_(x), inside, window=_POINT))
        return inside

    def _is_at_least_0(self, x) -> bool:
        """Whether one recorded step alone has written an image, and nothing less than 0."""
        writers = [step for step in self._steps if _share_memory(x, step.output)]
        return len(writers) == 1 and (
            writers[0].output is x
            and writers[0].fresh
            and writers[0].activation in ("relu", "relu6")
            and writers[0].later is None
        )

    def _upsample(self, func, call):
        x, size = call["input" if "input" in call else "self"], call.output_size
        scales = call.scale_factors if "scale_factors" in call else (call.scales_h, call.scales_w)
        if x.dim() != 4 or 0 in x.shape:
            return NotImplemented
        if size is None:
            size = [int(extent * scale) for extent, scale in zip(x.shape[2:], scales)]
        factors = [to // extent for to, extent in zip(size, x.shape[2:])]
        whole = all(to == factor * extent for to, factor, extent in zip(size, factors, x.shape[2:]))
        as_said = all(scale in (None, factor) for scale, factor in zip(scales or (None, None), factors))
        if not whole or not as_said or not self._has_layer(x, size):
            return NotImplemented
        output = _made(x, x.shape[1], size)
        self._add_layer(UPSAMPLE, func, call, x, output, (1, 1, *factors, 1, 1, 0, 0))
        return (output,)

    def _sum(self, func, call):
        x, other, extents = call["self"], call.other, call["self"].shape[2:]
        if not isinstance(other, torch.Tensor) or other.shape != x.shape or call.alpha != 1 or x.dim() != 4:
            return NotImplemented
        if not self._takes(other) or not self._has_layer(x, extents):
            return NotImplemented
        if func is aten.add_.Tensor:
            if _share_memory(x, other):
                return NotImplemented
            self._steps.append(_Step(SUM, other, lambda: x.add_(other), x, x, window=_POINT))
            return (x,)
        output = _made(x, x.shape[1], extents)
        self._add_layer(SUM, func, call, x, output, _POINT, other)
        return (output,)

    def _clone(self, func, call):
        x = call["self"]
        if x.dim() != 4 or call.memory_format not in (None, torch.preserve_format, torch.channels_last):
            return NotImplemented
        if not self._has_layer(x, x.shape[2:]):
            return NotImplemented
        output = torch.empty_like(x, memory_format=call.memory_format or torch.preserve_format)
        if not _is_read_in_place(output):
            return NotImplemented
        self._add_layer(SUM, func, call, x, output, _POINT)
        return (output,)

    # Layers of tokens are steps of images of one row.

    def _mask_of_tokens(self, mask):
        """A mask [N, T] as one [N, 1, T], always the same; another as it is."""
        if mask is None or mask.dim() != 2:
            return mask
        found = _entry(self._token_masks, mask)
        if found is None:
            found = self._token_masks[id(mask)] = (weakref.ref(mask), mask[:, None])
        return found[1]

    def _takes_tokens(self, x, *others) -> bool:
        """Whether steps take these images, null or of one type, and none of them is too large."""
        ready = (
            self._takes(x)
            and x.shape[1] % channels_at_once(x.dtype) == 0
            and x.shape[3] <= MOST_TOKENS
            and _words(x.shape[0], *x.shape[2:]) <= MOST_WORDS
        )
        return ready and all(
            other is None or (other.dtype == x.dtype and other.device == x.device and _is_read_in_place(other))
            for other in others
        )

    def _has_vectors(self, device, *vectors) -> bool:
        """Whether there can be these vectors as steps read them."""
        return all(
            vector is None
            or _packed.is_vector(vector, device)
            or (_packed.can_have(vector) and self._may_pack(vector, device))
            for vector in vectors
        )

    @staticmethod
    def _may_pack(parameter, device, *more) -> bool:
        """Whether a parameter is packed or may be: not while a graph is captured."""
        is_captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return not is_captured or _packed.has(parameter, *more, device)

    def _linear(self, func, call):
        x, weight, output, residual = call.input, call.weight, _written(call), call.residual
        if x.dim() != 3 or weight.dim() != 2 or call.get("zero") or call.mask is None:
            return NotImplemented
        result = output
        if result is None:
            result = x.new_zeros(*x.shape[:2], weight.shape[0])
        image, written = _image(x), _image(result)
        added = None if residual is None else written if residual is output else _image(residual)
        mask = self._mask_of_tokens(call.mask)
        ready = (
            self._takes_tokens(image, written, added)
            and weight.shape[1] == x.shape[2]
            and weight.shape[0] == result.shape[2]
            and weight.shape[0] % channels_at_once(x.dtype) == 0
            and _multiplies(x, by_default=False)
            and self._takes_mask(mask, x.device, written.shape)
            and _packed.can_have(weight)
            and self._may_pack(weight, x.device, x.dtype, 1)
            and self._has_vectors(x.device, call.bias)
        )
        if not ready:
            return NotImplemented
        arguments = {name: value for name, value in call.items() if name not in ("out", "into", "zero")}
        self._steps.append(
            _Step(CONVOLUTION, image, lambda: ops.linear_into(**arguments, into=result), written, added, mask,
                  window=_POINT, weight=weight, bias=call.bias, activation=call.activation, groups=1)
        )  # fmt: skip
        return (None if call.get("into") is not None else result,)

    def _norm(self, func, call):
        x, output = call.input, _written(call)
        if x.dim() not in (3, 4) or call.get("zero") or call.mask is None:
            return NotImplemented
        result = torch.zeros_like(x) if output is None else output
        image, written = (tensor if tensor.dim() == 4 else _image(tensor) for tensor in (x, result))
        mask, bias = self._mask_of_tokens(call.mask), call.get("bias")
        ready = (
            self._takes_tokens(image, written)
            and image.shape[1] <= MOST_NORMALIZED
            and image.shape == written.shape
            and not _share_memory(image, written)
            and self._takes_mask(mask, x.device, written.shape)
            and _entry(self._needed, mask) is None
            and self._has_vectors(x.device, call.weight, bias)
        )
        if not ready:
            return NotImplemented
        is_layer_norm = "bias" in call
        operator = ops.layer_norm_into if is_layer_norm else ops.rms_norm_into
        arguments = {name: value for name, value in call.items() if name not in ("out", "into", "zero")}
        self._steps.append(
            _Step(NORMALIZE, image, lambda: operator(**arguments, into=result), written, mask=mask, window=_POINT,
                  weight=call.weight, bias=bias, norm=LAYER_NORM if is_layer_norm else RMS_NORM, epsilon=call.epsilon)
        )  # fmt: skip
        return (None if call.get("into") is not None else result,)

    def _attention(self, func, call):
        output = _written(call)
        tensors = (call.query, call.key, call.value)
        if any(x.dim() != 4 or x.shape != call.query.shape for x in tensors) or call.causal or call.get("zero"):
            return NotImplemented
        n, heads, tokens, channels = call.query.shape
        result = output
        if result is None:
            result = call.query.new_zeros(n, tokens, heads, channels).transpose(1, 2)
        images = [_heads_as_image(x) for x in (*tensors, result)]
        mask, keys = self._mask_of_tokens(call.mask), self._mask_of_tokens(call.key_mask)
        ready = (
            all(image is not None for image in images)
            and self._takes_tokens(*images)
            and images[1].stride() == images[2].stride()
            and _multiplies(images[0], by_default=False)
            and channels % HEAD_CHANNELS == 0
            and channels * images[0].element_size() <= MOST_HEAD_BYTES
            and call.scale >= 0
            and _words(n, 1, tokens) <= MOST_ATTENTION_WORDS
            and (keys is None or keys is mask)
            and self._takes_mask(mask, images[0].device, images[3].shape)
            and _entry(self._needed, mask) is None
        )
        if not ready:
            return NotImplemented
        arguments = {name: value for name, value in call.items() if name not in ("out", "into", "zero")}
        self._steps.append(
            _Step(ATTENTION, images[0], lambda: ops.attention_into(**arguments, into=result), images[3], mask=mask,
                  window=_POINT, key=images[1], value=images[2], heads=heads, scale=call.scale or channels**-0.5,
                  all_keys=keys is None)
        )  # fmt: skip
        return (None if call.get("into") is not None else result,)

    def _halt(self, func, call):
        x, sums, device = call.input, call.sums, call.input.device
        image = _image(x)
        written = None if sums is None else _image(sums)
        going = self._mask_of_tokens(call.mask)
        ready = (
            self._takes_tokens(image, written)
            and (going is None or self._takes_mask(going, device, image.shape))
            and self._has_vectors(device, call.weight, call.limits)
            and _packed.is_vector(call.totals, device)
        )
        if not ready:
            return NotImplemented
        mask = torch.empty(x.shape[:2], dtype=torch.bool, device=device)
        self._steps.append(
            _Step(HALT, image, lambda: mask.copy_(func(**call)), written, mask=self._mask_of_tokens(mask),
                  window=_POINT, weight=call.weight, score_bias=call.bias, threshold=call.threshold, going=going,
                  totals=call.totals, limits=call.limits)
        )  # fmt: skip
        return (mask,)

    def _scores(self, func, call):
        weight = call.weight
        image, stride = _unsliced(call.input)
        ready = (
            self._takes(image)
            and image.shape[1] % channels_at_once(image.dtype) == 0
            and weight is not None
            and weight.dim() == 1
            and _packed.can_have(weight)
        )
        if not ready:
            return NotImplemented
        n, _, height, width = call.input.shape
        if _words(n, height, width) > MOST_WORDS:
            return NotImplemented
        mask = torch.empty(n, height, width, dtype=torch.bool, device=call.input.device)

        def again():
            ops.mask_scores.out(**call, out=mask)

        window = (1, 1, stride, stride, 1, 1, 0, 0)
        self._steps.append(
            _Step(SCORES, image, again, mask=mask, window=window, weight=weight, score_bias=call.bias,
                  threshold=call.threshold)
        )  # fmt: skip
        return (mask,)

    def _needed_input(self, func, call):
        if call.kind != 0:
            return NotImplemented
        window = (*call.kernel, *call.stride, *call.dilation, *call.padding)
        return self._need(call, window, call.size, ops.mask_needed_input.out)

    def _dilate(self, func, call):
        radius = (call.radius_h, call.radius_w)
        window = (*(2 * r + 1 for r in radius), 1, 1, 1, 1, *radius)
        return self._need(call, window, call.mask.shape[1:], ops.mask_dilate.out)

    def _need(self, call, window, size, operator):
        """A mask of what a window reads of the pixels of another mask."""
        if not self._steps or call.mask.dim() != 3 or not _runs_on(call.mask.device):
            return NotImplemented
        if _entry(self._needed, call.mask) is not None or _entry(self._inverse, call.mask) is not None:
            return NotImplemented
        mask = torch.empty(call.mask.shape[0], *size, dtype=torch.bool, device=call.mask.device)

        def make(alive):
            operator(**call, out=alive)

        self._needed[id(mask)] = (weakref.ref(mask), call.mask, window, make)
        return (mask,)

    def _invert(self, func, call):
        mask = call["self"]
        if not self._steps or mask.dtype != torch.bool or mask.dim() != 3 or _entry(self._needed, mask) is not None:
            return NotImplemented
        inverse = torch.empty_like(mask)
        self._inverse[id(inverse)] = (weakref.ref(inverse), mask, lambda alive: torch.logical_not(mask, out=alive))
        return (inverse,)

    def _activate(self, func, call):
        """Takes an activation of the pixels that a later step has not written into the step before it."""
        output = _written(call)
        inverse = _entry(self._inverse, call.mask)
        if inverse is None or output is None or output is not call.input or call.get("zero"):
            return NotImplemented
        mask = inverse[1]
        writers = [step for step in self._steps if step.output is output]
        others = [
            tensor
            for step in self._steps
            for tensor in (
                *(step.input, step.key, step.value),
                *(() if step.output is output else (step.residual, step.output)),
            )
        ]
        if (
            not writers
            or writers[0].kind != CONVOLUTION
            or writers[0].mask is not None
            or writers[0].activation != "none"
            or writers[0].later is not None
            or any(step.mask is not mask or step.reader != _NO_WINDOW for step in writers[1:])
            or any(_share_memory(output, tensor) for tensor in others)
        ):
            return NotImplemented
        first, alone = writers[0], self._steps[-1]
        first.activation, first.later = call.activation, mask
        before, arguments = alone.again, {name: call[name] for name in ("input", "activation")}

        def again():
            before()
            ops.activate.out(**arguments, mask=~mask, out=output)

        alone.again = again
        return (None if call.get("into") is not None else output,)


def _reads_nothing(func, args, kwargs) -> bool:
    """Whether a call makes a view or a new tensor, whatever tensors hold."""
    if func in _FACTORIES:
        return True
    returns = func._schema.returns
    if returns and all(one.alias_info is not None and not one.alias_info.is_write for one in returns):
        return True
    return not any(isinstance(one, torch.Tensor) for one in (*args, *kwargs.values()))


_FACTORIES = {
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_zeros.default,
    aten.zeros_like.default,
    ops._release_mask.default,
}
_RECORDED = {
    ops.conv2d_inference.default: stage._masked_conv2d,
    ops.conv2d.out: stage._masked_conv2d,
    ops.conv2d_into.default: stage._masked_conv2d,
    ops.linear_inference.default: stage._linear,
    ops.linear.out: stage._linear,
    ops.linear_into.default: stage._linear,
    ops.layer_norm_inference.default: stage._norm,
    ops.layer_norm.out: stage._norm,
    ops.layer_norm_into.default: stage._norm,
    ops.rms_norm_inference.default: stage._norm,
    ops.rms_norm.out: stage._norm,
    ops.rms_norm_into.default: stage._norm,
    ops.attention_inference.default: stage._attention,
    ops.attention.out: stage._attention,
    ops.attention_into.default: stage._attention,
    ops._halt.default: stage._halt,
    ops.mask_scores.default: stage._scores,
    ops.mask_needed_input.default: stage._needed_input,
    ops.mask_dilate.default: stage._dilate,
    ops.activate.out: stage._activate,
    ops.activate_into.default: stage._activate,
    aten.convolution.default: stage._dense_conv2d,
    aten.conv2d.default: stage._dense_conv2d,
    aten.max_pool2d.default: stage._pool,
    aten.max_pool2d_with_indices.default: stage._pool,
    aten.avg_pool2d.default: stage._pool,
    aten.upsample_nearest2d.default: stage._upsample,
    aten.upsample_nearest2d.vec: stage._upsample,
    aten.add.Tensor: stage._sum,
    aten.add_.Tensor: stage._sum,
    aten.clone.default: stage._clone,
    aten.bitwise_not.default: stage._invert,
    aten.logical_not.default: stage._invert,
}
