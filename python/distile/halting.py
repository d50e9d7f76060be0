"""Tokens that halt one after the other, each once its scores have added up, as in A-ViT."""

from __future__ import annotations

from typing import Optional

import torch


def halted(input, weight, mask, totals, limits, bias: float, threshold: float) -> tuple:
    """The mask of the tokens that go on, their totals, and the factor by which each is added to sums, which is 0 for
    tokens that had halted before."""
    score = torch.sigmoid(input.float() @ weight.float() + bias)
    if limits is not None:
        score = torch.minimum(score, limits)
    left = torch.ones_like(score, dtype=torch.bool) if mask is None else mask.bool()
    total = totals + score
    going = left & (total < threshold)
    part = torch.where(left, torch.where(going, score, 1 - totals), 0.0)
    return going, torch.where(left, total, totals), part


def summed(sums: torch.Tensor, part: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Sums [N, F, C] with the first F tokens times their parts, rounded once. What tokens of no part hold is not read."""
    first = sums.shape[1]
    part = part[:, :first, None]
    return (sums.float() + torch.where(part == 0, 0.0, part * input[:, :first].float())).to(sums.dtype)


@torch.library.custom_op("distile::_halt", mutates_args=("totals", "sums"))
def _halt(
    input: torch.Tensor,
    weight: torch.Tensor,
    mask: Optional[torch.Tensor],
    totals: torch.Tensor,
    sums: Optional[torch.Tensor],
    limits: Optional[torch.Tensor],
    bias: float,
    threshold: float,
) -> torch.Tensor:
    going, total, part = halted(input, weight, mask, totals, limits, bias, threshold)
    if sums is not None:
        sums.copy_(summed(sums, part, input))
    totals.copy_(total)
    return going


@_halt.register_fake
def _(input, weight, mask, totals, sums, limits, bias, threshold):
    return totals.new_empty(totals.shape, dtype=torch.bool)


def halt(
    input: torch.Tensor,
    weight: torch.Tensor,
    totals: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    bias: float = 0.0,
    threshold: float = 0.99,
    limits: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mask [N, T] of those tokens of `mask`, or of all, that go on. In a stage it is a step.

    A token's score is the sigmoid of its channels times weights, plus a bias. It is added to the token's total, and the
    token goes on while that is below the threshold.

    Args:
        input: tokens [N, T, C].
        weight: a float32 number for each channel.
        totals: float32 [N, T], 0 at first, to which scores are added.
        limits: float32 [T]: what scores are at most.
        sums: [N, F, C] of the first F tokens, to which each is added as often as it is scored: by its score, or when it
            halts, by what its total was below 1.
    """
    return torch.ops.distile._halt(input, weight, mask, totals, sums, limits, bias, threshold)
