"""A dense model with masks after its layers, as plain as can be: what a converted model must compute."""

from __future__ import annotations

import torch
from torch import nn

import places


# Layers whose active outputs are those of the dense layer.
LOCAL = {
    "MaskedActivation", "MaskedAdd", "MaskedAvgPool2d", "MaskedBatchNorm2d", "MaskedConcat", "MaskedConv2d",
    "MaskedConvTranspose2d", "MaskedFrozenBatchNorm2d", "MaskedLayerNorm", "MaskedLayerNorm2d", "MaskedLinear",
    "MaskedMaxPool2d", "MaskedMultiply", "MaskedRMSNorm", "MaskedRMSNorm2d", "MaskedUpsample", "MaskedUpsampleConv2d",
}  # fmt: skip


class Masking:
    """Puts masks after the layers of a dense model that were replaced, or after the last one that they took in. Group
    norm and attention become those of what is active. `found` says where the outputs of each call lie. Raises
    NotImplementedError for a masked layer of another kind."""

    def __init__(self, model: nn.Module, rows, found: dict[str, list[places.Elements]], mask: torch.Tensor):
        self.found, self.mask = found, mask
        self.calls: dict[tuple[str, str], int] = {}
        self.waiting: dict[nn.Module, list[str]] = {}
        forms = {"MaskedGroupNorm": self._group_norm, "MaskedAttention": self._attention,
                 "MaskedMultiheadAttention": self._multihead}  # fmt: skip
        for row in rows:
            layer = model.get_submodule(row.name)
            if row.masked not in LOCAL | forms.keys():
                raise NotImplementedError(f"{row.name}: the zoo has no reference of {row.masked}: add it to reference.py")
            if row.masked in forms:
                layer.forward = forms[row.masked](row.name, layer, layer.forward)
            if row.masked not in forms or row.taken:
                self._mask_after(layer, model.get_submodule([row.name, *row.taken][-1]), row.name)

    def _next(self, name: str, what: str = "layer") -> tuple[torch.Tensor, int]:
        """Which elements of a layer's next call are active, and the dimension of its channels."""
        count = self.calls[name, what] = self.calls.get((name, what), -1) + 1
        elements = self.found[name][count]
        return elements.active(self.mask), elements.channels

    def _mask_after(self, layer: nn.Module, last: nn.Module, name: str) -> None:
        """Masks what a layer gives after the last that it took in, which may serve others too."""
        if last not in self.waiting:
            self.waiting[last] = []
            last.register_forward_hook(self._masked)
        layer.register_forward_hook(lambda *_: self.waiting[last].append(name), prepend=True)

    def _masked(self, last: nn.Module, _, output):
        if not self.waiting[last]:
            return output
        active, channels = self._next(self.waiting[last].pop(), "taken")
        return torch.where(active.unsqueeze(channels), output, 0)

    def _group_norm(self, name: str, norm: nn.GroupNorm, _):
        def forward(x):
            result = torch.zeros_like(x)
            for image, seen in enumerate(self._next(name)[0]):
                for group in torch.arange(x.shape[1]).chunk(norm.num_groups):
                    values = x[image, group][:, seen]
                    if values.numel():
                        values = (values - values.mean()) / (values.var(correction=0) + norm.eps).sqrt()
                        if norm.weight is not None:
                            values = values * norm.weight[group, None]
                        if norm.bias is not None:
                            values = values + norm.bias[group, None]
                        channels = result[image, group]
                        channels[:, seen] = values
                        result[image, group] = channels
            return norm.act(result) if hasattr(norm, "act") else result  # timm's norms with an activation: it gives 0 for 0.

        return forward

    def _attention(self, name: str, _, dense):
        def forward(x, *arguments, **keywords):
            result = torch.zeros_like(x)
            for image, seen in enumerate(self._next(name)[0]):
                if seen.any():
                    result[image, seen] = dense(x[image, seen][None], *arguments, **keywords)[0]
            return result

        return forward

    def _multihead(self, name: str, _, dense):
        def forward(query, key, value, *arguments, **keywords):
            result = torch.zeros_like(query)
            for image, seen in enumerate(self._next(name)[0]):
                if seen.any():
                    rows = query[image, seen][None]
                    others = (rows, rows) if key is query else (key[image][None], value[image][None])
                    result[image, seen] = dense(rows, *others, *arguments, **keywords)[0][0]
            return result, None

        return forward
