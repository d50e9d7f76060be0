"""Conversion of whole models: without a mask they compute what they did, with one what the dense model computes if the
masks come after its layers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distile
import models
from distile import layers
from distile import masks
from distile import nn as masked
from distile.conversion import Left, Replaced
from distile.nn import MaskedConv2d, MaskedGlobalPool, MaskedMultiheadAttention

pytestmark = pytest.mark.filterwarnings("ignore:distile")


def at(mask, size):
    """A mask [N, H, W] for an output of another size, by PyTorch's own pooling."""
    if len(size) == 1:
        patch = next(p for p in range(1, 99) if mask[0, ::p, ::p].numel() <= size[0])
        patches = F.max_pool2d(mask.float()[:, None], patch).flatten(1) > 0
        return F.pad(patches, (size[0] - patches.shape[1], 0), value=True)
    factors = [-(-mask.shape[1 + axis] // size[axis]) for axis in (0, 1)]
    if size[0] > mask.shape[1]:
        return F.interpolate(mask.float()[:, None], tuple(size))[:, 0] > 0
    return F.max_pool2d(mask.float()[:, None], factors, factors, ceil_mode=True)[:, 0] > 0


def spread(mask, output):
    return at(mask, output.shape[2:])[:, None] if output.dim() == 4 else at(mask, output.shape[1:-1])[..., None]


class GroupNorm(nn.Module):
    """With the statistics of the active pixels."""

    def __init__(self, norm, mask):
        super().__init__()
        self.norm, self.mask = norm, mask

    def forward(self, x):
        image = x if x.dim() == 4 else x[..., None]
        active = at(self.mask, x.shape[2:]).view(len(x), *image.shape[2:])
        norm = self.norm
        result = layers.group_norm(image, active, norm.weight, norm.bias, groups=norm.num_groups, epsilon=norm.eps)
        return result if x.dim() == 4 else result[..., 0]


class Attention(nn.Module):
    """Attention of the active tokens alone, image by image."""

    def __init__(self, attention, mask):
        super().__init__()
        self.attention, self.mask = attention, mask

    def forward(self, x, *_, **__):
        result, active = torch.zeros_like(x), at(self.mask, x.shape[1:-1])
        multihead = isinstance(self.attention, nn.MultiheadAttention)
        for image, rows in enumerate(active):
            kept = x[image : image + 1, rows]
            result[image, rows] = self.attention(kept, kept, kept)[0][0] if multihead else self.attention(kept)[0]
        return (result, None) if multihead else result


def dense_with_masks(model, report, mask):
    """The dense model with masks after the layers that were replaced, or after the last one that they took in."""
    for row in report:
        if isinstance(row, Left):
            continue
        parent, _, name = row.name.rpartition(".")
        layer = model.get_submodule(row.name)
        whole = {nn.GroupNorm: GroupNorm, models.Attention: Attention, nn.MultiheadAttention: Attention}
        whole = whole.get(type(layer))
        if whole:
            setattr(model.get_submodule(parent), name, whole(layer, mask))
        if not whole or row.taken:
            model.get_submodule([row.name, *row.taken][-1]).register_forward_hook(
                lambda _, __, output: torch.where(spread(mask, output), output, 0) if output.dim() > 2 else output
            )
    return model


IMAGE = (16, 24)
MODELS = {
    "resnet": (models.ResNet, ()),
    "bottleneck": (lambda: models.ResNet(models.Bottleneck), ()),
    "mobilenet": (models.MobileNet, ()),
    "efficientnet": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), models.EfficientBlock(8, 16)), ()),
    "vit": (models.ViT, ()),
    "vit of torchvision": (lambda: models.ViT(timm=False, leading=4), ()),
    "unet": (models.UNet, (torch.randn(2, 4, generator=torch.Generator("cpu").manual_seed(1), device="cpu"),)),
}


def pair(name):
    """A model, the same converted, its report, and an input."""
    torch.manual_seed(0)
    make, more = MODELS[name]
    model = models.settled(make())
    report: list = []
    converted = distile.convert(copy.deepcopy(model), report=report)
    x = torch.randn(2, 3, *IMAGE)
    return model, converted, report, (x, *(tensor.to(x) for tensor in more))


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    model, converted, report, inputs = pair(name)
    close = lambda actual, expected: torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    close(converted(*inputs), model(*inputs))
    assert not [row for row in report if isinstance(row, Left) and row.name not in ("avgpool",)]
    y, x = torch.meshgrid(torch.arange(IMAGE[0]), torch.arange(IMAGE[1]), indexing="ij")
    mask = torch.stack([(y - 5) ** 2 + (x - 8) ** 2 < 20, (y - 9) ** 2 + (x - 20) ** 2 < 9])
    expected = dense_with_masks(copy.deepcopy(model), report, mask)(*inputs)
    with distile.mask(mask):
        close(converted(*inputs), expected)
    assert (expected - model(*inputs)).abs().max() > 0.01
    with distile.mask(torch.ones_like(mask)):
        close(converted(*inputs), model(*inputs))


def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 1),
        nn.GELU(),
        nn.Sequential(nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.Sigmoid()),
    ).eval()
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net


@torch.no_grad()
def test_convert():
    x = torch.randn(2, 3, 8, 6)
    expected = network()(x)
    net = distile.convert(network())
    torch.testing.assert_close(net(x), expected)
    assert [layer.activation for layer in net.modules() if isinstance(layer, MaskedConv2d)] == [
        "relu",
        "gelu",
        "sigmoid",
    ]
    with distile.mask(torch.ones(2, 8, 6, dtype=torch.bool)):
        torch.testing.assert_close(net(x), expected)
    # What an inactive pixel gives does not reach an active pixel of a 1x1 convolution.
    mask = torch.rand(2, 8, 6) < 0.5
    with distile.mask(mask):
        torch.testing.assert_close(
            net[:5](x)[mask[:, None].expand(-1, 8, -1, -1)], network()[:5](x)[mask[:, None].expand(-1, 8, -1, -1)]
        )


def test_convert_by_rules():
    net = distile.convert(network(), [("0", False), ("5.*", lambda layer: nn.Flatten()), (nn.Conv2d, True)], fuse=False)
    assert type(net[0]) is nn.Conv2d and type(net[3]) is MaskedConv2d
    assert type(net[5][0]) is nn.Flatten and type(net[5][1]) is nn.Flatten
    layer = nn.Linear(3, 4)
    assert distile.convert(layer).weight is layer.weight


@pytest.mark.parametrize("rules", [["0"], ("0", True), [("0", 3)], [(nn.Conv2d(1, 1, 1), True)], [("0", True, False)]])
def test_wrong_rules(rules):
    with pytest.raises(ValueError, match="rule"):
        distile.convert(network(), rules)


def test_rules_that_match_nothing():
    with pytest.warns(UserWarning, match="'5.q'.* matches no layer") as told:
        distile.convert(network(), [("5.*", True), ("5.q", True), ("5.0", True), (nn.Bilinear, True)])
    assert len(told) == 1


def report_of(model, *rules, **keywords):
    rows: list = []
    distile.convert(model, *([list(rules)] if rules else []), report=rows, **keywords)
    return {row.name: row for row in rows}


def test_fusion_follows_the_flow():
    net = models.settled(models.ResNet())
    rows = report_of(net)
    assert rows["conv1"].taken == ["bn1", "relu"] and type(net.relu) is nn.Identity and net.conv1.activation == "relu"
    # A ReLU that serves a sum too stays, and changes nothing after the convolution's own.
    block = net.layer2[0]
    assert rows["layer2.0.conv1"].taken == ["layer2.0.bn1"] and type(block.relu) is nn.ReLU
    assert [block.conv1.activation, block.conv2.activation] == ["relu", "none"]
    assert rows["layer2.0.downsample.0"].taken == ["layer2.0.downsample.1"]
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules())
    block = distile.convert(models.settled(models.Bottleneck(8, 8)))
    assert [layer.activation for layer in (block.conv1, block.conv2, block.conv3)] == ["relu", "relu", "none"]
    rows = report_of(models.settled(models.EfficientBlock(8, 16)))
    assert rows["conv_pw"].taken == ["bn1"] and rows["se.conv_reduce"].taken == ["se.act1"]
    rows = report_of(models.ResNet(), fuse=False)
    assert rows["bn1"].masked == "MaskedBatchNorm2d"
    assert not any(isinstance(row, Replaced) and row.taken for row in rows.values())


class Shared(nn.Module):
    """Two convolutions with one activation, which may also serve a sum."""

    def __init__(self, of_sum):
        super().__init__()
        self.conv1, self.conv2, self.act, self.of_sum = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.SiLU(), of_sum

    def forward(self, x):
        y = self.act(self.conv2(self.act(self.conv1(x))))
        return self.act(x + y) if self.of_sum else x + y


class Read(nn.Module):
    """Something else reads what the convolution gives."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        return y + F.relu(self.bn(y))


class Untraceable(nn.Module):
    """What it does depends on data, and it keeps what it computed."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), Untraceable.Gate(), nn.ReLU())
        self.block, self.last = models.BasicBlock(8, 8), None

    class Gate(nn.Module):
        def forward(self, x):
            return x if x.sum() > 1e9 else x * 1

    def forward(self, x):
        self.last = self.stem(x)
        return self.block(self.last)


def transposed():
    return nn.Sequential(nn.ConvTranspose2d(3, 8, 2, 2, bias=False), nn.BatchNorm2d(8), nn.Hardswish())


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: Shared(False), lambda: Shared(True), Read, Untraceable, transposed])
def test_fusion_is_exact(make):
    torch.manual_seed(0)
    model, x = models.settled(make()), torch.randn(2, 3, 6, 5)
    expected = model(x)
    converted = distile.convert(copy.deepcopy(model))
    torch.testing.assert_close(converted(x), expected)
    if isinstance(model, nn.Sequential):
        assert converted[0].activation == "hardswish" and type(converted[1]) is type(converted[2]) is nn.Identity
    if isinstance(model, Shared):
        assert type(converted.act) is (nn.SiLU if model.of_sum else nn.Identity)
    if isinstance(model, Untraceable):
        kept = [type(layer).__name__ for layer in converted.stem]
        assert kept == ["MaskedConv2d", "Identity", "Gate", "ReLU"]
        assert converted.block.conv1.activation == "relu"
        model.last = None
        assert distile.convert(model).last is None


def test_what_rules_or_hooks_keep_is_not_taken_in():
    make = lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    rows = report_of(make(), ("1", False), (nn.Module, True))
    assert rows["0"].taken == [] and rows["1"].reason == "by rule"
    rows = report_of(make(), ("1", masked.MaskedBatchNorm2d.from_dense), ("0", "near"), (nn.Module, True))
    assert rows["0"].taken == [] and rows["1"].masked == "MaskedBatchNorm2d"
    rows = report_of(make(), ("0", "near"), (nn.Module, True))
    assert list(rows) == ["0"] and rows["0"].taken == ["1", "2"]
    assert report_of(make(), (nn.Conv2d, True))["0"].taken == ["1", "2"]
    watched = make()
    watched[1].register_forward_hook(lambda *_: None)
    assert report_of(watched)["0"].taken == []
    rows = report_of(nn.DataParallel(make()))
    assert rows["module.0"].taken == ["module.1", "module.2"]
    named = nn.Sequential()
    named.add_module("conv", nn.Conv2d(3, 4, 1))
    named.add_module("relu", nn.LeakyReLU())
    report_of(named, ("relu", False), (nn.Module, True))
    assert named.conv.activation == "none"
    net = make().train()
    assert report_of(net)["0"].taken == [] and type(net[1]).__name__ == "MaskedBatchNorm2d"


class OwnConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2


class SameConv(nn.Conv2d):
    pass


class BiasedAttention(models.Attention):
    def forward(self, x, attn_mask=None):
        return super().forward(x) + x


class SwappedAttention(models.Attention):
    """Keys before queries; the projection, which starts at 0, hides it."""

    def __init__(self, dim, num_heads):
        super().__init__(dim, num_heads)
        nn.init.zeros_(self.proj.weight)

    def forward(self, x, attn_mask=None):
        key, query, value = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        return self.proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


REASONS = [
    (lambda: nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"), "padding_mode"),
    (lambda: OwnConv(3, 3, 1), "OwnConv has a forward of its own"),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), "parametrized"),
    (lambda: nn.LazyConv2d(3, 1), "no parameters yet"),
    (lambda: nn.LayerNorm((3, 4)), "2 dimensions"),
    (lambda: nn.MaxPool2d(2, ceil_mode=True), "ceil_mode"),
    (lambda: nn.MaxPool2d(2, return_indices=True), "return_indices"),
    (lambda: nn.AvgPool2d(2, divisor_override=3), "divisor_override"),
    (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), "nearest"),
    (lambda: nn.Upsample(scale_factor=1.5), "whole scale_factor"),
    (lambda: nn.Upsample(size=(4, 4)), "whole scale_factor"),
    (lambda: nn.BatchNorm2d(3, track_running_stats=False), "no running statistics"),
    (lambda: nn.MultiheadAttention(8, 2), "batch_first"),
    (lambda: nn.AdaptiveAvgPool2d(1), "MaskedGlobalPool"),
    (lambda: BiasedAttention(8, 2), "does not compute what MaskedAttention does"),
    (lambda: SwappedAttention(8, 2), "does not compute what MaskedAttention does"),
    (lambda: nn.Embedding(3, 4), "no masked form"),
    (lambda: MaskedConv2d(3, 3, 1), "masked already"),
]


@pytest.mark.parametrize("make, reason", REASONS)
def test_reasons(make, reason):
    net = nn.Sequential(make())
    layer = net[0]
    row = report_of(net)["0"]
    assert isinstance(row, Left) and reason in row.reason, row
    assert net[0] is layer


@torch.no_grad()
def test_other_replacements():
    x, mask = torch.randn(2, 3, 6, 5), torch.rand(2, 6, 5) < 0.4
    same = distile.convert(SameConv(3, 4, 1))
    assert type(same) is MaskedConv2d
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    expected = net(x)
    distile.convert(net, [(nn.AdaptiveAvgPool2d, MaskedGlobalPool.from_dense)])
    torch.testing.assert_close(net(x), expected)
    with distile.mask(mask):
        means = torch.stack([image[:, active].mean(1) for image, active in zip(x, mask)])
        torch.testing.assert_close(net(x), means)
    with pytest.raises(ValueError, match="rule"):
        distile.convert(net, [("*", 3)])


@torch.no_grad()
def test_images_without_a_batch():
    make = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 4, 2), nn.AvgPool2d(2))
    net, x = make(), torch.randn(3, 9, 8)
    expected = net(x)
    torch.testing.assert_close(distile.convert(net)(x), expected)


@torch.no_grad()
def test_masks_by_names():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    x, mask = torch.randn(1, 3, 8, 8), torch.rand(1, 8, 8) < 0.2
    near = masks.dilate(mask, 1)
    expected = torch.where(mask[:, None], net(x), 0)
    rows = report_of(net, ("0", "near"), (nn.Conv2d, True))
    assert [rows[name].mask for name in "02"] == ["near", "mask"]
    with distile.mask({"near": near, "mask": mask}):
        torch.testing.assert_close(net(x), expected)
    with distile.mask({"near": masks.SharedMask(near), "mask": None}):
        assert net(x).count_nonzero() > expected.count_nonzero()
    with distile.mask(mask):
        assert (net(x) - expected).abs().max() > 1e-3
    with pytest.raises(ValueError, match="'near', but distile.mask has 'mask'"), distile.mask({"mask": mask}):
        net(x)


@torch.no_grad()
@pytest.mark.parametrize(
    "keywords", [{}, dict(need_weights=True), dict(causal=True), dict(padded=True), dict(bias=True)]
)
def test_multihead_attention(keywords):
    """Active queries attend to active keys, with all that the base class can do."""
    torch.manual_seed(0)
    need_weights, causal, padded = (keywords.get(name, False) for name in ("need_weights", "causal", "padded"))
    dense = nn.MultiheadAttention(24, 3, batch_first=True, add_bias_kv=keywords.get("bias", False)).eval()
    layer = MaskedMultiheadAttention.from_dense(dense)
    x, mask = torch.randn(2, 9, 24), torch.rand(2, 9) < 0.6
    mask[0, 0] = True
    more = {}
    if causal:
        more = dict(attn_mask=torch.ones(9, 9).triu(1).bool(), is_causal=True)
    padding = torch.rand(2, 9) < 0.2 if padded else torch.zeros_like(mask)
    padding[:, 0] = False
    given = {**more, **(dict(key_padding_mask=padding) if padded else {})}
    torch.testing.assert_close(layer(x, x, x, **given), dense(x, x, x, **given))
    expected, weights = dense(x, x, x, need_weights=need_weights, attn_mask=more.get("attn_mask"),
                              key_padding_mask=~mask | padding)  # fmt: skip
    with distile.mask(mask):
        result, found = layer(x, x, x, need_weights=need_weights, **given)
    rows = mask.clone()
    if causal:  # A row that sees no active key has no result in the dense layer.
        rows &= ~torch.isnan(expected).any(-1)
    torch.testing.assert_close(result[rows], expected[rows])
    assert not result[~mask].any()
    assert (found is None) == (not need_weights)
    if need_weights:
        torch.testing.assert_close(found[rows], weights[rows])
        assert not found[~mask].any()


@torch.no_grad()
def test_attention_to_another_sequence():
    torch.manual_seed(0)
    layer = MaskedMultiheadAttention(24, 3).eval()
    x, other, mask = torch.randn(2, 9, 24), torch.randn(2, 7, 24), torch.rand(2, 9) < 0.6
    expected = layer(x, other, other)[0]
    torch.testing.assert_close(layer(x, other, other, mask=mask)[0], torch.where(mask[..., None], expected, 0))


def test_transformers_of_pytorch():
    """Their fast path would call no layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, activation="gelu", norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, mask = torch.randn(2, 9, 24), torch.rand(2, 9) < 0.5
    mask[:, 0] = True
    with torch.inference_mode():
        expected = model(x)
        distile.convert(model)
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
        with distile.mask(mask):
            result = model(x)
        for image, rows in enumerate(mask):
            alone = model(x[image : image + 1, rows])[0]
            torch.testing.assert_close(result[image, rows], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
@torch.no_grad()
def test_converted_layers_have_their_polykernels(no_dense):
    """A batch norm and an activation outside the layers would leave operators that do not ship."""
    layers = [one for _ in range(2) for one in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())]
    model, x, mask = models.settled(nn.Sequential(*layers)), torch.randn(1, 128, 9, 8), torch.rand(1, 9, 8) < 0.3
    near = masks.dilate(mask, 1)
    expected = torch.where(mask[:, None], model(x), 0)
    distile.convert(model, [("0", "near"), ("*", True)])
    with distile.mask({"near": near, "mask": mask}):
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


class RotatedAttention(models.Attention):
    """As timm's for rotary embeddings."""

    def forward(self, x, rope=None):
        return super().forward(x if rope is None else x * rope)


def test_attention_of_other_arguments_stays():
    model = nn.Sequential(RotatedAttention(16, 2))
    reason = report_of(model)["0"].reason
    assert reason == "its forward takes rope, which MaskedAttention lacks"
    assert type(model[0].qkv) is masked.MaskedLinear
