"""Whole steps in CUDA graphs: captured once, and replayed with other inputs and masks."""

from __future__ import annotations

import copy

import torch

import distile
from common import Dense, Network, error

WARM_UP = 3  # Calls before a capture, which make all memory, kernels and packed weights.


class Captured:
    """A step in a CUDA graph. It reads the memory of the tensors that the step reads in its capture."""

    def __init__(self, step):
        if not torch.cuda.is_available():
            raise RuntimeError("CUDA graphs need an NVIDIA GPU")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self.result = step()

    def __call__(self, *_):
        self._graph.replay()
        return self.result


class Replayed:
    """The masked step of a network in a CUDA graph, masks included. It shares the network's parameters, and has its
    state for itself."""

    def __init__(self, network: Network):
        self.network = copy.deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
        self._step = Captured(self.network.masked)

    def prepare(self) -> None:
        self.network.prepare()

    def __call__(self, *_):
        return self._step()

    def expected(self):
        return self.network.expected()

    def error_of_others(self, rounds: int = 3) -> float:
        """The largest error of replays with other inputs, and so other masks."""
        found = 0.0
        for _ in range(rounds):
            self.network.vary()
            found = max(found, error(self.network, self(), self.expected()))
        return found


class Chosen:
    """The masked step of a network and its dense form in one CUDA graph, of which the GPU runs the faster."""

    LEARNING = 60  # Replays after which both times are known.

    def __init__(self, network: Network):
        self.network = copy.deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
        self._dense = compiled_with_masks(self.network)
        ways = {"masked": lambda *_: self.network.masked(), "dense": self._dense}
        self.step = distile.capture(ways, *self.network.inputs())
        self.step.use("learned")
        for _ in range(self.LEARNING):
            if not self.network.repeatable:
                self.network.prepare()
            self.step.replay()

    def prepare(self) -> None:
        self.network.prepare()

    def __call__(self, *_):
        return self.step.replay()

    def expected(self):
        if self.network.keeps or self.step.info().way == "masked":
            return self.network.expected()
        return self._dense(*self.network.inputs())  # Masks from scores may differ in the last bits.


# A compiler that moves a mask's scores before the convolutions stores an image in the order in which scores are, with
# channels outermost, and once more for the convolutions.
OPTIONS = {"reorder_for_locality": False}


def compiled_with_masks(network: Network):
    """The dense form of a network with its masks, compiled."""
    return torch.compile(Dense(network, masked=True).eval(), dynamic=False, fullgraph=True, options=dict(OPTIONS))
