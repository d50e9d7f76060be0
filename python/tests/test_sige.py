"""The modules of distile.sige against SIGE's own way: gather blocks, convolve them, scatter them; and against its
package, if that is installed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile.sige as ours
from distile.sige import Gather, SIGEConv2d

pytestmark = pytest.mark.filterwarnings("ignore:distile")


def by_blocks(conv, x, original, edited, block, residual=None):
    """Each block of the input that holds an edited pixel, convolved alone and put into the original output."""
    outputs = [max(block - conv.kernel_size[axis], 0) // conv.stride[axis] + 1 for axis in (0, 1)]
    reads = [(outputs[axis] - 1) * conv.stride[axis] + conv.kernel_size[axis] for axis in (0, 1)]
    steps = [outputs[axis] * conv.stride[axis] for axis in (0, 1)]
    top, left = conv.padding
    far = max(reads) + max(steps)
    padded = F.pad(x, (left, far, top, far))
    marks = F.pad(edited, (left, far, top, far))
    result = original.clone()
    for i in range(-(-result.shape[2] // outputs[0])):
        for j in range(-(-result.shape[3] // outputs[1])):
            y, z = i * steps[0], j * steps[1]
            if not marks[y : y + reads[0], z : z + reads[1]].any():
                continue
            piece = padded[:, :, y : y + reads[0], z : z + reads[1]]
            computed = F.conv2d(piece, conv.weight, conv.bias, conv.stride)
            place = (
                slice(None),
                slice(None),
                slice(i * outputs[0], (i + 1) * outputs[0]),
                slice(j * outputs[1], (j + 1) * outputs[1]),
            )
            room = result[place].shape
            result[place] = computed[:, :, : room[2], : room[3]]
            if residual is not None:
                result[place] += residual[place]
    return result


def single(sige, kernel=3, stride=1, padding=1, block=6):
    """A convolution between a Gather and a Scatter, of the modules of a package."""
    model = sige.SIGEModel()
    model.conv = sige.SIGEConv2d(6, 10, kernel, stride=stride, padding=padding)
    model.gather = sige.Gather(model.conv, block)
    model.scatter = sige.Scatter(model.gather)
    model.forward = lambda x, residual=None: model.scatter(model.conv(model.gather(x)), residual)
    return model


@torch.no_grad()
@pytest.mark.parametrize("kernel, stride, padding, block", [(3, 1, 1, 6), (1, 1, 0, 4), (3, 2, 1, 7), (5, 1, 2, 5)])
@pytest.mark.parametrize("size", [(16, 16), (13, 18)])
def test_scatter_of_a_gathered_convolution(kernel, stride, padding, block, size):
    torch.manual_seed(0)
    model, first, second = single(ours, kernel, stride, padding, block), *torch.randn(2, 2, 6, *size)
    edited = torch.zeros(size, dtype=torch.bool)
    edited[3:6, 8:13] = True
    full = model(first)
    torch.testing.assert_close(full, nn.Conv2d.forward(model.conv, first))
    residual = torch.randn_like(full)
    for added in (None, residual):
        model.set_mode("full")
        original = model(first, added)
        model.set_masks({size: edited})
        model.set_mode("sparse")
        expected = by_blocks(model.conv, second, original, edited, block, added)
        torch.testing.assert_close(model(second, added), expected, rtol=1e-4, atol=1e-5)
    model.set_masks({size: torch.zeros_like(edited)})
    torch.testing.assert_close(model(second, residual), original, rtol=0, atol=0)


@torch.no_grad()
def test_scale_shift_and_activation():
    torch.manual_seed(0)
    conv = SIGEConv2d(4, 4, 3, padding=1)
    gather = Gather(conv, 6, activation_name="swish")
    x, scale, shift = torch.randn(1, 4, 8, 8), torch.randn(1, 4, 1, 1), torch.randn(1, 4, 1, 1)
    assert gather(x) is x
    gather.set_mode("sparse")
    torch.testing.assert_close(gather(x, scale, shift), F.silu(x * scale + shift))


def residual_block(sige):
    """A residual block of SIGE: two convolutions of the same blocks, and a shortcut with blocks of its own."""
    model = sige.SIGEModel()
    model.conv1, model.conv2 = sige.SIGEConv2d(6, 10, 3, padding=1), sige.SIGEConv2d(10, 10, 3, padding=1)
    model.shortcut = sige.SIGEConv2d(6, 10, 1)
    model.gather = sige.Gather(model.conv1, 6, activation_name="swish")
    model.shortcut_gather = sige.Gather(model.shortcut, 4)
    model.scatter_gather = sige.ScatterGather(model.gather, activation_name="swish")
    model.scatter = sige.ScatterWithBlockResidual(model.gather, model.shortcut_gather)

    def forward(x, scale, shift):
        full = model.mode == "full"
        h = model.conv1(model.gather(F.silu(x)) if full else model.gather(x))
        h = model.scatter_gather(h) if full else model.scatter_gather(h, scale, shift)
        model.between = h
        h = model.conv2(F.silu(h * scale + shift) if full else h)
        return model.scatter(h, model.shortcut(model.shortcut_gather(x)))

    model.forward = forward
    return model


@torch.no_grad()
@pytest.mark.parametrize("size", [(16, 16), (13, 18)])
def test_a_residual_block(size):
    torch.manual_seed(0)
    model, first, second = residual_block(ours), *torch.randn(2, 2, 6, *size)
    scale, shift = torch.rand(2, 10, 1, 1) + 0.5, torch.randn(2, 10, 1, 1)
    original = model(first, scale, shift)
    kept = model.between.clone()
    shortcut = nn.Conv2d.forward(model.shortcut, first)
    edited = torch.zeros(size, dtype=torch.bool)
    edited[3:6, 8:13] = True
    model.set_masks({size: edited})
    model.set_mode("sparse")
    # By blocks: each convolution reads what the one before computed in its blocks, and the original elsewhere.
    between = by_blocks(model.conv1, F.silu(second), kept, edited, 6)
    main = by_blocks(model.conv2, F.silu(between * scale + shift), original - shortcut, edited, 6)
    expected = main + by_blocks(model.shortcut, second, shortcut, edited, 4)
    torch.testing.assert_close(model(second, scale, shift), expected, rtol=1e-4, atol=1e-4)
    assert (expected - original).abs().max() > 0.1
    model.set_sparse_update(True)
    torch.testing.assert_close(model(second, scale, shift), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.scatter.original_outputs[0], expected, rtol=1e-4, atol=1e-4)
    model.set_masks({size: torch.zeros_like(edited)})
    torch.testing.assert_close(model(first, scale, shift), expected, rtol=1e-4, atol=1e-4)


def test_a_convolution_without_a_gather():
    conv = SIGEConv2d(4, 4, 3)
    conv.set_mode("sparse")
    with pytest.raises(RuntimeError, match="ScatterGather"):
        conv(torch.randn(1, 4, 8, 8))


@torch.no_grad()
@pytest.mark.parametrize("size", [(16, 16), (13, 18)])
@pytest.mark.parametrize("made", [single, residual_block])
def test_against_the_package(made, size, device):
    theirs = pytest.importorskip("sige.nn", reason="the package sige is not installed")
    torch.manual_seed(0)
    models = made(ours), made(theirs)
    models[1].load_state_dict(models[0].state_dict())
    first, second, third = torch.randn(3, 1, 6, *size)  # Its ScatterGather (0.3.0) writes too far for larger batches.
    others = () if made is single else (torch.rand(1, 10, 1, 1) + 0.5, torch.randn(1, 10, 1, 1))
    marks = torch.zeros(2, *size, dtype=torch.bool)
    marks[0, 3:6, 8:13] = marks[1, -1, -1] = marks[1, 0, 5] = True

    def same(x):
        mine, right = (model(x, *others) for model in models)
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)
        return right

    original = same(first).clone()
    for mask, input, update in ((marks[0], second, False), (marks[1], third, True), (marks[0], second, False)):
        for model in models:
            model.set_masks({size: mask})
            model.set_mode("sparse")
            model.set_sparse_update(update)
        assert (same(input) - original).abs().max() > 0.1
