"""What only GPUs have: CUDA graphs, streams, TF32, and calls that never wait. With `pytest --device cuda`."""

import contextlib

import distile
import graphs
import pytest
import torch
from distile import dense, layers, mask_algebra, polykernels
from distile.nn import MaskedConv2d, MaskedLinear
from test_networks import SMALL, small

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


@pytest.fixture(autouse=True)
def on_a_gpu(device):
    if device != "cuda":
        pytest.skip("for NVIDIA GPUs")
    yield
    distile.set_math("float32")


@contextlib.contextmanager
def without_waiting():
    """An operator of PyTorch that waits for the GPU fails."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def image(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last)


def cases():
    """Operators by name, on tensors and masks [1, 24, 20] or [2, 50] that may change, and the same in plain PyTorch."""
    conv = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
    half = MaskedConv2d(256, 256, 3, padding=1, activation="relu").half()
    wide = MaskedConv2d(256, 256, 3, padding=1, activation="relu")
    linear = MaskedLinear(384, 1152)
    x, y, h, z = image(1, 128, 24, 20), image(1, 128, 24, 20), image(1, 256, 24, 20).half(), image(1, 256, 24, 20)
    tokens, heads = torch.randn(2, 50, 384), [part.transpose(1, 2) for part in torch.randn(2, 50, 3, 6, 64).unbind(2)]
    weight, bias = torch.randn(128), torch.randn(128)

    def plain(layer, x):
        return lambda mask: dense.conv2d(
            x, layer.weight, layer.bias, mask, None, (1, 1), (1,) * 4, (1, 1), 1, layer.activation
        )

    return {
        "conv2d": (lambda mask: conv(x, mask), plain(conv, x), 1e-4),
        "conv2d 256": (lambda mask: wide(z, mask), plain(wide, z), 1e-4),
        "conv2d float16": (lambda mask: half(h, mask), plain(half, h), 1e-2),
        "linear": (
            lambda mask: linear(tokens, mask),
            lambda mask: dense.linear(tokens, linear.weight, linear.bias, mask, None, "none"),
            1e-4,
        ),
        "attention": (
            lambda mask: ops.attention(*heads, mask, mask),
            lambda mask: dense.attention(*heads, mask, mask, 0, False),
            1e-4,
        ),
        "layer_norm": (
            lambda mask: ops.layer_norm(tokens, mask, None, None),
            lambda mask: dense.layer_norm(tokens, mask, None, None, 1e-5),
            1e-4,
        ),
        "group_norm": (
            lambda mask: ops.group_norm(x, mask, weight, bias, groups=8, activation="silu"),
            lambda mask: layers.group_norm(x, mask, weight, bias, groups=8, activation="silu"),
            1e-4,
        ),
        "add": (lambda mask: ops.add(x, y, mask), lambda mask: layers.add(x, y, mask), 1e-5),
        "max_pool2d": (
            lambda mask: ops.max_pool2d(x, mask, kernel=(3, 3), padding=(1, 1)),
            lambda mask: layers.max_pool2d(x, mask, kernel=(3, 3), padding=(1, 1)),
            0,
        ),
        "global_pool": (
            lambda mask: ops.global_pool(x, mask), lambda mask: layers.global_pool(x, mask), 1e-4
        ),
        "dilated": (lambda mask: conv(x, distile.masks.dilate(mask, 1)), None, 1e-4),
        "from scores": (lambda mask: ops.activate(x, ops.mask_scores(x, weight) & mask), None, 0),
    }  # fmt: skip


NAMES = (
    "conv2d", "conv2d 256", "conv2d float16", "linear", "attention", "layer_norm", "group_norm", "add", "max_pool2d",
    "global_pool", "dilated", "from scores",
)  # fmt: skip


def mask_of(name, density):
    return torch.rand((2, 50) if name in ("linear", "attention", "layer_norm") else (1, 24, 20)) < density


def close(actual, expected, bound):
    scale = expected.float().abs().max().clamp(min=1)
    assert (actual.float() - expected.float()).abs().max() <= bound * scale + 1e-6


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_graph(name):
    """A call in a graph computes what it computes eagerly, with any mask; nothing waits."""
    torch.manual_seed(0)
    call, plain, bound = cases()[name]
    mask = mask_of(name, 0.5)
    with polykernels.recording() as missing:
        call(mask)
    assert not missing
    with without_waiting():
        call(mask)
    captured = graphs.Captured(lambda: call(mask))
    for density in (0.3, 0.0, 1.0, 0.05, 0.7):
        mask.copy_(mask_of(name, density))
        found = captured()
        close(found, call(mask), bound)
        if plain:
            close(found, plain(mask), bound)


@torch.no_grad()
def test_math():
    """TF32 rounds to 10 bits, where it may; both stay right in graphs."""
    torch.manual_seed(0)
    conv, x, mask = MaskedConv2d(256, 256, 3, padding=1, activation="relu"), image(1, 256, 24, 20), mask_of("", 0.5)
    args = ((1, 1), (1,) * 4, (1, 1), 1, "relu")
    wide = (x.double(), conv.weight.double(), conv.bias.double())
    expected = dense.conv2d(*wide, mask, None, *args)
    captured, errors = {}, {}
    for math in ("float32", "tf32", "default"):
        distile.set_math(math)
        captured[math] = graphs.Captured(lambda: conv(x, mask))
    for math, graph in captured.items():
        errors[math] = ((graph().double() - expected).abs().max() / expected.abs().max()).item()
    assert errors["float32"] < 1e-5 < min(errors["tf32"], errors["default"])
    assert max(errors["tf32"], errors["default"]) < 5e-3
    with pytest.raises(ValueError, match="no math 'tf16'; there are default, float32, tf32"):
        distile.set_math("tf16")


@torch.no_grad()
def test_streams():
    """Work goes to the current stream: it sees what was enqueued before, and no other stream needs to wait for more."""
    torch.manual_seed(0)
    conv, mask = MaskedConv2d(128, 128, 3, padding=1, activation="relu"), mask_of("", 0.5)
    x, late = image(1, 128, 24, 20), image(1, 128, 24, 20)
    expected = conv(late, mask)
    conv(x, mask)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.copy_(late)
        found = conv(x, mask)
    stream.synchronize()
    assert torch.equal(found, expected)


@torch.no_grad()
def test_weights_that_change():
    torch.manual_seed(0)
    conv, x, mask = MaskedConv2d(128, 128, 3, padding=1, activation="relu"), image(1, 128, 24, 20), mask_of("", 0.5)
    for _ in range(3):
        expected = dense.conv2d(x, conv.weight, conv.bias, mask, None, (1, 1), (1,) * 4, (1, 1), 1, "relu")
        close(conv(x, mask), expected, 1e-4)
        conv.weight.mul_(-1.5)


@torch.no_grad()
@pytest.mark.parametrize("clearing", ["written", "all"])
def test_planner_in_a_graph(clearing):
    torch.manual_seed(0)
    layers = [MaskedConv2d(128, 128, 3, padding=1, activation="relu") for _ in range(3)]
    planner, x, mask = distile.Planner(clearing=clearing), image(1, 128, 24, 20), mask_of("", 0.5)

    def step():
        result = x
        for layer in layers:
            result = layer(result, mask, out=planner.next(mask, 128))
        return result

    captured = graphs.Captured(step)
    for density in (0.3, 0.0, 1.0, 0.1):
        mask.copy_(mask_of("", density))
        expected = x
        for layer in layers:
            expected = layer(expected, mask)
        close(captured(), expected, 1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("name", SMALL)
def test_whole_networks_in_graphs(name, device):
    """One capture of a step serves other inputs, and so other masks."""
    network = small(name, device)
    network.masked()
    with without_waiting():
        network.masked()
    assert graphs.Replayed(network).error_of_others() <= network.bound


@torch.no_grad()
@pytest.mark.parametrize("inference", [False, True])
def test_masks_that_change_in_a_capture(inference):
    """Each call in a capture reads the mask as it is then."""
    torch.manual_seed(0)
    x, given = image(1, 40, 24, 20), mask_of("", 0.5)

    def step():
        with torch.inference_mode(inference):
            mask = given.clone()
            found = [ops.activate(x, mask), ops.activate(x, mask)]
            mask.logical_not_()
            found.append(ops.activate(x, mask))
            mask = mask | given
            found.append(ops.activate(x, mask))
            del mask
            found.append(ops.activate(x, given.clone()))
            return [*found, ops.activate(x, given)]

    captured = graphs.Captured(step)
    for density in (0.3, 0.8):
        given.copy_(mask_of("", density))
        first, second, inverse, all_of_it, cloned, last = captured()
        expected = torch.where(given[:, None], x, 0)
        assert all(torch.equal(found, expected) for found in (first, second, cloned, last))
        assert torch.equal(inverse, torch.where(given[:, None], 0, x)) and torch.equal(all_of_it, x)
        assert torch.equal(ops.activate(x, given), expected)


@torch.no_grad()
def test_fixed_masks():
    """Calls share what they make of masks that do not change. A write ends that, and other streams take no part in it."""
    torch.manual_seed(0)
    x, given, other = image(1, 40, 24, 20), mask_of("", 0.5), mask_of("", 0.2)
    tokens = torch.randn(1, 480, 40)

    def right(mask):
        images = torch.equal(ops.activate(x, mask), torch.where(mask[:, None], x, 0))
        rows = mask.flatten(1)
        return images and torch.equal(ops.activate(tokens, rows), torch.where(rows[..., None], tokens, 0))

    with distile.masks.fixed():
        made = [distile.masks.dilate(given, 1), distile.masks.dilate(other, 2), distile.masks.pool(given, 1)]
        scored = distile.nn.MaskUnit(40)(x)
        assert all(right(mask) for _ in range(2) for mask in (*made, scored))
        assert torch.equal(made[0], mask_algebra.dilate(given, 1, 1)) and torch.equal(made[2], given)
        made[0].logical_not_()
        assert right(made[0])
    with distile.masks.fixed(given, other):
        assert all(right(mask) for mask in (given, other, given, given & other))
        with distile.masks.fixed(given):
            assert right(given)
        assert right(given) and right(other)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            assert right(given)
        torch.cuda.current_stream().wait_stream(stream)
        given.logical_not_()
        assert right(given) and right(other)
    given.copy_(other)
    assert right(given)


@torch.no_grad()
@pytest.mark.parametrize("inference", [False, True])
def test_fixed_masks_in_a_graph(inference):
    torch.manual_seed(0)
    x, given, conv = image(1, 128, 24, 20), mask_of("", 0.5), MaskedConv2d(128, 128, 3, padding=1)

    def step():
        with torch.inference_mode(inference), distile.masks.fixed(given):
            wide = distile.masks.dilate(given, 1)
            return ops.activate(x, given), ops.activate(x, wide), conv(conv(x, wide), given)

    captured = graphs.Captured(step)
    with distile.masks.fixed(given):
        step()  # What it set is not for the graph.
        for density in (0.3, 0.0, 1.0, 0.1):
            given.copy_(mask_of("", density))
            for found, expected in zip(captured(), step()):
                assert torch.equal(found, expected)
            assert torch.equal(captured()[0], torch.where(given[:, None], x, 0))


@torch.no_grad()
def test_tensors_of_another_device():
    layer, x, mask = MaskedConv2d(128, 128, 3, padding=1, activation="relu"), image(1, 128, 24, 20), mask_of("", 0.5)
    for message, keywords in {
        "the mask is on another device": {"mask": mask.cpu()},
        "the output is on another device": {"mask": mask, "out": x.cpu()},
    }.items():
        with pytest.raises(RuntimeError, match=message):
            layer(x, **keywords)
    layer(x, mask)
