"""Several ways to compute the same in one CUDA graph, of which the GPU runs the fastest."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.utils import _pytree

from ._library import ops
from .stage_module import DENSE, LAYERS, STAGE, FusedStage

MOST_WAYS, MOST_MASKS = 8, 32
LEARNED, SETTLED = "learned", "settled"
MODES = {LEARNED: -1, SETTLED: -2}
WARM_UP = 3  # Calls before a capture, which make all memory, kernels and packed weights.
FIRST_RUNS = 3  # Runs after which the time of a way is known.
CHOICES = 16  # Where calls need no choice of the GPU, one of this number goes by it.
WAYS_OF_STAGES = {"stages": STAGE, "layers": LAYERS, "dense": DENSE}


@dataclasses.dataclass(frozen=True)
class CaptureInfo:
    """What a captured function did. Reading it waits for the GPU."""

    way: str | None
    """The way of the last call; None before the first."""
    density: float
    """The share of active pixels of the masks among the last call's inputs, to a 16th; 0 if there are none."""
    runs: dict[str, int]
    """How often each way ran."""
    microseconds: dict[str, float | None]
    """What each way takes at this density, or the nearest at which it ran; None if it never ran."""


class _Direct:
    """Which calls take a way without a choice of the GPU, which costs some microseconds: those without masks among the
    inputs, once the fastest way is known. The others go by the choice, so that times stay known."""

    def __init__(self, ways: int):
        self.runs = [0] * ways
        self.last: int | None = None  # The way of the last call; None if the GPU chose it.
        self._way: int | None = None
        self._chosen = 0  # Calls that the GPU is still to choose.
        self._learns = True

    def give(self, way: int) -> None:
        """From now on, a given way."""
        self._way, self._chosen, self._learns = way, FIRST_RUNS, False

    def settle(self, microseconds) -> None:
        """From now on, the way that is known to be the fastest."""
        self._way, self._chosen, self._learns = _fastest(microseconds), 0, False

    def learn(self) -> None:
        """From now on, the way that is the fastest in the end."""
        self._way, self._chosen, self._learns = None, 0, True

    def next(self, look) -> int | None:
        """The way of this call; None: that of the GPU's choice. `look` gives runs and microseconds of the ways, or None
        while the GPU has something to do."""
        way = self._way
        if self._learns:
            self._chosen -= 1
            if self._chosen < 0:
                way, self._way = None, self._found(look())
                self._chosen = 0 if self._way is None else CHOICES - 1
        elif self._chosen > 0:
            self._chosen -= 1
            way = None
        self.last = way
        if way is not None:
            self.runs[way] += 1
        return way

    @staticmethod
    def _found(known) -> int | None:
        """The fastest way, once all have run, and itself often enough."""
        if known is None or min(known[0]) == 0:
            return None
        way = _fastest(known[1])
        return way if way is not None and known[0][way] >= FIRST_RUNS else None


def _fastest(microseconds) -> int | None:
    known = [(time, way) for way, time in enumerate(microseconds) if time is not None]
    return min(known)[1] if known else None


class Captured:
    """What capture() returns. The graph reads the memory of `inputs`, those of the capture: a call copies what it is given
    there, unless it is given them. It returns the graph's own outputs, which the next call overwrites."""

    def __init__(self, ways: Mapping[str, Callable], inputs: tuple[torch.Tensor, ...], budget: float):
        self.inputs = tuple(one.detach() for one in inputs)
        self._given, self._held = inputs, dict(ways)  # The graphs read what the ways hold.
        self.ways = tuple(ways)
        device = self.inputs[0].device
        self._graphs, self._pool = [], torch.cuda.graph_pool_handle()
        self._switch: int | None = None
        self._direct: _Direct | None = None
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        leaves: list = []
        with torch.cuda.device(device), torch.no_grad():
            for name, way in ways.items():
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        result = way(*self.inputs)
                graph = torch.cuda.CUDAGraph(keep_graph=True) if len(ways) > 1 else torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                    result = way(*self.inputs)
                    if not self._graphs:
                        leaves, self._tree = _pytree.tree_flatten(result)
                    else:
                        _copy_results(leaves, result, self._tree, name, self.ways[0])
                self._graphs.append(graph)
        self._leaves = leaves
        torch.cuda.current_stream(device).wait_stream(stream)
        if len(ways) > 1:
            counted = [one for one in self.inputs if one.dtype in (torch.bool, torch.uint8) and one.numel() > 0]
            graphs = [graph.raw_cuda_graph() for graph in self._graphs]
            self._switch = ops._switch_make(counted, device.index, graphs, float(budget))
            if not counted:
                self._direct = _Direct(len(ways))
                for graph in self._graphs:
                    graph.instantiate()
            self._free = weakref.finalize(self, ops._switch_free, self._switch)
            self._free.atexit = False  # The driver may be gone by then.

    def __call__(self, *inputs: torch.Tensor):
        if len(inputs) != len(self.inputs):
            raise TypeError(f"it was captured with {len(self.inputs)} inputs, and is called with {len(inputs)}")
        for number, (own, known, given) in enumerate(zip(self.inputs, self._given, inputs)):
            if given is own or given is known:
                continue
            if given.shape != own.shape or given.dtype != own.dtype:
                raise ValueError(
                    f"input {number} was captured as {_text(own)}, and is {_text(given)}: capture it anew for that"
                )
            own.copy_(given.detach())
        return self.replay()

    def replay(self):
        """A call with what `inputs` hold, without a copy."""
        way = 0 if self._switch is None else self._next()
        if way is None:
            ops._switch_launch(self._switch)
        else:
            self._graphs[way].replay()
        return _pytree.tree_unflatten(self._leaves, self._tree)

    def _next(self) -> int | None:
        """The way of a call; None if the GPU chooses it."""
        if self._direct is None or torch.cuda.is_current_stream_capturing():
            return None  # A switch refuses to be captured.
        return self._direct.next(self._look)

    def _look(self):
        device = self.inputs[0].device
        if not torch.cuda.current_stream(device).query():
            return None
        _, _, runs, microseconds = self._read()
        return runs, microseconds

    def _read(self) -> tuple[int, float, list[int], list[float | None]]:
        """The way of the last call that the GPU chose, the density, and runs and microseconds of all ways."""
        way, density, *numbers = ops._switch_info(self._switch)
        times = [time if time >= 0 else None for time in numbers[1::2]]
        return int(way), density, [int(count) for count in numbers[::2]], times

    def use(self, way: str) -> None:
        """From the next call on: the name of a way; "learned", the fastest, with tries of the others within the budget;
        or "settled", the fastest by the times that are known, so that nothing is tried, and results repeat."""
        if way not in self.ways and way not in MODES:
            names = ", ".join((*self.ways, *MODES))
            raise ValueError(f"there is no way {way!r}; there are {names}")
        if self._switch is None:
            return
        ops._switch_set(self._switch, self.ways.index(way) if way in self.ways else MODES[way])
        if self._direct is not None:
            if way == LEARNED:
                self._direct.learn()
            elif way == SETTLED:
                self._direct.settle(self._read()[3])
            else:
                self._direct.give(self.ways.index(way))

    def info(self) -> CaptureInfo:
        """Which way ran, how often, and what each takes."""
        if self._switch is None:
            return CaptureInfo(None, 0.0, {}, {})
        way, density, runs, times = self._read()
        if self._direct is not None:
            way = way if self._direct.last is None else self._direct.last
            runs = [count + more for count, more in zip(runs, self._direct.runs)]
        return CaptureInfo(
            self.ways[way] if way >= 0 else None, density, dict(zip(self.ways, runs)), dict(zip(self.ways, times))
        )


def capture(ways, *inputs: torch.Tensor, budget: float = 0.01) -> Captured:
    """A function in a CUDA graph; of several that compute the same, the GPU runs the fastest at each call.

        fused = distile.fuse(distile.convert(model, example=x), x)
        step = distile.capture({"masked": fused, "dense": torch.compile(plain)}, x)
        y = step(x)

    The graph times each way on the GPU, by the share of active pixels in those inputs that are masks (of type bool or
    uint8), so the masks of a call decide about it. Masks that the ways make themselves are not known before: then the
    times of the last calls decide. Now and then the graph tries ways that were slower. No call waits for the GPU. Calls
    that need no choice, as there are no masks among the inputs and the times are known, replay a way's own graph.

    Args:
        ways: a function or module of the inputs; or several by their names, of which each returns the same tensors, up
            to rounding, and keeps no state that another way lacks. A module with stages (distile.fuse) alone has three:
            "stages", "layers" and "dense".
        inputs: tensors on one GPU, whose memory the graph reads. Inputs of a call that are others are copied there.
        budget: the share of the time that tries of slower ways may add.

    Raises RuntimeError where there is no NVIDIA GPU; several ways also need a driver of CUDA 12.8 and PyTorch 2.9.
    """
    if not inputs or not all(isinstance(one, torch.Tensor) for one in inputs):
        raise TypeError("give the inputs of a call, which are tensors")
    devices = {one.device for one in inputs}
    if len(devices) > 1 or inputs[0].device.type != "cuda":
        raise RuntimeError(f"a CUDA graph takes inputs on one NVIDIA GPU, and these are on {_list(devices)}")
    if not 0 < budget <= 1:
        raise ValueError(f"the budget is a share of the time, above 0 and at most 1, and not {budget}")
    ways = _ways_of(ways)
    if not 1 <= len(ways) <= MOST_WAYS:
        raise ValueError(f"there are 1 to {MOST_WAYS} ways, and not {len(ways)}")
    reserved = sorted(set(ways) & set(MODES))
    if reserved:
        raise ValueError(f"a way cannot have the name {reserved[0]!r}, which use() knows")
    masks = [one for one in inputs if one.dtype in (torch.bool, torch.uint8)]
    if len(ways) > 1 and len(masks) > MOST_MASKS:
        raise ValueError(f"there are {len(masks)} masks among the inputs, and at most {MOST_MASKS}")
    if len(ways) > 1 and not all(one.is_contiguous() for one in masks):
        raise ValueError("a mask among the inputs is not contiguous: give mask.contiguous()")
    if len(ways) > 1 and not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        raise RuntimeError(f"PyTorch {torch.__version__} does not give its graphs away: several ways need 2.9")
    return Captured(ways, inputs, budget)


def _ways_of(ways) -> dict[str, Callable]:
    if isinstance(ways, Mapping):
        return dict(ways)
    stages = [one for one in ways.modules() if isinstance(one, FusedStage)] if isinstance(ways, nn.Module) else []
    if not stages:
        return {"given": ways}
    return {name: _by_way(ways, stages, way) for name, way in WAYS_OF_STAGES.items()}


def _by_way(model: nn.Module, stages: list[FusedStage], way: int) -> Callable:
    """A model with all its stages run in one way."""

    def run(*inputs):
        with contextlib.ExitStack() as stack:
            for one in stages:
                stack.callback(setattr, one, "way", one.way)
                one.way = way
            return model(*inputs)

    return run


def _copy_results(leaves, result, tree, name: str, first: str) -> None:
    """Copies what a way returns into what the first one does."""
    found, own_tree = _pytree.tree_flatten(result)
    if own_tree != tree:
        raise ValueError(f"the ways {first!r} and {name!r} return different structures of tensors")
    for to, one in zip(leaves, found):
        if isinstance(to, torch.Tensor) != isinstance(one, torch.Tensor):
            raise ValueError(f"the ways {first!r} and {name!r} return different structures of tensors")
        if not isinstance(to, torch.Tensor) or to is one:
            continue
        if to.shape != one.shape or to.dtype != one.dtype:
            raise ValueError(f"the way {first!r} returns {_text(to)} where {name!r} returns {_text(one)}")
        to.copy_(one)


def _text(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _list(devices) -> str:
    return ", ".join(sorted(str(device) for device in devices))
