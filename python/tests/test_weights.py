"""Weights that are written behind a layer's back, and state dictionaries of models before their conversion."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn

import distile
import models
from distile import nn_base, weights
from distile.nn import MaskedConv2d, MaskedLayerNorm, MaskedLinear, MaskedMultiheadAttention
from distile.vectors import float32_of

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


def close(actual, expected, bound=2e-4):
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def write_data(weight):
    weight.data.mul_(-1)


def write_numpy(weight):
    weight.detach().numpy()[3, 5] += 1


def write_one_sign(weight):
    weight.data[(-1,) * weight.dim()] *= -1


def write_two_signs(weight):
    for place in (0, -1):
        weight.data[(place,) * weight.dim()] *= -1


def write_exchanged(weight):
    weight.data.copy_(weight.data.flip(0))


def write_average(weight):  # As an exponential moving average of other weights.
    weight.data.lerp_(torch.zeros_like(weight), 0.01)


def write_optimizer(weight):
    weight.grad = torch.ones_like(weight)
    torch.optim.Adam([weight], fused=True).step()


def write_pointer(weight):
    import ctypes

    ctypes.c_float.from_address(weight.data_ptr() + 4 * 1234).value = 9


WRITES = [
    write_data, write_numpy, write_one_sign, write_two_signs, write_exchanged, write_average, write_optimizer,
    write_pointer,
]  # fmt: skip


def masked_and_dense(kind):
    torch.manual_seed(0)
    if kind == "linear":
        layer, x, mask = MaskedLinear(384, 1152), torch.randn(1, 9, 384), torch.rand(1, 9) < 0.5
        whole = lambda: nn.functional.linear(x, layer.weight, layer.bias)
        return layer, x, mask, lambda: torch.where(mask[..., None], whole(), 0)
    layer = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
    x, mask = image(1, 128, 8, 8), torch.rand(1, 8, 8) < 0.4
    if kind == "channels last":
        layer = layer.to(memory_format=torch.channels_last)
    return layer, x, mask, lambda: torch.where(
        mask[:, None], nn.functional.conv2d(x, layer.weight, layer.bias, padding=1).relu(), 0
    )


@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("kind", ("linear", "convolution", "channels last"))
@pytest.mark.parametrize("write", WRITES)
def test_every_write_counts(write, kind, no_dense):
    layer, x, mask, expected = masked_and_dense(kind)
    close(layer(x, mask), expected())
    packed = ops._times_packed()
    layer(x, mask)
    assert ops._times_packed() == packed
    write(layer.weight)
    close(layer(x, mask), expected())
    assert ops._times_packed() == packed + 1
    layer.bias.data.add_(1)
    close(layer(x, mask), expected())


@pytest.mark.cpu
@torch.no_grad()
def test_writes_count_in_compiled_and_exported_calls(no_dense):
    layer, x, mask, expected = masked_and_dense("convolution")
    compiled = torch.compile(layer, backend="aot_eager")
    exported = torch.export.export(layer, (x, mask)).module()
    for call in (compiled, exported):
        close(call(x, mask), expected())
        layer.weight.data.mul_(-1)
        next(iter(exported.parameters())).data.copy_(layer.weight.data)
        close(call(x, mask), expected())


@torch.no_grad()
def test_attention_and_weights_of_other_strides():
    attention = MaskedMultiheadAttention(384, 6).eval()
    x, mask = torch.randn(1, 9, 384), torch.ones(1, 9, dtype=torch.bool)
    for _ in range(2):
        close(attention(x, x, x, mask=mask, need_weights=False)[0], attention(x, x, x, need_weights=False)[0], 1e-3)
        if not x.is_cuda:
            attention.in_proj_weight.data.mul_(0.5)
    wide = torch.randn(1152, 768)
    layer, x = MaskedLinear(384, 1152), torch.randn(1, 9, 384)
    layer.weight = nn.Parameter(wide[:, ::2])
    for _ in range(2):
        close(layer(x, mask), nn.functional.linear(x, layer.weight, layer.bias))
        if not x.is_cuda:
            wide.numpy()[7, 10] = 5
    assert layer.weight[7, 5] == 5 or x.is_cuda


class OnGpu:
    """Weights of inference mode on a GPU, as far as a module asks."""

    is_cuda, layout = True, torch.strided

    def is_inference(self):
        return True


def test_weights_of_inference_mode_on_a_gpu_warn_once(monkeypatch):
    monkeypatch.setattr(nn_base.Weighted, "_has_warned", False)
    layer = MaskedConv2d(4, 4, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.double().float()
    monkeypatch.setitem(layer._parameters, "weight", OnGpu())
    with pytest.warns(UserWarning, match="inference_mode, where PyTorch does not count"):
        layer._prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer._prepare()


@pytest.mark.cpu
@torch.no_grad()
def test_weights_of_inference_mode_stay_packed(no_dense):
    with torch.inference_mode():
        layer, x, mask, expected = masked_and_dense("linear")
        layer(x, mask)
        packed = ops._times_packed()
        close(layer(x, mask), expected())
        assert ops._times_packed() == packed
        layer.weight.mul_(2)
        close(layer(x, mask), expected())


@torch.no_grad()
def test_versions_and_forget(no_dense, device):
    layer, x, mask, expected = masked_and_dense("linear")
    before = distile.set_weights_check("version")
    try:
        assert before == "contents"
        close(layer(x, mask), expected())
        layer.weight.mul_(2)
        close(layer(x, mask), expected())
        layer.weight.data.mul_(2)
        assert not torch.allclose(layer(x, mask), expected())
        distile.forget(nn.Sequential(layer))
        close(layer(x, mask), expected())
    finally:
        assert distile.set_weights_check(before) == "version"
    with pytest.raises(ValueError, match="no check 'never'; there are contents, version"):
        distile.set_weights_check("never")


@torch.no_grad()
def test_parameters_of_16_bits():
    norm, x = MaskedLayerNorm(16).to(torch.bfloat16), torch.randn(1, 4, 16).to(torch.bfloat16)
    mask = torch.ones(1, 4, dtype=torch.bool)
    norm(x, mask)
    norm.weight.data.mul_(3)
    if x.is_cuda:
        distile.forget(norm)
    close(norm(x, mask), norm(x), 2e-2)
    before = distile.set_weights_check("version")
    try:
        for change in (lambda: norm.weight.mul_(2), lambda: norm.bias.add_(1)):
            norm(x, mask)
            change()
            close(norm(x, mask), norm(x), 2e-2)
    finally:
        distile.set_weights_check(before)


# ---- State dictionaries -----------------------------------------------------------------------

IMAGE = (2, 3, 16, 24)


def trained(seed, make=models.ResNet):
    torch.manual_seed(seed)
    return models.settled(make())


class NormFirst(nn.Module):
    """Names its norm before its convolution, whose bias it has too."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.BatchNorm2d(4), nn.ConvTranspose2d(3, 4, 2, 2)

    def forward(self, x):
        return self.norm(self.up(x)).relu()


class Shared(nn.Module):
    """Has its layers by two names each."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.again, self.norm_again = self.conv, self.norm

    def forward(self, x):
        return self.norm(self.again(x))


@torch.no_grad()
@pytest.mark.parametrize("make", (models.ResNet, models.MobileNet, NormFirst, Shared))
@pytest.mark.parametrize("strict", (True, False))
def test_loading_after_conversion(make, strict):
    before, other, x = trained(0, make), trained(1, make), torch.randn(IMAGE)
    converted = distile.convert(copy.deepcopy(before))
    assert len(list(converted.modules())) and not torch.allclose(converted(x), other(x))
    saved = other.state_dict()
    names = list(saved)
    found = converted.load_state_dict(saved, strict=strict)
    assert not found.missing_keys and not found.unexpected_keys and list(saved) == names
    close(converted(x), other(x))
    again = distile.convert(trained(2, make))  # What a converted model saves, it loads.
    again.load_state_dict(converted.state_dict(), strict=strict)
    close(again(x), other(x))
    if make is models.ResNet:  # For a part, and for the whole within a larger model.
        third = trained(3, make)
        converted.layer1.load_state_dict(third.layer1.state_dict(), strict=strict)
        close(converted.layer1(torch.ones(1, 8, 4, 4)), third.layer1(torch.ones(1, 8, 4, 4)))
        nn.Sequential(converted).load_state_dict(nn.Sequential(third).state_dict(), strict=strict)
        close(converted(x), third(x))


@torch.no_grad()
def test_loading_by_assignment_into_copies():
    other, x = trained(1), torch.randn(IMAGE)
    converted = distile.convert(trained(0))
    file = io.BytesIO()
    torch.save(converted, file)
    file.seek(0)
    for model in (copy.deepcopy(converted), torch.load(file, weights_only=False)):
        model.load_state_dict(other.state_dict(), assign=True)
        close(model(x), other(x))


@pytest.mark.parametrize("strict", (True, False))
@pytest.mark.parametrize("lost", ("conv1.weight", "bn1.running_mean", "bn1."))
def test_halves_of_a_pair_do_not_load(lost, strict):
    converted = distile.convert(trained(0))
    saved = {name: value for name, value in trained(1).state_dict().items() if not name.startswith(lost)}
    with pytest.raises(RuntimeError, match="conv1 has the batch norm bn1 in its weights.*before distile.convert"):
        converted.load_state_dict(saved, strict=strict)


def test_a_parameter_converted_in_inference_mode_counts_its_writes(monkeypatch):
    monkeypatch.setattr(weights, "_check", "version")  # As for parameters on a GPU.
    unit = distile.nn.MaskUnit(8).half()
    with torch.inference_mode():
        (converted,) = float32_of(unit, "weight")
        assert float32_of(unit, "weight")[0] is converted
    assert converted.dtype == torch.float32 and not converted.is_inference()
