"""Calls at the edges: what operators refuse, whichever code computes them, and what they take where PyTorch's do."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile
from distile import dense, layers, operators, polykernels
from distile import nn as masked
from distile.conversion import Left

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


def close(actual, expected, bound=2e-4):
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


# ---- What is refused --------------------------------------------------------------------------


def convolution(channels, mask, **more):
    x, weight = image(1, channels, 8, 8), torch.ones(channels, channels, 3, 3)
    return ops.conv2d(x, weight, None, mask, padding=[1] * 4, activation="relu", **more)


def linear(channels, mask, **more):
    outputs = {384: 1152}.get(channels, 8)
    return ops.linear(torch.randn(1, 8, channels), torch.ones(outputs, channels), None, mask, **more)


def attention(head_dim, mask, **more):
    query = torch.randn(1, 8, 6, head_dim).transpose(1, 2)
    return ops.attention(query, query, query, mask, more.pop("key_mask", None), **more)


MASK = torch.ones(1, 8, 8, dtype=torch.bool)
ROWS = torch.ones(1, 8, dtype=torch.bool)
CALLS = {  # An operator with a PolyKernel, the same without one, and what fits.
    "conv2d": (convolution, (128, 8), MASK),
    "linear": (linear, (384, 8), ROWS),
    "attention": (attention, (64, 24), ROWS),
}


def messages(name, *arguments, **more):
    """What the PolyKernel and the dense twin say."""
    call, kinds, _ = CALLS[name]
    found = []
    for kind in kinds:
        with pytest.raises(RuntimeError) as error:
            call(kind, *arguments, **more)
        found.append(re.sub(rf"\b({kinds[0]}|{kinds[1]}|1152)\b", "C", str(error.value).partition("\n")[0]))
    return found


@pytest.mark.cpu
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "wrong, says",
    [
        (lambda mask: mask.float(), "bool or uint8"),
        (lambda mask: mask.int(), "bool or uint8"),
        (lambda mask: mask[..., :-1].contiguous(), "but the output has the pixels"),
        (lambda mask: mask.expand(2, *mask.shape[1:]), "but the output has the pixels"),
        (lambda mask: mask[0], None),
        (lambda mask: mask[:, None].contiguous(), None),
        (lambda mask: mask[..., :1].contiguous(), "but the output has the pixels"),
    ],
)
def test_masks_are_checked_before_the_choice(name, wrong, says):
    call, (with_polykernel, without), mask = CALLS[name]
    for kind, runs_dense in ((with_polykernel, False), (without, True)):
        with polykernels.recording() as missing:
            call(kind, mask)
        assert bool(missing) == runs_dense
    first, second = messages(name, wrong(mask))
    assert first == second and (says or "mask") in first


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(
    "wrong, error, says",
    [
        (lambda mask: mask.cpu().numpy(), TypeError, "is a tensor of PyTorch, not ndarray: give torch.as_tensor"),
        (lambda mask: mask.tolist(), TypeError, "is a tensor of PyTorch, not list"),
        (lambda mask: mask[0], ValueError, "give a mask \\[H, W\\] a batch by mask\\[None\\]"),
        (lambda mask: mask.repeat(3, 1, 1), ValueError, "\\[3, 8, 8\\], which is for a batch of 3, .* with a batch of 1"),
    ],
)  # fmt: skip
def test_masks_of_modules_that_are_none(wrong, error, says, traced):
    layer, x = masked.MaskedConv2d(8, 8, 3, padding=1), torch.randn(1, 8, 8, 8)
    if traced:
        distile.trace(layer, x)
    mask = wrong(torch.ones_like(MASK, device=x.device))
    with pytest.raises(error, match=says):
        layer(x, mask)
    with pytest.raises(error, match=says), distile.mask(mask):
        layer(x)


@pytest.mark.parametrize("call, says", [
    (lambda: ops.conv2d(image(1, 8, 8, 8).int(), torch.ones(8, 8, 1, 1), None, MASK), "a type other than"),
    (lambda: ops.linear(torch.ones(1, 8, 8).long(), torch.ones(8, 8), None, ROWS), "a type other than"),
    (lambda: ops.linear(torch.ones(1, 8, 9), torch.ones(8, 8), None, ROWS), "reads 8 channels, but the input has 9"),
])  # fmt: skip
@pytest.mark.cpu
def test_inputs_are_checked(call, says):
    """The weights of a dense twin would lose what is behind their points."""
    with pytest.raises(RuntimeError, match=says):
        call()


@pytest.mark.cpu
@pytest.mark.parametrize("name", CALLS)
def test_other_arguments_are_checked_before_the_choice(name):
    mask = CALLS[name][2]
    if name == "attention":
        first, second = messages(name, mask, key_mask=mask.int())
        assert first == second and "bool or uint8" in first
        return
    for residual in (torch.ones(1, 1, 1, 1), torch.ones(1, 2)):
        first, second = messages(name, mask, residual=residual)
        assert first.split("[")[0] == second.split("[")[0] and "residual has another shape" in first


@pytest.mark.cpu
@pytest.mark.parametrize("channels", (128, 8))
def test_forms_with_out_are_checked_before_the_choice(channels):
    x, weight = image(1, channels, 8, 8), torch.ones(channels, channels, 3, 3)
    call = lambda out, bias=None: ops.conv2d.out(x, weight, bias, MASK, padding=[1] * 4, out=out)
    with pytest.raises(RuntimeError, match="channels_last"):
        call(torch.zeros(1, channels, 8, 8))
    with pytest.raises(RuntimeError, match="another shape"):
        call(image(1, channels, 8, 9))
    with pytest.raises(RuntimeError, match="another type"):
        call(image(1, channels, 8, 8).half())
    with pytest.raises(RuntimeError, match="bias must have one element"):
        call(image(1, channels, 8, 8), torch.ones(1))
    with pytest.raises(RuntimeError, match="a weight|the weight has a type"):
        ops.conv2d(x, weight.double(), None, MASK, padding=[1] * 4)


@pytest.mark.parametrize("context", (False, True))
def test_windows_larger_than_the_input(context):
    x, mask = torch.randn(1, 4, 5, 5), torch.ones(1, 5, 5, dtype=torch.bool)
    layers_and_words = [
        (masked.MaskedConv2d(4, 4, 13), "Kernel size can't be greater than actual input size"),
        (masked.MaskedUpsampleConv2d(4, 4, 13), "Kernel size can't be greater than actual input size"),
        (masked.MaskedMaxPool2d(7), "Output size is too small"),
        (masked.MaskedAvgPool2d(7), "Output size is too small"),
    ]
    for layer, words in layers_and_words:
        with pytest.raises(RuntimeError, match=words), distile.mask(mask if context else None):
            layer(x)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        ops.conv2d(x, torch.ones(4, 4, 13, 13), None, mask)
    with pytest.raises(RuntimeError, match="a stride is 0"):
        ops.conv2d(x, torch.ones(4, 4, 1, 1), None, mask, stride=[0, 1])


def test_padding_modes_set_later():
    layer, x, mask = masked.MaskedConv2d(4, 4, 3, padding=1), torch.randn(1, 4, 5, 5), torch.ones(1, 5, 5) > 0
    layer.padding_mode = "circular"
    layer._reversed_padding_repeated_twice = [1, 1, 1, 1]
    with pytest.raises(ValueError, match="padding_mode is 'circular'"):
        layer(x, mask)
    close(layer(x), F.conv2d(F.pad(x, (1,) * 4, "circular"), layer.weight, layer.bias))


# ---- What is taken ----------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("size", ([10, 11], torch.Size([11, 10])))
def test_transposed_convolutions_take_an_output_size(size):
    dense_layer = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1)
    layer = masked.MaskedConvTranspose2d.from_dense(dense_layer)
    x = torch.randn(1, 4, (size[0] + 1) // 2, (size[1] + 1) // 2)
    mask = torch.rand(1, *size) < 0.5
    expected = dense_layer(x, size)
    close(layer(x, size), expected)
    close(layer(x, output_size=size), expected)
    close(layer(x, mask, output_size=size), torch.where(mask[:, None], expected, 0))
    with distile.mask(mask):
        close(layer(x, list(size)), torch.where(mask[:, None], expected, 0))


@torch.no_grad()
@pytest.mark.parametrize("norm_first", (False, True))
def test_an_encoder_as_it_comes_with_a_padding_mask(norm_first):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first), 2)
    encoder.eval()
    x, padding = torch.randn(2, 6, 16), torch.arange(6).expand(2, 6) >= torch.tensor([[4], [6]])
    expected = encoder(x, src_key_padding_mask=padding)
    distile.convert(encoder)
    close(encoder(x, src_key_padding_mask=padding)[~padding], expected[~padding])
    with distile.mask(~padding):
        found = encoder(x, src_key_padding_mask=padding)
    close(found[~padding], expected[~padding])


EMPTY_IMAGE, EMPTY_MASK = torch.randn(0, 4, 6, 6), torch.ones(0, 6, 6, dtype=torch.bool)
EMPTY_TOKENS, EMPTY_ROWS = torch.randn(2, 0, 4), torch.ones(2, 0, dtype=torch.bool)


@torch.no_grad()
@pytest.mark.parametrize("x, mask", ((EMPTY_IMAGE, EMPTY_MASK), (EMPTY_TOKENS, EMPTY_ROWS)), ids=("images", "tokens"))
def test_nothing_to_compute(x, mask):
    x, mask = x.to(torch.empty(0).device), mask.to(torch.empty(0).device)
    same = {
        "activate": lambda: ops.activate(x, mask, activation="relu"),
        "add": lambda: ops.add(x, x, mask),
        "multiply": lambda: ops.multiply(x, x, mask),
        "layer_norm": lambda: ops.layer_norm(x, mask, torch.ones(4), None),
        "rms_norm": lambda: ops.rms_norm(x, mask, None),
        "group_norm": lambda: ops.group_norm(x, mask, None, None, groups=2),
        "unpack": lambda: ops.unpack(torch.randn(0, 4), mask),
    }
    for name, call in same.items():
        assert call().shape == x.shape, name
    assert ops.mask_difference(x, x).shape == ops.mask_scores(x).shape == mask.shape
    assert ops.pack(x, mask).shape == (0, 4)
    for statistic in ops.group_statistics(x, mask, groups=2):
        assert torch.equal(statistic, torch.zeros(len(x), 2))


@torch.no_grad()
def test_no_tokens():
    x, mask = EMPTY_TOKENS.to(torch.empty(0).device), EMPTY_ROWS.to(torch.empty(0).device)
    assert ops.linear(x, torch.ones(8, 4), None, mask).shape == (2, 0, 8)
    assert masked.MaskedLinear(4, 8)(x, mask).shape == (2, 0, 8)
    heads, rows = torch.randn(2, 2, 5, 8), torch.rand(2, 5) < 0.5
    assert ops.attention(heads[:, :, :0], heads, heads, mask).shape == (2, 2, 0, 8)
    nothing = heads[:, :, :0]
    assert torch.equal(ops.attention(heads, nothing, nothing, rows), torch.zeros(heads.shape))
    out = torch.ones(2, 5, 2, 8).transpose(1, 2)
    ops.attention.out(heads, nothing, nothing, rows, out=out)
    assert torch.equal(out, (~rows).float()[:, None, :, None].expand(out.shape))


@torch.no_grad()
def test_no_images():
    x, mask = EMPTY_IMAGE.to(torch.empty(0).device), EMPTY_MASK.to(torch.empty(0).device)
    larger = mask.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert ops.conv2d(x, torch.ones(8, 4, 3, 3), None, mask, padding=[1] * 4).shape == (0, 8, 6, 6)
    assert ops.conv_transpose2d(x, torch.ones(4, 8, 2, 2), None, larger, stride=[2, 2]).shape == (0, 8, 12, 12)
    assert ops.upsample_conv2d(x, torch.ones(8, 4, 1, 1), None, larger).shape == (0, 8, 12, 12)
    assert ops.upsample_nearest(x, larger).shape == (0, 4, 12, 12)
    assert ops.max_pool2d(x, ops.mask_pool(mask, 2, 2), [2, 2], stride=[2, 2]).shape == (0, 4, 3, 3)
    assert ops.global_pool(x, mask).shape == (0, 4, 1, 1)
    assert ops.mask_dilate(mask, 1, 1).shape == mask.shape
    assert ops.mask_needed_input(mask, [8, 8], [3, 3]).shape == (0, 8, 8)
    assert ops.cumulative_lengths(mask).tolist() == [0]
    for layer in (nn.Conv2d(4, 8, 3, padding=1), nn.MaxPool2d(2), nn.GroupNorm(2, 4)):
        converted = distile.convert(layer)
        with distile.mask(torch.ones(1, 6, 6, dtype=torch.bool)):
            assert converted(x).shape == layer(x).shape


@torch.no_grad()
@pytest.mark.parametrize("tokens", (65536, 75600, 65537))
def test_more_tokens_than_an_image_has_columns(tokens):
    """65537 is prime: an image of 256 x 256 patches and a class token."""
    torch.manual_seed(0)
    x, mask = torch.randn(2, tokens, 8), torch.rand(2, tokens) < 0.1
    mask[:, -3:] = True
    weight, residual = torch.randn(16, 8), torch.randn(2, tokens, 16)
    close(ops.linear(x, weight, None, mask, residual), dense.linear(x, weight, None, mask, residual, "none"))
    close(ops.layer_norm(x, mask, None, None), dense.layer_norm(x, mask, None, None, 1e-5))
    close(ops.rms_norm(x, mask, None), dense.rms_norm(x, mask, None, 1e-6))
    close(ops.add(x, x, mask, activation="silu"), layers.add(x, x, mask, activation="silu"))
    one = torch.randn(2, 1, 8)
    close(ops.multiply(x, one, mask), layers.multiply(x, one, mask))
    if tokens == 65537:
        with pytest.raises(RuntimeError, match="65537 tokens are more than 65535.*append an inactive token"):
            ops.group_norm(x, mask, None, None, groups=2)
        return
    assert torch.equal(ops.cumulative_lengths(mask)[1:], mask.sum(1).cumsum(0).int())
    close(ops.group_norm(x, mask, None, None, groups=2), layers.group_norm(x, mask, None, None, groups=2))
    assert torch.equal(ops.unpack(ops.pack(x, mask), mask), torch.where(mask[..., None], x, 0))
    assert torch.equal(ops.mask_scores(x), layers.mask_scores(x))
    out = distile.Planner().next(mask, 16)
    ops.linear.out(x, weight, None, mask, out=out)
    close(out, dense.linear(x, weight, None, mask, None, "none"))


@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("tokens", (65536, 65537))
def test_linear_polykernels_of_many_tokens(tokens, no_dense):
    torch.manual_seed(0)
    x, mask, weight = torch.randn(1, tokens, 384), torch.rand(1, tokens) < 0.01, torch.randn(1152, 384)
    mask[:, -3:] = True
    found = ops.linear(x, weight, None, mask)
    close(found[mask], x[mask] @ weight.T, 1e-3)
    assert torch.equal(found.any(2), mask)


@torch.no_grad()
def test_attention_of_many_tokens(capfd):
    torch.manual_seed(0)
    query, mask = torch.randn(1, 65600, 6, 64).transpose(1, 2), torch.zeros(1, 65600, dtype=torch.bool)
    mask[:, ::1000] = True
    found = ops.attention(query, query, query, mask, mask)
    kept = query[:, :, mask[0]]
    close(found[:, :, mask[0]], F.scaled_dot_product_attention(kept, kept, kept), 1e-3)
    assert not found[:, :, ~mask[0]].any()
    for keywords, sentence in (
        (dict(), "65600 active keys, but takes at most 65535"),
        (dict(key_mask=mask, causal=True), "causal attention takes at most"),
    ):
        with pytest.raises(RuntimeError) as error:
            ops.attention(query, query, query, mask, **keywords)
        # Before 2.13 PyTorch writes what an operator of Python says, and loses it for the one that called it.
        assert sentence in str(error.value) + capfd.readouterr().err


# ---- What no PolyKernel computes --------------------------------------------------------------


def dense_operators():
    rows = torch.ones(1, 5, dtype=torch.bool)
    heads = torch.randn(1, 5, 2, 36).transpose(1, 2)
    ops.attention(heads, heads, heads, rows)
    mask = torch.ones(1, 8, 8, dtype=torch.bool)
    ops.conv_transpose2d(torch.randn(1, 4, 4, 4), torch.ones(4, 1, 2, 2), None, mask, stride=[2, 2], groups=4)
    ops.upsample_conv2d(torch.randn(1, 4, 4, 4), torch.ones(4, 2, 1, 1), None, mask, groups=2)


def test_operators_without_polykernels_are_missing():
    with polykernels.recording() as found:
        dense_operators()
    assert [operator.generator for operator in found] == [
        "masked_attention", "masked_conv_transpose2d", "masked_upsample_conv2d"
    ]  # fmt: skip
    assert "36" in operators.why_not_built(next(iter(found)))
    for operator in found:
        with pytest.warns(UserWarning, match="distile.build.*stays dense.*PolyKernels"):
            assert distile.build(operator) == []


@pytest.mark.cpu
def test_what_is_collected_is_not_warned_of(monkeypatch):
    """Building runs a model whose operators lack their PolyKernels."""
    monkeypatch.setattr(polykernels, "_warned", False)
    monkeypatch.setattr(polykernels, "takes_general_code", lambda _: False)
    with polykernels.recording() as found, warnings.catch_warnings():
        warnings.simplefilter("error")
        convolution(8, MASK)
    assert found
    with pytest.warns(UserWarning, match="no PolyKernel computes masked_conv2d"):
        convolution(8, MASK)


@pytest.mark.cpu
def test_rows_of_reports_are_readable():
    rows: list = []
    distile.convert(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1)), report=rows, example=torch.ones(1, 3, 8, 8))
    assert "mapping=<stride 2x2, offset 0x0, grid 4x4>" in repr(rows[0])


@pytest.mark.parametrize(
    "layer, reason",
    (
        (nn.ConvTranspose2d(4, 4, 2, 2, groups=4), "one group, not 4"),
        (nn.MultiheadAttention(72, 2, batch_first=True), "a multiple of 8 channels, not 36"),
        (nn.MultiheadAttention(64, 2, batch_first=True), ""),
        (nn.ConvTranspose2d(4, 4, 2, 2), ""),
    ),
)
def test_the_report_says_what_runs_dense(layer, reason):
    report: list = []
    distile.convert(nn.Sequential(layer), report=report)
    (row,) = report
    assert not isinstance(row, Left) and reason in row.dense and bool(reason) == bool(row.dense)
