"""How many of a layer's weights are 0, and which code skips them: a row for each form of zeros."""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
import weakref
from collections.abc import Callable, Mapping

from ._facts import LEAST_BITMAP_ZEROS, LEAST_ZEROS, MOST_BITMAP_TOKENS, QUANTIZED_TYPES

if typing.TYPE_CHECKING:
    import numpy
    import torch

    from .description import Operator

MOST_SAMPLED = 4096
QUAD = 4
# How names of operators end whose code skips zeros.
NONZEROS = "_nonzeros"
TWO_FOUR = "_two_four"
PATTERN = "2:4"  # At most two of four consecutive input channels have weights that are not 0.


@dataclasses.dataclass(frozen=True)
class Form:
    """Zeros of weights that code for a device skips, where it is worth it."""

    ending: str  # How the names of its operators end.
    device: str
    types: tuple[str, ...]
    generators: dict[str, str]  # What has code, and what people call it.
    least_zeros: float = LEAST_ZEROS
    most_tokens: int | None = None
    pattern: str | None = None  # That weights must have.

    @property
    def serves_all(self) -> bool:
        """Whether its PolyKernels compute all calls of their operators, whatever their sizes and their weights."""
        return not self.most_tokens and not self.pattern

    @property
    def says(self) -> str:
        """What operator files say of its weights."""
        return "weight_pattern" if self.pattern else "weight_zeros"

    def is_for(self, operator: Operator) -> bool:
        return operator.device == self.device and operator.dtype in self.types

    def why_no_code(self, operator: Operator, math: str) -> str:
        """Why calls of an operator that it is for have none of its code, where they multiply float32 so; "" if they
        may have."""
        if operator.generator not in self.generators:
            return f"code that skips them is for {' and '.join(self.generators.values())}"
        if operator.has_narrow_weights:
            return "code that skips them has weights of the input's type"
        if multiplies_in_tf32(operator, math):
            return 'TF32 multiplies all weights faster; distile.set_math("float32") forbids it'
        has_groups = dict(operator.params).get("groups", 1) > 1
        if self.pattern and (has_groups or not _fits_tensor_cores(operator)):
            return f"code for {self.pattern} has no groups, and multiples of 8 channels"
        return ""

    def why_no_gain(self, typical: Mapping) -> str:
        """Why calls of such a size and with such weights have none, though there is code; "" if they have."""
        tokens = typical.get("batch", 1) * typical.get("tokens", math.inf)
        if self.most_tokens and tokens > self.most_tokens:
            return f"code that skips them is slower with more than {self.most_tokens} tokens"
        if self.pattern and "weight_zeros" in typical and typical.get("weight_pattern") != self.pattern:
            return f"they lack the pattern {self.pattern}"
        enough = typical.get("weight_zeros", 1) >= self.least_zeros
        return "" if enough else f"code that skips them is slower below {self.least_zeros:.0%}"


_CONVOLUTIONS = {"masked_conv2d": "convolutions that are not depthwise"}
_LINEAR = {"masked_linear": "linear layers"}
# Weights that several match take the first.
FORMS = (
    Form(NONZEROS, "cpu", ("float32", "float16", "bfloat16", *QUANTIZED_TYPES), _CONVOLUTIONS | _LINEAR),
    Form(NONZEROS, "cuda", ("float32",), _CONVOLUTIONS | _LINEAR),
    Form(TWO_FOUR, "cuda", ("float16", "bfloat16"), _CONVOLUTIONS | _LINEAR, pattern=PATTERN),
)
# Where a cache holds the weights from the call before, code for all of them is faster. So it is none of FORMS, and only
# tests add it; plan files may name it.
BITMAP = Form(NONZEROS, "cuda", ("float16", "bfloat16"), _LINEAR, LEAST_BITMAP_ZEROS, MOST_BITMAP_TOKENS)


def _fits_tensor_cores(operator: Operator) -> bool:
    """Whether tensor cores take the channels and the kernel of an operator."""
    params = dict(operator.params)
    channels = [params.get(name, 1) // params.get("groups", 1) for name in ("in_channels", "out_channels")]
    largest = max(params.get("kernel_h", 1), params.get("kernel_w", 1))
    return largest <= 16 and not any(count % 8 for count in channels)


def multiplies_in_tf32(operator: Operator, math: str) -> bool:
    """Whether a GPU multiplies an operator of float32 in TF32, as its PolyKernels do whose channels tensor cores take."""
    linear = operator.generator in _LINEAR
    if operator.device != "cuda" or operator.dtype != "float32" or math == "float32" or (math == "default" and linear):
        return False
    return _fits_tensor_cores(operator)


def form_of(operator: Operator, typical: Mapping, math: str) -> Form | None:
    """The form of zeros that an operator's typical weights have and its code skips; None without."""
    if "weight_zeros" not in typical:
        return None
    forms = (form for form in FORMS if form.is_for(operator))
    return next((one for one in forms if not (one.why_no_code(operator, math) or one.why_no_gain(typical))), None)


def why_not_skipped(operator: Operator, typical: Mapping, math: str) -> str:
    """Why code multiplies with the zeros of an operator's typical weights; "" if it skips them, or there are none."""
    if "weight_zeros" not in typical or form_of(operator, typical, math):
        return ""
    reasons = [one.why_no_code(operator, math) or one.why_no_gain(typical) for one in FORMS if one.is_for(operator)]
    return ", and ".join(reasons) or f"no code for {operator.device} skips them in {operator.dtype}"


def remark(operator: Operator, typical: Mapping, math: str, reads: bool) -> str:
    """What becomes of the zeros of an operator's typical weights, for people; `reads`: its PolyKernel multiplies with
    zeros that another could skip."""
    if "weight_zeros" not in typical:
        return ""
    why = why_not_skipped(operator, typical, math)
    more = f", which are multiplied: {why}" if why else ", which its PolyKernel multiplies with: --build makes one"
    pattern = f" in the pattern {typical['weight_pattern']}" if "weight_pattern" in typical else ""
    return f"{typical['weight_zeros']:.0%} zeros{pattern}" + (more if why or reads else "")


def zeros_of(weight: torch.Tensor, operator: Operator, typical: Mapping, math: str) -> dict[str, float]:
    """zeros_in() of the weights of a call with this operator and size, if code could skip them; else {}. On a GPU, it
    waits for those that it has not seen, but never in a capture."""
    forms = (form for form in FORMS if form.is_for(operator))
    if all(form.why_no_code(operator, math) or form.why_no_gain(typical) for form in forms):
        return {}
    return zeros_in(weight.detach()) if weight.device.type == "cpu" else _zeros_on_gpu(weight, operator)


def zeros_for(weights, operator: Operator, keeps_pattern: Callable[[], bool]) -> dict:
    """zeros_in() of an operator's weights, and for devices with code for it their pattern. `keeps_pattern`: whether the
    library says that they have it."""
    zeros = zeros_in(weights)
    if any(form.pattern and not form.why_no_code(operator, "float32") for form in FORMS if form.is_for(operator)):
        return typical_of(zeros.get("weight_zeros", 0), keeps_pattern())
    return zeros


def zeros_for_tensor(weight: torch.Tensor, operator: Operator) -> dict:
    """zeros_for() a tensor of PyTorch."""
    import torch

    weight = weight.detach()
    keeps = torch.ops.distile._keeps_two_of_four
    return zeros_for(weight, operator, lambda: keeps(weight, getattr(torch, operator.dtype)))


# By id; a weight that ends is forgotten. Tensors are equal by elements, so they are no keys.
_seen: dict[int, tuple[weakref.ref, tuple, dict[str, float]]] = {}


def _zeros_on_gpu(weight: torch.Tensor, operator: Operator) -> dict[str, float]:
    import torch

    state = (weight.data_ptr(), None if weight.is_inference() else weight._version)
    found = _seen.get(id(weight))
    if found and found[0]() is weight and found[1] == state:
        return found[2]
    if torch.cuda.is_current_stream_capturing():
        return {}
    zeros, key = zeros_for_tensor(weight, operator), id(weight)
    _seen[key] = weakref.ref(weight, lambda _: _seen.pop(key, None)), state, zeros
    return zeros


def zeros_in(weights) -> dict[str, float]:
    """{"weight_zeros": their share, in a sample}, as an operator's typical size has it, if code for them may be worth it
    (docs/sparse_weights.md); else {}. `weights` is a tensor of PyTorch or an array of NumPy."""
    weights = weights.reshape(-1)
    # In step with neither kernels nor blocks of channels.
    step = next(n for n in itertools.count(max(1, len(weights) // MOST_SAMPLED)) if math.gcd(n, 2 * 3 * 5 * 7) == 1)
    sample = weights[::step]
    return typical_of(int((sample == 0).sum()) / max(1, len(sample)))


def zero_quads_in(weights: numpy.ndarray, channels: int) -> dict[str, float]:
    """As zeros_in(), of a quantized filter, whose code leaves out quads: QUAD consecutive input channels, which the
    dimension `channels` has, that are all 0."""
    weights = weights.swapaxes(channels, -1)
    quads = [weights[..., first : first + QUAD] for first in range(0, weights.shape[-1], QUAD)]
    empty, all_quads = sum(int((~one.any(-1)).sum()) for one in quads), len(quads) * weights[..., 0].size
    return typical_of(empty / max(1, all_quads))


def typical_of(zeros: float, two_of_four: bool = False) -> dict:
    """What zeros_in() finds, for a known share of zeros; for weights of the pattern 2:4, of which at least half are 0, with
    the pattern."""
    zeros = max(zeros, LEAST_ZEROS) if two_of_four else zeros
    share = {"weight_zeros": min(round(zeros, 2), 0.99)} if zeros >= LEAST_ZEROS else {}
    return {**share, "weight_pattern": PATTERN} if two_of_four else share
