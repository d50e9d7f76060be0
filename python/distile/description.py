"""An operator as an operator file describes it (docs/plans.md), and the name of its PolyKernel."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json

from .activations import split_slope
from .weight_zeros import FORMS, form_of

# How names of operators end whose weights are packed in 16 bits.
NARROW = "_narrow"


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator with all that its PolyKernel fixes."""

    generator: str
    params: tuple[tuple[str, object], ...]
    device: str = "cpu"
    zeros: str = ""  # The ending of a form of zeros (weight_zeros.py) that its PolyKernel skips.

    @staticmethod
    def make(generator: str, **params) -> Operator:
        if "epilogue" in params:  # Its slope is in the weights.
            params["epilogue"], _ = split_slope(params["epilogue"])
        return Operator(generator, tuple(params.items()))

    def on(self, device: str) -> Operator:
        """This operator on "cpu" or "cuda"."""
        return dataclasses.replace(self, device=device)

    @property
    def plain(self) -> Operator:
        """This operator, whatever code its PolyKernel has."""
        return dataclasses.replace(self, zeros="")

    @property
    def skips_zeros(self) -> bool:
        return bool(self.zeros)

    def built_for(self, typical: dict | None, math: str = "default") -> Operator:
        """This operator as it is built for a typical size, where GPUs multiply float32 so (distile.set_math): with code for
        pruned weights (docs/sparse_weights.md), if it has such there."""
        form = form_of(self, typical or {}, math)
        return dataclasses.replace(self, zeros=form.ending) if form else self

    @property
    def can_skip_zeros(self) -> bool:
        """Whether there is code for its pruned weights, of any share of zeros."""
        return any(not form.why_no_code(self, "float32") for form in FORMS if form.is_for(self))

    def skipping_zeros(self) -> Operator:
        """This operator with code for pruned weights, which can_skip_zeros says that there is."""
        return dataclasses.replace(self, zeros=next(form.ending for form in FORMS if form.is_for(self)))

    @property
    def ways(self) -> list[Operator]:
        """The operators whose PolyKernels compute this one: itself, and those that skip zeros, but serve all calls."""
        forms = (form for form in FORMS if form.is_for(self) and form.serves_all)
        others = [dataclasses.replace(self, zeros=form.ending) for form in forms if not form.why_no_code(self, "float32")]
        return list(dict.fromkeys([self.plain, self, *others]))

    @property
    def dtype(self) -> str:
        return dict(self.params).get("dtype", "float32")

    @property
    def is_quantized(self) -> bool:
        return "output_dtype" in dict(self.params)

    @property
    def can_use_tensor_cores(self) -> bool:
        return self.device == "cuda" and self.generator in ("masked_conv2d", "masked_linear", "masked_attention")

    @property
    def has_general_code(self) -> bool:
        """Whether the library computes it without a PolyKernel of its own: convolutions and linear layers of
        float32, on CPUs (distile/general.h)."""
        params = dict(self.params)
        plain = self.device == "cpu" and params.get("dtype") == "float32" and not self.is_quantized
        return plain and self.generator in ("masked_conv2d", "masked_depthwise_conv2d", "masked_linear")

    @property
    def has_narrow_weights(self) -> bool:
        """Whether its PolyKernel keeps weights in 16 bits instead of float32."""
        return "weights_dtype" in dict(self.params)

    @functools.cached_property
    def name(self) -> str:
        """A C name that no other operator has."""
        text = json.dumps([self.generator, sorted(self.params), *([] if self.device == "cpu" else [self.device])])
        narrow = NARROW if self.has_narrow_weights else ""
        name = f"{self.generator}_{hashlib.sha256(text.encode()).hexdigest()[:16]}{narrow}"
        return name + self.zeros

    def to_json(self, typical: dict[str, int] | None = None) -> dict:
        """The operator file."""
        described = {"distile_operator": 1, "name": self.name, "generator": self.generator, "params": dict(self.params)}
        # With more of the weights, plans would be for other code.
        says = next((form.says for form in FORMS if form.is_for(self) and form.ending == self.zeros), "")
        of_weights = {"weight_zeros", "weight_pattern"} - {says}
        typical = {name: value for name, value in (typical or {}).items() if name not in of_weights}
        return {**described, "typical": typical} if typical else described

    def __str__(self) -> str:
        text = f"{self.generator}({', '.join(f'{name}={value}' for name, value in self.params)})"
        text = f"{text} with pruned weights" if self.skips_zeros else text
        return text if self.device == "cpu" else f"{text} on {self.device}"
