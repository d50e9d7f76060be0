"""Networks as people write them: small copies of what torchvision and timm have, and of a UNet."""

import torch
import torch.nn.functional as F
from torch import nn


def settled(model):
    """The model in eval mode, with statistics of batch norms that change something."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.2)
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, 0, 0.2)
    return model.eval()


class BasicBlock(nn.Module):
    """torchvision's: one ReLU serves twice."""

    def __init__(self, inner, outer, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """With functions for activations."""

    def __init__(self, inner, width, stride=1):
        super().__init__()
        outer = 2 * width
        self.conv1, self.bn1 = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, groups=2, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer)
        self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self, block=BasicBlock, width=8, classes=5):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        outer = width if block is BasicBlock else 2 * width
        self.layer1 = nn.Sequential(block(width, width), block(outer, width))
        self.layer2 = nn.Sequential(block(outer, 2 * width, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2 * outer, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


class InvertedResidual(nn.Module):
    """MobileNetV2's."""

    def __init__(self, inner, outer, stride, expand):
        super().__init__()
        hidden = inner * expand
        self.residual = stride == 1 and inner == outer
        self.conv = nn.Sequential(
            nn.Sequential(nn.Conv2d(inner, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            nn.Sequential(
                nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
                nn.BatchNorm2d(hidden),
                nn.ReLU6(inplace=True),
            ),
            nn.Conv2d(hidden, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
            InvertedResidual(8, 8, 1, 2),
            InvertedResidual(8, 12, 2, 3),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, classes))

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class BatchNormAct2d(nn.BatchNorm2d):
    """timm's."""

    def __init__(self, channels, act=nn.SiLU):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act(inplace=True) if act else nn.Identity()

    def forward(self, x):
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(self.drop(x))


class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.conv_reduce, self.act1 = nn.Conv2d(channels, squeezed, 1), nn.SiLU(inplace=True)
        self.conv_expand, self.gate = nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()

    def forward(self, x):
        squeezed = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.conv_expand(self.act1(self.conv_reduce(squeezed))))


class EfficientBlock(nn.Module):
    """timm's InvertedResidual of EfficientNet."""

    def __init__(self, inner, hidden):
        super().__init__()
        self.conv_pw, self.bn1 = nn.Conv2d(inner, hidden, 1, bias=False), BatchNormAct2d(hidden)
        self.conv_dw = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False)
        self.bn2, self.se = BatchNormAct2d(hidden), SqueezeExcite(hidden, 4)
        self.conv_pwl, self.bn3 = nn.Conv2d(hidden, inner, 1, bias=False), BatchNormAct2d(inner, act=None)

    def forward(self, x):
        y = self.bn1(self.conv_pw(x))
        y = self.se(self.bn2(self.conv_dw(y)))
        return self.bn3(self.conv_pwl(y)) + x


class Attention(nn.Module):
    """timm's."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim, self.scale = num_heads, dim // num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm, self.attn_drop = nn.Identity(), nn.Identity(), nn.Dropout(0.0)

    def forward(self, x, attn_mask=None):
        batch, tokens, channels = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        attention = self.attn_drop((self.q_norm(q) * self.scale @ self.k_norm(k).transpose(-2, -1)).softmax(-1))
        return self.proj((attention @ v).transpose(1, 2).reshape(batch, tokens, channels))


class TransformerBlock(nn.Module):
    """timm's with its Attention, or torchvision's with nn.MultiheadAttention."""

    def __init__(self, dim, num_heads, timm=True):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.timm = timm
        self.attn = Attention(dim, num_heads) if timm else nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.fc1, self.act, self.fc2 = nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)

    def forward(self, x):
        y = self.norm1(x)
        y = self.attn(y, attn_mask=None) if self.timm else self.attn(y, y, y, need_weights=False)[0]
        x = x + y
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """With a class token and registers."""

    def __init__(self, dim=24, num_heads=3, patch=4, size=(16, 24), leading=1, timm=True, classes=5):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        tokens = size[0] // patch * (size[1] // patch) + leading
        self.first = nn.Parameter(torch.randn(1, leading, dim))
        self.positions = nn.Parameter(torch.randn(1, tokens, dim) * 0.3)
        self.blocks = nn.ModuleList(TransformerBlock(dim, num_heads, timm) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ResidualBlock(nn.Module):
    """A diffusion UNet's: group norm and SiLU before the convolutions, and an embedding of the time."""

    def __init__(self, inner, outer, embedding):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.act, self.time = nn.SiLU(), nn.Linear(embedding, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(self.act(self.norm1(x)))
        y = y + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(self.act(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 16), nn.SiLU())
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down = ResidualBlock(channels, channels, 16)
        self.pool, self.middle = nn.AvgPool2d(2), ResidualBlock(channels, 2 * channels, 16)
        self.norm = nn.GroupNorm(4, 2 * channels)  # Normalizes tokens [N, C, T].
        self.up, self.merge = nn.Upsample(scale_factor=2), ResidualBlock(3 * channels, channels, 16)
        self.to_rgb = nn.ConvTranspose2d(channels, 3, 2, 2)

    def forward(self, x, time):
        time = self.embed(time)
        skip = self.down(self.first(x), time)
        x = self.middle(self.pool(skip), time)
        x = self.norm(x.flatten(2)).unflatten(2, x.shape[2:]) + x
        x = self.merge(torch.cat([self.up(x), skip], 1), time)
        return self.to_rgb(x)
