"""What PyTorch's compiler (inductor) and exporter make of networks of masked modules."""

import shutil

import pytest
import torch
from torch import nn

import distile
from distile.nn import (
    MaskedAdd,
    MaskedAttention,
    MaskedAvgPool2d,
    MaskedConcat,
    MaskedConv2d,
    MaskedConvTranspose2d,
    MaskedGlobalPool,
    MaskedGroupNorm,
    MaskedLayerNorm,
    MaskedLinear,
    MaskedMaxPool2d,
    MaskedMultiply,
    MaskedRMSNorm,
    MaskedUpsample,
    MaskedUpsampleConv2d,
    MaskUnit,
)

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile", "ignore::DeprecationWarning", "ignore::FutureWarning")
compiles = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler for PyTorch's inductor")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def close(actual, expected, bound=1e-4):
    scale = float(expected.detach().abs().max()) + 1e-6
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound * scale)


class Images(nn.Module):
    """Convolutions of all kinds, pooling, norms and a mask unit; with PyTorch's own operators between them."""

    def __init__(self):
        super().__init__()
        self.first = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
        self.pool, self.mean = MaskedMaxPool2d(2), MaskedAvgPool2d(3, 1, 1)
        self.norm = MaskedGroupNorm(4, 128, activation="silu")
        self.unit = MaskUnit(128)
        self.depthwise = MaskedConv2d(128, 128, 3, padding=1, groups=128)
        self.excite, self.gate = MaskedGlobalPool(), MaskedMultiply(other_activation="sigmoid")
        self.grow = MaskedUpsampleConv2d(128, 8, 3, padding=1)
        self.transposed = MaskedConvTranspose2d(128, 8, 4, stride=2, padding=1)
        self.repeat, self.add, self.join = MaskedUpsample(2), MaskedAdd(), MaskedConcat()

    def forward(self, x, mask):
        low = distile.masks.pool(mask, 2)
        x = self.norm(self.first(x, mask) + 1, mask) * 2
        small = self.mean(self.pool(x, low), low)
        chosen = low & self.unit(small)
        small = self.gate(small, self.excite(small, low), chosen) + self.depthwise(small.relu(), chosen)
        grown = self.add(self.grow(small, mask), self.transposed(small, mask), mask)
        return self.join((grown, self.repeat(small, mask)), mask)


class Tokens(nn.Module):
    """A block of a transformer, and packing."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention = MaskedLayerNorm(192), MaskedAttention(192, 3, qkv_bias=True)
        self.second, self.up = MaskedRMSNorm(192), MaskedLinear(192, 24, activation="gelu")

    def forward(self, x, mask):
        x = x + self.attention(self.norm(x, mask), mask)
        return self.up(self.second(x * 2, mask), mask) - 0.5


NETWORKS = {
    "images": (
        Images, lambda n, h, w: (torch.randn(n, 128, h, w).to(memory_format=torch.channels_last), (n, h, w)),
        [(1, 8, 12), (1, 12, 10), (3, 10, 16)],
    ),
    "tokens": (Tokens, lambda n, t: (torch.randn(n, t, 192), (n, t)), [(2, 9), (2, 14), (3, 20)]),
}  # fmt: skip


def network(name):
    make, example, sizes = NETWORKS[name]
    return make().eval(), example, sizes


def masks(shape):
    """Masks that change from call to call: few, many, none and all pixels."""
    return [torch.rand(shape) < density for density in (0.2, 0.7, -1, 2)]


# PyTorch 2.11 compiles no `out=` that is not contiguous: docs/python.md says what to call then.
TAKES_ANY_OUT = tuple(int(part) for part in torch.__version__.split(".")[:2]) > (2, 11)


class InPlace(nn.Module):
    """A residual block that changes its input and writes into buffers, slices of channels and tokens of other strides,
    by modules, by operators with `out`, and by those that return nothing."""

    def __init__(self):
        super().__init__()
        self.unit, self.norm = MaskUnit(128), MaskedLayerNorm(384)
        self.first = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
        self.second = MaskedConv2d(128, 128, 3, padding=1)
        self.grow, self.shrink = MaskedLinear(384, 1536, activation="gelu"), MaskedLinear(1536, 384)
        self.middle = torch.zeros(1, 128, 24, 24).to(memory_format=torch.channels_last)
        self.wide = torch.zeros(1, 192, 24, 24).to(memory_format=torch.channels_last)
        self.slot = torch.zeros(1, 6, 8, 384)

    def forward(self, x, tokens):
        with distile.masks.fixed():
            mask = self.unit(x)
            read = distile.masks.needed_input(mask, (24, 24), kernel=3, padding=1)
            middle = self.first(x, read, out=self.middle)
            x = self.second(middle, mask, residual=x, out=x)
            half = self.wide[:, 64:]
            ops.activate_into(x, ~mask, activation="relu", into=half)
            if TAKES_ANY_OUT:
                x = ops.add.out(x, half, mask, activation="silu", out=x)
            else:
                ops.add_into(x, half, mask, activation="silu", into=x)
            active = tokens[..., 0] > 0
            slot = self.slot.transpose(1, 2).flatten(1, 2)[:, :48]
            normalized = self.norm(tokens, active, out=slot)
            tokens = self.shrink(self.grow(normalized, active, zero=True), active, residual=tokens, out=tokens)
        return x, tokens, self.wide.clone()


@compiles
@pytest.mark.parametrize("options", [{}, {"cpp_wrapper": True}], ids=["python", "cpp"])
def test_compiles_what_writes_in_place(options):
    network = InPlace()
    with torch.no_grad():
        network.unit.threshold = 0.1
        network.second.weight.mul_(0.1)

    def inputs(seed):
        torch.manual_seed(seed)
        return torch.randn(1, 128, 24, 24).to(memory_format=torch.channels_last), torch.randn(1, 48, 384)

    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True, options=options)
        for seed in range(3):
            given, again = inputs(seed), inputs(seed)
            for found, right in zip(compiled(*again), network(*given)):
                close(found, right)
            for changed, right in zip(again, given):
                close(changed, right)


@compiles
@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_inductor(name):
    net, example, sizes = network(name)
    compiled = torch.compile(net, fullgraph=True, dynamic=False)
    x, shape = example(*sizes[0])
    for mask in masks(shape):
        close(compiled(x, mask), net(x, mask))
    before = ops._times_packed()
    compiled(x, mask)
    assert ops._times_packed() == before


@compiles
@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_inductor_with_dynamic_shapes(name):
    net, example, sizes = network(name)
    compiled = torch.compile(net, fullgraph=True, dynamic=True)
    for size in sizes:
        x, shape = example(*size)
        torch._dynamo.mark_dynamic(x, 0 if sizes[0][0] > 1 else 2)
        for mask in masks(shape):
            close(compiled(x, mask), net(x, mask))


@compiles
@pytest.mark.parametrize("name", NETWORKS)
def test_inductor_with_gradients(name):
    net, example, sizes = network(name)
    compiled = torch.compile(net, fullgraph=True, dynamic=False)
    x, shape = example(*sizes[0])
    parameters = [parameter for name, parameter in net.named_parameters() if not name.startswith("unit")]
    for mask in masks(shape):
        leaves = [x.clone().requires_grad_(), *parameters]
        found = torch.autograd.grad(compiled(leaves[0], mask).square().sum(), leaves)
        for got, wanted in zip(found, torch.autograd.grad(net(leaves[0], mask).square().sum(), leaves)):
            close(got, wanted, 1e-3)


@compiles
@torch.no_grad()
def test_inductor_with_packed_tokens():
    def run(x, mask):
        return ops.unpack(ops.pack(x * 2, mask).relu() + 1, mask)

    x = torch.randn(2, 9, 24)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(run, fullgraph=True)
        for mask in masks((2, 9)):
            close(compiled(x, mask), torch.where(mask[..., None], (x * 2).relu() + 1, 0))


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_export(name, tmp_path):
    """A saved program runs with other masks, and other sizes."""
    net, example, sizes = network(name)
    x, shape = example(*sizes[-1])
    dimensions = {0: torch.export.Dim("n", min=1, max=64)}
    if name == "images":  # A mask of half the size is exact for even sizes.
        dimensions |= {axis: 2 * torch.export.Dim(f"half_{axis}", min=2, max=512) for axis in (2, 3)}
    else:
        dimensions[1] = torch.export.Dim("t", min=2, max=512)
    of_mask = {axis if axis < 2 and name == "tokens" else max(axis - 1, 0): dim for axis, dim in dimensions.items()}
    program = torch.export.export(net, (x, torch.rand(shape) < 0.5), dynamic_shapes=(dimensions, of_mask))
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2").module()
    for size in sizes:
        x, shape = example(*size)
        for mask in masks(shape):
            close(loaded(x, mask), net(x, mask))


@compiles
@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_aot_inductor(name, tmp_path):
    """A package compiled ahead."""
    net, example, sizes = network(name)
    x, shape = example(*sizes[-1])
    program = torch.export.export(net, (x, torch.rand(shape) < 0.5))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "network.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for mask in masks(shape):
        close(loaded(x, mask), net(x, mask))
