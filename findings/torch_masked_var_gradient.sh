#!/usr/bin/env bash
# PyTorch 2.15.0: torch.masked.var and torch.masked.std of active elements are right whatever stands under the mask, but
# one NaN or infinity there makes every gradient NaN, those of the active elements included.
#
# The guess: elements under the mask count for nothing, in the value and in the gradient, where they get 0, as in
# torch.masked.sum, mean, norm, logsumexp, softmax, normalize and median.
# What happens instead: var and std first subtract the mean from all elements. The mask hides the result of that from the
# value, but going back, the zero gradient of a hidden difference meets its NaN.
# Why it matters: inactive pixels and padding tokens hold anything. A norm of one's own by these functions trains to NaN
# from the first such batch on, while its forward pass, loss and tests look healthy. torch.where(mask, x, 0) before helps.
# Seen: of [1, nan, 3, 7] without the second element var is 9.3333, as of [1, 3, 7], whose gradient is [-2.67, -.67,
# 3.33], and all four gradients are NaN. The same with infinity.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6 # 5 GB.
"$folder/python/bin/python" - <<'END'
import torch

mask = torch.tensor([True, False, True, True])


def gradient(name, hidden):
    x = torch.tensor([1.0, hidden, 3.0, 7.0], requires_grad=True)
    order = (2.0,) if name in ("norm", "normalize") else ()
    value = getattr(torch.masked, name)(x, *order, 0, mask=mask)
    (value[mask] if value.dim() else value).sum().backward()
    return value.detach(), x.grad


for hidden in (float("nan"), float("inf")):
    for name in ("sum", "mean", "norm", "logsumexp", "softmax", "normalize", "median"):
        for there, expected in zip(gradient(name, hidden), gradient(name, 0.0)):
            assert torch.equal(there, expected), name
    for name in ("var", "std"):
        (value, there), (expected, due) = gradient(name, hidden), gradient(name, 0.0)
        print(f"{name} over {hidden} under the mask: {value:.4f}, gradients {there.tolist()}; over 0 {due.tolist()}")
        assert torch.equal(value, expected)
        assert there.isnan().all() and due.isfinite().all()
END
