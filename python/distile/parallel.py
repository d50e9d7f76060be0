"""Several devices that share images, in one process or several (docs/several_devices.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from . import fusion, masks as mask_functions, operators, polykernels
from ._library import ops
from .forms import refuse_tangents
from .nn import MaskedConv2d, MaskedLinear, padding_of
from .ranks import Transport
from .shapes import convolved

OVERLAPS = ("auto", "always", "never")
INACTIVE = ("keep", "zero")


@dataclasses.dataclass(frozen=True)
class ChainInfo:
    """What the plan of a chain's last run is; all 0 before the first."""

    devices: int
    """The devices of the group."""
    busy_devices: int
    """Devices with pixels."""
    pixels: int
    """The active pixels of all layers' outputs, of all devices."""
    imbalance: float
    """What the slowest device takes above the time if all ended at once, as a part of it."""
    halo_bytes: int
    """What devices fetch from each other in a run, beside the input."""
    row_bytes: int
    """What they would fetch if the images were cut into bands of rows."""
    input_bytes: int
    """What devices copy of the input."""
    plans: int
    """How often masks differed from those before, since weights were last packed."""
    partitions: int
    """How often the images were cut, since weights were last packed."""
    moved_pixels: int
    """Pixels of the input that the last cut gave to another device."""


class Group:
    """Devices that share images: each computes a part of the active pixels of a chain of layers.

        group = distile.parallel.Group(["cuda:0", "cuda:1"])
        chain = group.chain(model.layers)
        with torch.inference_mode():
            y = chain(x, mask)

    One run at a time uses a group: those of other threads wait. Group and chains free what they hold with close(), or
    when nobody refers to them any more; a chain keeps its group.

    With `process_group`, each of its ranks has some of the devices, and all make the same groups, chains and runs, in
    the same order, with equal layers and masks:

        group = distile.parallel.Group([f"cuda:{local_rank}"], process_group=torch.distributed.group.WORLD)

    Every rank reads its part of its own `x`, and gets the whole result. A tensor on the device "meta" as `x` lets a
    rank get its part from the first one, as a mask or all masks lets it get those of the first one, and as `out` leaves
    it without a result. What fails on a rank, or differs
    from what the first one has, is a RuntimeError on all. A rank that does not take part, or raises a ValueError or a
    TypeError of its own, makes the others raise one within the time-out, and the group unusable.

    Args:
        devices: NVIDIA GPUs that can use each other's memory, or "cpu" for each part of this machine's cores. A device
            may be there several times. Inputs, masks and outputs are on the first.
        threads: of each "cpu", or a list with those of each; PyTorch's number, shared out, without it.
        speeds: of each device, if they are not equally fast: multiply-adds in a microsecond, or a pair of a constant in
            microseconds and these.
        imbalance: images are cut anew for other masks where the slowest device takes more than this part longer than if
            all ended at once.
        timeout: seconds that a run may take. Devices then have as long again to end; if one does not, the group is
            unusable, and nothing that the device may use is freed.
        overlap: whether devices compute the pixels that others fetch first, and the others meanwhile: "auto" where
            copies do not keep the devices busy, "always" or "never".
        any_order: whether GPUs may run what suits their parts best. Faster, but results round otherwise than those of
            one device.
        process_group: of torch.distributed, if its ranks have the devices: `devices`, `threads` and `speeds` are of
            those of this rank. What ranks compare, and the pixels of CPUs, travel by gloo over connections of the
            group's own; the pixels of GPUs by the NCCL of this process group, from and to the first one of a rank.
    """

    def __init__(
        self,
        devices: Sequence[torch.device | str],
        *,
        process_group: torch.distributed.ProcessGroup | None = None,
        threads: int | Sequence[int] | None = None,
        speeds: Sequence[float | tuple[float, float]] | None = None,
        imbalance: float = 0.1,
        timeout: float = 60.0,
        overlap: str = "auto",
        any_order: bool = False,
    ):
        self.devices = _devices_of(devices)
        count = len(self.devices)
        if overlap not in OVERLAPS:
            raise ValueError(f"there is no overlap {overlap!r}; there are {', '.join(OVERLAPS)}")
        if not (imbalance > 0 and math.isfinite(imbalance)):
            raise ValueError(f"the imbalance is a part of the time above 0, not {imbalance}")
        if not (0 < timeout <= 2_000_000):
            raise ValueError(f"the timeout is seconds above 0 and at most 2000000, not {timeout}")
        on_cpu = self.devices[0].type == "cpu"
        threads = _threads_of(threads, count) if on_cpu else _no_threads(threads, count)
        speeds = _speeds_of(speeds, count)
        # A stream is PyTorch's own, which it never destroys.
        streams = [0] * count if on_cpu else _streams_of(self.devices)
        self._transport = transport = None
        if process_group is not None:
            self._transport = transport = Transport(process_group, self.devices[0], timeout)
        with self._with_ranks():
            self._number: int | None = ops._group_make(
                [-1 if on_cpu else device.index for device in self.devices],
                streams,
                threads,
                speeds,
                float(imbalance),
                max(1, math.ceil(timeout * 1000)),
                OVERLAPS.index(overlap),
                bool(any_order),
                transport.rank if transport else 0,
                transport.ranks if transport else 0,
                transport.address if transport else 0,
                transport.is_asynchronous if transport else False,
            )
        self._chains: weakref.WeakSet[Chain] = weakref.WeakSet()
        self._free = _freed(self, ops._group_free, self._number)

    def chain(
        self,
        layers: nn.Sequential | Sequence[nn.Module],
        *,
        residuals: Mapping[int, int] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Chain:
        """A chain of layers, each of which reads the output of the one before.

        `layers` are distile.nn.MaskedConv2d, or MaskedLinear; nn.Identity among them is left out. `residuals` says
        which layers add a tensor before their activation: {1: 0, 3: 2} lets layer 1 add the chain's input, which is
        tensor 0, and layer 3 the output of layer 1, which is tensor 2. Layers compute in `dtype`, without it the type
        of the first weight, and run by the PolyKernel of their shape. Where there is none, CPUs run code for any shape
        in float32; else a ValueError says what to build.
        """
        return Chain(self, layers, residuals or {}, dtype)

    def close(self) -> None:
        """Frees the group and its chains, which nobody can use then."""
        for chain in list(self._chains):
            chain.close()
        self._number = None
        self._free()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._number is not None else ", closed"
        if self._transport:
            state = f", rank {self._transport.rank} of {self._transport.ranks}{state}"
        return f"Group([{', '.join(map(repr, map(str, self.devices)))}]{state})"

    def __reduce__(self):
        raise TypeError("a group has devices and threads of its own, and is not copied: make another")

    def _open_number(self) -> int:
        if self._number is None:
            raise RuntimeError("the group is closed: make another")
        return self._number

    def _is_elsewhere(self, tensor: torch.Tensor | None) -> bool:
        """Whether a tensor stands for one that only other ranks have."""
        return self._transport is not None and isinstance(tensor, torch.Tensor) and tensor.is_meta

    @contextlib.contextmanager
    def _with_ranks(self):
        """Around what ranks do together."""
        try:
            yield
        except RuntimeError as error:
            if self._transport and (self._transport.is_lost or "DEVICE_LOST" in str(error)):
                self._transport.keep()
            raise


class Chain:
    """Masked layers that run on all devices of a group, for inference: group.chain() makes it.

    A run returns when its output is there. On a GPU it comes after all that PyTorch's current stream of the first
    device has to do. Later calls take weights as the modules hold them then, and pack them again where they were
    written, as the modules do; whatever else of a module changes is an error.
    """

    def __init__(self, group: Group, layers, residuals: Mapping[int, int], dtype: torch.dtype | None):
        number = group._open_number()
        self.group, self.layers = group, _layers_of(layers)
        self._residuals = _residuals_of(residuals, len(self.layers))
        self._tokens = isinstance(self.layers[0], MaskedLinear)
        weights = _weights_of(self.layers)
        self.dtype = weights[0].dtype if dtype is None else dtype
        if self.dtype not in operators.TYPES:
            names = ", ".join(operators.TYPES.values())
            raise ValueError(f"a chain computes in {names}, not in {self.dtype}: say which by dtype=")
        self._described = _describe(self.layers)
        arguments = (number, weights, self.dtype, self._numbers(), ",".join(layer.activation for layer in self.layers))
        for lacking in ops._chain_lacks(*arguments):
            self._provide(lacking)
        with group._with_ranks():
            self._number: int | None = ops._chain_make(*arguments)
        self._free = _freed(self, ops._chain_free, self._number)
        group._chains.add(self)

    def __call__(
        self,
        x: torch.Tensor | None,
        masks=None,
        *,
        out: torch.Tensor | None = None,
        inactive: str = "keep",
    ) -> torch.Tensor:
        """The output of the last layer for images [N, C, H, W] or tokens [N, T, C].

        `masks` is one for all layers, or a list with one for each, as layers take them; without it, that of the context
        distile.mask, and outside of one all pixels are active. What a layer reads is 0 where the one before was
        inactive. The inactive pixels of `out` keep their values, or become 0 with inactive="zero"; those of a new tensor are 0.
        Without an `x`, the chain reads the images that the devices keep, and they stay as they are.
        """
        if inactive not in INACTIVE:
            raise ValueError(f"inactive pixels have no {inactive!r}; there are {', '.join(INACTIVE)}")
        shape, sizes = self._sizes(x)
        result = self._shape_of(shape, self.layers[-1], sizes[-1])
        if self.group._is_elsewhere(out) and out.dtype != self.dtype:
            raise ValueError(f"the chain computes in {self.dtype}, and `out` is {out.dtype}")
        if out is not None and tuple(out.shape) != result:
            raise ValueError(f"`out` is {list(out.shape)}, but the output is {list(result)}")
        if out is None:
            out, inactive = self._empty(result), "zero"
            if out.numel() >= 2**31:  # More than one device clears.
                out, inactive = out.zero_(), "keep"
        if out.numel():
            self._run(x, masks, shape, sizes, out, inactive == "zero")
        return out

    def keep(self, x: torch.Tensor, masks=None) -> None:
        """Runs the chain, whose output must have the size and the channels of its input, and lets the devices keep the
        result: `x`, with the active pixels of the last layer's output in the place of its own."""
        if x is None:
            raise ValueError("there are no images to keep: give x, or call step() for those that the devices keep")
        self._run(x, masks, *self._sizes(x), None, False)

    def step(self, masks=None) -> None:
        """As keep(), of the images that the devices keep: only what parts of them share travels, and where masks let
        images be cut anew, the pixels that change their device."""
        self._run(None, masks, *self._sizes(None), None, False)

    def images(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The images that the devices keep, collected."""
        shape = self._kept_shape()
        if out is None:
            out = self._empty(shape)
        elif tuple(out.shape) != shape:
            raise ValueError(f"`out` is {list(out.shape)}, but the images are {list(shape)}")
        self._check_call([out])
        with self.group._with_ranks():
            ops._chain_collect(self._none() if self.group._is_elsewhere(out) else out, self._open_number())
        return out

    def _none(self) -> torch.Tensor:
        """A tensor in the place of one that other ranks have."""
        return torch.empty(0, dtype=self.dtype, device=self.group.devices[0])

    def info(self) -> ChainInfo:
        """What the plan of the last run is."""
        numbers = ops._chain_info(self._open_number())
        fields = dataclasses.fields(ChainInfo)
        whole = (float(number) if field.type == "float" else int(number) for field, number in zip(fields, numbers))
        return ChainInfo(*whole)

    def close(self) -> None:
        """Frees the chain, which nobody can use then."""
        self._number = None
        self._free()

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._number is not None else ", closed"
        return f"Chain({len(self.layers)} layers, {self.dtype} on {self.group!r}{state})"

    def __reduce__(self):
        raise TypeError("a chain belongs to its group, and is not copied: make another by group.chain()")

    def _open_number(self) -> int:
        if self._number is None:
            raise RuntimeError("the chain is closed: make another by group.chain()")
        return self._number

    def _numbers(self) -> list[int]:
        """The layers for the library (ChainLayer in csrc/parallel.cpp)."""
        numbers, parameters = [], 0
        for number, layer in enumerate(self.layers):
            linear = isinstance(layer, MaskedLinear)
            if linear:
                window = (1, 1, 0, 0, 0, 0, 1, 1, 1)
            else:
                window = (*layer.stride, *padding_of(layer), *layer.dilation, layer.groups)
            bias = layer.bias is not None
            numbers += [linear, *window, self._residuals.get(number, -1), parameters, parameters + 1 if bias else -1]
            parameters += 1 + bias
        return list(map(int, numbers))

    def _provide(self, number: int) -> None:
        """Finds the PolyKernel of a layer which the library lacks. Raises ValueError where it cannot do without."""
        layer = self.layers[number]
        device = self.group.devices[0]
        like = torch.empty(0, dtype=self.dtype, device=device)
        residual = like if number in self._residuals else None
        if isinstance(layer, MaskedLinear):
            operator = operators.linear_operator(like, layer.weight, residual, layer.activation)
        else:
            window = (layer.stride, padding_of(layer), layer.dilation, layer.groups, layer.activation)
            operator = operators.conv2d_operator(like, layer.weight, residual, *window)
        operator = operator.on(device.type)
        if not polykernels.find_or_note(operator) and not operator.has_general_code:
            raise ValueError(
                f"layer {number}: no PolyKernel computes {operator}; distile.build(*distile.missing()) compiles it. "
                "The devices of a group run nothing else"
            )

    def _check_call(self, tensors) -> None:
        """Raises RuntimeError where PyTorch would record what a run computes."""
        tensors = [tensor for tensor in tensors if tensor is not None]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise RuntimeError(
                "a chain has no gradients: call it in torch.inference_mode() or torch.no_grad(), or train with its "
                "layers one after the other"
            )
        refuse_tangents("a chain of layers", tensors)
        first = self.group.devices[0]
        if first.type == "cuda":
            with torch.cuda.device(first):
                if torch.cuda.is_current_stream_capturing():
                    raise RuntimeError("a CUDA graph cannot capture a chain, which waits for its devices")

    def _kept_shape(self) -> tuple[int, ...]:
        shape = tuple(ops._chain_kept(self._open_number()))
        if not shape:
            raise RuntimeError("the devices keep no images: call keep(x, masks) before")
        return shape

    def _sizes(self, x: torch.Tensor | None) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """The shape of the input, and the sizes of all layers' outputs, without their batch and channels."""
        self._open_number()
        device = self.group.devices[0]
        if x is None:
            shape = self._kept_shape()
        else:
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"the input of a chain is a tensor of PyTorch, not {type(x).__name__}")
            shape = tuple(x.shape)
            what = "tokens [N, T, C]" if self._tokens else "images [N, C, H, W]"
            if len(shape) != (3 if self._tokens else 4):
                raise ValueError(f"the chain reads {what}, not {list(shape)}")
            if x.dtype != self.dtype:
                raise ValueError(
                    f"the chain computes in {self.dtype}, and its input is {x.dtype}: convert it, or say dtype= where "
                    "the chain is made"
                )
            if x.device != device and not self.group._is_elsewhere(x):
                raise ValueError(f"the input is on {x.device}, but the first device of the group is {device}")
        channels = shape[-1] if self._tokens else shape[1]
        reads = self.layers[0].in_features if self._tokens else self.layers[0].in_channels
        if channels != reads:
            raise ValueError(f"the first layer reads {reads} channels, but the input has {channels}")
        if self._tokens:
            return shape, [shape[1:2]] * len(self.layers)
        sizes, size = [], shape[2:]
        for number, layer in enumerate(self.layers):
            pads = padding_of(layer)
            size = tuple(
                convolved(size[axis], *pads[2 * axis : 2 * axis + 2], layer.dilation[axis], layer.kernel_size[axis],
                          layer.stride[axis])
                for axis in (0, 1)
            )  # fmt: skip
            if min(size) < 1:
                raise ValueError(f"the output of layer {number} would be {size[0]} x {size[1]}: the input is too small")
            sizes.append(size)
        return shape, sizes

    def _shape_of(self, shape, layer, size) -> tuple[int, ...]:
        return (shape[0], *size, layer.out_features) if self._tokens else (shape[0], layer.out_channels, *size)

    def _empty(self, shape) -> torch.Tensor:
        memory = torch.contiguous_format if self._tokens else torch.channels_last
        return torch.empty(shape, dtype=self.dtype, device=self.group.devices[0], memory_format=memory)

    def _masks(self, masks, batch: int, sizes) -> list[torch.Tensor]:
        """The mask of each layer's output. Where they are the first rank's, an empty tensor."""
        count = len(self.layers)
        if isinstance(masks, (list, tuple)):
            if len(masks) != count:
                raise ValueError(f"there are {len(masks)} masks for {count} layers: give one for each, or one for all")
        else:
            masks = [masks] * count
        elsewhere = [self.group._is_elsewhere(mask) for mask in masks]
        if all(elsewhere):
            return [self._none()]
        if any(elsewhere):
            raise ValueError("some masks are on meta: a rank has all masks, or gets all of them from the first one")
        found, made = [], {}
        for number, (layer, mask, size) in enumerate(zip(self.layers, masks, sizes)):
            # Expanding a mask of one image makes other tensors of the same memory, of which each would be copied.
            key = (id(mask), layer.mask_name, layer.mapping, size)
            if key not in made:
                own = layer._mask(mask, batch, *size)
                if own is None:
                    own = torch.ones(1, *size, dtype=torch.bool, device=self.group.devices[0]).expand(batch, *size)
                if tuple(own.shape) != (batch, *size):
                    raise ValueError(
                        f"the mask of layer {number} is {list(own.shape)}, but its output has the pixels "
                        f"{[batch, *size]}: give one boolean for each"
                    )
                if own.device != self.group.devices[0]:
                    raise ValueError(
                        f"the mask of layer {number} is on {own.device}, but the first device of the group is "
                        f"{self.group.devices[0]}"
                    )
                made[key] = own
            found.append(made[key])
        return found

    @torch.compiler.disable
    def _run(self, x, masks, shape, sizes, out, zero) -> None:
        number = self._open_number()
        if _describe(self.layers) != self._described:
            raise RuntimeError(
                "a layer is no longer what the chain was made of, and only its weights may change: make another by "
                "group.chain()"
            )
        weights = _weights_of(self.layers)
        self._check_call([x, out, *weights])
        # The sizes of what other ranks have.
        elsewhere = [list(one.shape) if self.group._is_elsewhere(one) else [] for one in (x, out)]
        x, out = (None if size else one for size, one in zip(elsewhere, (x, out)))
        with self.group._with_ranks():
            ops._chain_run(x, self._masks(masks, shape[0], sizes), out, weights, number, zero, *elsewhere)


def _freed(owner, free, number: int) -> weakref.finalize:
    """Frees the native object with its owner, or by a call; not at the end of the process, which frees all."""
    finalizer = weakref.finalize(owner, free, number)
    finalizer.atexit = False
    return finalizer


def _devices_of(devices) -> tuple[torch.device, ...]:
    if isinstance(devices, (str, torch.device)) or not isinstance(devices, Sequence):
        raise TypeError(f"devices are a list, as ['cuda:0', 'cuda:1'] or ['cpu', 'cpu'], not {devices!r}")
    if not devices:
        raise ValueError("a group has at least one device, and the list is empty")
    found = []
    for given in devices:
        try:
            device = torch.device(given)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{given!r} is no device: {str(error).splitlines()[0]}") from None
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"a group is of CPUs or of NVIDIA GPUs, not of {device}")
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"there is no {device}: PyTorch finds no NVIDIA GPU")
            index = torch.cuda.current_device() if device.index is None else device.index
            if index >= torch.cuda.device_count():
                raise ValueError(f"there is no cuda:{index}: PyTorch finds {torch.cuda.device_count()} GPUs")
            device = torch.device("cuda", index)
        else:
            device = torch.device("cpu")
        found.append(device)
    kinds = {device.type for device in found}
    if len(kinds) > 1:
        raise ValueError("a group has CPUs or NVIDIA GPUs, not both: nothing copies between them")
    if "cuda" in kinds:
        for one in dict.fromkeys(found):
            for other in dict.fromkeys(found):
                if one != other and not torch.cuda.can_device_access_peer(one, other):
                    raise ValueError(f"{one} cannot use the memory of {other}, as GPUs of a group must")
    return tuple(found)


def _streams_of(devices: Sequence[torch.device]) -> list[int]:
    first = devices[0]
    for device in dict.fromkeys(devices):
        if device != first:
            # PyTorch then lets each use its memory on the other, expandable segments too.
            torch.empty(1, device=first).to(device)
            torch.empty(1, device=device).to(first)
    return [torch.cuda.Stream(device).cuda_stream for device in devices]


def _threads_of(threads, count: int) -> list[int]:
    if threads is None:
        threads = max(1, torch.get_num_threads() // count)
    each = [threads] * count if isinstance(threads, int) else list(threads)
    if len(each) != count:
        raise ValueError(f"there are {len(each)} numbers of threads for {count} devices")
    if not all(isinstance(number, int) and 1 <= number <= 4096 for number in each):
        raise ValueError(f"a device has 1 to 4096 threads, not {threads}")
    return each


def _no_threads(threads, count: int) -> list[int]:
    if threads is not None:
        raise ValueError("threads are of CPUs; a GPU has none to give")
    return [0] * count


def _speeds_of(speeds, count: int) -> list[float]:
    if speeds is None:
        return []
    if len(speeds) != count:
        raise ValueError(f"there are {len(speeds)} speeds for {count} devices")
    numbers = []
    for speed in speeds:
        fixed, products = speed if isinstance(speed, Sequence) and len(speed) == 2 else (0, speed)
        if not all(isinstance(one, (int, float)) for one in (fixed, products)):
            raise ValueError(f"a speed is a number, or a pair (microseconds, products in one), not {speed!r}")
        if not (0 <= fixed < math.inf and 0 < products < math.inf):
            raise ValueError(f"a device takes at least 0 us, and does more than 0 products in one, not {speed!r}")
        numbers += [float(fixed), float(products)]
    return numbers


def _layers_of(layers) -> list[MaskedConv2d | MaskedLinear]:
    if isinstance(layers, nn.Module) and not isinstance(layers, (nn.Sequential, nn.ModuleList)):
        raise TypeError(f"a chain is of a list of layers or a Sequential, not of {type(layers).__name__}")
    found = []
    for layer in _flat(layers):
        name = type(layer).__name__
        kind = next((kind for kind in (MaskedConv2d, MaskedLinear) if isinstance(layer, kind)), None)
        if kind is None:
            raise ValueError(
                f"layer {len(found)} is {name}; a chain takes distile.nn.MaskedConv2d or MaskedLinear, into which "
                "distile.convert puts the activations and norms behind them"
            )
        if type(layer).forward is not kind.forward or fusion.hooked(layer):
            raise ValueError(f"layer {len(found)}, {name}, has a forward or hooks of its own, which chains do not call")
        if kind is MaskedConv2d:
            layer._check_own()
        found.append(layer)
    if not found:
        raise ValueError("a chain has at least one layer")
    if len({isinstance(layer, MaskedLinear) for layer in found}) > 1:
        raise ValueError(
            "a chain has convolutions or linear layers, not both: a linear layer of pixels is a convolution of 1 x 1"
        )
    return found


def _flat(layers):
    for layer in layers:
        if type(layer) is nn.Sequential and not fusion.hooked(layer):
            yield from _flat(layer)
        elif type(layer) is not nn.Identity:
            yield layer


def _residuals_of(residuals, count: int) -> dict[int, int]:
    for layer, tensor in residuals.items():
        if not (isinstance(layer, int) and 0 <= layer < count):
            raise ValueError(f"residuals have a layer {layer!r}, but the layers are 0 to {count - 1}")
        if not (isinstance(tensor, int) and 0 <= tensor <= layer):
            raise ValueError(
                f"layer {layer} cannot add tensor {tensor!r}: 0 is the chain's input, and {layer} what the layer reads"
            )
    return dict(residuals)


def _weights_of(layers) -> list[torch.Tensor]:
    """The weights and biases, as _numbers() counts them. Parameters are read from their dictionary, unless they are
    parametrized."""
    found = []
    for layer in layers:
        parameters = layer._parameters
        found.append(parameters["weight"] if "weight" in parameters else layer.weight)
        bias = parameters["bias"] if "bias" in parameters else layer.bias
        if bias is not None:
            found.append(bias)
    return found


def _describe(layers) -> list[tuple]:
    """What of the layers must stay."""
    return [
        (
            layer.activation,
            layer.weight.shape,
            layer.weight.dtype,
            layer.bias is None,
            len(layer._forward_hooks) + len(layer._forward_pre_hooks),
            *(() if isinstance(layer, MaskedLinear) else (layer.stride, layer.padding, layer.dilation, layer.groups)),
        )
        for layer in layers
    ]
