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


def own_copy(network: Network, *shared: torch.Tensor) -> Network:
    """A network of the same parameters, and of these tensors, with its state for itself."""
    return copy.deepcopy(network, {id(one): one for one in (*network.parameters(), *shared)})


class Replayed:
    """The masked step of a network in a CUDA graph, masks included. It shares the network's parameters, and has its
    state for itself."""

    def __init__(self, network: Network):
        self.network = own_copy(network)
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
    """The masked step of a network, with teams or without, and its dense form in one CUDA graph, of which the GPU runs
    the fastest."""

    LEARNING = 60  # Replays after which both times are known.

    def __init__(self, network: Network):
        self.network = own_copy(network)
        self._dense = compiled_with_masks(self.network)
        # Each way makes its own masks.
        self._masked = {"masked": self.network}
        if network.teams:
            self._masked["teams"] = own_copy(self.network, *self.network.inputs())
        ways = {name: _masked_step(own, name == "teams") for name, own in self._masked.items()} | {"dense": self._dense}
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
        way = self.step.info().way
        if self.network.keeps or way != "dense":
            return self._masked.get(way, self.network).expected()
        return self._dense(*self.network.inputs())  # Masks from scores may differ in the last bits.


def _masked_step(network: Network, teams: bool):
    def step(*_):
        with distile.stage_teams(teams):
            return network.masked()

    return step


# A compiler that moves a mask's scores before the convolutions stores an image in the order in which scores are, with
# channels outermost, and once more for the convolutions.
OPTIONS = {"reorder_for_locality": False}


def compiled_with_masks(network: Network):
    """The dense form of a network with its masks, compiled."""
    return torch.compile(Dense(network, masked=True).eval(), dynamic=False, fullgraph=True, options=dict(OPTIONS))
