"""Times of a network beside its peers, by kind of layer, of a call from Python, and its memory."""

from __future__ import annotations

import collections
import contextlib
import functools
import statistics
import time
import warnings
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import distile
from common import Dense, Network, error
from distile.nn import MaskedConv2d, MaskedLinear
from gathered import TILE, Gathered
from graphs import Captured, Chosen, Replayed, compiled_with_masks, own_copy


class Peer:
    """A peer that computes the network dense, as a function of its inputs."""

    def __init__(self, network: Network, function):
        self._network, self._function = network, function

    def prepare(self) -> None:
        """Brings the next input, outside the timed step: for the dense peers, the network does."""

    def __call__(self, *inputs):
        return self._function(*inputs)

    def expected(self):
        """What the last call must have computed."""
        return self._network.dense(*self._network.dense_inputs())


PAUSE_S = .05  # The threads of ONNX Runtime spin for a million pauses after a call.


def interleaved(network: Network, peers: dict, seconds: float) -> dict[str, float]:
    """Median milliseconds of a masked step and of each peer, called in turn. On a CPU, an untimed call after the pause
    wakes the side's threads."""
    times: dict[str, list[float]] = {name: [] for name in ("distile", *peers)}
    end = None
    while end is None or time.perf_counter() < end or len(times["distile"]) < 4:
        for side in (network, *peers.values()):
            side.prepare()
        inputs = network.dense_inputs()
        for name in times:
            call = network.masked if name == "distile" else functools.partial(peers[name], *inputs)
            _finish(inputs)
            if not inputs[0].is_cuda:
                time.sleep(PAUSE_S)
                if network.repeatable:
                    call()
            start = time.perf_counter()
            call()
            _finish(inputs)
            times[name].append((time.perf_counter() - start) * 1e3)
        if end is None:  # The first round warms up.
            times = {name: [] for name in times}
            end = time.perf_counter() + seconds
    return {name: statistics.median(found) for name, found in times.items()}


def _finish(inputs):
    if inputs[0].is_cuda:
        torch.cuda.synchronize()


def peers_of(network: Network, wanted: list[str]) -> tuple[dict, dict[str, str]]:
    """The peers that compute what they must, up to the network's bound, and why others are missing."""
    peers, missing = {}, {}
    for name in wanted:
        try:
            peer = PEERS[name](network)
            peer.prepare()
            found = error(network, peer(*network.dense_inputs()), peer.expected())
        except Exception as problem:  # A peer may be absent or fail for reasons of its own; the others go on.
            missing[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            continue
        if found <= network.bound:
            peers[name] = peer
        else:
            missing[name] = f"wrong: the largest error is {found:.1e}"
    return peers, missing


def _eager(network):
    return Peer(network, network.dense)


def _compiled(network):
    return Peer(network, torch.compile(Dense(network).eval(), dynamic=False))


def _tuned(network):
    """Compiled with times of several kernels for each layer, which takes minutes."""
    dense = torch.compile(Dense(network).eval(), dynamic=False, mode="max-autotune-no-cudagraphs")
    return Peer(network, dense)


class DenseWithMasks(Peer):
    """The dense form of a network with its masks, compiled, in a CUDA graph. It has the network's state for itself."""

    def __init__(self, network: Network):
        own = own_copy(network)
        self._compiled = compiled_with_masks(own)
        super().__init__(own, Captured(lambda: self._compiled(*own.inputs())))

    def prepare(self) -> None:
        self._network.prepare()

    def expected(self):
        own = self._network
        return own.expected() if own.keeps else self._compiled(*own.inputs())


class MaskedCompiled(Peer):
    """The masked step through torch.compile, which calls its operators from C++."""

    def __init__(self, network: Network):
        if not network.repeatable:
            raise NotImplementedError("a step changes what the next one computes")
        network.masked()  # The first step makes the network's buffers. Traced, every step would make them.
        step = torch.compile(network.masked, options={"cpp_wrapper": True}, fullgraph=True)
        super().__init__(network, lambda *_: step())

    def expected(self):
        return self._network.expected()


class Fused(Peer):
    """The masked step with its layers in stages, each the fastest of the stage, the layers and their dense form."""

    def __init__(self, network: Network):
        network.masked()  # Its masks are what expected() goes by.
        with torch.inference_mode(False), torch.no_grad():
            fused = distile.fuse(network.functional().eval(), *network.dense_inputs(), measure=True)
        super().__init__(network, fused)

    def expected(self):
        return self._network.expected()


def _onednn_graph(network):
    """PyTorch's way to graphs of oneDNN: TorchScript, frozen."""
    inputs, before = network.dense_inputs(), torch.jit.onednn_fusion_enabled()
    torch.jit.enable_onednn_fusion(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated.
            traced = torch.jit.freeze(torch.jit.trace(Dense(network).eval(), inputs, check_trace=False))
        for _ in range(3):  # It compiles in its first calls.
            traced(*inputs)
    finally:
        torch.jit.enable_onednn_fusion(before)
    return Peer(network, traced)


def _onnx_runtime(network):
    import tempfile

    import onnxruntime

    inputs = network.dense_inputs()
    names = [f"input{number}" for number in range(len(inputs))]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:  # A file may have more weights than a string, 2 GB.
        path = f"{folder}/network.onnx"
        torch.onnx.export(Dense(network).eval(), inputs, path, input_names=names, dynamo=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(*inputs):
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs)})
        return tuple(torch.from_numpy(array) for array in found)

    return Peer(network, run)


def _sige(network):
    from by_sige import Sige  # Needs the package `sige`.

    return Sige(network)


def _captured(peer):
    """A dense peer in a CUDA graph."""

    def make(network):
        function = peer(network)
        return Peer(network, Captured(lambda: function(*network.dense_inputs())))

    return make


PEERS = {
    "distile-graph": Replayed,
    "distile-capture": Chosen,
    "distile-compile": MaskedCompiled,
    "distile-stages": Fused,
    "eager": _eager,
    "eager-graph": _captured(_eager),
    "compile": _compiled,
    "compile-graph": _captured(_compiled),
    "compile-masks-graph": DenseWithMasks,
    "max-autotune": _tuned,
    "max-autotune-graph": _captured(_tuned),
    "onednn-graph": _onednn_graph,
    "onnxruntime": _onnx_runtime,
    "gather": Gathered,
    "tiles": lambda network: Gathered(network, TILE),
    "sige": _sige,
}
ONLY_ON_CUDA = (
    "distile-graph", "distile-capture", "eager-graph", "compile-graph", "compile-masks-graph", "max-autotune-graph",
)  # fmt: skip
# The first is a part of distile-capture; the others take minutes.
ON_REQUEST = ("compile-masks-graph", "max-autotune", "max-autotune-graph")
NOT_ON_CUDA = ("distile-compile", "distile-stages", "onednn-graph", "onnxruntime")


def peers_on(device: str) -> list[str]:
    """The names of the peers that run there, unless only when they are asked for."""
    others = NOT_ON_CUDA if device == "cuda" else ONLY_ON_CUDA
    return [name for name in PEERS if name not in others and name not in ON_REQUEST]


@torch.no_grad()
def call_overhead(batches: int = 50, calls: int = 100) -> dict[str, float]:
    """Median microseconds of a call on a CPU whose mask has no active pixel, by what is called: the C library then has
    next to nothing to do, so this is at most what Python adds to one of its calls."""
    with torch.inference_mode(False):  # Weights made in it would be packed at each call.
        conv = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
        linear = MaskedLinear(384, 1152)
    image = torch.zeros(1, 128, 8, 8).to(memory_format=torch.channels_last)
    result = torch.zeros_like(image)
    tokens, wide = torch.zeros(1, 64, 384), torch.zeros(1, 64, 1152)
    pixels, active = torch.zeros(1, 8, 8, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)
    conv2d, matrix = torch.ops.distile.conv2d.out, torch.ops.distile.linear.out
    window = {"padding": (1, 1, 1, 1), "activation": "relu", "place": conv._place.number}
    place = linear._place.number
    # Reading a parameter of a module costs some tenths of a microsecond, which are none of the operator's.
    conv_weight, conv_bias, linear_weight, linear_bias = conv.weight, conv.bias, linear.weight, linear.bias
    found = {}
    for name, call in {
        "operator conv2d": lambda: conv2d(image, conv_weight, conv_bias, pixels, None, **window, out=result),
        "module MaskedConv2d": lambda: conv(image, pixels, out=result),
        "operator linear": lambda: matrix(tokens, linear_weight, linear_bias, active, None, place=place, out=wide),
        "module MaskedLinear": lambda: linear(tokens, active, out=wide),
    }.items():
        samples = []
        for _ in range(batches):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            samples.append((time.perf_counter() - start) / calls * 1e6)
        found[name] = statistics.median(samples)
    return found


def kind_of(name: str, arguments: tuple) -> str:
    """The kind of layer that an operator is."""
    name = name.split("::")[-1].split(".")[0].removesuffix("_inference").removesuffix("_into").removeprefix("_dense_")
    if name in ("convolution", "_convolution", "conv2d", "mkldnn_convolution", "upsample_conv2d", "conv_transpose2d"):
        weight = arguments[1]
        size = f"{weight.shape[2]}x{weight.shape[3]}"
        depthwise = weight.shape[1] == 1 and weight.shape[0] > 1
        return f"depthwise {size}" if depthwise else f"convolution {size}"
    if name.startswith(("mask_", "bitwise_", "logical_")):
        return "masks"
    if name in ("linear", "addmm", "mm"):
        return "linear"
    if "attention" in name or name in ("bmm", "_softmax", "baddbmm"):
        return "attention"
    if "norm" in name or name == "group_statistics":
        return "norm"
    if "pool" in name:
        return "pooling"
    return "other"


class _Timed(TorchDispatchMode):
    """Times each call, on a GPU by events around it."""

    def __init__(self, cuda: bool):
        super().__init__()
        self._cuda = cuda
        self._calls: list[tuple] = []

    def _now(self):
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        start = self._now()
        result = function(*args, **(kwargs or {}))
        self._calls.append((kind_of(function.name(), args), start, self._now()))
        return result

    def milliseconds(self) -> collections.Counter:
        """By kind, once the GPU has done all calls."""
        total: collections.Counter = collections.Counter()
        for kind, start, end in self._calls:
            total[kind] += start.elapsed_time(end) if self._cuda else (end - start) * 1e3
        return total


def uncompiled():
    """A context in which compiled functions run as they were written. In a dispatch mode they would do so for good."""
    return torch.compiler.set_stance("force_eager")


BUSY_CYCLES = 1_000_000_000  # Half a second.


def by_kind(network: Network, rounds: int = 3) -> dict[str, dict[str, float]]:
    """Milliseconds by kind of layer, of distile and of the dense network."""
    found = {}
    inputs = network.dense_inputs()
    for name, step in (("distile", network.masked), ("dense", lambda: network.dense(*network.dense_inputs()))):
        samples = []
        for _ in range(rounds):
            network.prepare()
            _finish(inputs)
            if inputs[0].is_cuda:  # Kernels then wait for each other, and not for Python.
                torch.cuda._sleep(BUSY_CYCLES)
            with uncompiled(), _Timed(inputs[0].is_cuda) as timed:
                step()
            _finish(inputs)
            samples.append(timed.milliseconds())
        kinds = set().union(*samples)
        found[name] = {kind: statistics.median(sample[kind] for sample in samples) for kind in sorted(kinds)}
    return found


class _Memory(TorchDispatchMode):
    """Counts the bytes of storages that operators make, as long as they live."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def _free(self, size):
        self.live -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {
            tensor.untyped_storage() for tensor in (*args, *(kwargs or {}).values()) if isinstance(tensor, torch.Tensor)
        }
        for storage in given:
            self._known.setdefault(storage, None)
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self._known:
                storage = tensor.untyped_storage()
                self._known[storage] = None
                self.live += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result


def memory(network: Network) -> dict[str, dict[str, int]]:
    """Bytes of the weights, of what stays from step to step, and of the most that a step holds beside them."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    found = {}
    for name, step in (("distile", network.masked), ("dense", lambda: network.dense(*network.dense_inputs()))):
        network.prepare()
        with uncompiled(), _Memory() as counted:
            result = step()
            del result
        kept = network.cached_bytes() if name == "distile" else 0
        found[name] = {"weights": weights, "kept": kept, "step": counted.peak}
    return found


@contextlib.contextmanager
def threads(number: int | None):
    before = torch.get_num_threads()
    if number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
