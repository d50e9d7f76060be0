"""Layers inside windows of an image, which are a batch: convolutions and pools there, padding, and one mask for several
images."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile
from distile.conversion import Left
from distile.grids import Grid
from distile.positions import Positions
from test_mapping import Windows, active_outputs, blocks, converted

pytestmark = pytest.mark.cpu

WINDOW = 4


def partitioned(x):
    """Images [N, C, H, W] as windows [N * windows, C, 4, 4], with zeros behind their last rows and columns."""
    x = F.pad(x, (0, -x.shape[3] % WINDOW, 0, -x.shape[2] % WINDOW))
    x = x.unflatten(3, (-1, WINDOW)).unflatten(2, (-1, WINDOW))
    return x.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def joined(windows, height, width):
    rows, columns = -(-height // WINDOW), -(-width // WINDOW)
    x = windows.unflatten(0, (-1, rows, columns)).permute(0, 3, 1, 4, 2, 5)
    return x.flatten(4, 5).flatten(2, 3)[:, :, :height, :width]


class ConvolutionsInWindows(nn.Module):
    """Attention in windows whose queries come from convolutions, as EfficientViT has it."""

    def __init__(self):
        super().__init__()
        self.embed, self.after = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1)
        self.qkv, self.depthwise = nn.Conv2d(8, 24, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pool, self.norm = nn.AvgPool2d(3, 1, 1), nn.GroupNorm(2, 8)
        self.proj, self.strided = nn.Conv2d(8, 8, 5, padding=2), nn.Conv2d(8, 8, 2, 2)

    def forward(self, x):
        x = self.embed(x)
        height, width = x.shape[2:]
        windows = partitioned(x)
        query, key, value = self.qkv(windows).chunk(3, 1)
        query = self.pool(self.depthwise(query))
        scores = (query.flatten(2).transpose(1, 2) @ key.flatten(2)).softmax(-1)
        found = self.proj((value.flatten(2) @ scores.transpose(1, 2)).unflatten(2, (WINDOW, WINDOW)))
        return self.after(x + joined(found, height, width)), self.strided(windows)


class MaskedByHand(ConvolutionsInWindows):
    """Dense layers, with masks after them."""

    def masks(self, mask):
        """Puts them there: of the embedding, of what follows the windows, and of windows."""
        cells = blocks(mask, 2)[:, None]
        inside = partitioned(torch.cat([cells, torch.ones_like(cells)], 1).float())
        inside = (inside[:, :1] > 0) | (inside[:, 1:] == 0)  # Padding is active.
        for name, kept in {"embed": cells, "after": cells, **dict.fromkeys(INSIDE, inside)}.items():
            getattr(self, name).register_forward_hook(lambda _, __, output, kept=kept: torch.where(kept, output, 0))
        return inside[:, 0]


INSIDE = ("qkv", "depthwise", "pool", "proj")


@torch.no_grad()
@pytest.mark.parametrize("size", [(16, 32), (10, 18), (6, 22)])  # Whole windows; corners of one cell; rows of one.
def test_layers_in_windows_keep_their_places(size):
    net = MaskedByHand().eval()
    model, rows = converted(net, torch.randn(1, 3, *size))
    count = -(-size[0] // 8) * -(-size[1] // 8)
    grid = f"stride 2x2, offset 0x0, grid {size[0] // 2}x{size[1] // 2}"
    for name in INSIDE:
        assert str(rows[name].mapping) == f"{grid}, {count} windows"
    assert str(rows["after"].mapping) == grid
    assert isinstance(rows["strided"], Left) and rows["strided"].reason == "each of its outputs sees all pixels"
    mask = torch.rand(2, *size, generator=torch.Generator().manual_seed(5)) < 0.1
    images = torch.randn(2, 3, *size)
    inside = net.masks(mask)
    for name in INSIDE:
        assert torch.equal(active_outputs(model, name, images, mask=mask), inside)
    with distile.mask(mask):
        results = model(images)
    for result, expected in zip(results, net(images)):
        torch.testing.assert_close(result, expected)


@torch.no_grad()
def test_one_mask_serves_the_windows_of_all_images():
    x = torch.randn(3, 3, 16, 32)
    model, _ = converted(Windows(), x)
    mask = torch.rand(1, 16, 32, generator=torch.Generator().manual_seed(6)) < 0.2
    with distile.mask(mask):
        found = model(x)
    with distile.mask(mask.expand(3, -1, -1)):
        assert torch.equal(found, model(x))


class CoarseQueries(nn.Module):
    """Attention in windows whose queries are of a coarse map of features, as GC ViT has it."""

    def __init__(self):
        super().__init__()
        self.embed, self.coarse, self.after = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 2, 2), nn.Conv2d(8, 8, 3, 1, 1)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        x = self.embed(x)
        windows = partitioned(x).flatten(2).transpose(1, 2)
        queries = self.coarse(x).flatten(2).transpose(1, 2).repeat_interleave(len(windows) // len(x), 0)
        found = self.proj(F.scaled_dot_product_attention(queries, windows, windows))
        return self.after(x + joined(found.transpose(1, 2).unflatten(2, (WINDOW, WINDOW)), *x.shape[2:]))


def test_queries_of_another_grid_are_in_several_windows():
    _, rows = converted(CoarseQueries(), torch.randn(2, 3, 16, 16))
    assert rows["proj"].reason == "a pixel stands in several of its outputs"
    assert str(rows["after"].mapping) == "stride 2x2, offset 0x0, grid 8x8"


class Recurrent(nn.Module):
    """A convolution of a map that is constant at first, and then of pixels, as the flow of RAFT."""

    def __init__(self):
        super().__init__()
        self.embed, self.flow = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        x = self.embed(x)
        flow = torch.zeros_like(x)
        for _ in range(2):
            flow = self.out(torch.cat([self.flow(flow) + x]))
        return flow


def test_a_layer_that_sees_no_pixel_in_a_call_stays():
    _, rows = converted(Recurrent(), torch.randn(1, 3, 12, 16))
    assert rows["flow"].reason == "in some of its calls, it sees no pixel of the image"
    assert str(rows["out"].mapping) == "stride 1x1, offset 0x0, grid 12x16"


def test_labels_of_two_grids():
    positions = Positions(1, 8, 8)
    fine, coarse = positions.whole(), positions.whole(Grid.of(4), (2, 2))
    spread = np.tile(coarse, (1, 4, 4))
    assert (positions.merged(fine, spread) == fine).all() and (positions.merged(spread, fine) == fine).all()
    larger = positions.whole(extents=(9, 9))[:, :8, :8]  # These cells, and more behind them.
    assert (positions.merged(larger, fine) == fine).all()
    assert (positions.reduced(np.stack([larger, fine], 1), 1) == fine).all()
    assert (positions.reduced(np.stack([spread, fine], 1), 1)[0, 2:, 2:] == -3).all()




def test_labels_of_products():
    positions = Positions(1, 2, 2)
    cells = positions.whole().reshape(1, 4)
    rows, columns = cells[:, :, None], cells[:, None, :]
    constants = np.full((1, 4), -1)
    assert (positions.of_product(rows, columns) == rows).all()
    assert (positions.of_product(constants[:, :, None], columns) == columns).all()
    channels = np.broadcast_to(cells[:, :1, None], (1, 3, 1))  # One cell in all rows, of a window with no other.
    assert (positions.of_product(channels, columns) == columns).all()
    first = np.concatenate([constants[:, :1], cells], 1)[:, :, None]  # A class token.
    found = positions.of_product(first, columns)
    assert (found[:, 0] == -3).all() and (found[:, 1:] == rows).all()
