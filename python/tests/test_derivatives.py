"""What is differentiated in other ways than by one backward pass: with checkpoints, in forward mode, twice."""

import contextlib
import threading

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import distile
from distile import layers
from distile import nn as masked

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")
NEAR = torch.ones(1, 6, 6, dtype=torch.bool).tril()


def net():
    torch.manual_seed(0)
    return nn.Sequential(masked.MaskedConv2d(4, 4, 3, padding=1), nn.Tanh(), masked.MaskedConv2d(4, 4, 3, padding=1))


def gradients(model, run, inside, context=lambda: distile.mask(NEAR)):
    """The gradients of a step whose backward pass is inside the context, or after it."""
    model.zero_grad()
    x = torch.linspace(-1, 1, 144).view(1, 4, 6, 6).requires_grad_()
    with context():
        loss = run(model, x).square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


CHECKPOINTS = {
    "reentrant": lambda model, x: checkpoint(model, x, use_reentrant=True),
    "not": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "context_fn": lambda model, x: checkpoint(
        model, x, use_reentrant=False, context_fn=distile.masks.checkpoint_contexts
    ),
}


@pytest.mark.parametrize("inside", (False, True))
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints(kind, inside, device):
    model = net()
    expected = gradients(model, lambda model, x: model(x), inside)
    lost = kind != "context_fn" and not inside
    if lost or (device != "cpu" and kind != "context_fn"):  # A GPU's backward pass runs in a thread of its own.
        with pytest.raises(RuntimeError, match="checkpoint_contexts"):
            gradients(model, CHECKPOINTS[kind], inside)
    else:
        for found, wanted in zip(gradients(model, CHECKPOINTS[kind], inside), expected):
            torch.testing.assert_close(found, wanted)


def test_checkpoints_in_another_context():
    x = torch.linspace(-1, 1, 144).view(1, 4, 6, 6).requires_grad_()
    model = net()
    with distile.mask(NEAR):
        with distile.mask(~NEAR):
            inner = checkpoint(model, x, use_reentrant=True).sum()
        with pytest.raises(RuntimeError, match="checkpoint_contexts"):
            inner.backward()
    dense = checkpoint(model, x, use_reentrant=True).sum()
    # On a GPU, the backward pass runs in a thread without contexts: it computes what there was, without a mask.
    refused = contextlib.nullcontext() if x.is_cuda else pytest.raises(RuntimeError, match="checkpoint_contexts")
    with distile.mask(NEAR), refused:
        dense.backward()
    if x.is_cuda:
        (expected,) = torch.autograd.grad(model(x).sum(), x)
        torch.testing.assert_close(x.grad, expected)


def test_checkpoints_without_masks():
    """Earlier contexts are no matter of those."""
    model = net()
    with torch.no_grad(), distile.mask(NEAR):
        model(torch.ones(1, 4, 6, 6))
    gradients(model, lambda model, x: model(x), True)
    nothing = lambda: distile.mask(None)
    expected = gradients(model, lambda model, x: model(x), True, nothing)
    x = torch.linspace(-1, 1, 144).view(1, 4, 6, 6).requires_grad_()
    model.zero_grad()
    checkpoint(model, x, use_reentrant=True).square().sum().backward()
    torch.testing.assert_close(x.grad, expected[0])


def test_a_context_within_a_backward_pass():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad(), distile.mask(NEAR):
                # The thread of a GPU's backward pass has no default device.
                found.append(net().to(NEAR.device)(torch.ones(1, 4, 6, 6, device=NEAR.device)))
            return gradient * 2

    found: list = []
    with distile.mask(~NEAR):
        Doubled.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert not found[0][0, :, ~NEAR[0]].any() and found[0].any()


def test_spans_of_inference_are_not_kept():
    from distile import recomputation

    before = len(recomputation._spans)
    with torch.no_grad(), distile.mask(NEAR):
        net()(torch.ones(1, 4, 6, 6))
    thread = threading.Thread(target=lambda: distile.mask(NEAR).__enter__())
    thread.start()
    thread.join()
    assert len(recomputation._spans) <= before + 1


TOKENS = torch.arange(12).view(2, 6) % 3 > 0
MASK = torch.arange(72).view(2, 6, 6) % 3 > 0


def calls():
    """An input of each operator, a call, and in plain PyTorch what has second derivatives."""
    torch.manual_seed(0)
    image, tokens, query = torch.randn(2, 4, 6, 6), torch.randn(2, 6, 4), torch.randn(2, 2, 6, 4)
    statistics = torch.zeros(2, 2), torch.ones(2, 2)
    half, larger = MASK[:, ::2, ::2].contiguous(), MASK.repeat_interleave(2, 1).repeat_interleave(2, 2)
    both = lambda name, x, *rest, **more: (
        x,
        *(lambda x, call=call: call(x, *rest, **more) for call in (getattr(ops, name), getattr(layers, name))),
    )
    return {
        "conv2d": (image, lambda x: ops.conv2d(x, torch.ones(4, 4, 3, 3), None, MASK, padding=[1] * 4), None),
        "conv2d by weight": (
            torch.randn(4, 4, 3, 3),
            lambda weight: ops.conv2d(image, weight, None, MASK, padding=[1] * 4),
            None,
        ),
        "conv_transpose2d": (image, lambda x: ops.conv_transpose2d(x, torch.ones(4, 4, 1, 1), None, MASK), None),
        "upsample_conv2d": (image, lambda x: ops.upsample_conv2d(x, torch.ones(4, 4, 1, 1), None, larger), None),
        "linear": (tokens, lambda x: ops.linear(x, torch.ones(4, 4), None, TOKENS, activation="silu"), None),
        "attention": (query, lambda x: ops.attention(x, x, x, TOKENS, TOKENS), None),
        "layer_norm": (tokens, lambda x: ops.layer_norm(x, TOKENS, None, None), None),
        "rms_norm": (tokens, lambda x: ops.rms_norm(x, TOKENS, None), None),
        "max_pool2d": both("max_pool2d", image, half, [2, 2], stride=[2, 2]),
        "avg_pool2d": both("avg_pool2d", image, half, [2, 2], stride=[2, 2]),
        "add": (
            image,
            lambda x: ops.add(x, x, MASK, activation="sigmoid"),
            lambda x: layers.add(x, x, MASK, activation="sigmoid"),
        ),
        "multiply": (image, lambda x: ops.multiply(x, x, MASK), lambda x: layers.multiply(x, x, MASK)),
        "activate": both("activate", image, MASK, activation="silu"),
        "group_norm": both("group_norm", image, MASK, None, None, groups=2),
        "group_norm with statistics": both(
            "group_norm", image, MASK, None, None, *statistics, groups=2, activation="silu"
        ),
        "group_statistics": (image, lambda x: ops.group_statistics(x, MASK, groups=2)[0], None),
        "upsample_nearest": both("upsample_nearest", image, larger),
        "global_pool": both("global_pool", image, MASK),
        "pack": (tokens, lambda x: ops.pack(x, TOKENS), lambda x: x[TOKENS]),
        "unpack": (
            torch.randn(8, 4),
            lambda x: ops.unpack(x, TOKENS),
            lambda x: torch.zeros(2, 6, 4).index_put(TOKENS.nonzero(as_tuple=True), x),
        ),
    }


@pytest.mark.parametrize("name", calls())
def test_forward_mode(name):
    x, call, _ = calls()[name]
    with pytest.raises(RuntimeError, match="forward mode.*backward"), torch.no_grad():
        torch.func.jvp(call, (x,), (torch.ones_like(x),))
    with pytest.raises(RuntimeError, match="forward mode"), forward_ad.dual_level():
        call(forward_ad.make_dual(x, torch.ones_like(x)))
    with forward_ad.dual_level():  # Without a tangent.
        torch.testing.assert_close(call(x), call(x.clone()))


def test_forward_mode_of_modules():
    layer, x = masked.MaskedConv2d(4, 4, 1), torch.randn(2, 4, 6, 6)
    out = torch.zeros(2, 4, 6, 6).to(memory_format=torch.channels_last)
    for more in ({}, {"out": out}):
        with torch.no_grad(), pytest.raises(RuntimeError, match="forward mode"):
            torch.func.jvp(lambda x, more=more: layer(x, MASK, **more), (x,), (torch.ones_like(x),))
    found = torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(found, nn.functional.conv2d(torch.ones_like(x), layer.weight))


@pytest.mark.parametrize("name", sorted(calls().keys() - {"group_statistics"}))
def test_second_derivatives(name):
    x, call, plain = calls()[name]
    second = lambda call: torch.autograd.grad(
        torch.autograd.grad(call(x).pow(3).sum(), x, create_graph=True)[0].pow(3).sum(), x
    )[0]
    x.requires_grad_()
    if plain:
        torch.testing.assert_close(second(call), second(plain), rtol=1e-3, atol=1e-3)
    else:
        with pytest.raises(RuntimeError, match="no second derivatives.*distile.mask"):
            second(call)
