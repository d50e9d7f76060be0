"""Which mask a layer gets: where its outputs are over the image, found by an example or said by a rule."""

import asyncio
import contextvars
import copy
import pickle
import re
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile
import models
from distile import masks, tracing
from distile.conversion import Left
from distile.grids import Axis, Grid
from distile.nn import MaskedConv2d, MaskedLinear
from distile.positions import Positions

pytestmark = pytest.mark.cpu


def converted(model, *example, rules=((nn.Module, True),), fuse=False):
    """A converted copy, and the rows of its report by names."""
    rows: list = []
    model = distile.convert(copy.deepcopy(model).eval(), rules, fuse=fuse, report=rows, example=example)
    return model, {row.name: row for row in rows}


def active_outputs(model, name, *inputs, mask, **keywords):
    """The mask that a layer takes."""
    layer, found = model.get_submodule(name), []
    original = layer._mask
    layer._mask = lambda *arguments: found.append(original(*arguments)) or found[-1]
    try:
        with torch.no_grad(), distile.mask(mask, **keywords):
            model(*inputs)
    finally:
        del layer._mask
    return found[-1]


def strided(count, kernel=3, stride=2, padding=1, channels=2):
    return nn.Sequential(
        *(nn.Conv2d(3 if not i else channels, channels, kernel, stride, padding) for i in range(count))
    )


def blocks(mask, stride, offset=0.0, extents=None):
    """Cells by plain loops: each pixel belongs to the cell that its middle is in, or to the nearest one."""
    batch, *size = mask.shape
    extents = extents or [-(-extent // stride) for extent in size]
    found = torch.zeros(batch, *extents, dtype=torch.bool)
    for n, y, x in mask.nonzero().tolist():
        cell = [min(max(int((at + 0.5 - offset) // stride), 0), most - 1) for at, most in zip((y, x), extents)]
        found[n, cell[0], cell[1]] = True
    return found


def single(size, y, x):
    mask = torch.zeros(1, *size, dtype=torch.bool)
    mask[0, y, x] = True
    return mask


@pytest.mark.parametrize("size", [(100, 100), (97, 130), (64, 96)])
def test_blocks_are_of_the_true_stride(size):
    x = torch.randn(1, 3, *size)
    model, rows = converted(strided(5), x)
    torch.manual_seed(0)
    mask = torch.rand(1, *size) < 0.02
    for layer in range(5):
        stride = 2 ** (layer + 1)
        assert str(rows[str(layer)].mapping).startswith(f"stride {stride}x{stride}, offset 0x0, grid ")
        assert torch.equal(active_outputs(model, str(layer), x, mask=mask), blocks(mask, stride))
    last = active_outputs(model, "4", x, mask=single(size, 31, 31))
    assert last.nonzero().tolist() == [[0, 0, 0]]


def test_windows_of_strided_layers():
    """A pixel that changes, changes all outputs whose windows read it."""
    x = torch.randn(1, 3, 100, 100)
    model, _ = converted(strided(5), x)
    found = active_outputs(model, "4", x, mask=single((100, 100), 31, 31), windows=True)
    assert found.nonzero()[:, 1:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    net = strided(3, channels=4).double()
    y, x0 = 17, 40
    x = torch.randn(1, 3, 61, 83).double()
    changed = x.clone()
    changed[:, :, y, x0] += 1
    model, _ = converted(net.float(), x.float())
    with torch.no_grad():
        differs = (net.double()(x) != net.double()(changed)).any(1)
    assert torch.equal(
        active_outputs(model.float(), "2", x.float(), mask=single((61, 83), y, x0), windows=True), differs
    )


def test_image_sizes_at_stride_64():
    x = torch.randn(1, 3, 720, 1280)
    model, rows = converted(strided(6, channels=1), x)
    mask = torch.zeros(1, 720, 1280, dtype=torch.bool)
    mask[0, 640:704, 64:128] = True
    assert active_outputs(model, "5", x, mask=mask).nonzero().tolist() == [[0, 10, 1]]
    assert rows["5"].mapping.calls[0].extents == ((12, 20),)


def test_labels_do_not_follow_the_default_device():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1)

        def forward(self, x, gate):
            return self.second(self.first(x) * gate)

    model, x, gate = Gated(), torch.randn(1, 3, 8, 8), torch.randn(1, 4, 4, 4)
    expected = [repr(row) for row in converted(model, x, gate)[1].values()]
    with torch.device("meta"):
        assert [repr(row) for row in converted(model, x, gate)[1].values()] == expected


def test_batch_norms_of_every_device_are_followed():
    """PyTorch has an operator for each library that normalizes."""
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space != "aten" or "batch_norm" not in rest or re.search("backward|elemt|stats|out$", rest):
            continue
        name, _, overload = rest.partition(".")
        schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
        assert str(schema.returns[0].type) != "Tensor" or name in tracing.STAY, name


def test_unpadded_windows():
    """As squeezenet, inception and MTCNN have them."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, 2))
    x = torch.randn(1, 3, 67, 59)
    model, rows = converted(net, x)
    mask = torch.rand(1, 67, 59, generator=torch.Generator().manual_seed(1)) < 0.03
    for name, stride, offset in (("0", 2, 0.5), ("2", 4, 1.5), ("3", 4, 5.5), ("4", 8, 7.5)):
        grid = rows[name].mapping.calls[0].extents[0]
        stands = f"stride {stride}x{stride}, offset {offset}x{offset}, grid {grid[0]}x{grid[1]}"
        assert str(rows[name].mapping) == stands
        found = active_outputs(model, name, x, mask=mask)
        assert torch.equal(found, blocks(mask, stride, offset, grid))


@pytest.mark.parametrize(
    "make, stride",
    [
        (lambda: nn.Conv2d(3, 4, 4, 4), 4),
        (lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 4, 3, 2)), 2),
        (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 4, 3, 2)), 2),
        (lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 1)), 2),
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 1, 2), nn.PixelShuffle(2), nn.Conv2d(4, 4, 3, 1, 1)), 1),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 4, 2, 1)), 1),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1)), 1),
        (lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(3, 4, 3, 4, 1)), 2),
        (lambda: nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(3, 4, 3, 1, 1, dilation=1)), 2),
    ],
)
def test_layers_that_change_the_resolution(make, stride):
    x = torch.randn(1, 3, 24, 40)
    net = nn.Sequential(make(), nn.Conv2d(4, 4, 1))
    model, rows = converted(net, x)
    mask = torch.rand(1, 24, 40, generator=torch.Generator().manual_seed(2)) < 0.1
    assert str(rows["1"].mapping) == f"stride {stride}x{stride}, offset 0x0, grid {24 // stride}x{40 // stride}"
    assert torch.equal(active_outputs(model, "1", x, mask=mask), blocks(mask, stride))


class Pyramid(nn.Module):
    """Features of a lower resolution are added to those of a higher one, whatever their sizes."""

    def __init__(self):
        super().__init__()
        self.high, self.low = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.head = nn.Conv2d(4, 4, 3, 1, 1)

    def forward(self, x):
        high = self.high(x)
        low = self.low(high)
        return self.head(low), self.head(high + F.interpolate(low, size=high.shape[-2:], mode="nearest"))


def test_shared_layers_and_sizes_of_other_features():
    x = torch.randn(1, 3, 50, 34)
    model, rows = converted(Pyramid(), x)
    assert str(rows["head"].mapping) == "stride 4x4, offset 0x0, grid 13x9; stride 2x2, offset 0x0, grid 25x17"
    mask = single((50, 34), 49, 3)
    with torch.no_grad(), distile.mask(mask):
        low, high = model(x)
    assert low[:, 0].nonzero().tolist() == [[0, 12, 0]] and high[:, 0].nonzero().tolist() == [[0, 24, 1]]


class Patches(nn.Module):
    """Patches as tokens, with others before and behind, and with text of another input."""

    def __init__(self, before=1, after=2):
        super().__init__()
        self.embed, self.text = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8)
        self.before, self.after = (nn.Parameter(torch.randn(1, count, 8)) for count in (before, after))
        self.layer, self.joint, self.scores = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, image, text):
        tokens = self.embed(image).flatten(2).transpose(1, 2)
        count = image.shape[0]
        tokens = torch.cat([self.before.expand(count, -1, -1), tokens, self.after.expand(count, -1, -1)], 1)
        tokens, text = self.layer(tokens), self.text(text)
        tokens = self.joint(torch.cat([text, tokens], 1))
        return self.scores(tokens.mean(1)), tokens


@pytest.mark.parametrize("text_tokens", [24, 26])
def test_tokens_of_patches_text_and_extra_tokens(text_tokens):
    """24 text tokens are as many as there are patches, and get no mask of the image."""
    image, text = torch.randn(1, 3, 16, 24), torch.randn(1, text_tokens, 8)
    model, rows = converted(Patches(), image, text)
    assert str(rows["layer"].mapping) == "stride 4x4, offset 0x0, grid 4x6, tokens 1+24+2"
    assert str(rows["joint"].mapping) == f"stride 4x4, offset 0x0, grid 4x6, tokens {text_tokens + 1}+24+2"
    assert isinstance(rows["text"], Left) and rows["text"].reason == "it sees another input than the image"
    assert isinstance(rows["scores"], Left)
    mask = torch.rand(3, 16, 24, generator=torch.Generator().manual_seed(3)) < 0.05
    images, texts = torch.randn(3, 3, 16, 24), torch.randn(3, text_tokens, 8)
    cells = blocks(mask, 4).flatten(1)
    found = active_outputs(model, "layer", images, texts, mask=mask)
    assert torch.equal(found, F.pad(F.pad(cells, (1, 0), value=True), (0, 2), value=True))
    found = active_outputs(model, "joint", images, texts, mask=mask)
    assert torch.equal(found, F.pad(F.pad(cells, (text_tokens + 1, 0), value=True), (0, 2), value=True))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.tokens, self.back = nn.Conv2d(3, 6, 4, 4), nn.Linear(24, 10), nn.Linear(10, 24)
        self.channels = nn.Linear(6, 6)

    def forward(self, x):
        x = self.embed(x).flatten(2)
        x = x + self.back(self.tokens(x))
        return self.channels(x.transpose(1, 2))


def test_layers_that_mix_tokens_stay():
    model, rows = converted(Mixer(), torch.randn(1, 3, 16, 24))
    for name in ("tokens", "back"):
        assert rows[name].reason == "each of its outputs sees all pixels"
    assert str(rows["channels"].mapping) == "stride 4x4, offset 0x0, grid 4x6, tokens 0+24+0"


class TalkingHeads(nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.embed, self.heads, self.out = nn.Conv2d(3, 8, 4, 4), nn.Linear(heads, heads), nn.Linear(8, 8)
        self.number = heads

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        parts = x.unflatten(2, (self.number, -1)).transpose(1, 2)
        scores = (parts @ parts.transpose(-1, -2)).permute(0, 2, 3, 1)
        scores = self.heads(scores).permute(0, 3, 1, 2).softmax(-1)
        return self.out((scores @ parts).transpose(1, 2).flatten(2))


def test_maps_of_attention_stay():
    model, rows = converted(TalkingHeads(), torch.randn(1, 3, 16, 24))
    assert rows["heads"].reason == "a pixel stands in several of its outputs"
    assert str(rows["out"].mapping) == "stride 4x4, offset 0x0, grid 4x6, tokens 0+24+0"


class Windows(nn.Module):
    """Attention in shifted windows, as Swin has it: windows are a batch."""

    def __init__(self, window=4, shift=2):
        super().__init__()
        self.window, self.shift = window, shift
        self.embed, self.qkv, self.proj = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 24), nn.Linear(8, 8)
        self.merge = nn.Linear(32, 8)

    def forward(self, x):
        x = torch.roll(self.embed(x).permute(0, 2, 3, 1), (-self.shift, -self.shift), (1, 2))
        batch, height, width, channels = x.shape
        size = self.window
        x = x.view(batch, height // size, size, width // size, size, channels).transpose(2, 3)
        x = x.reshape(-1, size * size, channels)
        query, key, value = self.qkv(x).chunk(3, -1)
        x = self.proj(F.scaled_dot_product_attention(query, key, value))
        x = x.view(batch, height // size, width // size, size, size, channels).transpose(2, 3)
        x = x.reshape(batch, height, width, channels)
        x = torch.roll(x, (self.shift, self.shift), (1, 2))
        return self.merge(torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1))


def test_windows_get_their_part_of_the_mask():
    net, x = Windows(), torch.randn(1, 3, 16, 32)
    model, rows = converted(net, x)
    assert str(rows["qkv"].mapping) == "stride 2x2, offset 0x0, grid 8x16, 8 windows"
    assert str(rows["merge"].mapping) == "stride 4x4, offset 0x0, grid 4x8"
    mask = torch.rand(2, 16, 32, generator=torch.Generator().manual_seed(4)) < 0.1
    images = torch.randn(2, 3, 16, 32)
    cells = torch.roll(blocks(mask, 2), (-2, -2), (1, 2))
    expected = cells.view(2, 2, 4, 4, 4).transpose(2, 3).reshape(16, 16)
    for name in ("qkv", "proj"):
        assert torch.equal(active_outputs(model, name, images, mask=mask), expected)
    assert torch.equal(active_outputs(model, "merge", images, mask=mask), blocks(mask, 4))
    with torch.no_grad(), distile.mask(mask[:, :8, :16]), pytest.raises(ValueError, match="no output of it"):
        model(images[:, :, :8, :16])


class Merging(nn.Module):
    """Tokens of four neighbours as one, as Swin has it, with zeros beside an odd grid; and every second of those."""

    def __init__(self):
        super().__init__()
        self.embed, self.merge, self.thin = nn.Conv2d(3, 8, 4, 4), nn.Linear(32, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.embed(x).permute(0, 2, 3, 1)
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        x = self.merge(x)
        return self.thin(x[:, ::2, ::2].flatten(1, 2))


@pytest.mark.parametrize("size", [(28, 28), (32, 64), (20, 48)])
def test_merged_and_thinned_tokens_are_larger_cells(size):
    x = torch.randn(1, 3, *size)
    model, rows = converted(Merging(), x)
    assert rows["merge"].mapping.calls[0].grids[0].stride == (8, 8)
    assert rows["thin"].mapping.calls[0].grids[0].stride == (16, 16)
    mask = torch.rand(1, *size, generator=torch.Generator().manual_seed(4)) < 0.02
    assert torch.equal(active_outputs(model, "merge", x, mask=mask), blocks(mask, 8))
    assert torch.equal(active_outputs(model, "thin", x, mask=mask), blocks(mask, 16).flatten(1))


@torch.no_grad()
def test_other_sizes_and_batches_than_the_example():
    net = models.settled(models.ResNet())
    model, _ = converted(net, torch.randn(1, 3, 64, 64))
    for size in ((50, 70), (33, 97)):
        x, mask = torch.randn(3, 3, *size), torch.rand(1, *size) < 0.05
        with distile.mask(torch.ones(1, *size, dtype=torch.bool)):
            torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-4)
        one = active_outputs(model, "layer2.0.conv1", x, mask=mask)
        assert torch.equal(one, blocks(mask, 8, extents=one.shape[1:]).expand(3, -1, -1))


@torch.no_grad()
def test_a_mask_of_lower_resolution_says_its_stride():
    x = torch.randn(1, 3, 32, 48)
    model, _ = converted(strided(3), x)
    mask = torch.rand(1, 8, 12, generator=torch.Generator().manual_seed(5)) < 0.3
    with distile.mask(mask), pytest.raises(ValueError, match=r"image of \(8, 12\).*distile.mask\(m, stride=...\)"):
        model(x)
    whole = mask.repeat_interleave(4, 1).repeat_interleave(4, 2)
    for layer in ("0", "1", "2"):
        expected = active_outputs(model, layer, x, mask=whole)
        assert torch.equal(active_outputs(model, layer, x, mask=mask, stride=4), expected)


@torch.no_grad()
def test_without_an_example_the_first_masked_call_is_one():
    net = strided(2).eval()
    x, mask = torch.randn(2, 3, 21, 30), torch.rand(2, 21, 30) < 0.1
    model = pickle.loads(pickle.dumps(distile.convert(copy.deepcopy(net), fuse=False)))
    torch.testing.assert_close(model(x), net(x))
    assert str(model[0].mapping) == "unknown without an example"
    assert torch.equal(active_outputs(model, "1", x, mask=mask), blocks(mask, 4))
    assert not model._forward_pre_hooks


@torch.no_grad()
def test_layers_that_nobody_placed():
    layer = MaskedConv2d(3, 4, 3, 2, 1)
    x, mask = torch.randn(1, 3, 16, 16), torch.ones(1, 16, 16, dtype=torch.bool)
    with distile.mask(mask), pytest.raises(ValueError, match="Nothing says where"):
        layer(x)
    assert distile.trace(layer, x) is layer
    with distile.mask(mask):
        assert layer(x).count_nonzero()
    tokens = MaskedLinear(8, 8)
    with distile.mask(mask), pytest.raises(ValueError, match="Nothing says where"):
        tokens(torch.randn(1, 256, 8))  # As many tokens as pixels, but of a text maybe.
    with distile.mask(mask.flatten(1)):
        tokens(torch.randn(1, 256, 8))


@torch.no_grad()
def test_rules_that_name_the_grid():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    rules = [("0", distile.tokens("mask", grid=(4, 6), before=1, after=2)), (nn.Module, False)]
    rows: list = []
    model = distile.convert(net, rules, report=rows)
    assert str(rows[0].mapping) == "grid 4x6, tokens 1+24+2"
    mask, x = torch.rand(2, 16, 24) < 0.1, torch.randn(2, 27, 8)
    expected = F.pad(blocks(mask, 4).flatten(1), (1, 2), value=True)
    assert torch.equal(active_outputs(model, "0", x, mask=mask), expected)
    with distile.mask(mask), pytest.raises(ValueError, match=r"grid 4x6, tokens 1\+24\+2; that is no output of \(26,\)"):
        model(x[:, 1:])
    with distile.mask(mask[:, 1:]), pytest.raises(ValueError, match="say the stride too"):
        model(x)
    image = distile.convert(nn.Conv2d(3, 4, 3, 4), [("*", distile.image(stride=4, offset=1))])
    mask = torch.rand(2, 18, 23) < 0.1
    found = active_outputs(image, "", torch.randn(2, 3, 18, 23), mask=mask)
    assert torch.equal(found, blocks(mask, 4, 1, found.shape[1:]))
    with pytest.raises(ValueError, match="stride or the grid"):
        distile.image()


@torch.no_grad()
def test_a_mask_of_tokens():
    layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True)
    rows: list = []
    model = distile.convert(layer.eval(), report=rows, example=torch.randn(1, 9, 24))
    assert not [row for row in rows if isinstance(row, Left)]
    mask = torch.rand(2, 9) < 0.5
    for name in ("self_attn", "linear1", "norm2"):
        assert torch.equal(active_outputs(model, name, torch.randn(2, 9, 24), mask=mask), mask)


@torch.no_grad()
def test_masks_written_inside_a_context():
    x = torch.randn(1, 3, 16, 16)
    model, _ = converted(strided(2), x)
    mask = single((16, 16), 0, 0)
    with distile.mask(mask):
        for y in (0, 9):
            mask.zero_()
            mask[0, y, y] = True
            result = model(x)
            assert result[0, 0].nonzero().tolist() == [[y // 4, y // 4]]
    with torch.inference_mode():  # No version tells of a write: all layers see what the mask was.
        mask = single((16, 16), 0, 0)
        with distile.mask(mask) as shared:
            mask[0, 0, 0], mask[0, 9, 9] = False, True
            for cells in (shared.at(16, 16), shared.at(4, 4)):
                assert cells.nonzero().tolist() == [[0, 0, 0]]


@torch.no_grad()
def test_shapes_and_types_of_masks():
    layer, x = MaskedConv2d(3, 4, 1), torch.randn(2, 3, 4, 5)
    mask = torch.rand(1, 4, 5) < 0.5
    with distile.mask(mask):
        assert torch.equal(layer(x), layer(x, mask.expand(2, -1, -1)))
    assert torch.equal(layer(x, mask), layer(x, mask.expand(2, -1, -1)))
    for wrong in (torch.ones(1, 3, 4, 5, dtype=torch.bool), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(ValueError, match="batch by mask.*mask.any"):
            distile.mask(wrong)
    grey = torch.linspace(0, 1, 20).view(1, 4, 5)
    grey[0, 0, 0] = torch.nan
    for call in (lambda: distile.mask(grey), lambda: layer(x, grey)):
        with pytest.raises(ValueError, match="mask > 0.5"):
            call()
    with distile.mask(grey, threshold=0.5) as shared:
        assert torch.equal(shared.at(4, 5), grey > 0.5)
    assert torch.equal(masks.SharedMask((grey * 255).nan_to_num().byte(), threshold=127).mask, grey > 0.5)


def test_threads_have_no_mask_unless_they_get_one():
    mask, seen = torch.ones(1, 4, 4, dtype=torch.bool), []
    with distile.mask(mask):
        context = contextvars.copy_context()
        threads = [threading.Thread(target=lambda: seen.append(masks.is_set())),
                   threading.Thread(target=lambda: seen.append(context.run(masks.is_set)))]  # fmt: skip
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == [False, True]


def test_coroutines_keep_their_masks():
    def current():
        with masks.resolving() as found:
            masks.resolve(None, 1, 4, 4)
        return found[0]

    async def run(mask, steps):
        with distile.mask(mask):
            for _ in range(steps):
                assert current() is mask
                await asyncio.sleep(0)
            assert current() is mask

    async def both():
        pair = (torch.ones(1, 4, 4, dtype=torch.bool), torch.zeros(1, 4, 4, dtype=torch.bool))
        await asyncio.gather(run(pair[0], 2), run(pair[1], 4))

    asyncio.run(both())
    assert not masks.is_set()

    def generator(mask):
        with distile.mask(mask):
            yield

    first, second = (generator(torch.ones(1, 4, 4, dtype=torch.bool)) for _ in range(2))
    next(first), next(second)
    first.close()
    assert masks.is_set()
    second.close()
    assert not masks.is_set()


def test_a_context_is_entered_twice():
    context = distile.mask(torch.ones(1, 4, 4, dtype=torch.bool))
    with context:
        with context:
            pass
        assert masks.is_set()
    assert not masks.is_set()
    fixed = masks.fixed()
    with fixed, fixed:
        pass
    assert masks._fixed.value() is None


def test_cells_own_each_pixel_once():
    """Over grids of any layers, each pixel of a mask is in one cell, and cells in order."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        axis, extent = Axis(), int(generator.integers(9, 60))
        for _ in range(generator.integers(1, 4)):
            kernel, stride, padding = (int(generator.integers(*limits)) for limits in ((1, 6), (1, 4), (0, 3)))
            grown = axis.windowed(kernel, stride, 1, padding, padding, bool(generator.integers(2)))
            if generator.random() < 0.3:
                grown = axis.upsampled(int(generator.integers(2, 4)))
            if grown.extent(extent) < 1:
                break
            axis = grown
        cells = axis.extent(extent)
        spans = axis.spans(cells, Axis(), extent)
        assert spans[0][0] == 0 and spans[-1][1] == extent - 1
        if axis.stride >= 1 and axis.start >= 0 and (cells - 1) * axis.stride + axis.start < extent - 0.5:
            assert all(after[0] == before[1] + 1 for before, after in zip(spans, spans[1:]))
        wide = axis.spans(cells, Axis(), extent, windows=True)
        assert all(low <= high for low, high in (*spans, *wide))


def test_extents_are_those_of_pytorch():
    generator = np.random.default_rng(1)
    draw = lambda low, high: int(generator.integers(low, high))
    for _ in range(100):
        size = draw(8, 40)
        kernel, stride, dilation = draw(1, 5), draw(1, 4), draw(1, 3)
        padding, ceil = draw(0, kernel // 2 + 1), bool(draw(0, 2))
        if dilation * (kernel - 1) + 1 > size:
            continue
        x = torch.zeros(1, 1, size, size)
        pooled = F.max_pool2d(x, kernel, stride, padding, dilation, ceil)
        assert Axis().windowed(kernel, stride, dilation, padding, padding, ceil).extent(size) == pooled.shape[2]
        before, after = draw(0, 4), draw(0, 4)
        weight = torch.zeros(1, 1, kernel, kernel)
        ends = F.conv2d(F.pad(x, (before, after) * 2), weight, None, stride, 0, dilation)
        assert Axis().windowed(kernel, stride, dilation, before, after).extent(size) == ends.shape[2]
        more = draw(0, max(stride, dilation))
        full = F.conv_transpose2d(x, weight, None, stride, padding, more, 1, dilation)
        assert Axis().transposed(kernel, stride, dilation, padding, padding, more).extent(size) == full.shape[2]


def test_labels_merge():
    positions = Positions(1, 4, 6)
    cells = positions.whole()
    assert (positions.merged(cells, np.full_like(cells, -1)) == cells).all()
    assert (positions.merged(np.full_like(cells, -3), cells) == cells).all()
    assert (positions.merged(cells, np.roll(cells, 1, 2)) == -3).all()
    assert (positions.merged(np.full((), -1), np.full((), -3)) == -3).all()
    assert positions.grid_of(cells) == Grid() and positions.grid_of(np.roll(cells, 1, 1)) == -3



@torch.no_grad()
@pytest.mark.parametrize("net", [models.ResNet, lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.MaxPool2d(3, 2))])
def test_compiled_models_take_masks_at_their_strides(net):
    x = torch.randn(2, 3, 40, 33)
    model = distile.convert(net().eval(), example=x)

    def run(x, mask):
        with distile.mask(mask):
            return model(x)

    inside, outside = (torch.compile(call, fullgraph=True, backend="aot_eager") for call in (run, model))
    for density in (0.1, 0.4):
        mask = torch.rand(2, 40, 33) < density
        expected = run(x, mask)
        torch.testing.assert_close(inside(x, mask), expected)
        with distile.mask(mask):
            torch.testing.assert_close(outside(x), expected)
    torch.testing.assert_close(outside(x), model(x))


def test_attention_by_products_with_a_class_token():
    """Its row of scores is of all pixels; the others keep their places."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Parameter(torch.randn(1, 1, 8))
            self.embed, self.out = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.embed(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
            return self.out((x @ x.transpose(1, 2)).softmax(-1) @ x)

    _, rows = converted(Attention(), torch.randn(2, 3, 32, 32))
    assert str(rows["out"].mapping) == "stride 8x8, offset 0x0, grid 4x4, tokens 1+16+0"


@torch.no_grad()
def test_a_trace_follows_layers_with_masks_of_their_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([
                MaskedConv2d(3, 4, 3, 2, 1), distile.nn.MaskedMaxPool2d(2), distile.nn.MaskedUpsampleConv2d(4, 4, 3, padding=1),
                distile.nn.MaskedConvTranspose2d(4, 4, 2, 2), distile.nn.MaskedUpsample(2), distile.nn.MaskedActivation("silu"),
            ])  # fmt: skip
            self.last = nn.ModuleList(MaskedConv2d(4, 4, 1) for _ in self.layers)

        def forward(self, x):
            for layer, last in zip(self.layers, self.last):
                with distile.mask(None):
                    size = layer(x).shape[2:]
                x = layer(x, torch.ones(len(x), *size, dtype=torch.bool))
                last(x)
            return x

    net = distile.trace(Own(), torch.randn(1, 3, 16, 24))
    strides = [str(last.mapping).split(",")[0] for last in net.last]
    assert strides == [f"stride {one}x{one}" for one in (2, 4, 2, 1, 0.5, 0.5)]


ACTIVATIONS = [
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign,
    nn.Tanh, nn.Tanhshrink,
]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layers_behind_an_activation_keep_their_place(activation):
    """PyTorch's versions differ in which of them say that they work element by element."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), activation(), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(1, 3, 8, 12)
    masked, _ = converted(model, x)
    with distile.mask(torch.zeros(1, 8, 12, dtype=torch.bool)):
        assert not masked(x).any()
