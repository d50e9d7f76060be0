"""Layers of tokens in stages (distile.fuse): what they compute, against the layers; which layers they take, and what
ends them; and files of stages."""

import copy
import json
import math

import avit
import common
import models
import pytest
import runner
import torch
import torch.nn.functional as F
from test_fused_stages import close, counted, drawn, gpu, keywords_of, stage_calls, stages_of, strict  # noqa: F401
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import distile
from distile import nn as masked
from distile import masks, stage_module
from distile.stage_description import Attention, Combined, Convolution, Halt, Layer, Norm, Stage, Window, read_stage
from distile.stage_module import DENSE, LAYERS, STAGE
from distile.stage_steps import Fused, NotFused

pytestmark = pytest.mark.filterwarnings("ignore:distile")
POINT = Window((1, 1))


# ---- Networks


@torch.no_grad()
@pytest.mark.parametrize("timm", [True, False])
@pytest.mark.parametrize("density", [0, 0.1, 0.6, 1])
def test_a_transformer_is_one_stage(timm, density, strict, counted):  # noqa: F811
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 24)
    model = distile.convert(models.ViT(timm=timm).eval(), example=x)
    expected, rows = copy.deepcopy(model), []
    fused = distile.fuse(model, x, report=rows)
    (row,) = [row for row in rows if isinstance(row, Fused)]
    # A norm, three steps of attention, a norm and two linear layers for each block, and the last norm.
    assert row.steps == 15
    assert row.layers[:5] == [f"blocks.0.{name}" for name in ("norm1", "attn", "norm2", "fc1", "fc2")]
    assert fused.state_dict().keys() == expected.state_dict().keys()
    for n in (2, 1, 3):
        x, mask = torch.randn(n, 3, 16, 24), drawn((n, 16, 24), density)
        with distile.mask(mask):
            close(fused(x), expected(x))
    assert not counted


class Block(nn.Module):
    """A transformer's block, in one of several forms. Tokens that are not active are those of the input."""

    def __init__(self, form="", channels=24, heads=3):
        super().__init__()
        self.form = form
        norm = masked.MaskedRMSNorm if form == "rms" else masked.MaskedLayerNorm
        self.norm1, self.norm2 = norm(channels), norm(channels)
        self.attention = masked.MaskedAttention(channels, heads, qkv_bias=form != "no bias")
        self.up = masked.MaskedLinear(channels, 2 * channels, activation="none" if form == "module" else "gelu")
        self.act = nn.GELU() if form == "module" else nn.Identity()
        self.down = masked.MaskedLinear(2 * channels, channels)
        self.add = masked.MaskedAdd()
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.weight, 1, 0.2)
        if form == "plain norms":
            self.norm1.weight = self.norm1.bias = self.norm2.bias = None

    def forward(self, x, mask):
        y = self.norm1(x, mask)
        if self.form == "residuals":
            x = self.attention(y, mask, residual=x, out=x.clone())
            return self.down(self.up(self.norm2(x, mask), mask), mask, residual=x, out=x.clone())
        if self.form == "masked sums":
            x = self.add(x, self.attention(y, mask), mask)
            return self.add(x, self.down(self.up(self.norm2(x, mask), mask), mask), mask)
        x = x + self.attention(y, mask)
        return x + self.down(self.act(self.up(self.norm2(x, mask), mask)), mask)


FORMS = ["", "rms", "no bias", "module", "plain norms", "residuals", "masked sums"]


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_blocks(form, strict, counted):  # noqa: F811
    torch.manual_seed(1)
    model, rows = Block(form).eval(), []
    fused = distile.fuse(copy.deepcopy(model), (torch.randn(2, 9, 24), drawn((2, 9), 0.5)), report=rows)
    (row,) = rows
    assert row.layers[:5] == ["norm1", "attention", "norm2", "up", "down"] or form == "masked sums"
    for n, tokens, density in ((2, 9, 0.5), (1, 1, 1), (3, 70, 0.3), (1, 300, 0.9), (2, 9, 0)):
        x, mask = torch.randn(n, tokens, 24), drawn((n, tokens), density)
        before = x.clone()
        found, due = fused(x, mask), model(x, mask)
        close(found, due)
        assert found.is_contiguous() and torch.equal(x, before)
    assert not counted


class TwoKinds(nn.Module):
    """A convolution, and layers of tokens behind it, which norms of both take."""

    def __init__(self):
        super().__init__()
        self.norm = masked.MaskedLayerNorm2d(8)
        self.first, self.second = masked.MaskedConv2d(8, 12, 1), masked.MaskedConv2d(12, 8, 3, padding=1)
        self.block = Block(channels=8, heads=2)

    def forward(self, x, mask):
        y = self.second(self.first(self.norm(x, mask), mask), mask)
        return self.block(y.flatten(2).transpose(1, 2), mask.flatten(1))


@torch.no_grad()
def test_images_and_tokens(strict, counted):  # noqa: F811
    """A stage has images and tokens, but nothing that makes one of the other."""
    torch.manual_seed(2)
    model, rows = TwoKinds().eval(), []
    fused = distile.fuse(copy.deepcopy(model), (torch.randn(2, 8, 5, 7), drawn((2, 5, 7), 0.5)), report=rows)
    first, second = rows
    assert first.layers == ["norm", "first", "second"]
    assert first.ends == (
        "flatten makes tokens of its image: another chain begins with block.norm1"
    )
    assert second.layers[0] == "block.norm1" and second.ends == "the model ends"
    x, mask = torch.randn(1, 8, 6, 6), drawn((1, 6, 6), 0.4)
    close(fused(x, mask), model(x, mask))
    assert not counted


class Hybrid(nn.Module):
    """Convolutions, and a transformer's block of what they make, with a class token and positions."""

    def __init__(self, channels=24):
        super().__init__()
        self.first, self.second = masked.MaskedConv2d(8, 12, 1), masked.MaskedConv2d(12, channels, 2, stride=2)
        self.token, self.positions = (nn.Parameter(torch.randn(1, count, channels)) for count in (1, 13))
        self.drop = nn.Dropout(0.5)
        self.block = Block()

    def forward(self, x, mask, of_patches):
        x = self.second(self.first(x, mask), of_patches).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        rows = torch.cat([of_patches.new_ones(x.shape[0], 1), of_patches.flatten(1)], 1)
        return self.block(self.drop(x + self.positions), rows)


@torch.no_grad()
def test_a_chain_of_tokens_begins_behind_what_makes_them(strict, counted):  # noqa: F811
    torch.manual_seed(3)
    model, rows = Hybrid().eval(), []
    given = torch.randn(2, 8, 6, 8), drawn((2, 6, 8), 0.5), drawn((2, 3, 4), 0.5)
    fused = distile.fuse(copy.deepcopy(model), given, report=rows)
    first, second = rows
    assert first.layers == ["first", "second"]
    assert first.ends == "flatten makes tokens of its image: another chain begins with block.norm1"
    assert second.layers[0] == "block.norm1" and second.steps == 7
    close(fused(*given), model(*given))
    assert not counted


@torch.no_grad()
def test_layers_run_where_a_stage_cannot(counted):  # noqa: F811
    torch.manual_seed(3)
    model = Block().eval()
    x, mask = torch.randn(2, 9, 24), drawn((2, 9), 0.5)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    close(fused(x, None), model(x, None))
    assert len(counted) == 1
    with torch.enable_grad():
        fused(x, mask).square().sum().backward()
        model(x, mask).square().sum().backward()
    assert len(counted) == 2
    due = dict(model.named_parameters())
    for name, one in fused.named_parameters():
        torch.testing.assert_close(one.grad, due[name].grad, rtol=1e-3, atol=1e-4)
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (copy.deepcopy(one).to(dtype)(x.to(dtype), mask) for one in (fused, model))
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


class Refusals(nn.Module):
    def __init__(self):
        super().__init__()
        self.causal = masked.MaskedAttention(8, 2, causal=True)
        self.with_keys, self.hooked = masked.MaskedAttention(8, 2), masked.MaskedLinear(8, 8)
        self.weights = masked.MaskedMultiheadAttention(8, 2)
        self.of_images, self.alone = masked.MaskedLayerNorm2d(8), masked.MaskedLinear(8, 8)
        self.hooked.register_forward_hook(lambda *_: None)

    def forward(self, x, mask):
        y = self.causal(x, mask) + self.with_keys(x, mask, key_mask=mask) + self.hooked(x, mask)
        y = y + self.weights(x, x, x, mask=mask)[0]
        return y + self.alone(x.mean(1), mask[:, 0])[:, None]


def test_why_layers_are_in_no_stage():
    rows = []
    with pytest.warns(UserWarning, match="found no stage"):
        distile.fuse(Refusals().eval(), (torch.randn(2, 5, 8), drawn((2, 5), 0.5)), report=rows)
    reasons = {row.name: row.reason for row in rows if isinstance(row, NotFused)}
    assert reasons == {
        "causal": "it is causal",
        "with_keys": "it has a mask of its keys",
        "hooked": "it has hooks",
        "weights": "it is no self-attention, or returns its weights",
        "alone": "it reads what is neither an image [N, C, H, W] nor tokens [N, T, C]",
    }


# ---- Halts


class Halting(nn.Module):
    """Layers whose tokens halt behind each. `form` says how it differs from A-ViT."""

    def __init__(self, form="", channels=24, heads=3, tokens=9, layers=3):
        super().__init__()
        self.form = form
        self.layers = nn.ModuleList(Block("residuals", channels, heads) for _ in range(layers))
        self.register_buffer("factors", torch.randn(channels))
        self.register_buffer("limits", torch.rand(tokens))
        self.between = nn.Softmax(-1)
        self.last = masked.MaskedLayerNorm(channels)

    def halts(self, x, totals, mask, sums, number):
        more = {} if self.form == "no sums" else {"sums": sums}
        if self.form != "no limits" and number % 2 == 0:
            more["limits"] = self.limits
        bias = math.inf if self.form == "all halt" and number == 2 else -0.5 * number
        return masks.halt(x, self.factors, totals, mask, bias=bias, threshold=0.7, **more)

    def forward(self, x, mask):
        totals, sums = torch.zeros_like(x[..., 0], dtype=torch.float32), torch.zeros_like(x[:, :2])
        if self.form == "totals that begin":
            totals = totals.add(x[..., 0]).clone()
        going = None if self.form == "all at first" else mask
        found = []
        for number, layer in enumerate(self.layers):
            x = layer(x, mask)
            if self.form == "two chains" and number == 1:
                x = self.between(x)
            going = mask = self.halts(x, totals, going, sums, number)
            found.append(mask)
            if self.form == "totals are read" and number == 1:
                x = x + totals[..., None]
            if self.form == "a step reads sums" and number == 2:
                x = self.last(sums, mask[:, :2])
        return x, mask, totals, sums * 2, found[0], totals + 1


HALTING = ["", "no sums", "no limits", "all at first", "all halt", "totals that begin", "two chains", "totals are read",
           "a step reads sums"]  # fmt: skip


def same(found, due):
    assert len(found) == len(due)
    for one, other in zip(found, due):
        assert one.dtype == other.dtype
        close(one, other)


@torch.no_grad()
@pytest.mark.parametrize("form", HALTING)
def test_halts_are_steps(form, strict, counted):  # noqa: F811
    torch.manual_seed(7)
    model, rows = Halting(form).eval(), []
    fused = distile.fuse(copy.deepcopy(model), (torch.randn(2, 9, 24), drawn((2, 9), 0.5)), report=rows)
    stages = [row for row in rows if isinstance(row, Fused)]
    if form not in ("two chains", "totals are read"):
        # Each layer has a norm, three steps of attention, a norm, two linear layers, and a halt.
        assert [row.steps for row in stages] == [3 * 8] or form == "a step reads sums"
        assert stages[0].ends == "the model ends" or form == "a step reads sums"
    else:
        assert len(stages) == 2
    for n, density in ((2, 0.5), (1, 1), (3, 0.2), (2, 0)):
        x, mask = torch.randn(n, 9, 24), drawn((n, 9), density)
        before = x.clone(), mask.clone()
        found, due = fused(x, mask), model(x, mask)
        same(found, due)
        same(fused(x, mask), due)  # Nothing is kept from call to call.
        assert torch.equal(x, before[0]) and torch.equal(mask, before[1])
    assert not counted
    assert 0 < due[4].sum() or density == 0


def test_halts_with_gradients(counted):  # noqa: F811
    """A halt has no gradient, but layers before it do, in the stage's layers as in the model's."""
    torch.manual_seed(8)
    model = Halting("no sums").eval()
    x, mask = torch.randn(2, 9, 24), drawn((2, 9), 0.6)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    for one in (fused, model):
        for parameter in one.parameters():
            parameter.requires_grad_(False)
    same(fused(x, mask), model(x, mask))
    assert not counted
    same(fused.train()(x, mask), model(x, mask))
    assert len(counted) == 1


@torch.inference_mode()
@pytest.mark.parametrize("batch", [1, 3])
def test_avit_is_one_stage(batch, strict, device):  # noqa: F811
    with torch.inference_mode(False), torch.device("cpu"):
        network = avit.AViT("T", 0.5, batch=batch, layers=3, pixels=64)
        common.move(network, device, None if device == "cpu" else torch.half)
        network.fuses = True
        network.masked()
    (fused,) = network.halting
    (found,) = stages_of(fused)
    assert len(found.stage.steps) == 3 * 8
    result = network.masked()
    bound = network.bound if device == "cpu" else runner.BOUNDS["float16"]
    assert common.error(network, result, network.expected()) <= bound
    densities = network.densities()
    assert densities[0] == 1 and 0.02 < densities[-1] < densities[1] < 1


class Elsewhere(nn.Module):
    """Halts whose totals or sums others hold, too."""

    def __init__(self, form):
        super().__init__()
        self.form, self.layer = form, Block("residuals", 8, 2)
        self.register_buffer("factors", torch.ones(8))
        self.register_buffer("kept", torch.zeros(2, 5))

    def forward(self, x, mask, totals, sums):
        x = self.layer(x, mask)
        if self.form == "view":
            totals = totals.clone()
            view = totals[:, :2]
        elif self.form == "buffer":
            totals = self.kept
        elif self.form == "twice":
            sums = torch.zeros_like(sums)
        going = masks.halt(x, self.factors, totals, mask, sums=sums)
        if self.form == "reads between":
            x = x * sums
        going = masks.halt(x, self.factors, totals, going, sums=sums)
        x = self.layer(x, going)
        return (x, going, totals * 1, view * 1) if self.form == "view" else (x, going, totals * 1)


@torch.no_grad()
@pytest.mark.parametrize("form", ["argument", "view", "buffer", "twice", "reads between"])
def test_halts_of_what_others_hold(form, strict):  # noqa: F811
    torch.manual_seed(9)
    model = Elsewhere(form).eval()
    x, mask, totals, sums = torch.randn(2, 5, 8), drawn((2, 5), 0.7), torch.zeros(2, 5), torch.zeros(2, 1, 8)
    rows = []
    fused = distile.fuse(copy.deepcopy(model), (x, mask, totals.clone(), sums.clone()), report=rows)
    for one in (fused, model):
        one.kept.zero_()
    for _ in range(2):
        given = [[totals.clone(), sums.clone()] for _ in range(2)]
        same(fused(x, mask, *given[0]), model(x, mask, *given[1]))
        for one, other in zip(*given):
            close(one, other)
        close(fused.kept, model.kept)
    if form == "argument":
        first = next(row for row in rows if isinstance(row, Fused))
        assert "halt changes a tensor: its totals or sums are not the model's own" in first.ends


# ---- Programs


def example(form=""):
    torch.manual_seed(4)
    model = Block(form).eval()
    x, mask = torch.randn(2, 9, 24), drawn((2, 9), 0.5)
    return distile.fuse(copy.deepcopy(model), (x, mask)), model, x, mask


def halting_example():
    torch.manual_seed(10)
    model = Halting().eval()
    x, mask = torch.randn(2, 9, 24), drawn((2, 9), 0.7)
    return distile.fuse(copy.deepcopy(model), (x, mask)), model, x, mask


def has_times(found, device):
    """Whether each way was measured at each density. A GPU has no stage where nothing may multiply in TF32."""
    return max(time for i, time in enumerate(found.times) if i % 4 != 1 or device == "cpu") < 1e6


@torch.no_grad()
@pytest.mark.parametrize("way", ["aot_eager", "inductor", "export", "make_fx", "measure"])
def test_programs_with_halts(way, strict, device):  # noqa: F811
    fused, model, x, mask = halting_example()
    program = fused
    if way == "measure":
        (found,) = stages_of(fused)
        found.measures = (0.1, 0.5, 1.0)
        same(fused(x, mask), model(x, mask))
        assert found.measures == () and len(found.times) == 12 and has_times(found, device)
    elif way == "export":
        sizes = {0: torch.export.Dim.AUTO}
        program = torch.export.export(fused, (x, mask), dynamic_shapes={"x": sizes, "mask": sizes})
        assert len(stage_calls(program)) == 1
        program = program.module()
    elif way == "make_fx":
        program = make_fx(fused)(x, mask)
        assert len(stage_calls(program)) == 1
    else:
        program = torch.compile(fused, backend=way, fullgraph=True)
    for _ in range(2):
        same(program(x, mask), model(x, mask))


@torch.no_grad()
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend, strict):  # noqa: F811
    fused, model, x, mask = example()
    compiled = torch.compile(fused, backend=backend, fullgraph=True)
    for n in (2, 1):
        close(compiled(x[:n], mask[:n]), model(x[:n], mask[:n]))


@torch.no_grad()
def test_export_with_any_sizes(strict):  # noqa: F811
    fused, model, x, mask = example()
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(fused, (x, mask), dynamic_shapes={"x": sizes, "mask": sizes})
    assert len(stage_calls(program)) == 1
    for n, tokens in ((2, 9), (1, 40), (3, 2)):
        x, mask = torch.randn(n, tokens, 24), drawn((n, tokens), 0.5)
        close(program.module()(x, mask), model(x, mask))


@torch.no_grad()
def test_make_fx(strict):  # noqa: F811
    fused, model, x, mask = example()
    traced = make_fx(fused)(x, mask)
    assert len(stage_calls(traced)) == 1
    close(traced(x, mask), model(x, mask))


@torch.no_grad()
def test_measured_ways(counted, device):  # noqa: F811
    fused, model, x, mask = example()
    (found,) = stages_of(fused)
    found.measures = (0.1, 0.5, 1.0)
    for _ in range(2):
        close(fused(x, mask), model(x, mask))
    assert found.measures == () and len(found.times) == 12 and has_times(found, device) and not counted


# ---- The operator

EVERYTHING = Stage(
    (("x", 24), ("z", 16), ("i", 8)),
    ("m", "k", "of_i"),
    (
        Norm("a", "x", "layer_norm", "na", "nb", 1e-3, "m"),
        Convolution("b", "a", 48, POINT, "wb", "bb", mask="m"),
        Attention("c", "b", 4, mask="m"),
        Convolution("d", "c", 24, POINT, "wd", "bd", "x", "x", "m"),
        Norm("e", "d", "rms_norm", "ne"),
        Convolution("f", "e", 16, POINT, "wf", None, "z", "z", "m", activation="gelu"),
        Convolution("g", "f", 48, POINT, "wg", "bb"),
        Attention("h", "g", 2, 0.3, "k", True),
        Attention("j", "g", 1),
        Layer("l", "h", "sum", other="j", mask="k", activation="relu"),
        Combined("n", "and not", ("m", "k")),
        Norm("o", "l", "rms_norm", None, None, 0.5, "n"),
        Convolution("p", "l", 16, POINT, "wp", None, mask=None, later="k", activation="silu"),
        Convolution("q", "o", 16, POINT, "wp", "bp", "p", "p", "k", activation="silu"),
        Norm("r", "i", "layer_norm", "nr", "nr", 1e-5, "of_i"),
        Convolution("s", "r", 4, POINT, "ws", mask="of_i"),
    ),
    ("d", "e", "h", "j", "l", "o", "q", "s", "n"),
    ("x", "z"),
)


HALTS = Stage(
    (("x", 24), ("s", 24), ("t", 1)),
    ("m",),
    (
        Convolution("a", "x", 24, POINT, "wa", None, "x", "x", "m"),
        Halt("n", "a", "h", "u", -0.3, 0.6, ("m",), "l", None, "v", "s"),
        Halt("o", "x", "h", "w", 0.4, 0.9, (), None, "t"),
        Convolution("b", "a", 24, POINT, "wb", None, "a", "a", "n", activation="gelu"),
        Halt("p", "b", "g", "y", 0.1, 0.8, ("n",), None, "u", "z", "v"),
        Combined("q", "and not", ("n", "p")),
        Norm("c", "z", "layer_norm"),
        Convolution("d", "b", 8, POINT, "wd", mask="p"),
    ),
    ("b", "n", "w", "o", "y", "p", "z", "q", "c", "d"),
    ("x", "s"),
    ("t",),
)


HALTS_MASKS = ("n", "o", "p", "q")


def halting(n=2, tokens=9):
    torch.manual_seed(11)
    shapes = {"wa": (24, 24), "wb": (24, 24), "wd": (8, 24), "h": (24,), "g": (24,), "l": (tokens,)}
    parameters = [torch.randn(shapes[name]) / 4 for name in HALTS.numbers().parameters]
    tensors = [torch.randn(n, tokens, 24), torch.randn(n, min(tokens, 3), 24), torch.rand(n, tokens) / 2]
    return tensors, [drawn((n, tokens), 0.6)], parameters, keywords_of(HALTS)


def everything(n=2, tokens=9):
    torch.manual_seed(5)
    shapes = {"na": (24,), "nb": (24,), "wb": (48, 24), "bb": (48,), "wd": (24, 16), "bd": (24,), "ne": (24,),
              "wf": (16, 24), "wg": (48, 16), "wp": (16, 16), "bp": (16,), "nr": (8,), "ws": (4, 8, 1, 1)}  # fmt: skip
    parameters = [torch.randn(shapes[name]) / 2 for name in EVERYTHING.numbers().parameters]
    tensors = [torch.randn(n, tokens, 24), torch.randn(n, tokens, 16), torch.randn(n, 8, 3, 5)]
    given = [drawn((n, tokens), 0.5), drawn((n, tokens), 0.6), drawn((n, 3, 5), 0.5)]
    return tensors, given, parameters, keywords_of(EVERYTHING)


def plain(stage, tensors, given, parameters):
    """What a stage of these steps computes, by plain PyTorch, with the channels last."""
    images = {name: one if one.dim() < 4 else one.movedim(1, -1) for (name, _), one in zip(stage.inputs, tensors)}
    found = dict(zip(stage.masks, given))
    parameters = dict(zip(stage.numbers().parameters, parameters)) | {None: None}
    for step in stage.steps:
        if isinstance(step, Combined):
            found[step.mask] = found[step.of[0]] & ~found[step.of[1]]
            continue
        if isinstance(step, Halt):
            x, left = images[step.input], found[step.of[0]] if step.of else torch.ones(images[step.input].shape[:2]).bool()
            score = (x @ parameters[step.weights] + step.bias).sigmoid()
            score = score if step.limits is None else score.minimum(parameters[step.limits])
            before = torch.zeros_like(score) if step.before is None else images[step.before]
            after = torch.where(left, before + score, before)
            found[step.mask] = going = left & (after < step.threshold)
            images[step.totals] = after
            if step.sums is not None:
                part = torch.where(going, score, torch.where(left, 1 - before, 0.0))[:, : images[step.base].shape[1], None]
                images[step.sums] = images[step.base] + part * x[:, : part.shape[1]]
            continue
        x, mask, base = images[step.input], None if step.mask is None else found[step.mask], torch.zeros(())
        if isinstance(step, Norm):
            epsilon = torch.finfo(x.dtype).eps if step.epsilon is None else step.epsilon
            weights, bias = parameters[step.weights], parameters[step.bias]
            if step.how == "rms_norm":
                done = F.rms_norm(x, x.shape[-1:], weights, epsilon)
            else:
                done = F.layer_norm(x, x.shape[-1:], weights, bias, epsilon)
        elif isinstance(step, Attention):
            query, key, value = (part.unflatten(-1, (step.heads, -1)).transpose(1, 2) for part in x.chunk(3, -1))
            scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if step.scale is None else step.scale)
            if mask is not None and not step.all_keys:
                scores = scores.masked_fill(~mask[:, None, None], -1e30)
            done = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        elif isinstance(step, Layer):
            done = distile.dense.ACTIVATIONS[step.activation](x + images[step.other])
        else:
            result = F.linear(x, parameters[step.weights].flatten(1), parameters[step.bias])
            result = result if step.residual is None else result + images[step.residual]
            done = distile.dense.ACTIVATIONS[step.activation](result)
            if step.later is not None:
                done = torch.where(found[step.later][..., None], result, done)
            base = base if step.base is None else images[step.base]
        images[step.output] = done if mask is None else torch.where(mask[..., None], done, base)
    results = [(images | found)[name] for name in stage.outputs]
    return [one.movedim(-1, 1) if one.dim() == 4 else one for one in results]


def check_results(stage, found, due):
    for name, one, other in zip(stage.outputs, found, due):
        assert one.dtype == other.dtype and one.shape == other.shape, name
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.cpu
@pytest.mark.parametrize("way", [STAGE, LAYERS, DENSE, -1])
@pytest.mark.parametrize("size", [(2, 9), (1, 1), (3, 300), (1, 40)])
def test_each_kind_of_step(way, size):
    tensors, given, parameters, keywords = everything(*size)
    before = [one.clone() for one in tensors]
    due = plain(EVERYTHING, tensors, given, parameters)
    check_results(EVERYTHING, torch.ops.distile.stage(tensors, given, parameters, **keywords, way=way), due)
    for one, other in zip(before, tensors):
        assert torch.equal(one, other)


@pytest.mark.cpu
@pytest.mark.parametrize("way", [STAGE, LAYERS, DENSE, -1])
@pytest.mark.parametrize("size", [(2, 9), (1, 1), (3, 300), (1, 40)])
def test_halts_as_steps(way, size):
    tensors, given, parameters, keywords = halting(*size)
    before = [one.clone() for one in (*tensors, *given)]
    due = plain(HALTS, tensors, given, parameters)
    for _ in range(2):
        check_results(HALTS, torch.ops.distile.stage(tensors, given, parameters, **keywords, way=way), due)
    steps = stage_module.stage(tensors, given, parameters, **keywords)
    for one, other in zip(steps, due):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(one, other) for one, other in zip(before, (*tensors, *given)))


@pytest.mark.cpu
def test_halts_in_other_types():
    """Where no stage has a type, PyTorch's operators halt; totals stay float32, and tokens that went before are not
    read."""
    for dtype in (torch.float16, torch.bfloat16):
        tensors, given, parameters, keywords = halting()
        tensors[0][~given[0]] = math.nan
        lists = [one if one.dim() == 2 else one.to(dtype) for one in tensors], given, [one.to(dtype) for one in parameters]
        due = plain(HALTS, [one.float() for one in lists[0]], given, [one.float() for one in lists[2]])
        found = torch.ops.distile.stage(*lists, **keywords)
        for name, one, other in zip(HALTS.outputs, found, due):
            assert one.dtype == (torch.bool if name in HALTS_MASKS else torch.float32 if name in ("w", "y") else dtype)
            if name in ("w", "o"):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
            elif name in ("y", "z"):
                assert one.isfinite().all()


def refuse_number(made, place, value, message):
    """Checks that the operator refuses a stage whose step has another number; no place: as it is."""
    tensors, given, parameters, keywords = made
    steps = list(keywords["steps"])
    if place is not None:
        step, number = place
        steps[step * stage_module.INTEGERS + number] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.distile.stage(tensors, given, parameters, **(keywords | {"steps": steps}))


@pytest.mark.cpu
@pytest.mark.parametrize(
    "place, value, message",
    [
        ((1, 2), 2, "takes totals as an image, or an image as totals"),
        ((1, 3), 3, "takes totals as an image, or an image as totals"),
        ((3, 1), 2, "takes totals as an image, or an image as totals"),
        ((1, 4), 1, "names the mask 1"),
        ((1, 5), 0, "names the mask of later pixels 0"),
        ((1, 7), 3, "has a window other than 1 x 1"),
        ((1, 24), 0, "the weights of scores must have one element for each channel"),
        ((1, 25), 1, "the limits of a halt must have one element for each token"),
        (None, None, "has sums that are not those of its first tokens"),
        ((1, 0), 7, "has the kind 7"),
    ],
)
def test_wrong_numbers_of_halts(place, value, message):
    made = halting()
    if place is None:
        made[0][1] = torch.randn(2, 10, 24)
    refuse_number(made, place, value, message)


@pytest.mark.cpu
@pytest.mark.parametrize("make", [everything, halting])
def test_shapes_of_results(make):
    tensors, given, parameters, keywords = make()
    found = torch.ops.distile.stage(tensors, given, parameters, **keywords)
    with torch._subclasses.FakeTensorMode() as mode:
        lists = [[mode.from_tensor(one) for one in list] for list in (tensors, given, parameters)]
        faked = torch.ops.distile.stage(*lists, **keywords)
    for one, other in zip(found, faked):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    tensors, given, parameters, keywords = make(0)
    assert all(one.shape[0] == 0 for one in torch.ops.distile.stage(tensors, given, parameters, **keywords))


@pytest.mark.cpu
def test_gradients():
    tensors, given, parameters, keywords = everything()

    def gradients(compute):
        leaves = [[one.clone().requires_grad_() for one in list] for list in (tensors, parameters)]
        results = compute(leaves[0], given, leaves[1])
        loss = sum(one.sin().sum() for one in results if one.requires_grad)
        return torch.autograd.grad(loss, [*leaves[0], *leaves[1]])

    due = gradients(lambda *lists: plain(EVERYTHING, *lists))
    found = gradients(lambda *lists: torch.ops.distile.stage(*lists, **keywords))
    steps = gradients(lambda *lists: stage_module.stage(*lists, **keywords))
    for one, two, other in zip(found, steps, due):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(two, other, rtol=1e-3, atol=1e-3)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "place, value, message",
    [
        ((1, 7), 3, "images, and not tokens"),  # A kernel of 3 x 1.
        ((2, 26), 5, "has 5 heads, which do not divide a third of its 48 channels"),
        ((2, 26), 0, "number of heads 0"),
        ((2, 1), 2, "takes tokens, and not images"),
        ((2, 5), 2, "names the choice of keys 2"),
        ((0, 5), 2, "names the norm 2"),
        ((0, 8), 2, "window other than 1 x 1"),
        ((0, 4), 2, r"has a mask \[N, H, W\], and tokens"),
        ((14, 4), 0, r"has a mask \[N, T\], and an image"),
        ((3, 2), 2, "adds tokens to an image, or an image to tokens"),
        ((10, 5), 2, "makes a mask of one of tokens and one of an image"),
        ((0, 24), 2, "the weights of a norm must have one element for each channel"),
        ((4, 25), 1, "names the parameter 1"),
    ],
)
def test_wrong_numbers(place, value, message):
    refuse_number(everything(), place, value, message)


# ---- Files


def test_files_hold_stages():
    assert read_stage(EVERYTHING.json()) == EVERYTHING
    tensors, given, parameters, _ = everything()
    lists = zip(("x", "z", "i"), tensors), zip(EVERYTHING.masks, given), zip(EVERYTHING.numbers().parameters, parameters)
    found = distile.run_stage(read_stage(EVERYTHING.json()), *map(dict, lists))
    for one, other in zip(found.values(), plain(EVERYTHING, tensors, given, parameters)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"the image 'x' is \[N, T, 24\], and not \[2, 24, 9\]"):
        lists = ({"x": tensors[0].mT, "z": tensors[1], "i": tensors[2]}, dict(zip(EVERYTHING.masks, given)),
                 dict(zip(EVERYTHING.numbers().parameters, parameters)))  # fmt: skip
        distile.run_stage(EVERYTHING, *lists)


def test_files_hold_halts():
    assert read_stage(HALTS.json()) == HALTS
    tensors, given, parameters, _ = halting()
    lists = zip(("x", "s", "t"), tensors), zip(HALTS.masks, given), zip(HALTS.numbers().parameters, parameters)
    found = distile.run_stage(read_stage(HALTS.json()), *map(dict, lists))
    for one, other in zip(found.values(), plain(HALTS, tensors, given, parameters)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "keys, values, message",
    [
        (("inputs", 2), {"totals": 1}, "inputs\\[2\\].totals: it is neither true nor false, but 1"),
        (("inputs", 2), {"channels": 3}, "inputs\\[2\\]: nobody knows its 'channels'"),
        (("inputs", 0), {"totals": True}, "inputs\\[0\\]: nobody knows its"),
        (("steps", 1), {"before": "x"}, "steps\\[1\\].before: no totals before this step have the name 'x'"),
        (("steps", 1), {"input": "t"}, "steps\\[1\\].input: 't' are totals, which only halts take"),
        (("steps", 1), {"of": ["m", "m"]}, "steps\\[1\\].of: a halt takes one mask, and there are 2"),
        (("steps", 1), {"of": ["n"]}, "steps\\[1\\].of: no mask before this step has the name 'n'"),
        (("steps", 2), {"base": "s"}, "steps\\[2\\].sums: it has sums and no base, or a base and no sums"),
        (("steps", 3), {"input": "u"}, "steps\\[3\\].input: 'u' are totals"),
        (("steps", 4), {"totals": "u"}, "there are two of the name 'u'"),
        (("steps", 4), {"bias": "much"}, "steps\\[4\\].bias: it is no number"),
    ],
)
def test_wrong_files_of_halts(keys, values, message):
    with pytest.raises(ValueError, match=message):
        read_stage(changed(*keys, stage=HALTS, **values))


def changed(*keys, stage=EVERYTHING, **values):
    """The file with something else at a place."""
    found = json.loads(stage.json())
    place = found
    for key in keys:
        place = place[key]
    place.update(values)
    return json.dumps(found)


@pytest.mark.parametrize(
    "text, message",
    [
        (changed("inputs", 0, tokens=1), "inputs\\[0\\].tokens: it is neither true nor false, but 1"),
        (changed("inputs", 0, tokens=False), "steps\\[2\\].input: 'b' are no tokens"),
        (changed("steps", 0, how="batch_norm"), "steps\\[0\\].how: there is no 'batch_norm'"),
        (changed("steps", 0, epsilon=-1), "steps\\[0\\].epsilon: it is less than 0"),
        (changed("steps", 0, mask="q"), "steps\\[0\\].mask: no mask before this step has the name 'q'"),
        (changed("steps", 4, bias="bd"), "steps\\[4\\].bias: an RMS norm has none"),
        (changed("steps", 0, weights="bb"), "steps\\[1\\]: the parameter 'bb' has another shape"),
        (changed("steps", 1, kernel=[3, 1]), "steps\\[1\\]: of tokens, a convolution has a window of 1 x 1"),
        (changed("steps", 2, heads=5), "steps\\[2\\].heads: 5 heads do not divide a third of 48 channels"),
        (changed("steps", 2, scale=0), "steps\\[2\\].scale: it is not above 0"),
        (changed("steps", 2, all_keys="all"), "steps\\[2\\].all_keys: it is neither true nor false"),
        (changed("steps", 3, residual="i"), "steps\\[3\\].residual: 'i' has 8 channels, and the output 24"),
        (changed("steps", 9, other="x"), "steps\\[9\\].other: 'x' has 24 channels, and the input 16"),
    ],
)
def test_wrong_files(text, message):
    with pytest.raises(ValueError, match=message):
        read_stage(text)


# ---- GPUs


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["", "rms", "residuals"])
def test_stages_on_a_gpu(gpu, dtype, form, counted):  # noqa: F811
    torch.manual_seed(6)
    model = Block(form, 64, 2).eval().to(dtype)
    x, mask = torch.randn(2, 40, 64, dtype=dtype), drawn((2, 40), 0.5)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    (found,) = stages_of(fused)
    found.way = STAGE
    for n, tokens, density in ((2, 40, 0.5), (1, 197, 0.3), (3, 33, 1)):
        x, mask = torch.randn(n, tokens, 64, dtype=dtype), drawn((n, tokens), density)
        torch.testing.assert_close(fused(x, mask), model(x, mask), rtol=3e-2, atol=3e-2)
    assert not counted


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["", "no sums", "all halt", "two chains", "a step reads sums"])
def test_halts_on_a_gpu(gpu, dtype, form, counted):  # noqa: F811
    torch.manual_seed(12)
    model = Halting(form, 64, 2, 40).eval().to(dtype)
    x, mask = torch.randn(2, 40, 64, dtype=dtype), drawn((2, 40), 0.7)
    fused = distile.fuse(copy.deepcopy(model), (x, mask))
    for found in stages_of(fused):
        found.way = STAGE
    for n, density in ((2, 0.5), (1, 1), (3, 0.2)):
        x, mask = torch.randn(n, 40, 64, dtype=dtype), drawn((n, 40), density)
        found, due = fused(x, mask), model(x, mask)
        # A rounded score may be on the other side of the threshold: what does not depend on that is compared.
        agree = (found[1] == due[1]) & (found[4] == due[4])
        assert agree.float().mean() > 0.95
        for one, other in ((found[2], due[2]), (found[5], due[5])):
            torch.testing.assert_close(one[agree], other[agree], rtol=3e-2, atol=3e-2)
    assert not counted
