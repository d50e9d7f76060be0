"""What masked modules share."""

from __future__ import annotations

import random
import warnings
import weakref

import torch
from torch import nn

from . import dense, masks
from ._library import ops
from .activations import split_slope
from .forms import form, into
from .mappings import UNMAPPED, Layer
from .operators import NARROW_TYPES


class Masked:
    """A module that takes a mask: its own, or that of a context, by the name `mask_name` if the context has several."""

    mask_name = "mask"
    channels: int | None = 1  # The dimension of the channels in its output; None: 1 of images, the last of tokens.
    masks_input = False  # Whether its mask is of its input instead.
    mapping: Layer = UNMAPPED  # Where its outputs are over a shared mask: distile.trace finds it, or a rule says it.

    @classmethod
    def from_dense(cls, layer: nn.Module, **more) -> nn.Module:
        """A masked layer that shares the parameters of a dense one. Raises ValueError if there is none."""
        masked = cls.__new__(cls)
        masked.__dict__.update(layer.__dict__)
        masked._parameters, masked._buffers = dict(layer._parameters), dict(layer._buffers)
        masked._prepare(**more)
        return masked

    def why_dense(self) -> str:
        """Why its operator always runs dense, with the mask after it; empty if a PolyKernel can compute it."""
        return ""

    def _prepare(self) -> None:
        """Checks and completes what comes from a dense layer."""

    def _mask(self, mask, batch: int, *size: int) -> torch.Tensor | None:
        """The mask for a batch of outputs of this size; None to run dense. Without a size, they have no positions."""
        try:
            return masks.resolve(mask, batch, *size, name=self.mask_name, mapping=self.mapping)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}({self.extra_repr()}): {error}") from None


class Activated(Masked):
    """A masked module that ends with an activation."""

    def _prepare(self, activation="none"):
        split_slope(activation)  # Fails for one that does not exist.
        self.activation = activation

    def extra_repr(self):
        text = super().extra_repr()
        return text if self.activation == "none" else f"{text}, activation={self.activation}"


class Place:
    """Where the library keeps a module's packed weights. Frees them with it; a copy of a module gets another."""

    def __init__(self):
        self.number = random.SystemRandom().randrange(1, 2**62)
        weakref.finalize(self, ops._free_weights, self.number).atexit = False

    def __deepcopy__(self, _):
        return Place()

    def __reduce__(self):
        return Place, ()


class Weighted(Activated):
    """A masked module with weights that the library packs."""

    _has_warned = False

    def _prepare(self, activation="none"):
        super()._prepare(activation)
        self._place = Place()
        weight = self._parameters.get("weight")
        if weight is not None and weight.layout != torch.strided:
            # As torch.sparse_csr. The library packs the nonzero weights of a dense tensor.
            self._parameters["weight"] = torch.nn.Parameter(weight.detach().to_dense(), weight.requires_grad)
        self._warn_of_inference()

    def _apply(self, *arguments, **keywords):
        super()._apply(*arguments, **keywords)
        self._warn_of_inference()
        return self

    def _warn_of_inference(self) -> None:
        """Once, where each call would pack the weights."""
        weight = self._parameters.get("weight")
        if weight is not None and weight.is_cuda and weight.is_inference() and not Weighted._has_warned:
            Weighted._has_warned = True
            warnings.warn(
                "distile: weights were made or moved to the GPU in torch.inference_mode, where PyTorch does not count "
                "writes, so each call packs them again, which takes milliseconds. Make, convert and move models outside "
                "of it, and call them in it",
                stacklevel=2,
            )

    def _call(self, name, input, mask, residual, out, zero, **keywords):
        """Calls an operator. Arguments, and attributes of modules, take some tenths of a microsecond each, so what is the
        default is left out, and parameters are read from their dictionary, unless they are parametrized."""
        parameters = self._parameters
        weight = parameters["weight"] if "weight" in parameters else self.weight
        bias = parameters["bias"] if "bias" in parameters else self.bias
        keywords["place"] = self._place.number
        if self.activation != "none":
            keywords["activation"] = self.activation
        if out is None:
            return form(name)(input, weight, bias, mask, residual, **keywords)
        if zero:
            keywords["zero"] = zero
        into(name)(input, weight, bias, mask, residual, **keywords, into=out)
        return out


def wide_as(input, *parameters):
    """Parameters for PyTorch's own operators, which want the type of the input: those that are stored in 16 bits
    (distile.cast_weights), widened."""
    return (
        parameter.to(input.dtype)
        if parameter is not None and parameter.dtype in NARROW_TYPES and input.dtype == torch.float32
        else parameter
        for parameter in parameters
    )


def finish_dense(result, residual, activation, out):
    if residual is not None:
        result = result + residual
    result = dense.ACTIVATIONS[activation](result)
    return result if out is None else out.copy_(result)
