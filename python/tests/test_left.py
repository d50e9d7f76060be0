"""What convert replaces or leaves: norms of other classes, and layers whose instances have methods of their own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile
from distile.conversion import Left

pytestmark = pytest.mark.filterwarnings("ignore:distile")
MASK = torch.arange(2 * 6 * 5).view(2, 6, 5) % 3 > 0


def close(actual, expected, bound=1e-4):
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def converted(model):
    report: list = []
    return distile.convert(copy.deepcopy(model), report=report), report


# ---- Norms ------------------------------------------------------------------------------------


class FrozenBatchNorm2d(nn.Module):
    """torchvision's and detectron2's."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, value in {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}.items():
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x):
        shape = (1, -1, 1, 1)
        scale = self.weight.reshape(shape) * (self.running_var.reshape(shape) + self.eps).rsqrt()
        return x * scale + (self.bias.reshape(shape) - self.running_mean.reshape(shape) * scale)


class LayerNorm2d(nn.LayerNorm):
    """timm's and torchvision's."""

    def forward(self, x):
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class LayerNorm(nn.LayerNorm):
    """timm's."""

    def __init__(self, channels):
        super().__init__(channels)
        self._fast_norm = False

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm1(nn.GroupNorm):
    """timm's."""

    def __init__(self, channels):
        super().__init__(1, channels)

    def forward(self, x):
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class RmsNorm2d(nn.Module):
    """timm's."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps) * self.weight[:, None, None]


class LayerNormAct(LayerNorm):
    def __init__(self, channels):
        super().__init__(channels)
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(super().forward(x))


class Shifted(nn.Module):
    """Like a norm, but something else."""

    def __init__(self, channels):
        super().__init__()
        self.eps, self.weight = 1e-5, nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x + self.weight[:, None, None]


def settled(layer):
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 2)
    return layer.eval()


NORMS = {
    FrozenBatchNorm2d: "MaskedFrozenBatchNorm2d",
    nn.SyncBatchNorm: "MaskedBatchNorm2d",
    LayerNorm2d: "MaskedLayerNorm2d",
    GroupNorm1: "MaskedGroupNorm",
    RmsNorm2d: "MaskedRMSNorm2d",
}


@torch.no_grad()
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("channels", (4, 8))
def test_norms(norm, channels):
    torch.manual_seed(0)
    model = nn.Sequential(settled(norm(channels)))
    found, (row,) = converted(model)
    assert row.masked == NORMS[norm] and set(found.state_dict()) == set(model.state_dict())
    x = torch.randn(2, channels, 6, 5)
    close(found(x), model(x))
    out, inside = torch.ones_like(x, memory_format=torch.channels_last), MASK[:, None]
    with distile.mask(MASK):
        masked = found(x)
    assert not masked[~inside.expand_as(masked)].any()
    if norm is not GroupNorm1:  # Its statistics are those of the active pixels.
        close(masked, torch.where(inside, model(x), 0))
        found[0](x, MASK, out=out)
        close(out, torch.where(inside, model(x), 1))


@torch.no_grad()
def test_norms_of_tokens():
    model = nn.Sequential(settled(LayerNorm(8)))
    found, (row,) = converted(model)
    x = torch.randn(2, 5, 8)
    assert row.masked == "MaskedLayerNorm"
    close(found(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("norm", (FrozenBatchNorm2d, nn.SyncBatchNorm))
def test_batch_norms_are_folded(norm):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), settled(norm(4)), nn.ReLU())
    found, (row,) = converted(model)
    assert row.taken == ["1", "2"]
    x = torch.randn(2, 3, 6, 5)
    close(found(x), model(x))
    with distile.mask(MASK):
        close(found(x), torch.where(MASK[:, None], model(x), 0))
    other = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), settled(norm(4)))
    found.load_state_dict(other.state_dict())
    close(found(x), other(x).relu())


@torch.no_grad()
def test_frozen_norms_stay_frozen_in_training():
    model = nn.Sequential(settled(FrozenBatchNorm2d(4))).train()
    found, _ = converted(model)
    x = torch.randn(2, 4, 6, 5)
    close(found.train()(x), model(x))
    with distile.mask(MASK):
        close(found(x), torch.where(MASK[:, None], model(x), 0))


@pytest.mark.parametrize(
    "layer",
    (
        LayerNormAct(4),
        Shifted(4),
        nn.PReLU(),
        nn.InstanceNorm2d(4, affine=True),
        nn.BatchNorm1d(4),
        nn.SyncBatchNorm(4),
    ),
)
def test_no_layer_with_parameters_lacks_a_row(layer):
    _, (row,) = converted(nn.Sequential(layer))
    assert isinstance(row, Left) and row.reason


@torch.no_grad()
def test_prelu_of_each_channel():
    """It stays, with slopes that may change, and computes on what the masked convolution makes."""
    layer, x = nn.PReLU(4), torch.randn(2, 4, 6, 5)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), layer)
    found, _ = converted(model)
    for factor in (1, -2):
        layer.weight.copy_(factor * torch.tensor([0.1, -0.5, 0.0, 1.5]))
        found.load_state_dict(model.state_dict())
        with distile.mask(MASK):
            close(found(x), torch.where(MASK[:, None], model(x), 0))


def test_timm_and_torchvision():
    timm, torchvision = pytest.importorskip("timm"), pytest.importorskip("torchvision")
    names = ("LayerNorm", "LayerNorm2d", "GroupNorm1", "BatchNormAct2d", "RmsNorm", "RmsNorm2d", "FrozenBatchNormAct2d",
             "LayerNormFp32")  # fmt: skip
    for make in (*(getattr(timm.layers, name) for name in names), torchvision.ops.FrozenBatchNorm2d):
        _, (row,) = converted(nn.Sequential(settled(make(8))))
        assert not isinstance(row, Left), row


# ---- Instances --------------------------------------------------------------------------------


def replace_forward(layer):
    before = layer.forward
    layer.forward = lambda *args, **keywords: before(*args, **keywords) * 2


def replace_conv_forward(layer):
    layer._conv_forward = lambda x, weight, bias: F.conv2d(F.pad(x, (1,) * 4, "circular"), weight, bias)


def compile_it(layer):
    layer.compile(backend="eager")


CHANGES = {"forward": replace_forward, "_conv_forward": replace_conv_forward, "compile": compile_it}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_methods_replaced_on_an_instance(change):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    CHANGES[change](model[0])
    report: list = []
    x = torch.randn(2, 3, 6, 5)
    expected = model(x)
    distile.convert(model, report=report)
    (row,) = report
    assert isinstance(row, Left) and change in row.reason and "convert it before" in row.reason
    close(model(x), expected)
    with distile.mask(MASK):
        close(model(x), expected)


@torch.no_grad()
def test_convolutions_replaced_later_are_errors():
    """As tiling does with the layers of a converted model."""
    model, _ = converted(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()))
    replace_conv_forward(model[0])
    x = torch.randn(2, 3, 6, 5)
    circular = F.conv2d(F.pad(x, (1,) * 4, "circular"), model[0].weight, model[0].bias).relu()
    close(model(x), circular)
    with pytest.raises(ValueError, match="_conv_forward was replaced"):
        model[0](x, MASK)


@torch.no_grad()
@pytest.mark.parametrize("follower", (0, 1))
def test_followers_with_methods_of_their_own_stay(follower):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), settled(nn.BatchNorm2d(4)), nn.ReLU())
    replace_forward(model[1 + follower])
    x = torch.randn(2, 3, 6, 5)
    expected = model(x)
    close(distile.convert(model)(x), expected)


@torch.no_grad()
def test_attention_with_a_replaced_part_stays():
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    replace_forward(attention.out_proj)
    _, (row,) = converted(nn.Sequential(attention))
    assert isinstance(row, Left) and "forward was replaced" in row.reason


@torch.no_grad()
def test_hooks_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    model[0].register_forward_hook(lambda layer, args, output: output - 1)
    x = torch.randn(2, 3, 6, 5)
    expected = model(x)
    distile.convert(model)
    close(model(x), expected)
    dense = F.conv2d(x, model[0].weight, model[0].bias, padding=1)
    with distile.mask(MASK):
        close(model(x), (torch.where(MASK[:, None], dense, 0) - 1).relu())
