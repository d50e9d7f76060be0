"""Layers that run again in a backward pass, as gradient checkpointing lets them, need the masks that they had before."""

from __future__ import annotations

import collections
import threading

import torch

KEPT = 1 << 16  # Spans: more than contexts that a graph which still lives was recorded in.


class Span:
    """The nodes of PyTorch's graph that are recorded in the context of a mask, by their numbers. A context that is
    entered in a backward pass says itself what masks hold there: it has no `first`."""

    def __init__(self, first: int | None):
        self.first, self.last = first, None

    def covers(self, number: int) -> bool:
        return self.first <= number and (self.last is None or number < self.last)


_spans: collections.deque[Span] = collections.deque(maxlen=KEPT)
_lock = threading.Lock()


def begin() -> Span | None:
    """Called as a context is entered."""
    if torch.compiler.is_compiling():
        return None
    if torch._C._current_autograd_node() is not None:
        return Span(None)
    span = Span(torch.autograd._get_sequence_nr())
    with _lock:
        _spans.append(span)
    return span


def end(span: Span | None) -> None:
    """Called as it is left."""
    if span is None or span.first is None:
        return
    span.last = torch.autograd._get_sequence_nr()
    with _lock:
        if span.last == span.first and _spans and _spans[-1] is span:
            _spans.pop()  # Nothing was recorded in it.


def check(active: Span | None) -> None:
    """Raises RuntimeError in a backward pass through what was recorded in another context than the active one."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or (active and active.first is None):
        return
    node = torch._C._current_autograd_node()
    if node is None:
        return
    number = node._sequence_nr()
    with _lock:
        before = next((span for span in reversed(_spans) if span.covers(number)), None)  # The innermost.
    if before is not active:
        raise RuntimeError(
            "distile: a masked layer is computed again in a backward pass, as by gradient checkpointing, but not in the "
            "context of the mask that it had before. Call torch.utils.checkpoint.checkpoint with use_reentrant=False "
            "and context_fn=distile.masks.checkpoint_contexts, or backward() in that context"
        )
