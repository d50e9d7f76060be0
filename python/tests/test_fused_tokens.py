"""Layers of tokens in stages (distile.fuse): what they compute, against the layers; which layers they take, and what
ends them; and files of stages."""

import copy
import json

import models
import pytest
import torch
import torch.nn.functional as F
from test_fused_stages import close, counted, drawn, gpu, keywords_of, stage_calls, stages_of, strict  # noqa: F401
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import distile
from distile import nn as masked
from distile import stage_module
from distile.stage_description import Attention, Combined, Convolution, Layer, Norm, Stage, Window, read_stage
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
    assert first.layers == ["norm", "first", "second"] and first.ends == "block.norm1 reads what flatten makes, which is no step"
    assert second.layers[0] == "block.norm1" and second.ends == "the model ends"
    x, mask = torch.randn(1, 8, 6, 6), drawn((1, 6, 6), 0.4)
    close(fused(x, mask), model(x, mask))
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


# ---- Programs


def example(form=""):
    torch.manual_seed(4)
    model = Block(form).eval()
    x, mask = torch.randn(2, 9, 24), drawn((2, 9), 0.5)
    return distile.fuse(copy.deepcopy(model), (x, mask)), model, x, mask


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
def test_measured_ways(counted):  # noqa: F811
    fused, model, x, mask = example()
    (found,) = stages_of(fused)
    found.measures = (0.1, 0.5, 1.0)
    for _ in range(2):
        close(fused(x, mask), model(x, mask))
    assert found.measures == () and len(found.times) == 12 and max(found.times) < 1e6 and not counted


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
    images = {name: one if one.dim() == 3 else one.movedim(1, -1) for (name, _), one in zip(stage.inputs, tensors)}
    found = dict(zip(stage.masks, given))
    parameters = dict(zip(stage.numbers().parameters, parameters)) | {None: None}
    for step in stage.steps:
        if isinstance(step, Combined):
            found[step.mask] = found[step.of[0]] & ~found[step.of[1]]
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


@pytest.mark.cpu
@pytest.mark.parametrize("way", [STAGE, LAYERS, DENSE, -1])
@pytest.mark.parametrize("size", [(2, 9), (1, 1), (3, 300), (1, 40)])
def test_each_kind_of_step(way, size):
    tensors, given, parameters, keywords = everything(*size)
    before = [one.clone() for one in tensors]
    due = plain(EVERYTHING, tensors, given, parameters)
    found = torch.ops.distile.stage(tensors, given, parameters, **keywords, way=way)
    for name, one, other in zip(EVERYTHING.outputs, found, due):
        assert one.dtype == other.dtype and one.shape == other.shape, name
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    for one, other in zip(before, tensors):
        assert torch.equal(one, other)


@pytest.mark.cpu
def test_shapes_of_results():
    tensors, given, parameters, keywords = everything()
    found = torch.ops.distile.stage(tensors, given, parameters, **keywords)
    with torch._subclasses.FakeTensorMode() as mode:
        lists = [[mode.from_tensor(one) for one in list] for list in (tensors, given, parameters)]
        faked = torch.ops.distile.stage(*lists, **keywords)
    for one, other in zip(found, faked):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    tensors, given, parameters, keywords = everything(0)
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
    tensors, given, parameters, keywords = everything()
    step, number = place
    steps = list(keywords["steps"])
    steps[step * stage_module.INTEGERS + number] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.distile.stage(tensors, given, parameters, **(keywords | {"steps": steps}))


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


def changed(*keys, **values):
    """The file with something else at a place."""
    found = json.loads(EVERYTHING.json())
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
