"""The modules of distile.sige against SIGE's own way: gather blocks, convolve them, scatter them; and against its
package, if that is installed."""

import copy
import importlib
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile.sige as ours
from distile.sige import Gather, Scatter, ScatterGather, SIGEConv2d, SIGEModel, SIGEModule

pytestmark = pytest.mark.filterwarnings("ignore:distile")


def by_blocks(conv, x, original, edited, block, residual=None, offset=None):
    """Each block of the input that holds an edited pixel, convolved alone and put into the original output."""
    outputs = [max(block - conv.kernel_size[axis], 0) // conv.stride[axis] + 1 for axis in (0, 1)]
    reads = [(outputs[axis] - 1) * conv.stride[axis] + conv.kernel_size[axis] for axis in (0, 1)]
    steps = [outputs[axis] * conv.stride[axis] for axis in (0, 1)]
    top, left = conv.padding if offset is None else (offset, offset)
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


def single(sige, kernel=3, stride=1, padding=1, block=6, offset=None):
    """A convolution between a Gather and a Scatter, of the modules of a package."""
    model = sige.SIGEModel()
    model.conv = sige.SIGEConv2d(6, 10, kernel, stride=stride, padding=padding)
    model.gather = sige.Gather(model.conv, block, offset)
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
@pytest.mark.parametrize("name, plain", [("swish", F.silu), ("relu", F.relu), ("sigmoid", torch.sigmoid),
                                         ("tanh", torch.tanh), ("identity", lambda x: x)])  # fmt: skip
def test_scale_shift_and_activation(name, plain):
    torch.manual_seed(0)
    x, scale, shift = torch.randn(1, 4, 8, 8), torch.randn(1, 4, 1, 1), torch.randn(1, 4, 1, 1)
    for first in (False, True):
        gather = Gather(SIGEConv2d(4, 4, 3, padding=1), 6, activation_name=name, activation_first=first)
        assert gather(x) is x
        with pytest.raises(ValueError, match="no scale"):
            gather(x, scale)
        gather.set_mode("sparse")
        expected = plain(x) * scale + shift if first else plain(x * scale + shift)
        torch.testing.assert_close(gather(x, scale, shift).as_subclass(torch.Tensor), expected)
    with pytest.raises(ValueError, match="no activation 'gelu'"):
        Gather(SIGEConv2d(4, 4, 3, padding=1), 6, activation_name="gelu")


@torch.no_grad()
@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.05), (torch.float16, 0.005), (torch.float64, 1e-10)])
def test_other_types(dtype, bound):
    torch.manual_seed(0)
    size = (13, 18)
    model, (first, second) = single(ours), torch.randn(2, 2, 6, *size, dtype=dtype)
    model.to(dtype)
    original = model(first)
    edited = torch.zeros(size, dtype=torch.bool)
    edited[3:6, 8:13] = True
    model.set_masks({size: edited})
    model.set_mode("sparse")
    result = model(second)
    assert result.dtype == dtype
    torch.testing.assert_close(result, by_blocks(model.conv, second, original, edited, 6), rtol=bound, atol=bound)


class Down(nn.Module):
    """A convolution that pads one side alone, as those of diffusion models: the Gather pads in mode "sparse"."""

    def __init__(self, sige):
        super().__init__()
        self.model = sige.SIGEModel()
        self.model.conv = sige.SIGEConv2d(6, 10, 3, stride=2)
        self.model.gather = sige.Gather(self.model.conv, 5)
        self.model.scatter = sige.Scatter(self.model.gather)

    def forward(self, x):
        x = self.model.gather(x)
        if self.model.mode == "full":
            x = F.pad(x, (0, 1, 0, 1))
        return self.model.scatter(self.model.conv(x))


@torch.no_grad()
@pytest.mark.parametrize("mode", ["sparse", "profile"])
@pytest.mark.parametrize("size", [(16, 16), (12, 18)])
def test_one_side_padded(size, mode):
    torch.manual_seed(0)
    down, (first, second) = Down(ours), torch.randn(2, 2, 6, *size)
    original = down(first)
    assert original.shape[2:] == tuple(extent // 2 for extent in size)
    edited = torch.zeros(size, dtype=torch.bool)
    edited[3:6, 8:13] = edited[-1, -1] = True
    down.model.set_masks({size: edited})
    down.model.set_mode(mode)
    expected = by_blocks(down.model.conv, second, original, edited, 5)
    torch.testing.assert_close(down(second), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("padding, offset", [(1, 0), (0, 1), (1, 3), (2, 1)])
def test_an_offset_other_than_the_padding(padding, offset):
    """The blocks begin so far before the image, whatever the convolution pads in mode "full"."""
    torch.manual_seed(0)
    size = (14, 17)
    model, (first, second) = single(ours, padding=padding, offset=offset), torch.randn(2, 2, 6, *size)
    original = model(first)
    edited = torch.zeros(size, dtype=torch.bool)
    edited[0, 0] = edited[3:6, 8:12] = True
    model.set_masks({size: edited})
    model.set_mode("sparse")
    expected = by_blocks(model.conv, second, original, edited, 6, offset=offset)
    torch.testing.assert_close(model(second), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_blocks_reach_convolutions_through_operators_of_pytorch():
    """A convolution without a Gather of its own takes the blocks that its input was computed from."""
    torch.manual_seed(0)
    size, model = (12, 15), SIGEModel()
    model.shared, model.one = SIGEConv2d(4, 8, 3, padding=1), SIGEConv2d(4, 4, 3, padding=1)
    model.point = SIGEConv2d(4, 4, 1)
    model.gather = Gather(model.shared, 6)
    model.between, model.scatter = ScatterGather(model.gather), Scatter(model.gather)

    def run(x):
        left, right = model.between(F.relu(model.shared(model.gather(x)))).chunk(2, 1)
        model.left, model.right = left, right
        return model.scatter(model.point(model.one(left * 2).relu() + right[:, :]))

    first, second = torch.randn(2, 2, 4, *size)
    original, shared = run(first), torch.cat([model.left, model.right], 1)
    edited = torch.zeros(size, dtype=torch.bool)
    edited[3:6, 8:13] = True
    model.set_masks({size: edited})
    model.set_mode("sparse")
    result = run(second)
    assert type(result) is torch.Tensor
    computed = model.gather.outputs_at(*size)[:, None]
    left, right = torch.where(computed, F.relu(nn.Conv2d.forward(model.shared, second)), shared).chunk(2, 1)
    expected = nn.Conv2d.forward(model.point, nn.Conv2d.forward(model.one, left * 2).relu() + right)
    torch.testing.assert_close(result, torch.where(computed, expected, original), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="directly after another one"):
        model.one(model.one(model.between(model.shared(model.gather(second)))[:, :4]))


class Kept(SIGEModule):
    """A module as users write them: it has a mask of its own, and calls what it overrides."""

    def set_mask(self, masks, cache, timestamp):
        if self.timestamp != timestamp:
            super().set_mask(masks, cache, timestamp)
            self.mask = masks[8, 8]
            self.times = getattr(self, "times", 0) + 1


def test_modules_of_users():
    model = SIGEModel()
    assert model.timestamp == 0 and model.mode == "full"
    model.kept = Kept()
    mask = torch.zeros(8, 8, dtype=torch.bool)
    for number in (1, 2):
        model.set_masks({(8, 8): mask})
        assert model.timestamp == model.kept.timestamp == number and model.kept.times == number
    model.kept.set_mask({(8, 8): mask}, {}, 2)
    assert model.kept.times == 2 and model.kept.mask is mask
    wrapper = ours.SIGEModuleWrapper(model.kept)
    assert wrapper.module is model.kept and torch.float32 in model.kept.supported_dtypes
    model.kept.supported_dtypes = [torch.float32]
    model.kept.check_dtype(torch.zeros(1), None)
    with pytest.raises(NotImplementedError, match="float64"):
        model.kept.check_dtype(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="3 dimensions"):
        model.kept.check_dim(torch.zeros(1, 1, 1))
    with pytest.raises(ValueError, match="no mode 'dense'"):
        model.set_mode("dense")
    runtime = model.kept.load_runtime("gather")
    assert runtime is model.kept.runtime and {"cpu", "cuda"} <= runtime.keys()
    assert model.kept.load_runtime("no such function", {}) == {"cpu": None, "cuda": None}


@torch.no_grad()
def test_what_a_gather_tells(capsys):
    conv = SIGEConv2d(4, 4, 3, stride=2, padding=1)
    with pytest.warns(UserWarning, match=r"become \(5, 5\)"):
        gather = Gather(conv, 6, verbose=True)
    assert gather.block_size == (5, 5) and gather.block_stride == (4, 4) and gather.offset == (1, 1)
    assert gather.model_stride == (2, 2) and gather.kernel_size == (3, 3) and gather.active_indices is None
    gather(torch.randn(1, 4, 9, 9))
    mask = torch.zeros(9, 9, dtype=torch.bool)
    mask[0, 0] = mask[5, 8] = True
    gather.set_mask({(9, 9): mask}, {}, 1)
    assert gather.active_indices.tolist() == [[-1, -1], [3, 7]] and gather.active_indices.dtype == torch.int32
    assert capsys.readouterr().out == "2 of 9 blocks are active\n"
    with pytest.raises(RuntimeError, match="after a run in mode 'full'"):
        Gather(conv, 5).set_mask({}, {}, 1)
    with pytest.raises(KeyError, match=r"masks of \(8, 8\), but a Gather reads images of \(9, 9\)"):
        gather.set_mask({(8, 8): mask[:8, :8]}, {}, 2)


@torch.no_grad()
def test_caches_and_copies():
    """Each cache has an original of its own, and a copy of a model its own links."""
    torch.manual_seed(0)
    model, size = SIGEModel(), (12, 12)
    model.conv = SIGEConv2d(3, 4, 3, padding=1)
    model.gather = Gather(model.conv, 6)
    model.scatter = Scatter(model.gather)

    def run(model, x):
        return model.scatter(model.conv(model.gather(x)))

    images = torch.randn(2, 1, 3, *size)
    originals = []
    for number in (0, 1):
        model.set_cache_id(number)
        originals.append(run(model, images[number]))
    twin = copy.deepcopy(model)
    assert twin.conv.gather.module is twin.gather and twin.scatter.gather.module is twin.gather
    for each in (model, twin):
        each.set_masks({size: torch.zeros(size, dtype=torch.bool)})
        each.set_mode("sparse")
        for number in (0, 1):
            each.set_cache_id(number)
            assert torch.equal(run(each, torch.randn(1, 3, *size)), originals[number])
    model.clear_cache()
    assert not model.scatter.original_outputs and len(twin.scatter.original_outputs) == 2


def masks_of_edits():
    torch.manual_seed(0)
    blob = torch.zeros(40, 56, dtype=torch.bool)
    blob[7:15, 20:31] = blob[39, 55] = True
    return [blob, torch.rand(40, 56) < 0.02, torch.zeros(40, 56, dtype=torch.bool)]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("block, stride, padding", [(6, 4, 1), ((5, 4), (4, 2), (1, 0)), (4, 4, 0), (7, 2, 3)])
def test_reduced_masks(block, stride, padding, number, capsys):
    mask = masks_of_edits()[number]
    rows, columns, steps, edge = *ours.pair(block), ours.pair(stride), ours.pair(padding)
    expected = []
    for y in range(-edge[0], mask.shape[0] + 1, steps[0]):
        for x in range(-edge[1], mask.shape[1] + 1, steps[1]):
            if mask[max(y, 0) : max(y + rows, 0), max(x, 0) : max(x + columns, 0)].any():
                expected.append([y, x])
    found = ours.reduce_mask(mask, block, stride, padding, verbose=True)
    assert found.tolist() == expected and found.dtype == torch.int32
    assert capsys.readouterr().out.startswith(f"{len(expected)} of ")
    assert ours.reduce_mask(mask, None, stride, padding) is None


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("dilation", [0, 1, (2, 0), (1, 3)])
def test_dilated_masks(dilation, number):
    mask = masks_of_edits()[number]
    rows, columns = ours.pair(dilation)
    expected = mask.clone()
    for y, x in mask.nonzero().tolist():
        expected[max(y - rows, 0) : y + rows + 1, x] = True
        expected[y, max(x - columns, 0) : x + columns + 1] = True
    before = mask.clone()
    assert torch.equal(ours.dilate_mask(mask, dilation), expected) and torch.equal(mask, before)
    assert (ours.dilate_mask(mask.cpu().numpy(), dilation) == expected.cpu().numpy()).all()
    assert torch.equal(ours.dilate_mask(mask[None].expand(2, -1, -1), dilation), expected[None].expand(2, -1, -1))


def test_difference_masks():
    torch.manual_seed(0)
    a = torch.randn(1, 3, 5, 6)
    b = a.clone()
    b[0, 1, 2, 3] += 0.5
    b[0, 2, 4, 5] -= 0.01
    assert ours.compute_difference_mask(a, b).nonzero().tolist() == [[2, 3]]
    assert ours.compute_difference_mask(a[0], b[0], eps=0.001).nonzero().tolist() == [[2, 3], [4, 5]]
    assert ours.compute_difference_mask(a[0, 1], b[0, 1]).nonzero().tolist() == [[2, 3]]
    with pytest.raises(NotImplementedError, match="must be"):
        ours.compute_difference_mask(a.expand(2, -1, -1, -1), b)


@pytest.mark.parametrize("number", range(3))
def test_masks_at_lower_resolutions(number):
    mask = masks_of_edits()[number]
    found = ours.downsample_mask(mask, min_res=8, dilation=0)
    assert list(found) == [(40, 56), (20, 28), (10, 14)]
    assert torch.equal(found[40, 56], mask if mask.any() else torch.ones_like(mask))
    halved = mask.float().unflatten(0, (20, 2)).unflatten(2, (28, 2)).mean((1, 3))  # Bilinear, at half the size.
    assert torch.equal(found[20, 28], halved > min(0.3, float(halved.max()) - 1e-3))
    dilated = ours.downsample_mask(mask, min_res=8, dilation=2)
    assert all(torch.equal(dilated[size], ours.dilate_mask(small, 2)) for size, small in found.items())


def test_masks_against_the_package():
    theirs = pytest.importorskip("sige.utils", reason="the package sige is not installed")
    for mask in masks_of_edits():
        for block, stride, padding in ((6, 4, 1), ((5, 4), (4, 2), (1, 0))):
            found = ours.reduce_mask(mask, block, stride, padding)
            assert torch.equal(found, theirs.reduce_mask(mask, block, stride, padding))
        for dilation in (0, 1, (2, 3)):
            assert torch.equal(ours.dilate_mask(mask, dilation), theirs.dilate_mask(mask, dilation))
        for options in ({}, dict(min_res=(9, 6), dilation=(2, 1), threshold=0.6)):
            found, right = ours.downsample_mask(mask, **options), theirs.downsample_mask(mask, **options)
            assert found.keys() == right.keys() and all(torch.equal(found[size], right[size]) for size in right)
    a, b = torch.randn(2, 1, 3, 9, 8)
    assert torch.equal(ours.compute_difference_mask(a, b, 1), theirs.compute_difference_mask(a, b, 1))


@torch.inference_mode()
@pytest.mark.parametrize("name", ["ddpm", "gaugan", "stable-diffusion"])
def test_networks_written_for_the_package(name, monkeypatch, device):
    """Networks of SIGE's modules run with ours by another import alone, and compute the same blocks."""
    import common
    from test_networks import small

    package = types.ModuleType("sige")
    package.nn = package.utils = ours
    for module, replacement in {"sige": package, "sige.nn": ours, "sige.utils": ours}.items():
        monkeypatch.setitem(sys.modules, module, replacement)
    monkeypatch.delitem(sys.modules, "by_sige", raising=False)
    by_sige = importlib.import_module("by_sige")
    monkeypatch.delitem(sys.modules, "by_sige")  # The next test imports it with the package.
    network = small(name, device)
    network.masked()
    peer = by_sige.Sige(network)
    result = tuple(tensor.clone() for tensor in common.tensors_of(peer()))
    assert common.error(network, result, peer.expected()) <= network.bound
    assert common.error(network, result, network.dense(*network.edited)) > 10 * network.bound


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
@pytest.mark.parametrize("made", [single, residual_block, lambda sige: single(sige, padding=1, offset=2), Down])
def test_against_the_package(made, size, device):
    theirs = pytest.importorskip("sige.nn", reason="the package sige is not installed")
    torch.manual_seed(0)
    models = made(ours), made(theirs)
    models[1].load_state_dict(models[0].state_dict())
    first, second, third = torch.randn(3, 1, 6, *size)  # Its ScatterGather (0.3.0) writes too far for larger batches.
    others = () if made is not residual_block else (torch.rand(1, 10, 1, 1) + 0.5, torch.randn(1, 10, 1, 1))
    marks = torch.zeros(2, *size, dtype=torch.bool)
    marks[0, 3:6, 8:13] = marks[1, -1, -1] = marks[1, 0, 5] = True

    def same(x):
        mine, right = (model(x, *others) for model in models)
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)
        return right

    original = same(first).clone()
    for mask, input, update in ((marks[0], second, False), (marks[1], third, True), (marks[0], second, False)):
        for model in models:
            model = getattr(model, "model", model)
            model.set_masks({size: mask})
            model.set_mode("sparse")
            model.set_sparse_update(update)
        assert (same(input) - original).abs().max() > 0.1
