"""Stages in the place of layers (distile.fuse): what they compute, against the layers; which layers they take, and what
ends them; and files of stages."""

import copy
import json
import shutil
import subprocess
import sys

import models
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import distile
from distile import _library, masks
from distile import nn as masked
from distile import stage_fusing, stage_measuring, stage_module
from distile.nn import MaskedConv2d, MaskUnit
from distile.stage_description import Combined, Convolution, Layer, Reader, Scores, Stage, Window, read_stage
from distile.stage_module import DENSE, INTEGERS, LAYERS, STAGE, FusedStage
from distile.stage_steps import Fused, NotFused

pytestmark = pytest.mark.filterwarnings("ignore:distile")
SIZES = [(2, 64, 48), (1, 50, 71), (3, 33, 40)]


def image(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def drawn(shape, density):
    return torch.rand(shape) < density


def stages_of(model):
    return [module for module in model.modules() if isinstance(module, FusedStage)]


@pytest.fixture
def strict(monkeypatch, device):
    """Stages run together, or fail; on a GPU, where these tests' channels have none, layers may run."""
    if device == "cpu":
        init = FusedStage.__init__

        def patched(self, *arguments):
            init(self, *arguments)
            self.way = STAGE

        monkeypatch.setattr(FusedStage, "__init__", patched)


@pytest.fixture
def counted(monkeypatch):
    """How often the layers of stages ran in their place."""
    found = []
    replace = stage_fusing._layers_of

    def counting(*arguments):
        layers = replace(*arguments)
        layers.register_forward_pre_hook(lambda *_: found.append(1))
        return layers

    monkeypatch.setattr(stage_fusing, "_layers_of", counting)
    return found


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# ---- Converted networks


@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("density", [0, 0.1, 0.6, 1])
def test_a_residual_network_is_one_stage(density, strict, counted):
    torch.manual_seed(0)
    x = image(2, 3, 64, 48)
    model = distile.convert(models.settled(models.ResNet(width=16)), example=x)
    expected, rows = copy.deepcopy(model), []
    fused = distile.fuse(model, x, report=rows)
    (row,) = [row for row in rows if isinstance(row, Fused)]
    assert row.steps == 9 and row.layers[:2] == ["conv1", "maxpool"] and row.ends == "the model ends"
    assert rows == [row]
    assert fused.state_dict().keys() == expected.state_dict().keys()
    for n, height, width in SIZES:
        x, mask = image(n, 3, height, width), drawn((n, height, width), density)
        with distile.mask(mask):
            close(fused(x), expected(x))
    assert not counted


@torch.no_grad()
def test_layers_run_where_a_stage_cannot(counted):
    torch.manual_seed(1)
    x = image(2, 3, 32, 32)
    model = distile.convert(models.settled(models.ResNet()), example=x)
    expected = copy.deepcopy(model)
    fused = distile.fuse(model, x)
    mask = drawn((2, 32, 32), 0.3)
    close(fused(x), expected(x))  # Without a mask.
    assert len(counted) == 1
    with distile.mask(mask), torch.autocast(x.device.type, torch.bfloat16):
        close(fused(x), expected(x))
    assert len(counted) == 2
    with torch.enable_grad(), distile.mask(mask):
        fused(x).square().sum().backward()
        expected(x).square().sum().backward()
    assert len(counted) == 3
    for one, other in zip(fused.parameters(), expected.parameters()):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_without_stages_run_as_layers(dtype):
    torch.manual_seed(2)
    model = Residual("in place").eval()
    x, other, mask = image(2, 6, 9, 13), image(2, 6, 9, 13), drawn((2, 9, 13), 0.3)
    expected = copy.deepcopy(model).to(dtype)
    fused = distile.fuse(model, (x, mask, other)).to(dtype)
    assert len(stages_of(fused)) == 1
    a, b = (one(x.to(dtype), mask, other.to(dtype)) for one in (fused, expected))
    torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_what_no_stage_takes_is_beside_it(strict):
    """A bottleneck has groups, which end nothing that does not read them."""
    torch.manual_seed(3)
    x = image(1, 3, 32, 40)
    model = distile.convert(models.settled(models.ResNet(models.Bottleneck)), example=x)
    expected, rows = copy.deepcopy(model), []
    fused = distile.fuse(model, x, report=rows)
    reasons = {row.name: row.reason for row in rows if isinstance(row, NotFused)}
    assert reasons["layer1.0.conv2"] == "it has 2 groups"
    with distile.mask(drawn((1, 32, 40), 0.4)):
        close(fused(x), expected(x))


class InvertedResidual(nn.Module):
    """A block of MobileNetV2 with a mask unit."""

    def __init__(self, channels, wide):
        super().__init__()
        self.unit = MaskUnit(channels, threshold=0.1)
        self.expand = MaskedConv2d(channels, wide, 1, activation="relu6")
        self.depthwise = MaskedConv2d(wide, wide, 3, padding=1, groups=wide, activation="relu6")
        self.project = MaskedConv2d(wide, channels, 1)

    def forward(self, x):
        mask = self.unit(x)
        filtered = self.depthwise(self.expand(x, masks.dilate(mask, 1)), mask)
        return self.project(filtered, mask, residual=x, out=x.clone())


class Hourglass(nn.Module):
    """Blocks at two sizes, joined as functions or as layers do it."""

    def __init__(self, layers, channels=12, wide=24):
        super().__init__()
        self.before, self.inner, self.side, self.last = (InvertedResidual(channels, wide) for _ in range(4))
        self.pools = nn.ModuleList((nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.AvgPool2d(3, 1, 1)) if layers else ())

    def forward(self, x):
        x = self.before(x)
        if self.pools:
            down, up, mean = self.pools
            larger = up(self.inner(down(x)))
            return self.last(mean(torch.relu(self.side(x) + larger)))
        larger = F.interpolate(self.inner(F.max_pool2d(x, 2)), scale_factor=2.0, mode="nearest")
        return self.last(F.relu(F.avg_pool2d(larger + self.side(x), 3, 1, 1) + x))


@torch.no_grad()
@pytest.mark.parametrize("layers", [(), (True,)])
def test_pooling_upsampling_and_sums_are_steps(layers, strict):
    torch.manual_seed(6)
    model, x, rows = Hourglass(bool(layers)).eval(), image(2, 12, 12, 18), []
    fused = distile.fuse(copy.deepcopy(model), x, report=rows)
    (row,) = rows
    assert row.steps == (16 + 4 if layers else 16 + 5)
    for one in (x, image(1, 12, 30, 40), -x):
        close(fused(one), model(one))


@torch.no_grad()
def test_pools_that_are_no_steps(strict):
    class Pooled(nn.Module):
        def __init__(self, pool):
            super().__init__()
            self.first, self.last, self.pool = InvertedResidual(12, 24), InvertedResidual(12, 24), pool

        def forward(self, x):
            return self.last(self.pool(self.first(x)))

    torch.manual_seed(8)
    pools = (nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, 1, 1, count_include_pad=False),
             nn.AvgPool2d(2, divisor_override=3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Upsample(size=(9, 9)),
             nn.Upsample(scale_factor=1.5))  # fmt: skip
    for pool in pools:
        model, x, rows = Pooled(pool).eval(), image(1, 12, 11, 14), []
        fused = distile.fuse(copy.deepcopy(model), x, report=rows)
        assert len(rows) == 2, pool
        close(fused(x), model(x))


class Stem(nn.Module):
    """A convolution, a max pool with padding, and a convolution, all of a mask. `negative`: what is pooled may be less
    than 0, and then zeros outside count. `shared`: a convolution reads zeros there, too."""

    def __init__(self, negative, shared, channels=8):
        super().__init__()
        self.first = masked.MaskedConv2d(channels, channels, 3, padding=1, activation="none" if negative else "relu")
        self.pool = masked.MaskedMaxPool2d(3, 2, padding=1)
        self.beside = masked.MaskedConv2d(channels, channels, 3, stride=2, padding=1) if shared else None
        self.last = masked.MaskedConv2d(channels, channels, 1)
        nn.init.constant_(self.first.bias, -2 if negative else 0)

    def forward(self, x, mask, half):
        y = self.first(x, mask)
        result = self.last(self.pool(y, half), half)
        return result if self.beside is None else result + self.beside(y, half)


@torch.no_grad()
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_max_pools_with_padding(negative, shared, strict, counted):
    torch.manual_seed(20)
    model, rows = Stem(negative, shared).eval(), []
    example = image(2, 8, 9, 14), drawn((2, 9, 14), 0.5), drawn((2, 5, 7), 0.5)
    fused = distile.fuse(copy.deepcopy(model), example, report=rows)
    assert [row.layers for row in rows] == [["first", "pool", "last", "beside"][: 3 + shared]]
    for n, height, width, density in ((2, 9, 14, 1), (1, 8, 9, 0.5), (3, 1, 1, 1)):
        given = image(n, 8, height, width), *(drawn((n, -(-height // s), -(-width // s)), density) for s in (1, 2))
        close(fused(*given), model(*given))
    assert not counted


@torch.no_grad()
def test_depthwise_layers_are_steps(strict):
    torch.manual_seed(5)
    blocks, x = nn.Sequential(*(InvertedResidual(24, 144) for _ in range(3))).eval(), image(2, 24, 13, 18)
    rows = []
    fused = distile.fuse(copy.deepcopy(blocks), x, report=rows)
    assert [(row.steps, len(row.layers)) for row in rows] == [(12, 12)]
    # The last is so large that blocks pass through caches in parts.
    for one in (x, image(1, 24, 30, 40), -x, image(2, 24, 70, 66)):
        close(fused(one), blocks(one))


@torch.no_grad()
def test_parts_of_what_cannot_be_traced(strict):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = models.ResNet(width=16)

        def forward(self, x):
            return self.inner(x) if x.sum() != 0.5 else x

    torch.manual_seed(4)
    x = image(1, 3, 32, 40)
    model = distile.convert(models.settled(Outer()), example=x)
    expected = copy.deepcopy(model)
    fused = distile.fuse(model, x)
    assert fused is model and len(stages_of(fused)) == 1
    with distile.mask(drawn((1, 32, 40), 0.4)):
        close(fused(x), expected(x))


@torch.no_grad()
def test_weights_that_change(strict):
    torch.manual_seed(5)
    x = image(1, 3, 32, 40)
    model = distile.convert(models.settled(models.ResNet()), example=x)
    expected = copy.deepcopy(model)
    fused = distile.fuse(model, x)
    mask = drawn((1, 32, 40), 0.4)
    for _ in range(2):
        with distile.mask(mask):
            close(fused(x), expected(x))
        for one in (fused, expected):
            one.layer1[0].conv2.weight.mul_(1.5)
            one.layer1[1].conv1.bias.data.add_(0.25)
    state = {name: torch.randn_like(value) / 10 for name, value in expected.state_dict().items()}
    fused.load_state_dict(state)
    expected.load_state_dict(state)
    with distile.mask(mask):
        close(fused(x), expected(x))
        twin = copy.deepcopy(fused)
        close(twin(x), expected(x))
        packed = torch.ops.distile._times_packed()
        for one in (fused, twin, fused, twin):
            close(one(x), expected(x))
        assert torch.ops.distile._times_packed() == packed


@torch.no_grad()
def test_training_mode(counted):
    """What eval mode leaves out is there again."""
    torch.manual_seed(18)

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = MaskedConv2d(4, 4, 3, padding=1), MaskedConv2d(4, 4, 1)
            self.drop = nn.Dropout(1.0)

        def forward(self, x, mask):
            return self.second(self.drop(self.first(x, mask)), mask)

    model, x, mask = Dropping().eval(), image(1, 4, 9, 8), drawn((1, 9, 8), 0.5)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    close(fused(x, mask), model(x, mask))
    assert not counted
    close(fused.train()(x, mask), model.train()(x, mask))
    assert len(counted) == 1
    close(fused.eval()(x, mask), model.eval()(x, mask))


@torch.no_grad()
def test_weights_from_before_the_conversion(strict):
    torch.manual_seed(17)
    first, second = (models.settled(models.ResNet()) for _ in range(2))
    state, x, mask = second.state_dict(), image(1, 3, 32, 40), drawn((1, 32, 40), 0.4)
    fused = distile.fuse(distile.convert(first, example=x), x)
    fused.load_state_dict(state)
    expected = distile.convert(second, example=x)
    with distile.mask(mask):
        close(fused(x), expected(x))
    close(fused(x), expected(x))


@torch.no_grad()
@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights(dtype, strict, counted):
    torch.manual_seed(16)
    x = image(1, 3, 32, 40)
    model = distile.convert(models.settled(models.ResNet(width=16)), example=x)
    distile.cast_weights(model, dtype)
    expected = copy.deepcopy(model)
    fused = distile.fuse(model, x)
    assert fused.layer1[0].conv1.weight.dtype == dtype
    with distile.mask(drawn((1, 32, 40), 0.4)):
        close(fused(x), expected(x))
    assert not counted


# ---- What models do beside layers


class Beside(nn.Module):
    """Two convolutions, and something else, by name."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.first, self.second = MaskedConv2d(8, 8, 1, activation="relu"), MaskedConv2d(8, 8, 3, padding=1)
        self.third = MaskedConv2d(8, 8, 1)
        self.same, self.act = nn.Identity(), nn.ReLU()
        self.register_buffer("factor", torch.ones(()), persistent=False)
        self.plain = torch.full((8, 1, 1), 0.5)
        if what == "hook of an identity":
            self.same.register_forward_hook(lambda module, given, result: result + 1)
        if what == "hook of an activation":
            self.act.register_forward_hook(lambda module, given, result: result - 1)

    def forward(self, x, mask):
        y = self.first(x, mask)
        z = self.second(y, mask)
        if self.what == "in place by position":
            before = z.relu_() if False else F.relu(z, True)
            return self.third(z + y, mask), before
        if self.what == "in place by name":
            before = F.relu(z, inplace=True)
            return self.third(z + y, mask), before
        if self.what == "operator that changes":
            other = torch.ops.aten.mul_(z, 2.0)
            return self.third(z + y, mask), other
        if self.what in ("changed later", "changed later in place"):
            again = F.relu(y, self.what == "changed later in place")  # The ReLU is in the layer already.
            z = self.third(z, mask)
            again.add_(1)
            return z, y, again
        if self.what == "both are read":
            return self.third(z, mask), y, torch.relu(y), self.same(y)
        if self.what == "copy as input":
            return self.third(z.clone(), mask), z
        if self.what == "copy as residual":
            return self.third(z, mask, z.clone()), z
        if self.what.startswith("hook"):
            return self.third(self.act(self.same(z)), mask), z
        if self.what == "constant that changes":
            counts = torch.zeros(8, 1, 1)
            counts.add_(1)
            return self.third(z, mask) * counts, y
        if self.what == "view of a constant that changes":
            counts = torch.zeros(8, 1, 1)
            counts[:4].add_(1)
            return self.third(z, mask) + counts, y
        if self.what == "buffer that changes":
            scaled = self.factor * 2
            return self.third(z, mask) * scaled, y
        return self.third(z + self.plain, mask), z * self.factor


BESIDE = ["in place by position", "in place by name", "operator that changes", "changed later", "changed later in place",
          "both are read", "copy as input", "copy as residual", "hook of an identity", "hook of an activation",
          "constant that changes", "view of a constant that changes", "buffer that changes", "tensors that are no state"]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("what", BESIDE)
def test_what_models_do_beside_layers(what, strict):
    torch.manual_seed(6)
    model = Beside(what).eval()
    x, mask = image(2, 8, 9, 7), drawn((2, 9, 7), 0.5)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    assert stages_of(fused) or "constant" in what
    assert fused.state_dict().keys() == model.state_dict().keys()
    for factor in (1.0, 3.0):
        for one in (fused, model):
            one.factor.fill_(factor)
        before = x.clone()
        for one, other in zip(fused(x, mask), model(x, mask)):
            close(one, other)
        assert torch.equal(x, before)


@torch.no_grad()
@pytest.mark.parametrize("layout", ["NCHW", "strided", "expanded", "one image", "no image"])
def test_inputs_as_they_lie_in_memory(layout, strict):
    """A stage gives what layers give, whose results share no memory with what is given."""
    torch.manual_seed(7)
    model = Beside("").eval()
    fused = distile.fuse(copy.deepcopy(model), (image(2, 8, 9, 7), drawn((2, 9, 7), 0.5)))
    x = {
        "NCHW": torch.randn(3, 8, 5, 6),
        "strided": torch.randn(3, 16, 10, 12)[:, ::2, ::2, 1::2],
        "expanded": torch.randn(1, 8, 5, 6).expand(3, -1, -1, -1),
        "one image": image(1, 8, 5, 6),
        "no image": image(0, 8, 5, 6),
    }[layout]
    mask = drawn((3, 2 * 5, 6), 0.5)[: x.shape[0], ::2]
    before = x.clone()
    for stage in stages_of(fused) if layout == "no image" else ():
        stage.way = -1  # Layers run then.
    for one, other in zip(fused(x, mask), model(x, mask)):
        close(one, other)
        assert one.stride() == other.stride() or one.numel() == 0
        one.zero_()
    assert torch.equal(x, before)


# ---- Masks that the model makes


class Dynamic(nn.Module):
    """Bottlenecks with mask units, as DynConv's: the first with a shortcut."""

    def __init__(self, shortcut=True, unit=True, inner=8, width=4):
        super().__init__()
        outer = 12 if shortcut else inner
        self.unit = MaskUnit(inner, threshold=0.1) if unit else None
        self.reduce = MaskedConv2d(inner, width, 1, activation="relu")
        self.middle = MaskedConv2d(width, width, 3, padding=1, activation="silu")
        self.expand = MaskedConv2d(width, outer, 1)
        self.shortcut = nn.Conv2d(inner, outer, 1) if shortcut else None
        self.next = MaskedConv2d(outer, 6, 3, 2, 1)

    def forward(self, x, mask=None):
        mask = mask if self.unit is None else self.unit(x)
        read = masks.needed_input(mask, x.shape[2:], kernel=3, padding=1)
        y = self.expand(self.middle(self.reduce(x, read), mask), mask)
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return F.relu(shortcut + y), mask


@torch.no_grad()
@pytest.mark.parametrize("shortcut", [False, True])
def test_mask_units(shortcut, strict, counted):
    torch.manual_seed(6)
    model = nn.Sequential(Dynamic(shortcut)).eval()[0]
    x = image(2, 8, 20, 33) if shortcut else image(2, 8, 20, 33).relu_()
    rows = []
    fused = distile.fuse(copy.deepcopy(model), x, report=rows)
    fused_names = [row.layers for row in rows if isinstance(row, Fused)]
    assert fused_names and {"unit", "reduce", "middle", "expand"} <= set(fused_names[0])
    for n, height, width in SIZES:
        x = image(n, 8, height, width)
        (a, mask), (b, due) = fused(x), model(x)
        assert torch.equal(mask, due) and 0 < mask.float().mean() < 1
        close(a, b)
    for one in (fused, model):
        one.unit.threshold = -0.3
    (a, mask), (b, due) = fused(x), model(x)
    assert torch.equal(mask, due)
    close(a, b)
    assert not counted


@torch.no_grad()
def test_masks_as_arguments(strict, counted):
    torch.manual_seed(7)
    model = Dynamic(unit=False).eval()
    x, mask = image(2, 8, 20, 33), drawn((2, 20, 33), 0.4)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    assert len(stages_of(fused)) == 1
    for n, height, width in SIZES:
        x, mask = image(n, 8, height, width), drawn((1, height, width), 0.3)
        close(fused(x, mask=mask)[0], model(x, mask.expand(n, -1, -1))[0])
        close(fused(x, mask.expand(n, -1, -1).to(torch.uint8))[0], model(x, mask.expand(n, -1, -1))[0])
    assert not counted


class Residual(nn.Module):
    """Sums and activations in several forms."""

    def __init__(self, form, activation="relu"):
        super().__init__()
        self.form, self.activation = form, activation
        self.first, self.second = MaskedConv2d(6, 6, 3, padding=1), MaskedConv2d(6, 6, 1)
        self.add = masked.MaskedAdd(activation)
        self.act = masked.MaskedActivation(activation)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, mask, other):
        y = self.first(x, mask)
        if self.form == "twice":
            return self.second(y, mask) + y, y
        if self.form == "in place":
            y = self.second(self.relu(y), mask)
            y += other
            return self.relu(y)
        if self.form == "relu between":
            y = F.relu(y)
            return F.relu(self.second(y, mask) + y)
        if self.form == "masked add":
            return self.add(self.second(self.act(y, mask), mask), other, mask)
        if self.form == "residual":
            return self.second(y, mask, residual=other)
        if self.form == "out":
            return self.second(y, mask, residual=other, out=other.clone())
        if self.form == "zero":
            return self.second(y, mask, out=other.clone(), zero=True)
        if self.form == "other mask":
            return F.relu(self.second(y, ~mask) + y)
        if self.form == "other in the middle":
            return self.second(torch.sigmoid(y), mask)
        if self.form == "sigmoid":
            return torch.sigmoid(self.second(y, mask))
        if self.form == "written later":
            y = self.second(y, mask)
            z = y + other
            y.mul_(2)
            return z, y
        if self.form == "changed outside":
            z = self.second(y, mask)
            other.mul_(2)
            return self.first(z, mask) + other
        if self.form == "by name":
            return F.relu(input=self.second(input=self.relu(input=y), mask=mask)) + other
        if self.form == "scaled":
            return torch.add(self.second(y, mask), other, alpha=2)
        if self.form == "to itself":
            y = self.second(y, mask)
            return y + y
        if self.form == "one image":
            return self.second(y, mask) + other[:1]
        return self.second(y, mask) + y.mean((2, 3), keepdim=True)


FORMS = [
    "twice", "in place", "relu between", "masked add", "residual", "out", "zero", "other mask", "other in the middle",
    "sigmoid", "by name", "written later", "changed outside", "scaled", "to itself", "one image", "broadcast",
]  # fmt: skip


@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_sums(form, strict):
    torch.manual_seed(8)
    model = Residual(form).eval()

    def inputs(n, height, width, density):
        return image(n, 6, height, width), drawn((n, height, width), density), image(n, 6, height, width)

    fused = distile.fuse(copy.deepcopy(model), inputs(2, 9, 13, 0.5))
    assert stages_of(fused) or form in ("other in the middle", "by name")
    for density in (0, 0.4, 1):
        for shape in ((2, 9, 13), (1, 5, 34), (3, 8, 8)):
            given = inputs(*shape, density)
            theirs = tuple(one.clone() for one in given)
            a, b = fused(*given), model(*theirs)
            for one, other in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,)):
                close(one, other)
            for one, other in zip(given, theirs):
                assert torch.equal(one, other)


@pytest.mark.cpu
@torch.no_grad()
def test_images_of_other_shapes_than_the_example(counted):
    """What broadcasts in a later call runs as layers."""
    torch.manual_seed(9)
    model = Residual("residual-add").eval()
    model.form = "in place"
    given = image(1, 6, 9, 13), drawn((1, 9, 13), 0.5), image(1, 6, 9, 13)
    fused = distile.fuse(copy.deepcopy(model), given)
    x, mask = image(3, 6, 9, 13), drawn((3, 9, 13), 0.5)
    close(fused(x, mask, given[2]), model(x, mask, given[2]))
    assert len(counted) == 1


# ---- PyTorch's compilers


@pytest.fixture(autouse=True)
def compiled_anew():
    torch.compiler.reset()


def network():
    torch.manual_seed(10)
    x = image(2, 3, 32, 24)
    model = distile.convert(models.settled(models.ResNet()), example=x)
    return distile.fuse(model, x), x


class Given(nn.Module):
    """A network that takes its mask as an argument."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, mask):
        with distile.mask(mask):
            return self.inner(x)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend, strict):
    inner, x = network()
    model = Given(inner)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for n in (2, 1):
        x, mask = image(n, 3, 32, 24), drawn((n, 32, 24), 0.3)
        close(compiled(x, mask), model(x, mask))


@torch.no_grad()
def test_compile_with_any_sizes(strict):
    inner, x = network()
    model = Given(inner)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for n, height, width in SIZES:
        x, mask = image(n, 3, height, width), drawn((n, height, width), 0.3)
        close(compiled(x, mask), model(x, mask))


def stage_calls(program):
    operators = (torch.ops.distile.stage.default, torch.ops.distile.stage_inference.default)
    return [node for node in program.graph.nodes if node.target in operators]


@torch.no_grad()
@pytest.mark.parametrize("strictly", [False, True])
def test_export(strictly, tmp_path, strict):
    inner, x = network()
    model = Given(inner)
    mask = drawn((2, 32, 24), 0.3)
    program = torch.export.export(model, (x, mask), strict=strictly)
    assert len(stage_calls(program)) == 1
    torch.export.save(program, tmp_path / "stage.pt2")
    loaded = torch.export.load(tmp_path / "stage.pt2").module()
    for density in (0.2, 0.8):
        x, mask = image(2, 3, 32, 24), drawn((2, 32, 24), density)
        close(loaded(x, mask), model(x, mask))


@torch.no_grad()
def test_export_of_mask_units(strict):
    model = Dynamic().eval()
    x = image(2, 8, 20, 33)
    fused = distile.fuse(copy.deepcopy(model), x)
    dynamic = {"x": {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}, "mask": None}
    program = torch.export.export(fused, (x,), dynamic_shapes={"x": dynamic["x"]})
    assert len(stage_calls(program)) == 1
    for n, height, width in SIZES:
        x = image(n, 8, height, width)
        for one, other in zip(program.module()(x), model(x)):
            close(one, other)


@pytest.mark.cpu
@pytest.mark.skipif(not shutil.which("c++"), reason="AOTInductor needs a compiler")
@torch.no_grad()
def test_programs_without_python(tmp_path):
    """A package compiled ahead, which a process that has the library alone runs."""
    inner, x = network()
    model, mask = Given(inner), drawn((2, 32, 24), 0.3)
    program = torch.export.export(model, (x, mask))
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "network.pt2"))
    torch.save((x, mask), tmp_path / "inputs.pt")
    code = f"""
import torch
torch.ops.load_library({str(_library.FOLDER / "distile_torch.so")!r})
with torch.no_grad():
    found = torch._inductor.aoti_load_package("network.pt2")(*torch.load("inputs.pt"))
torch.save(found, "found.pt")
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    close(torch.load(tmp_path / "found.pt"), model(x, mask))


@torch.no_grad()
def test_make_fx(strict):
    inner, x = network()
    model = Given(inner)
    mask = drawn((2, 32, 24), 0.3)
    traced = make_fx(model)(x, mask)
    assert len(stage_calls(traced)) == 1
    close(traced(x, mask), model(x, mask))


# ---- Choice


@torch.no_grad()
def test_measured_ways(monkeypatch, device):
    """Calls measure once, and take the way that is the fastest at the density of their masks."""
    inner, x = network()
    expected, (found,) = copy.deepcopy(inner), stages_of(inner)
    found.measures = (0.1, 0.5, 1.0)
    taken, run = [], FusedStage.run

    def noted(*arguments, **keywords):
        taken.append(keywords)
        return run(*arguments, **keywords)

    monkeypatch.setattr(FusedStage, "run", staticmethod(noted))
    mask = drawn((2, 32, 24), 0.3)
    for _ in range(2):
        with distile.mask(mask):
            close(expected(x), inner(x))
    assert found.measures == () and len(found.times) == 12 and found.times[::4] == [0.1, 0.5, 1.0]
    assert taken[-1]["times"] == found.times
    assert taken[-1]["way"] == (-1 if device == "cpu" else found.way)


@torch.no_grad()
def test_units_are_measured(counted):
    torch.manual_seed(15)
    model = Dynamic().eval()
    x = image(2, 8, 20, 33)
    fused = distile.fuse(copy.deepcopy(model), x, measure=(0.2, 0.8))
    for _ in range(3):
        for one, other in zip(fused(x), model(x)):
            close(one, other)
    assert len(stages_of(fused)[0].times) == 8 and not counted


def test_the_fastest_way():
    rows = [[0.1, 1.0, 2.0, 9.0], [0.5, 5.0, 3.0, 9.0], [1.0, 12.0, 10.0, 9.0]]
    due = {0.0: STAGE, 0.1: STAGE, 0.2: STAGE, 0.4: LAYERS, 0.8: LAYERS, 0.95: DENSE, 1.0: DENSE}
    for density, way in due.items():
        assert stage_measuring.fastest(rows, density) == way, density
    mask = stage_measuring.blob((2, 20, 30), 0.3, "cpu")
    assert mask.dtype == torch.bool and abs(mask.float().mean() - 0.3) < 0.01
    assert stage_measuring.blob((1, 1, 1), 0.3, "cpu").all()


@pytest.mark.cpu
def test_the_library_chooses_as_python(monkeypatch):
    """Ways differ in the order of their sums."""
    tensors, given, parameters, keywords = everything()
    rows = [[0.1, 1.0, 2.0, 9.0], [0.5, 5.0, 3.0, 9.0], [1.0, 12.0, 10.0, 9.0]]
    times = [number for row in rows for number in row]
    exact = {way: torch.ops.distile.stage(tensors, given, parameters, **keywords, way=way)[0] for way in (0, 1, 2)}
    for density in (0.05, 0.3, 0.45, 0.9, 1.0):
        mask = stage_measuring.blob((2, 8, 12), density, "cpu")
        way = stage_measuring.fastest(rows, stage_measuring.density_of([mask]))
        found = torch.ops.distile.stage(tensors, [mask], parameters, **keywords, times=times)
        due = torch.ops.distile.stage(tensors, [mask], parameters, **keywords, way=way)
        assert all(torch.equal(one, other) for one, other in zip(found, due)), density
    assert not torch.equal(exact[STAGE], exact[DENSE])


# ---- The operator


EVERYTHING = Stage(
    (("x", 8), ("z", 12)),
    ("m",),
    (
        Convolution("a", "x", 12, Window((1, 1)), "wa", "ba"),
        Scores("s", "x", "ws", (1, 1), 0.1, 0.05),
        Convolution("b", "x", 4, Window((1, 1)), "wb", mask="s", reader=Reader((3, 3), padding=(1, 1)), activation="relu"),
        Convolution("c", "b", 4, Window((3, 3), padding=(1, 1, 1, 1)), "wc", mask="s", activation="leaky_relu(0.2)"),
        Convolution("d", "c", 12, Window((1, 1)), "wd", "bd", "a", "a", "s", activation="relu"),
        Convolution("e", "d", 12, Window((3, 3), (1, 1), (2, 2), (2, 2, 2, 2)), "we", None, "z", "d", "m", None, "s", "silu"),
        Convolution("f", "e", 4, Window((2, 3), (2, 2), (1, 1), (1, 0, 0, 2)), "wf", "bf"),
        Scores("t", "e", "wt", (2, 2)),
        Combined("u", "pool", ("m",), (2, 2)),
        Combined("v", "and not", ("t", "u")),
        Convolution("g", "f", 4, Window((1, 1)), "wg", base="f", residual="f", mask="t"),
        Combined("w", "dilate", ("v",), (0, 1)),
        Combined("n", "not", ("w",)),
        Combined("o", "or", ("n", "v")),
        Combined("p", "and", ("o", "t")),
        Convolution("h", "g", 4, Window((1, 1)), "wg", base="f", mask="p"),
        Convolution("i", "e", 12, Window((3, 3), padding=(1, 1, 1, 1)), "wi", "ba", mask="s", activation="relu6", groups=12),
        Convolution("j", "i", 4, Window((1, 1)), "wj", mask="s"),
        Convolution("k", "e", 12, Window((1, 3), padding=(0, 0, 1, 1)), "wk", mask="s", groups=2),
        Convolution("l", "k", 4, Window((1, 1)), "wj", mask="m"),
        Layer("q", "e", "max_pool", Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), mask="t"),
        Layer("r", "q", "upsample", scale=(2, 2)),
        Layer("aa", "e", "average_pool", Window((3, 1), padding=(1, 1, 0, 0)), mask="s"),
        Layer("ab", "aa", "sum", other="e", activation="silu"),
        Convolution("ac", "ab", 4, Window((1, 1)), "wj", mask="m"),
        Convolution("ad", "r", 4, Window((1, 1)), "wj"),
    ),
    ("g", "j", "l", "ac", "ad", "q", "d", "s", "e", "h", "w", "p", "v", "o"),
)  # fmt: skip


def everything(n=2, height=8, width=12):
    """A stage with each kind of step, and its tensors, masks and parameters."""
    torch.manual_seed(11)
    shapes = {"wa": (12, 8, 1, 1), "ba": (12,), "ws": (8,), "wb": (4, 8, 1, 1), "wc": (4, 4, 3, 3), "wd": (12, 4, 1, 1),
              "bd": (12,), "we": (12, 12, 3, 3), "wf": (4, 12, 2, 3), "bf": (4,), "wt": (12,), "wg": (4, 4, 1, 1),
              "wi": (12, 1, 3, 3), "wj": (4, 12, 1, 1), "wk": (12, 6, 1, 3)}  # fmt: skip
    numbers = EVERYTHING.numbers()
    parameters = [torch.randn(shapes[name]) / 3 for name in numbers.parameters]
    tensors = [image(n, 8, height, width), image(n, 12, height, width)]
    return tensors, [drawn((n, height, width), 0.4)], parameters, keywords_of(EVERYTHING)


def keywords_of(stage):
    numbers = stage.numbers()
    return dict(
        steps=numbers.steps, numbers=numbers.numbers, activations=numbers.activations, outputs=numbers.outputs,
        places=[0] * len(stage.steps),
    )  # fmt: skip


def plain(stage, tensors, given, parameters):
    """What a stage computes, by plain PyTorch."""
    images = dict(zip((name for name, _ in stage.inputs), tensors))
    found = dict(zip(stage.masks, given))
    parameters = dict(zip(stage.numbers().parameters, parameters))
    for step in stage.steps:
        if isinstance(step, Combined):
            a, b = (*(found[name] for name in step.of), None)[:2]
            found[step.mask] = {
                "and": lambda: a & b, "or": lambda: a | b, "and not": lambda: a & ~b, "not": lambda: ~a,
                "dilate": lambda: distile.mask_algebra.dilate(a, *step.size),
                "pool": lambda: distile.mask_algebra.pool(a, *step.size),
            }[step.how]()  # fmt: skip
            continue
        if isinstance(step, Layer):
            x, window, mask = images[step.input], step.window, None if step.mask is None else found[step.mask]
            done = {
                "max_pool": lambda: F.max_pool2d(x, window.kernel, window.stride, window.padding[::2], window.dilation),
                "average_pool": lambda: F.avg_pool2d(x, window.kernel, window.stride, window.padding[::2]),
                "upsample": lambda: F.interpolate(x, scale_factor=tuple(map(float, step.scale)), mode="nearest"),
                "sum": lambda: distile.dense.ACTIVATIONS[step.activation](x + images[step.other]),
            }[step.how]()  # fmt: skip
            images[step.output] = done if mask is None else torch.where(mask[:, None], done, 0.0)
            continue
        if isinstance(step, Scores):
            scored = images[step.input][..., :: step.stride[0], :: step.stride[1]]
            numbers = dict(bias=step.bias, threshold=step.threshold)
            found[step.mask] = distile.layers.mask_scores(scored, parameters[step.weights], **numbers)
            continue
        window, mask = step.window, None if step.mask is None else found[step.mask]
        top, bottom, left, right = window.padding
        x = F.pad(images[step.input], (left, right, top, bottom))
        bias = None if step.bias is None else parameters[step.bias]
        result = F.conv2d(x, parameters[step.weights], bias, window.stride, 0, window.dilation, step.groups)
        result = result if step.residual is None else result + images[step.residual]
        done = distile.dense.ACTIVATIONS[step.activation](result)
        if step.later is not None:
            done = torch.where(found[step.later][:, None], result, done)
        if step.reader:
            mask = distile.mask_algebra.needed_input(mask, result.shape[2:], *map(list, (step.reader.kernel,)),
                stride=step.reader.stride, dilation=step.reader.dilation, padding=step.reader.padding)  # fmt: skip
        if mask is not None:
            base = torch.zeros(()) if step.base is None else images[step.base]
            done = torch.where(mask[:, None], done, base)
        images[step.output] = done
    return [images[name] if name in images else found[name] for name in stage.outputs]


@pytest.mark.cpu
@pytest.mark.parametrize("way", [STAGE, LAYERS, DENSE, -1])
@pytest.mark.parametrize("size", [(2, 8, 12), (1, 5, 40), (3, 16, 3)])
def test_each_kind_of_step(way, size):
    tensors, given, parameters, keywords = everything(*size)
    before = [one.clone() for one in tensors]
    due = plain(EVERYTHING, tensors, given, parameters)
    found = torch.ops.distile.stage(tensors, given, parameters, **keywords, way=way)
    for one, other in zip(found, due):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(before, tensors):
        assert torch.equal(one, other)


def test_gradients():
    tensors, given, parameters, keywords = everything()

    def gradients(compute):
        leaves = [[one.clone().requires_grad_() for one in list] for list in (tensors, parameters)]
        g, j, k, c, a, q, d, _, _, h, *_ = compute(leaves[0], given, leaves[1])
        loss = g.square().sum() + d.sin().sum() + h.sum() + j.square().sum() + k.sum() + c.sin().sum() + a.cos().sum() + q.sum()
        return torch.autograd.grad(loss, [*leaves[0], *leaves[1]], allow_unused=True)

    due = gradients(lambda *lists: plain(EVERYTHING, *lists))
    found = gradients(lambda *lists: torch.ops.distile.stage(*lists, **keywords))
    steps = gradients(lambda *lists: stage_module.stage(*lists, **keywords))
    for one, two, other in zip(found, steps, due):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(two, other, rtol=1e-3, atol=1e-3)


def test_export_with_gradients(strict):
    """A program that is exported where gradients are recorded has the stage, too, and its gradients."""
    inner, x = network()
    model, mask = Given(inner), drawn((2, 32, 24), 0.3)
    program = torch.export.export(model, (x, mask), strict=False)
    assert len(stage_calls(program)) == 1
    x.requires_grad_()
    for one in (model, program.module()):
        (gradient,) = torch.autograd.grad(one(x, mask).square().sum(), [x])
        if one is model:
            due = gradient
    torch.testing.assert_close(gradient, due, rtol=1e-3, atol=1e-4)


@pytest.mark.cpu
def test_inputs_of_other_strides():
    tensors, given, parameters, keywords = everything()
    due = plain(EVERYTHING, tensors, given, parameters)
    given_tensors = [one.contiguous() for one in tensors]
    for way in (STAGE, LAYERS, DENSE):
        found = torch.ops.distile.stage(given_tensors, given, parameters, **keywords, way=way)
        assert all(one.is_contiguous(memory_format=torch.channels_last) for one in found if one.dim() == 4)
    for one, other in zip(found, due):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
def test_empty_batches():
    tensors, given, parameters, keywords = everything(0)
    found = torch.ops.distile.stage(tensors, given, parameters, **keywords)
    sizes = [(0, 4, 4, 6), (0, 4, 8, 12), (0, 4, 8, 12), (0, 4, 8, 12), (0, 4, 8, 12), (0, 12, 4, 6), (0, 12, 8, 12), (0, 8, 12), (0, 12, 8, 12), (0, 4, 4, 6)] + [(0, 4, 6)] * 4
    assert [tuple(one.shape) for one in found] == sizes


@pytest.mark.cpu
def test_many_masks():
    """More than a session keeps."""
    torch.manual_seed(12)
    count = 40
    steps = [Convolution(f"y{i + 1}", f"y{i}", 4, Window((1, 1)), f"w{i}", mask=f"m{i}", base=f"y{i}", residual=f"y{i}")
             for i in range(count)]  # fmt: skip
    stage = Stage((("y0", 4),), tuple(f"m{i}" for i in range(count)), tuple(steps), (f"y{count}",))
    given = [drawn((2, 6, 7), 0.2) for _ in range(count)]
    tensors, parameters = [image(2, 4, 6, 7)], [torch.randn(4, 4, 1, 1) / 8 for _ in range(count)]
    (found,) = torch.ops.distile.stage(tensors, given, parameters, **keywords_of(stage), way=STAGE)
    torch.testing.assert_close(found, plain(stage, tensors, given, parameters)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "change, message",
    [
        (dict(steps=[0]), "a place for each step"),
        (dict(places=[]), "a place for each step"),
        (dict(way=3), "a way from -1 to 2"),
        (dict(times=[1.0]), "rows of 4"),
        (dict(activations="relu"), "not those of its steps"),
        (dict(outputs=[0]), "none of its steps makes"),
        (dict(outputs=[-1]), "none of its steps makes"),
        (dict(outputs=[99]), "none of its steps makes"),
        ({0: 7}, "kind 7"),
        ({1: 9}, "names the image 9"),
        ({1: -1}, "names the image -1"),
        ({2: 5}, "names the residual"),
        ({4: 1}, "names the mask 1"),
        ({6: 0}, "number of a window 0"),
        ({8: 1 << 40}, "out of range"),
        ({12: -1}, "padding -1"),
        ({24: 99}, "names the parameter 99"),
        ({3: 0}, "has a base and no mask"),
        ({26: 0}, "number of groups 0"),
        ({26: 5}, "5 groups, which do not divide"),
    ],
)
def test_wrong_numbers(change, message):
    tensors, given, parameters, keywords = everything()
    steps = list(keywords["steps"])
    for place, value in change.items():
        if isinstance(place, int):
            steps[place] = value
        else:
            keywords[place] = value
    if "steps" not in change:
        keywords["steps"] = steps
    with pytest.raises(RuntimeError, match=message):
        torch.ops.distile.stage(tensors, given, parameters, **keywords)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "place, value, message",
    [
        (1, 6, "names the algebra of masks 6"),
        (1, -1, "names the algebra of masks -1"),
        (4, 9, "names the mask 9"),
        (4, -1, "names the mask -1"),
        (5, 1, "names the mask of later pixels 1"),
        (2, 0, "names the residual 0"),
        (12, 0, "by a factor of 0"),
        (16, 1, "window 0|reader"),
        (24, 0, "names the parameter 0"),
        (12, 3, "two that have other sizes"),
    ],
)
def test_wrong_algebra(place, value, message):
    tensors, given, parameters, keywords = everything()
    at = next(at for at, step in enumerate(EVERYTHING.steps) if isinstance(step, Combined))
    steps = list(keywords["steps"])
    steps[INTEGERS * at + place] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.distile.stage(tensors, given, parameters, **{**keywords, "steps": steps})


@pytest.mark.cpu
@pytest.mark.parametrize(
    "how, place, value, message",
    [
        ("max_pool", 5, 4, "names the layer 4"),
        ("max_pool", 2, 0, "adds an image"),
        ("max_pool", 4, 99, "names the mask 99"),
        ("max_pool", 6, 0, "number of a window 2|window of no pixels"),
        ("max_pool", 12, 2, "padding of more than half|of one side"),
        ("max_pool", 13, 0, "of one side"),
        ("max_pool", 24, 0, "names the parameter 0"),
        ("upsample", 12, 0, "by a factor of 0"),
        ("sum", 2, -1, "is a sum and adds none"),
        ("sum", 2, 0, "another shape"),
    ],
)
def test_wrong_layers(how, place, value, message):
    tensors, given, parameters, keywords = everything()
    at = next(at for at, step in enumerate(EVERYTHING.steps) if isinstance(step, Layer) and step.how == how)
    steps = list(keywords["steps"])
    steps[INTEGERS * at + place] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.distile.stage(tensors, given, parameters, **{**keywords, "steps": steps})


@pytest.mark.cpu
@pytest.mark.parametrize("way", [-1, LAYERS])
@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda t, m, p: (t[:1] + [t[1].double()], m, p), "of one type"),
        (lambda t, m, p: (t[:1] + [t[1][0]], m, p), "adds tokens to an image"),
        (lambda t, m, p: (t[:1] + [t[1][0, 0]], m, p), r"images \[N, C, H, W\] or tokens \[N, T, C\]"),
        (lambda t, m, p: (t, [m[0][:, :7]], p), "but the output has the pixels"),
        (lambda t, m, p: (t, [m[0].float()], p), "of type bool"),
        (lambda t, m, p: (t, m, [p[0][:, :4], *p[1:]]), "reads 8 channels"),
        (lambda t, m, p: (t, m, [p[0], p[1][:3], *p[2:]]), "one element for each output channel"),
        (lambda t, m, p: (t, m, [*p[:2], p[2][:3], *p[3:]]), "one element for each channel"),
        (lambda t, m, p: ([t[0], t[1][..., :5]], m, p), "of another shape"),
    ],
)
def test_wrong_tensors(wrong, message, way):
    tensors, given, parameters, keywords = everything()
    with pytest.raises(RuntimeError, match=message):
        torch.ops.distile.stage(*wrong(tensors, given, parameters), **keywords, way=way)


# ---- Files


@torch.no_grad()
def test_files_run():
    tensors, given, parameters, _ = everything()
    named = dict(zip(EVERYTHING.numbers().parameters, parameters))
    stage = read_stage(EVERYTHING.json())
    found = distile.run_stage(stage, dict(zip("xz", tensors)), {"m": given[0]}, named)
    for one, other in zip(found.values(), plain(stage, tensors, given, parameters)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert tuple(found) == stage.outputs
    with pytest.raises(ValueError, match="takes the tensors x, z, and not x"):
        distile.run_stage(stage, {"x": tensors[0]}, {"m": given[0]}, named)
    with pytest.raises(ValueError, match=r"the image 'x' is \[N, 8, H, W\], and not \[2, 12"):
        distile.run_stage(stage, {"x": tensors[1], "z": tensors[1]}, {"m": given[0]}, named)


def test_files_hold_stages(tmp_path):
    for stage in (EVERYTHING, Stage((("x", 1),), (), (Convolution("y", "x", 1, Window((1, 1)), "w"),), ("y",))):
        path = tmp_path / "stage.json"
        path.write_text(stage.json())
        assert read_stage(path.read_text()) == stage


def changed(*keys, **values):
    """The file of a stage with something else at a place."""
    found = json.loads(EVERYTHING.json())
    place = found
    for key in keys:
        place = place[key]
    for key, value in values.items():
        if value is None:
            del place[key]
        else:
            place[key] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "a stage: it is no JSON object, but \\[\\]"),
        ("{}", "a stage: it has no 'distile_stage'"),
        ('{"distile_stage": 1, "distile_stage": 1}', "the key 'distile_stage' twice"),
        ("[" * 100000, "nested too deeply|no JSON"),
        (changed(distile_stage=2), "'distile_stage': 1, and this one has 2"),
        (changed(distile_stage=True), "and this one has true"),
        (changed(steps=None), "a stage: it has no 'steps'"),
        (changed(steps=[]), "has inputs and convolutions"),
        (changed(inputs=[]), "has inputs and convolutions"),
        (changed(more=1), "nobody knows its 'more'"),
        (changed("steps", 2, stray=1), "steps\\[2\\]: nobody knows its 'stray'"),
        (changed("steps", 0, kind="pool"), "steps\\[0\\].kind: there is no step 'pool'"),
        (changed("steps", 0, input="q"), "steps\\[0\\].input: no image before this step has the name 'q'"),
        (changed("steps", 0, input="d"), "steps\\[0\\].input: no image before this step"),
        (changed("steps", 0, input=3), "steps\\[0\\].input: it is no name, but 3"),
        (changed("steps", 0, channels=0), "steps\\[0\\].channels: it is no whole number from 1"),
        (changed("steps", 0, channels=1.0), "steps\\[0\\].channels: it is no whole number"),
        (changed("steps", 0, kernel=[1]), "steps\\[0\\].kernel: it is no list of 2"),
        (changed("steps", 0, kernel=[0, 1]), "steps\\[0\\].kernel\\[0\\]: it is no whole number from 1 to 32767"),
        (changed("steps", 0, groups=0), "steps\\[0\\].groups: it is no whole number from 1"),
        (changed("steps", 0, groups=3), "steps\\[0\\].groups: 3 do not divide 8 and 12 channels"),
        (changed("steps", 0, output="x"), "there are two of the name 'x'"),
        (changed("steps", 1, mask="m"), "there are two of the name 'm'"),
        (changed("steps", 1, bias="a"), "steps\\[1\\].bias: it is no number"),
        (changed("steps", 2, mask="t"), "steps\\[2\\].mask: no mask before this step has the name 't'"),
        (changed("steps", 2, mask=None), "steps\\[2\\].reader: it is there, but no mask"),
        (changed("steps", 2, activation="swish"), "steps\\[2\\].activation: there is no activation 'swish'"),
        (changed("steps", 3, activation="relu(1)"), "steps\\[3\\].activation"),
        (changed("steps", 4, residual="c"), "steps\\[4\\].residual: 'c' has 4 channels, and the output 12"),
        (changed("steps", 4, weights="wa"), "the parameter 'wa' has another shape"),
        (changed("steps", 2, "reader", padding=[1, 1, 1, 1]), "steps\\[2\\].reader.padding: it is no list of 2"),
        (changed("steps", 8, how="xor"), "steps\\[8\\].how: there is no 'xor'"),
        (changed("steps", 8, of=["m", "m"]), "steps\\[8\\].of: 'pool' takes 1 masks, and there are 2"),
        (changed("steps", 8, of=["v"]), "steps\\[8\\].of: no mask before this step has the name 'v'"),
        (changed("steps", 8, size=None), "steps\\[8\\].size: 'pool' has a factor of two numbers"),
        (changed("steps", 8, size=[0, 1]), "steps\\[8\\].size: 'pool' has a factor"),
        (changed("steps", 20, how="norm"), "steps\\[20\\].how: there is no 'norm'"),
        (changed("steps", 20, how="upsample"), "steps\\[20\\]: nobody knows its 'kernel'"),
        (changed("steps", 21, scale=None), "steps\\[21\\].scale: 'upsample' has scale"),
        (changed("steps", 21, scale=[0, 1]), "steps\\[21\\].scale\\[0\\]: it is no whole number from 1"),
        (changed("steps", 21, other="e"), "steps\\[21\\].other: 'upsample' has no other"),
        (changed("steps", 21, activation="relu"), "steps\\[21\\].activation: only a sum has one"),
        (changed("steps", 23, other="f"), "steps\\[23\\].other: 'f' has 4 channels, and the input 12"),
        (changed("steps", 23, activation="swish"), "steps\\[23\\].activation: there is no activation"),
        (changed("steps", 20, mask="none"), "steps\\[20\\].mask: no mask before"),
        (changed("steps", 9, size=[1, 1]), "steps\\[9\\].size: 'and not' has none"),
        (changed("steps", 8, size=[1, -1]), "steps\\[8\\].size\\[1\\]: it is no whole number from 0"),
        (changed(outputs=[]), "outputs: there are none"),
        (changed(outputs=["g", "g"]), "one is there twice"),
        (changed(outputs=["x"]), "no step makes 'x'"),
        (changed("inputs", 0, name=""), "inputs\\[0\\].name: it is no name"),
    ],
)
def test_wrong_files(text, message):
    with pytest.raises(ValueError, match=message):
        read_stage(text)


def test_wrong_models():
    model = Residual("twice")
    given = image(1, 6, 9, 13), drawn((1, 9, 13), 0.5), image(1, 6, 9, 13)
    with pytest.raises(ValueError, match="eval mode"):
        distile.fuse(model.train(), given)
    plain_model = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    with pytest.warns(UserWarning, match="found no stage"):
        assert distile.fuse(plain_model, image(1, 3, 4, 4)) is plain_model


# ---- Networks at random


class Drawn(nn.Module):
    """Calls that read what earlier ones made, drawn at random: convolutions, sums, activations, copies, mask units."""

    KINDS = ("conv", "conv", "depthwise", "mapped", "mapped", "dense", "sum", "sum", "relu", "relu", "in place", "relu_", "sigmoid",
             "identity", "out", "residual", "unit", "unit", "window", "masked add", "pool", "scale", "act", "dilate",
             "not", "and", "or", "dilated")  # fmt: skip

    MASKS = ("unit", "not", "and", "or", "dilated")

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(count):
            return int(torch.randint(count, (), generator=generator, device="cpu"))

        self.layers, self.program = nn.ModuleList(), []
        images, given = 2, 2
        for _ in range(14):
            kind = self.KINDS[draw(len(self.KINDS))]
            layer = {
                "conv": lambda: MaskedConv2d(4, 4, 3, padding=1, activation=("none", "relu", "silu")[draw(3)]),
                "depthwise": lambda: MaskedConv2d(4, 4, 3, padding=1, groups=4, activation=("none", "relu")[draw(2)]),
                "mapped": lambda: MaskedConv2d(4, 4, 1, activation=("none", "relu6")[draw(2)]),
                "out": lambda: MaskedConv2d(4, 4, 1, activation=("none", "relu")[draw(2)]),
                "residual": lambda: MaskedConv2d(4, 4, 1, activation=("none", "relu")[draw(2)]),
                "window": lambda: MaskedConv2d(4, 4, 1),
                "dilate": lambda: MaskedConv2d(4, 4, 1),
                "dense": lambda: nn.Conv2d(4, 4, 1),
                "relu": lambda: nn.ReLU(),
                "in place": lambda: nn.ReLU(inplace=True),
                "identity": lambda: nn.Identity(),
                "unit": lambda: MaskUnit(4, threshold=0.05),
                "masked add": lambda: masked.MaskedAdd(("none", "relu")[draw(2)]),
                "act": lambda: masked.MaskedActivation("relu"),
            }.get(kind, nn.Identity)()
            self.layers.append(layer)
            last = [images - 1, draw(images)]
            masks_of = (given - 1, draw(given))
            self.program.append((kind, last[draw(4) == 0], last[draw(2)], masks_of[draw(2)], draw(given), draw(2)))
            given += kind in self.MASKS
            images += kind not in self.MASKS
        self.returned = sorted({images - 1, draw(images), draw(images)})

    def forward(self, x, other, first, second):
        images, given = [x, other], [first, second]
        for layer, (kind, a, b, mask, second, flag) in zip(self.layers, self.program):
            x, y, mask, second = images[a], images[b], given[mask], given[second]
            if kind in ("conv", "depthwise", "mapped"):
                result = layer(x, mask)
            elif kind == "unit":
                given.append(layer(x))
                continue
            elif kind in self.MASKS:
                made = {"not": lambda: ~mask, "and": lambda: mask & second, "or": lambda: mask.logical_or(second),
                        "dilated": lambda: masks.dilate(mask, 1)}  # fmt: skip
                given.append(made[kind]())
                continue
            elif kind == "window":
                result = layer(x, masks.needed_input(mask, x.shape[2:], kernel=3, padding=1))
            elif kind == "dilate":
                result = layer(x, masks.dilate(mask, 1))
            elif kind == "out":
                result = layer(x, mask, out=y.clone())
            elif kind == "residual":
                result = layer(x, mask, y)
            elif kind == "sum":
                result = x + y
            elif kind == "masked add":
                result = layer(x, y, mask)
            elif kind == "act":
                result = layer(x, mask)
            elif kind == "relu_":
                result = x.relu_() if flag else F.relu(x)
            elif kind == "sigmoid":
                result = torch.sigmoid(x)
            elif kind == "pool":
                result = F.max_pool2d(x, 3, 1, 1)
            elif kind == "scale":
                result = x * 0.5
            else:
                result = layer(x)
            images.append(result)
        return [images[place] for place in self.returned], given[2:]


@torch.no_grad()
def test_networks_at_random(strict):
    """In-place changes included: all results, and what becomes of the inputs, are those of the layers."""
    found = 0
    for seed in range(80):
        torch.manual_seed(seed)
        model = Drawn(seed).eval()

        def inputs(n, height, width):
            return (image(n, 4, height, width), image(n, 4, height, width), drawn((n, height, width), 0.4),
                    drawn((n, height, width), 0.2 * (seed % 6)))  # fmt: skip

        fused = distile.fuse(copy.deepcopy(model), inputs(2, 7, 9))
        found += len(stages_of(fused))
        for size in ((2, 7, 9), (1, 6, 35)):
            given = inputs(*size)
            theirs = tuple(one.clone() for one in given)
            (a, mine), (b, due) = fused(*given), model(*theirs)
            for one, other in zip((*a, *given), (*b, *theirs)):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=lambda text: f"seed {seed}: {text}")
            for one, other in zip(mine, due):
                assert (one == other).float().mean() > 0.98, seed
    assert found > 40


# ---- GPUs that have stages


@pytest.fixture
def gpu(device):
    if device == "cpu" or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("stages need a GPU of compute capability 8.0")
    before = distile.set_math("tf32")
    yield
    distile.set_math(before)


def near(a, b):
    """Whether results of 16 bits or of TF32 are equal except for their rounding, layer by layer."""
    torch.testing.assert_close(a.float(), b.float(), rtol=3e-2, atol=3e-2)


def on_gpu(dtype=torch.float16, shortcut=True, unit=True):
    torch.manual_seed(13)
    model = Dynamic(shortcut, unit, 64, 64)
    if shortcut:
        model.expand, model.shortcut = MaskedConv2d(64, 96, 1), nn.Conv2d(64, 96, 1)
        model.next = nn.Identity()
    else:
        model.next = nn.Identity()
    return model.eval().to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shortcut", [False, True])
def test_stages_on_a_gpu(gpu, dtype, shortcut, counted):
    model = on_gpu(dtype, shortcut, unit=False)
    x, mask = image(2, 64, 20, 33).to(dtype).relu_(), drawn((2, 20, 33), 0.4)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    (found,) = stages_of(fused)
    for way in (STAGE, LAYERS, DENSE, -1):
        found.way = way
        for (n, height, width), density in (((2, 20, 33), 0), ((1, 14, 14), 1), ((3, 9, 40), 0.3), ((2, 31, 7), 0.6)):
            x, mask = image(n, 64, height, width).to(dtype).relu_(), drawn((n, height, width), density)
            near(fused(x, mask)[0], model(x, mask)[0])
            near(fused(x.contiguous(), mask)[0], model(x, mask)[0])
    assert not counted


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_max_pools_with_padding_on_a_gpu(gpu, dtype, negative, shared, counted):
    """Zeros outside do not count: minus infinity is there, or a layer pools beside the stage."""
    model = Stem(negative, shared, 64).eval().to(dtype)
    given = image(2, 64, 19, 33).to(dtype), drawn((2, 19, 33), 1), drawn((2, 10, 17), 0.6)
    fused = distile.fuse(copy.deepcopy(model), given)
    (found,) = stages_of(fused)
    for way in (STAGE, LAYERS, DENSE):
        found.way = way
        near(fused(*given), model(*given))
    assert not counted


@torch.no_grad()
def test_mask_units_on_a_gpu(gpu):
    model = on_gpu()
    x = image(2, 64, 20, 33).half()
    fused = distile.fuse(copy.deepcopy(model), x)
    (found,) = stages_of(fused)
    found.way = STAGE
    (a, mask), (b, due) = fused(x), model(x)
    assert (mask == due).float().mean() > 0.99 and 0 < mask.float().mean() < 1
    torch.testing.assert_close(a.float(), b.float(), rtol=3e-2, atol=3e-2) if torch.equal(mask, due) else None


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels", [(24, 72), (96, 576), (8, 16)])
def test_depthwise_layers_on_a_gpu(gpu, dtype, channels, counted):
    class Block(nn.Module):
        def __init__(self, narrow, wide, kernel, stride):
            super().__init__()
            padding = kernel // 2
            self.expand = MaskedConv2d(narrow, wide, 1, activation="relu6")
            self.depthwise = MaskedConv2d(wide, wide, kernel, stride, padding, groups=wide, activation="relu6")
            self.project = MaskedConv2d(wide, narrow, 1)

        def forward(self, x, mask, read):
            return self.project(self.depthwise(self.expand(x, read), mask), mask)

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(*channels, 3, 1), Block(*channels, 5, 1)

        def forward(self, x, mask, read):
            x = self.first(x, mask, read)
            return self.second(x, mask, read) + x

    torch.manual_seed(15)
    model = Blocks().eval().to(dtype)
    x, mask = image(2, channels[0], 13, 35).to(dtype), drawn((2, 13, 35), 0.3)
    fused = distile.fuse(copy.deepcopy(model), (x, mask, masks.dilate(mask, 2)))
    (found,) = stages_of(fused)
    for way in (STAGE, LAYERS, DENSE, -1):
        found.way = way
        for (n, height, width), density in (((2, 13, 35), 0.3), ((1, 8, 8), 1), ((3, 20, 21), 0), ((1, 40, 64), 0.6)):
            x, mask = image(n, channels[0], height, width).to(dtype), drawn((n, height, width), density)
            read = masks.dilate(mask, 2)
            near(fused(x, mask, read), model(x, mask, read))
    assert not counted


@torch.no_grad()
@pytest.mark.parametrize("layers", [(), (True,)])
def test_an_hourglass_on_a_gpu(gpu, layers, counted):
    torch.manual_seed(16)
    model = Hourglass(bool(layers), 24, 72).eval().half()
    fused = distile.fuse(copy.deepcopy(model), image(2, 24, 12, 18).half())
    (found,) = stages_of(fused)
    found.way = STAGE
    for shape in ((2, 24, 12, 18), (1, 24, 30, 40), (3, 24, 8, 8)):
        x = image(*shape).half()
        a, b = fused(x).float(), model(x).float()
        # A rounded score may be on the other side of the threshold.
        assert ((a - b).abs() <= 3e-2 + 3e-2 * b.abs()).float().mean() > 0.95
    assert not counted


@torch.no_grad()
def test_larger_masks_run_as_layers_on_a_gpu(gpu):
    model = on_gpu(unit=False)
    x, mask = image(1, 64, 33000, 2).half(), drawn((1, 33000, 2), 0.2)  # More words than a stage takes.
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    near(fused(x, mask)[0], model(x, mask)[0])
    stages_of(fused)[0].way = STAGE
    with pytest.raises(RuntimeError, match="no stage of these types and sizes"):
        fused(x, mask)


@torch.no_grad()
def test_a_graph_captures_stages(gpu):
    model = on_gpu(unit=False)
    x, mask = image(2, 64, 20, 33).half(), drawn((2, 20, 33), 0.4)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    stages_of(fused)[0].way = STAGE
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            fused(x, mask)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        result = fused(x, mask)[0]
    for density in (0.1, 0.7):
        x.copy_(torch.randn_like(x))
        mask.copy_(drawn(mask.shape, density))
        graph.replay()
        near(result, model(x, mask)[0])


@torch.no_grad()
def test_compiled_stages_on_a_gpu(gpu):
    model = on_gpu(unit=False)
    x, mask = image(2, 64, 20, 33).half(), drawn((2, 20, 33), 0.4)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    near(compiled(x, mask)[0], model(x, mask)[0])


@torch.no_grad()
def test_a_converted_network_on_a_gpu(gpu):
    torch.manual_seed(14)
    x = image(2, 3, 64, 48)
    model = distile.convert(models.settled(models.ResNet(width=64)), example=x).half()
    expected = copy.deepcopy(model)
    fused = distile.fuse(model, x.half())
    (found,) = stages_of(fused)
    found.way = STAGE
    for n, height, width in SIZES:
        x, mask = image(n, 3, height, width).half(), drawn((n, height, width), 0.3)
        with distile.mask(mask):
            near(fused(x), expected(x))
