"""Stages: what is recorded and when it runs, on a CPU by plain PyTorch in place of the launch; on a GPU, the launch."""

import collections
import contextlib

import avit
import common
import dynconv_resnet
import pytest
import runner
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import distile
from distile import _facts, dense, halting, masks, stages
from distile.nn import MaskedConv2d, MaskedLayerNorm, MaskedLinear, MaskedRMSNorm, MaskUnit

ops = torch.ops.distile
NAMES = list(_facts.ACTIVATIONS)


def run(tensors, parameters, made_masks, borders, made, program, numbers):
    """The steps of a stage, one after the other, by PyTorch."""
    RUN.append(len(program) // INTEGERS)
    assert all(stages._is_read_in_place(tensor) for tensor in tensors)
    assert len({mask.data_ptr() for mask in made_masks}) == len(made_masks)  # Each once: made, or given.

    def one(list, number):
        return None if number < 0 else list[number]

    def read(number):
        x, border = tensors[number], borders[number]
        if not border:
            return x.float(), 0
        outside = x.as_strided(
            (x.shape[0], x.shape[1], x.shape[2] + 2 * border, x.shape[3] + 2 * border),
            x.stride(),
            x.storage_offset() - border * (x.stride(2) + x.stride(3)),
        )
        return outside.float(), border

    for at in range(0, len(program), INTEGERS):
        kind, input, output, residual, mask, later, *rest = program[at : at + INTEGERS]
        window, reader, (weight, bias, activation, spreads, groups, norm, *attends) = rest[:8], rest[8:16], rest[16:]
        key, value, heads, all_keys, going, totals, limits = attends
        slope, score_bias, threshold, epsilon, scale = numbers[at // INTEGERS * 5 : at // INTEGERS * 5 + 5]
        mask, later = one(made_masks, mask), one(made_masks, later)
        if kind == stages.HALT:
            x, sums, going = tokens(tensors[input]), one(tensors, output), one(made_masks, going)
            mask[:, 0] = halting._halt(
                x.float(), parameters[weight], None if going is None else going[:, 0], parameters[totals],
                None if sums is None else tokens(sums), one(parameters, limits), score_bias, threshold,
            )  # fmt: skip
            continue
        if kind in (stages.NORMALIZE, stages.ATTENTION):
            if kind == stages.NORMALIZE:
                assert heads == 0 and scale == 0
                result = normalized(tensors[input].float(), norm, one(parameters, weight), one(parameters, bias), epsilon)
            else:
                assert weight < 0 and epsilon == 0 and not spreads
                keys = None if mask is None or all_keys else mask
                result = attended(*(tensors[number].float() for number in (input, key, value)), heads, keys, scale)
            done = result.to(tensors[output].dtype)
            all_pixels = mask is None or spreads
            tensors[output].copy_(done if all_pixels else torch.where(mask[:, None], done, tensors[output]))
            continue
        if kind == 1:
            scored = tensors[input][..., :: window[2], :: window[3]]
            scores = torch.einsum("nchw,c->nhw", scored.float(), parameters[weight])
            mask.copy_(scores + score_bias > threshold)
            continue
        x, border = read(input)
        pad = [border - window[6], border - window[7]]
        assert min(pad) >= 0 or not border
        x = F.pad(x, (-pad[1],) * 2 + (-pad[0],) * 2)
        bias = None if bias < 0 else parameters[bias].float()
        if kind == stages.CONVOLUTION:
            weight = parameters[weight].float()
            weight = weight if weight.dim() == 4 else weight[:, :, None, None]
            result = F.conv2d(x, weight, bias, tuple(window[2:4]), 0, tuple(window[4:6]), groups)
        else:
            assert weight < 0 and bias is None and later is None and not reader[0] and not spreads
            result = layer(kind, x, window)
        target = tensors[output]
        result = result[:, :, : target.shape[2], : target.shape[3]]
        if residual >= 0:
            result = result + tensors[residual].float()
        name = NAMES[activation]
        done = dense.ACTIVATIONS[f"{name}({slope})" if "slope" in _facts.ACTIVATIONS[name][0] else name](result)
        if later is not None:
            done = torch.where(later[:, None], result, done)
        if mask is not None and reader[0]:
            mask = ops.mask_needed_input(mask, list(target.shape[2:]), reader[:2], stride=reader[2:4],
                                         dilation=reader[4:6], padding=reader[6:])  # fmt: skip
        done = done.to(target.dtype)
        if spreads:
            assert residual < 0 and later is None
            mask = None  # As a GPU computes small images.
        target.copy_(done if mask is None else torch.where(mask[:, None], done, target))


def tokens(image):
    """An image of one row as tokens [N, T, C]."""
    return image[:, :, 0].transpose(1, 2)


def normalized(x, norm, weight, bias, epsilon):
    function = F.rms_norm if norm else F.layer_norm
    parameters = (weight,) if norm else (weight, bias)
    return function(x.movedim(1, -1), x.shape[1:2], *parameters, epsilon).movedim(-1, 1)


def attended(query, key, value, heads, keys, scale):
    query, key, value = (x.flatten(2).unflatten(1, (heads, -1)).transpose(2, 3) for x in (query, key, value))
    keys = None if keys is None else keys.flatten(1)[:, None, None]
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=keys, scale=scale)
    return result.transpose(2, 3).flatten(1, 2)[:, :, None]


def layer(kind, x, window):
    """What a step makes that takes each channel by itself."""
    kernel, stride, dilation = (tuple(window[place : place + 2]) for place in (0, 2, 4))
    if kind == stages.MAX_POOL:
        return F.max_pool2d(x, kernel, stride, 0, dilation)
    if kind == stages.AVERAGE_POOL:
        return F.avg_pool2d(x, kernel, stride)
    assert kernel == (1, 1) and window[6:] == [0, 0] and (kind == stages.UPSAMPLE or stride == (1, 1))
    return F.interpolate(x, scale_factor=stride) if kind == stages.UPSAMPLE else x


INTEGERS = 35
RUN = []


@pytest.fixture(autouse=True)
def emulated(monkeypatch, device):
    """On a CPU, stages record as on a GPU that has them, and PyTorch computes the steps."""
    RUN.clear()
    if device != "cpu":
        if not stages._runs_on(torch.empty(0).device):
            pytest.skip("stages need a GPU of compute capability 8.0")
        launch = stages._run

        def counted(*lists):
            RUN.append(len(lists[5]) // INTEGERS)
            launch(*lists)

        monkeypatch.setattr(stages, "_run", counted)
        return
    monkeypatch.setattr(stages, "_runs_on", lambda device: True)
    monkeypatch.setattr(stages, "_has_device", lambda: True)
    monkeypatch.setattr(stages, "_run", run)
    monkeypatch.setattr(stages._packed, "weight", lambda weight, dtype, device, groups: weight)


class Block(torch.nn.Module):
    """A bottleneck with a mask unit, as in python/networks, changing its input or with a shortcut."""

    scratch = False

    def __init__(self, channels, width, stride=1, shortcut=False):
        super().__init__()
        out = 4 * width if shortcut else channels
        self.unit = MaskUnit(channels, stride=stride)
        self.reduce = MaskedConv2d(channels, width, 1, activation="relu")
        self.middle = MaskedConv2d(width, width, 3, stride=stride, padding=1, activation="leaky_relu(0.2)")
        self.expand = MaskedConv2d(width, out, 1, activation="relu")
        self.shortcut = MaskedConv2d(channels, out, 1, stride=stride) if shortcut else None

    def forward(self, x):
        with masks.fixed():
            self.mask = mask = self.unit(x)
            size, width = tuple(x.shape[2:]), self.reduce.out_channels
            read = masks.needed_input(mask, size, kernel=3, stride=self.middle.stride, padding=1)
            reduced = self.reduce(x, read, out=distile.bordered(x, width, *size, 1, scratch=self.scratch))
            middle = self.middle(reduced, mask, out=distile.bordered(x, width, *mask.shape[1:], 0))
            if self.shortcut is None:
                return self.expand(middle, mask, residual=x, out=x)
            result = self.shortcut(x)
            self.expand(middle, mask, residual=result, out=result)
            return ops.activate.out(result, ~mask, activation="relu", out=result)


def network(seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(Block(64, 64, shortcut=True), Block(256, 64), Block(256, 64, 2, shortcut=True)).eval()
    for block in net:
        block.unit.threshold = 0.2
    return net.half()


def image(n=2, height=11, width=37):
    return torch.randn(n, 64, height, width).half().contiguous(memory_format=torch.channels_last)


def close(a, b):
    torch.testing.assert_close(a.float(), b.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("scratch", [False, True])
@torch.no_grad()
def test_blocks_run_in_one_launch(scratch):
    net, x = network(), image()
    for block in net:
        block.scratch = scratch
    expected = net(x.clone())
    due = [block.mask.clone() for block in net]
    with distile.stage():
        result = net(x.clone())
        assert not RUN
    assert RUN == [14]
    close(result, expected)
    for block, mask in zip(net, due):
        assert (block.mask == mask).float().mean() > 0.99
        assert 0 < mask.float().mean() < 1


@torch.no_grad()
def test_whatever_reads_runs_after():
    net, x = network(), image()
    expected = net(x.clone())
    with distile.stage():
        result = net(x.clone())
        assert not RUN
        mean = result.float().mean()
        assert RUN == [14]
        again = net[1](result.clone())
    close(mean, expected.float().mean())
    close(again, net[1](expected.clone()))
    assert RUN == [14, 4]


@torch.no_grad()
def test_what_reads_other_tensors_runs_beside():
    net, x, other = network(), image(), torch.arange(8)
    expected = net(x.clone())
    with distile.stage():
        result = net[0](x.clone())
        doubled = torch.cat([other.float(), 2 * other.float()])
        assert not RUN and doubled.tolist() == [*range(8), *range(0, 16, 2)]
        for block in net[1:]:
            result = block(result)
        assert net[-1].mask.float().mean() > 0  # A step makes it.
        assert RUN == [14]
        other += 1
    assert RUN == [14]
    close(result, expected)


@torch.no_grad()
def test_masks_that_are_left_are_made():
    """What a window reads and an inverse are computed if anybody still holds them."""
    block, x = network()[1], torch.randn(1, 256, 9, 33).half().contiguous(memory_format=torch.channels_last)
    with distile.stage():
        mask = block.unit(x)
        needed = masks.needed_input(mask, (9, 33), kernel=3, padding=1)
        other = ~mask
        block(x)
    assert torch.equal(other, ~mask)
    assert torch.equal(needed, masks.needed_input(mask, (9, 33), kernel=3, padding=1))


class Counted(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_masks_that_nobody_holds_are_not_made():
    net, x = network(), image()
    net(x.clone())
    with Counted() as counted:
        with distile.stage():
            net(x.clone())
    assert RUN == [14]
    assert counted.calls[ops.mask_needed_input.out] == counted.calls[torch.ops.aten.logical_not.out] == 0


@torch.no_grad()
def test_results_without_out_are_zero_elsewhere():
    torch.manual_seed(1)
    first = MaskedConv2d(64, 64, 1, activation="relu").half()
    second = MaskedConv2d(64, 96, 3, padding=1).half()
    x, mask = image(1, 8, 40), torch.rand(1, 8, 40) < 0.4
    expected = second(first(x, mask), mask)
    with distile.stage():
        result = second(first(x, mask), mask)
    assert RUN == [2]
    close(result, expected)
    assert not torch.where(mask[:, None], 0, result).any()


@contextlib.contextmanager
def multiplying(math):
    before = distile.set_math(math)
    try:
        yield
    finally:
        distile.set_math(before)


@torch.no_grad()
@pytest.mark.parametrize("math", ["default", "float32", "tf32"])
def test_float32_runs_in_a_stage_where_it_may_be_tf32(math):
    """As layers do: convolutions by default, and linear layers if they are told."""
    torch.manual_seed(3)
    first, second = MaskedConv2d(44, 36, 1, activation="relu"), MaskedConv2d(36, 44, 1)
    linears = MaskedLinear(44, 36), MaskedLinear(36, 44)
    x, mask = torch.randn(1, 44, 8, 40).contiguous(memory_format=torch.channels_last), torch.rand(1, 8, 40) < 0.4
    tokens, of_tokens = torch.randn(2, 37, 44), torch.rand(2, 37) < 0.6
    with multiplying(math):
        for layers, given, active, may_be in (
            ((first, second), x, mask, ("default", "tf32")),
            (linears, tokens, of_tokens, ("tf32",)),
        ):
            RUN.clear()
            expected = layers[1](layers[0](given, active), active)
            with distile.stage():
                result = layers[1](layers[0](given, active), active)
            assert RUN == ([2] if math in may_be else [])
            close(result, expected)


@torch.no_grad()
@pytest.mark.parametrize("why", ["border", "float32", "groups", "channels", "gradients", "alone", "large"])
def test_what_cannot_run_in_a_stage_runs_alone(why):
    torch.manual_seed(2)
    channels = 44 if why == "channels" else 64
    first = MaskedConv2d(channels, channels, 3 if why == "border" else 1, padding=int(why == "border"))
    second = MaskedConv2d(channels, channels, 1, groups=2 if why == "groups" else 1)
    dtype = torch.float32 if why == "float32" else torch.half
    height, width = (stages.MOST_WORDS + 1, 1) if why == "large" else (8, 40)
    x = torch.randn(1, channels, height, width).to(dtype).contiguous(memory_format=torch.channels_last)
    mask = torch.rand(1, height, width) < 0.4
    first, second = first.to(dtype), second.to(dtype)
    with torch.set_grad_enabled(why == "gradients"), multiplying("float32" if why == "float32" else "default"):
        expected = second(first(x, mask), mask) if why != "alone" else first(x, mask)
        with distile.stage():
            result = second(first(x, mask), mask) if why != "alone" else first(x, mask)
    assert not RUN
    close(result, expected)


class InvertedResidual(torch.nn.Module):
    """A block of the pose network in python/networks."""

    def __init__(self, channels, wide):
        super().__init__()
        self.unit = MaskUnit(channels, threshold=0.1)
        self.expand = MaskedConv2d(channels, wide, 1, activation="relu6")
        self.depthwise = MaskedConv2d(wide, wide, 3, padding=1, groups=wide, activation="relu6")
        self.project = MaskedConv2d(wide, channels, 1)

    def forward(self, x, keep=False):
        with masks.fixed():
            mask, wide = self.unit(x), self.expand.out_channels
            expanded = distile.bordered(x, wide, *x.shape[2:], 1, scratch=True)
            filtered = distile.bordered(x, wide, *x.shape[2:], 0)
            self.expand(x, masks.dilate(mask, 1), out=expanded)
            self.depthwise(expanded, mask, out=filtered)
            out = x.clone() if keep else x
            return self.project(filtered, mask, residual=out, out=out)


class Hourglass(torch.nn.Module):
    def __init__(self, channels=24, wide=72):
        super().__init__()
        self.side, self.down, self.up, self.last = (InvertedResidual(channels, wide) for _ in range(4))

    def forward(self, x):
        larger = F.interpolate(self.up(self.down(F.max_pool2d(self.last(x), 2))), scale_factor=2.0, mode="nearest")
        y = self.side(x, keep=True) + larger
        y += x
        return self.last(y)


@pytest.mark.parametrize("inference", [False, True])
def test_an_hourglass_runs_in_one_launch(inference):
    torch.manual_seed(5)
    model = Hourglass().eval().half()
    x = torch.randn(2, 24, 12, 38).half().contiguous(memory_format=torch.channels_last)
    with torch.inference_mode() if inference else torch.no_grad():
        expected = model(x.clone())
        RUN.clear()
        with distile.stage():
            result = model(x.clone())
        assert RUN == [5 * 4 + 5]
    # On a GPU, a rounded score may be on the other side of the threshold.
    right = (result.float() - expected.float()).abs() <= 2e-2 + 2e-2 * expected.float().abs()
    assert right.float().mean() > (0.95 if x.is_cuda else 0.9999)


@torch.no_grad()
@pytest.mark.parametrize("why", ["padding", "ceil", "size", "scale", "alpha", "number", "shape"])
def test_pools_and_sums_that_are_no_steps(why):
    torch.manual_seed(6)
    first, second = MaskedConv2d(16, 24, 1).half(), MaskedConv2d(24, 16, 1).half()
    third, fourth = MaskedConv2d(24, 8, 1).half(), MaskedConv2d(8, 8, 1).half()
    x, mask = image(1, 9, 14)[:, :16].contiguous(memory_format=torch.channels_last), torch.rand(1, 9, 14) < 0.5
    between = {
        "padding": lambda y: F.avg_pool2d(y, 5, 2, 2),
        "ceil": lambda y: F.avg_pool2d(y, 2, ceil_mode=True),
        "size": lambda y: F.interpolate(y, size=(20, 30)),
        "scale": lambda y: F.interpolate(y, scale_factor=1.5),
        "alpha": lambda y: torch.add(y, y, alpha=2),
        "number": lambda y: y + 1,
        "shape": lambda y: y + y[:, :, :1, :1],
    }[why]

    def network():
        y = between(first(x, mask))
        active = torch.ones(1, *y.shape[2:], dtype=torch.bool)
        return fourth(third(y, active), active), second(first(x, mask), mask)

    expected = network()
    with distile.stage():
        result = network()
    assert RUN == [2 + 2]
    close(result[0], expected[0])
    close(result[1], expected[1])


@torch.no_grad()
@pytest.mark.parametrize("why", ["relu", "none", "out", "later", "input", "wide", "indices"])
def test_max_pools_with_padding(why):
    """What is outside an image does not count, where it may be negative, too, and where others read zeros there."""
    torch.manual_seed(12)
    first = MaskedConv2d(64, 24, 1, activation="none" if why == "none" else "relu").half()
    between, after = MaskedConv2d(24, 24, 3, padding=1).half(), MaskedConv2d(24, 16, 1).half()
    x, mask = image(2, 9, 14), torch.rand(2, 9, 14) < 0.7
    kernel, stride, padding = (5, 2, 2) if why == "wide" else (3, 2, 1)

    def pooled(y):
        return F.max_pool2d(y, kernel, stride, padding, return_indices=why == "indices")

    def network():
        out = distile.bordered(x, 24, 9, 14, 1)
        out.fill_(-3)
        y = first(x, mask, out=out) if why == "out" else first(x, mask)
        z = between(y, mask)
        if why == "later":
            first(-x, ~mask, residual=y, out=y)
            y.sub_(1)
        found = pooled(x if why == "input" else y)
        active = torch.ones(2, *(found[0] if why == "indices" else found).shape[2:], dtype=torch.bool)
        if why == "indices":
            return z, found[0], found[1]
        return z, found if why == "input" else after(found, active)

    expected = network()
    RUN.clear()
    with distile.stage():
        result = network()
    # Two convolutions, a copy but behind a ReLU, and the pool; another convolution but of the input.
    if why in ("relu", "none", "out", "wide"):
        assert RUN == [4 + (why != "relu")]
    for one, other in zip(result, expected):
        close(one, other)


@torch.no_grad()
def test_indices_of_a_pool_that_somebody_holds():
    torch.manual_seed(7)
    first, second, x = MaskedConv2d(64, 24, 1).half(), MaskedConv2d(24, 16, 1).half(), image(1, 8, 12)
    mask = torch.rand(1, 8, 12) < 0.5
    expected = F.max_pool2d(first(x, mask), 2, return_indices=True)
    with distile.stage():
        before = second(first(x, mask), mask)
        found = F.max_pool2d(first(x, mask), 2, return_indices=True)
        after = before + before
    close(found[0], expected[0])
    assert (found[1] == expected[1]).float().mean() > 0.95
    close(after, 2 * second(first(x, mask), mask))


class TokenLayer(torch.nn.Module):
    """A layer of a transformer that changes its input, whose tokens attend to each other or to all."""

    def __init__(self, channels, heads, all_keys=False, scratch=False):
        super().__init__()
        self.heads, self.all_keys, self.scratch = heads, all_keys, scratch
        self.norm1, self.norm2 = MaskedLayerNorm(channels), MaskedRMSNorm(channels)
        self.qkv, self.proj = MaskedLinear(channels, 3 * channels), MaskedLinear(channels, channels)
        self.up = MaskedLinear(channels, 2 * channels, activation="gelu")
        self.down = MaskedLinear(2 * channels, channels, bias=False)

    def forward(self, x, mask):
        def made(channels):
            result = x.new_zeros(*x.shape[:2], channels)
            distile.mark_scratch(result, self.scratch)
            return result

        every = torch.ones(mask.shape, dtype=torch.bool, device=x.device) if self.all_keys else mask
        parts = self.qkv(self.norm1(x, every, out=made(x.shape[2])), every, out=made(3 * x.shape[2]))
        parts = parts.unflatten(2, (3, self.heads, -1)).transpose(1, 3)
        attended = torch.zeros_like(x)
        into = attended.unflatten(2, (self.heads, -1)).transpose(1, 2)
        ops.attention_into(*parts.unbind(2), mask, None if self.all_keys else mask, into=into)
        self.proj(attended, mask, residual=x, out=x)
        return self.down(self.up(self.norm2(x, mask), mask), mask, residual=x, out=x)


def token_network(channels=48, heads=3, **keywords):
    torch.manual_seed(8)
    layers = torch.nn.ModuleList(TokenLayer(channels, heads, **keywords) for _ in range(3)).eval().half()
    factors, limits = torch.zeros(channels), torch.ones(37)
    factors[:2], limits[0] = 1, 0.05

    def run(x):
        totals, sums = torch.zeros(x.shape[:2]), torch.zeros_like(x[:, :1])
        mask, found = torch.rand(x.shape[:2], generator=torch.Generator("cpu").manual_seed(1), device="cpu") < 0.8, []
        mask[:, 0] = True
        mask = mask.to(x.device)
        for layer in layers:
            with masks.fixed(mask):
                layer(x, mask)
            mask = masks.halt(x, factors, totals, mask, bias=-1.0, limits=limits, sums=sums)
            found.append(mask)
        return x, sums, totals, *found

    return run


@pytest.mark.parametrize("keywords", [{}, {"all_keys": True}, {"scratch": True}])
@pytest.mark.parametrize("inference", [False, True])
def test_layers_of_tokens_that_halt_run_in_one_launch(keywords, inference):
    run, x = token_network(**keywords), torch.randn(2, 37, 48).half()
    with torch.inference_mode() if inference else torch.no_grad():
        expected = run(x.clone())
        RUN.clear()
        with distile.stage():
            result = run(x.clone())
        assert RUN == [3 * 8]
    going, due = (torch.stack(each[3:]) for each in (result, expected))
    assert (going == due).float().mean() > 0.99 and 0.05 < due.float().mean() < 0.8
    same = (going == due).all(0)  # Rounded scores may be on the other side of the threshold.
    close(torch.where(same[..., None], result[0], 0), torch.where(same[..., None], expected[0], 0))
    close(result[1], expected[1])
    close(torch.where(same, result[2], 0), torch.where(same, expected[2], 0))


@torch.no_grad()
def test_attention_that_is_no_step_runs_alone():
    run, x = token_network(heads=12), torch.randn(1, 37, 48).half()  # Heads of 4 channels.
    expected = run(x.clone())
    with distile.stage():
        result = run(x.clone())
    # A stage begins behind attention and ends in front of the next. One linear layer is none.
    assert RUN == [7, 7, 5]
    close(result[0], expected[0])


@torch.inference_mode()
@pytest.mark.parametrize("batch", [1, 3])
def test_avit_is_a_stage(batch, device):
    with torch.inference_mode(False), torch.device("cpu"):
        network = avit.AViT("T", 0.5, batch=batch, layers=3, pixels=64)
        common.move(network, device, torch.half)
    network.in_a_stage = True
    result = network.masked()
    assert RUN == [3 * 8]
    assert common.error(network, result, network.expected()) <= runner.BOUNDS["float16"]
    densities = network.densities()
    assert densities[0] == 1 and 0.02 < densities[-1] < densities[1] < 1


@torch.inference_mode()
@pytest.mark.parametrize("batch", [2, 14])
def test_teams_compute_what_a_program_does(batch, device):
    if device == "cpu":
        pytest.skip("teams are of a GPU's blocks")
    with torch.inference_mode(False), torch.device("cpu"):
        network = dynconv_resnet.ThirdStage(14, 0.4, batch, count=3)
        common.move(network, device, torch.half)
    results = []
    for teams in (True, False):
        with distile.stage_teams(teams):
            results.append(network.masked().clone())
        assert common.error(network, results[-1], network.expected()) <= runner.BOUNDS["float16"]
    assert not torch.equal(*results)  # They round at different places.


def test_scores_add_up_until_a_token_halts():
    x = torch.tensor([[[0.0], [1], [2], [-30]]])
    totals, sums = torch.zeros(1, 4), torch.zeros(1, 2, 1)
    mask = masks.halt(x, torch.ones(1), totals, limits=torch.tensor([0.25, 1, 1, 1]), sums=sums)
    score = torch.sigmoid(torch.tensor(1.0)).item()
    assert mask.tolist() == [[True, True, True, True]]
    torch.testing.assert_close(sums.flatten(), torch.tensor([0.0, score]))
    mask = masks.halt(x, torch.ones(1), totals, mask, sums=sums)
    assert mask.tolist() == [[True, False, False, True]]
    torch.testing.assert_close(sums.flatten(), torch.tensor([0.0, 1]))
    torch.testing.assert_close(totals[0, :2], torch.tensor([0.75, 2 * score]))
    before = totals.clone()
    mask = masks.halt(x, torch.ones(1), totals, mask, bias=float("inf"), sums=sums)
    assert not mask.any()
    assert torch.equal(totals[0, 1:3], before[0, 1:3]) and totals[0, 0] == 1.75


@torch.no_grad()
def test_weights_are_packed_when_they_change():
    first, second = MaskedConv2d(64, 64, 1).half(), MaskedConv2d(64, 64, 1).half()
    x, mask = image(1, 8, 40), torch.rand(1, 8, 40) < 0.4
    for _ in range(2):
        with distile.stage():
            result = second(first(x, mask), mask)
        close(result, second(first(x, mask), mask))
        first.weight.mul_(2)
        second.bias.add_(1)
    assert RUN == [2, 2]


@torch.no_grad()
def test_an_error_in_the_context_loses_no_layer():
    net, x = network(), image()
    expected, mine = net[0](x.clone()), []
    with pytest.raises(KeyError):
        with distile.stage():
            mine.append(net[0](x.clone()))
            raise KeyError
    close(mine[0], expected)


@torch.no_grad()
def test_a_mask_from_what_an_activation_changes_later():
    """A step may read pixels between the convolution that writes them and their activation."""
    block, between = network()[0], MaskUnit(256).half()

    def run(x):
        mask = block.unit(x)
        result = block.shortcut(x)
        reduced = block.reduce(x, mask, out=distile.bordered(x, 64, *x.shape[2:], 0))
        block.expand(reduced, mask, residual=result, out=result)
        found = between(result)
        return found, ops.activate.out(result, ~mask, activation="relu", out=result)

    x = image()
    due, expected = run(x)
    with distile.stage():
        found, result = run(x)
    assert (found == due).float().mean() > 0.99
    close(result, expected)
