"""A dense model with masks after its layers, as plain as can be: what a converted model must compute."""

from __future__ import annotations

import torch
from torch import nn

import places


def spread(active: torch.Tensor, channels: int) -> torch.Tensor:
    return active.unsqueeze(channels)


class Masking:
    """Masks after the layers of a dense model, by hooks, and group norm and attention of what is active."""

    def __init__(self, model: nn.Module, rows, found: dict[str, list[places.Elements | None]], mask: torch.Tensor):
        self.found, self.mask, self.calls = found, mask, {}
        for row in rows:
            layer = model.get_submodule(row.name)
            whole = {"MaskedGroupNorm": self._group_norm, "MaskedAttention": self._attention,
                     "MaskedMultiheadAttention": self._multihead}.get(row.masked)  # fmt: skip
            if whole:
                layer.forward = whole(row.name, layer, layer.forward)
            if not whole or row.taken:
                last = model.get_submodule([row.name, *row.taken][-1])
                last.register_forward_hook(self._hook(row.name))

    def _next(self, name: str) -> places.Elements | None:
        place = self.calls[name] = self.calls.get(name, -1) + 1
        return self.found[name][place]

    def _hook(self, name: str):
        def hook(_, __, output):
            elements = self._next(name)
            if elements is None:
                return output
            return torch.where(elements.active(self.mask).unsqueeze(elements.channels), output, 0)

        return hook

    def _group_norm(self, name: str, norm: nn.GroupNorm, _):
        def forward(x):
            elements = self._next(name)
            active, result = elements.active(self.mask), torch.zeros_like(x)
            for image, seen in enumerate(active):
                for group in torch.arange(x.shape[1]).chunk(norm.num_groups):
                    values = x[image, group][:, seen]
                    if values.numel():
                        mean, variance = values.mean(), values.var(correction=0)
                        values = (values - mean) / (variance + norm.eps).sqrt()
                        values = values * norm.weight[group, None] + norm.bias[group, None] if norm.affine else values
                        full = result[image, group]
                        full[:, seen] = values
                        result[image, group] = full
            return result

        return forward

    def _attention(self, name: str, _, dense):
        def forward(x, *arguments, **keywords):
            elements = self._next(name)
            active, result = elements.active(self.mask), torch.zeros_like(x)
            for image, seen in enumerate(active):
                if seen.any():
                    result[image, seen] = dense(x[image, seen][None], *arguments, **keywords)[0]
            return result

        return forward

    def _multihead(self, name: str, _, dense):
        def forward(query, key, value, *arguments, **keywords):
            elements = self._next(name)
            active, result = elements.active(self.mask), torch.zeros_like(query)
            for image, seen in enumerate(active):
                if seen.any():
                    rows = query[image, seen][None]
                    keys, values = (rows, rows) if key is query else (key[image][None], value[image][None])
                    result[image, seen] = dense(rows, keys, values, *arguments, **keywords)[0][0]
            return result, None

        return forward
