"""The masked operators against the dense operator and then the mask, on many shapes."""

import concurrent.futures
import warnings

import pytest
import torch

import distile
from distile import dense, polykernels

SHIPPED_CONV = [
    # name, in, out, kernel, stride, groups, activation, residual
    ("conv3x3_128", 128, 128, 3, 1, 1, "relu", False),
    ("conv3x3_256", 256, 256, 3, 1, 1, "relu", False),
    ("conv1x1_96_576", 96, 576, 1, 1, 1, "relu6", False),
    ("conv1x1_576_96", 576, 96, 1, 1, 1, "none", True),
    ("depthwise3x3_576", 576, 576, 3, 1, 576, "relu6", False),
    ("depthwise3x3s2_576", 576, 576, 3, 2, 576, "relu6", False),
]


def random_mask(*shape, density=0.3):
    return torch.rand(*shape) < density


def close(actual, expected, products):
    """Equal up to the rounding of float32 sums of `products` products."""
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=products * 2**-24 * float(expected.abs().max()) * 4 + 1e-6
    )


@pytest.mark.parametrize("size", [(1, 7, 9), (2, 20, 13)])
@pytest.mark.parametrize("density", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("name, ins, outs, kernel, stride, groups, activation, residual", SHIPPED_CONV)
def test_shipped_conv2d(name, ins, outs, kernel, stride, groups, activation, residual, size, density, no_dense):
    torch.manual_seed(1)
    n, h, w = size
    pad = (kernel // 2,) * 4
    x = torch.randn(n, ins, h, w).to(memory_format=torch.channels_last)
    weight = torch.randn(outs, ins // groups, kernel, kernel) / (ins // groups * kernel)
    bias = torch.randn(outs)
    out_h, out_w = (h - 1) // stride + 1, (w - 1) // stride + 1
    mask = random_mask(n, out_h, out_w, density=density)
    added = torch.randn(n, outs, out_h, out_w).to(memory_format=torch.channels_last) if residual else None
    args = ((stride,) * 2, pad, (1, 1), groups, activation)
    expected = dense.conv2d(x, weight, bias, mask, added, *args)
    call = dict(residual=added, stride=args[0], padding=pad, groups=groups, activation=activation)
    actual = torch.ops.distile.conv2d(x, weight, bias, mask, **call)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    close(actual, expected, ins // groups * kernel**2)

    out = torch.full_like(expected, -3).to(memory_format=torch.channels_last)
    returned = torch.ops.distile.conv2d.out(x, weight, bias, mask, **call, out=out)
    assert returned is out or returned.data_ptr() == out.data_ptr()
    spread = mask.unsqueeze(1).expand_as(out)
    close(out[spread], expected[spread], ins * kernel**2) if spread.any() else None
    assert (out[~spread] == -3).all()


def test_strides(no_dense):
    torch.manual_seed(2)
    weight, mask = torch.randn(128, 128, 3, 3), random_mask(2, 11, 12)
    whole = torch.randn(2, 14, 15, 200)
    crop = whole[:, 1:12, 2:14, 40:168].permute(0, 3, 1, 2)
    expected = torch.ops.distile.conv2d(crop.contiguous(), weight, None, mask, padding=[1] * 4, activation="relu")
    actual = torch.ops.distile.conv2d(crop, weight, None, mask, padding=[1] * 4, activation="relu")
    assert torch.equal(actual, expected)


def test_linear(no_dense):
    torch.manual_seed(3)
    for n, t in ((1, 197), (3, 50)):
        x, weight, bias = torch.randn(n, t, 384), torch.randn(1536, 384) / 20, torch.randn(1536)
        mask = random_mask(n, t)
        actual = torch.ops.distile.linear(x, weight, bias, mask, activation="gelu")
        close(actual, dense.linear(x, weight, bias, mask, None, "gelu"), 384)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.filterwarnings("ignore:distile")
def test_dense_ones_are_zero_where_inactive(dtype, activation):
    """Also of numbers that are none, and what a call got stays."""
    x, added = torch.randn(2, 5, 6, 7).to(dtype), torch.randn(2, 3, 6, 7).to(dtype)
    x[1, :, 2, 3], added[0, 1, 4, 5] = torch.nan, torch.inf
    weight, bias, mask = torch.randn(3, 5, 1, 1).to(dtype), torch.randn(3).to(dtype), random_mask(2, 6, 7)
    mask[1, 2, 3] = mask[0, 4, 5] = False
    for residual in (None, added):
        kept = [one.clone() for one in (x, added)]
        args = (residual, (1, 1), (0,) * 4, (1, 1), 1, activation)
        result = dense.conv2d(x, weight, bias, mask, *args)  # Where there may be gradients.
        with torch.no_grad():
            assert torch.equal(dense.conv2d(x, weight, bias, mask, *args), result)
            called = torch.ops.distile.conv2d(x, weight, bias, mask.byte(), residual, activation=activation)
            torch.testing.assert_close(called, result, rtol=2e-2, atol=2e-2)
        assert not result[~mask.unsqueeze(1).expand_as(result)].any()
        for one, before in zip((x, added), kept):
            torch.testing.assert_close(one, before, rtol=0, atol=0, equal_nan=True)


def test_fallback_and_warning(monkeypatch):
    """Without a PolyKernel the dense operator runs, and the first such call of a process warns: no other, whatever
    Python's filters let through."""
    monkeypatch.setattr(polykernels, "_warned", False)
    monkeypatch.setattr(polykernels, "takes_general_code", lambda _: False)
    x, weight, mask = torch.randn(1, 5, 8, 8), torch.randn(7, 5, 3, 3), random_mask(1, 8, 8)

    def run(warned):
        for number in range(3):
            actual = torch.ops.distile.conv2d(x, weight[: 7 - number], None, mask, padding=[1] * 4)
            warned.append(len(caught))
        return actual

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with polykernels.recording() as found:
            run(silent := [])  # Whoever records them, as distile.build, has something to do with them.
        actual = run(warned := [])
    expected = dense.conv2d(x, weight[:5], None, mask, None, (1, 1), (1,) * 4, (1, 1), 1, "none")
    assert torch.equal(actual, expected)
    assert silent == [0, 0, 0] and warned == [1, 1, 1]
    assert "distile.missing()" in str(caught[0].message) and "out_channels=7" in str(caught[0].message)
    assert {dict(operator.params)["out_channels"] for operator in found} == {5, 6, 7}
    assert all(operator.generator == "masked_conv2d" and operator in distile.missing() for operator in found)


def test_threads_warn_once(monkeypatch):
    monkeypatch.setattr(polykernels, "_warned", False)
    monkeypatch.setattr(polykernels, "takes_general_code", lambda _: False)
    x, mask = torch.randn(1, 6, 5), random_mask(1, 6)

    def run(outs):
        return torch.ops.distile.linear(x, torch.randn(outs, 5, device=x.device), None, mask)

    with warnings.catch_warnings(record=True) as caught, concurrent.futures.ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("always")
        list(pool.map(run, range(1, 20)))
    assert len(caught) == 1


def test_errors():
    x, weight = torch.randn(1, 128, 8, 8), torch.randn(128, 128, 3, 3)
    with pytest.raises(RuntimeError, match="mask"):
        torch.ops.distile.conv2d(
            x, weight, None, torch.ones(1, 9, 8, dtype=torch.bool), padding=[1] * 4, activation="relu"
        )
    with pytest.raises(RuntimeError, match="activation"):
        torch.ops.distile.conv2d(x, weight, None, torch.ones(1, 8, 8, dtype=torch.bool), activation="swish")


def copies(run):
    """The copies of tensors that a call makes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [
        event.name for event in profile.events() if event.name in ("aten::copy_", "aten::clone", "aten::contiguous")
    ]


def test_channels_last_is_not_copied(no_dense):
    torch.manual_seed(4)
    weight, mask = torch.randn(128, 128, 3, 3), random_mask(1, 9, 9)
    images = torch.randn(1, 128, 9, 9)
    last = images.to(memory_format=torch.channels_last)
    crop = torch.randn(1, 11, 12, 160)[:, 1:10, 2:11, 16:144].permute(0, 3, 1, 2)
    out = torch.zeros_like(last)

    def run(x):
        return torch.ops.distile.conv2d.out(x, weight, None, mask, padding=[1] * 4, activation="relu", out=out)

    baseline = copies(lambda: run(last)).count("aten::clone")
    assert baseline == copies(lambda: run(crop)).count("aten::clone") == 0
    assert "aten::copy_" in copies(lambda: run(images))
    assert run(last).data_ptr() == out.data_ptr()
    with pytest.raises(RuntimeError, match="channels_last"):
        torch.ops.distile.conv2d.out(
            last, weight, None, mask, padding=[1] * 4, activation="relu", out=torch.zeros(1, 128, 9, 9)
        )


def test_threads(no_dense):
    torch.manual_seed(5)
    layers = [distile.nn.MaskedConv2d(128, 128, 3, padding=1, activation="relu") for _ in range(4)]
    inputs = [torch.randn(1, 128, 12, 12).to(memory_format=torch.channels_last) for _ in layers]
    mask = random_mask(1, 12, 12)
    alone = [layer(x, mask).detach() for layer, x in zip(layers, inputs)]

    def work(i):
        with torch.no_grad():
            return all(torch.allclose(layers[i](inputs[i], mask), alone[i], atol=1e-5) for _ in range(20))

    with concurrent.futures.ThreadPoolExecutor(len(layers)) as pool:
        assert all(pool.map(work, range(len(layers))))
    threads = torch.get_num_threads()
    for count in (1, threads + 1, threads):
        torch.set_num_threads(count)
        assert work(0)


@pytest.mark.cpu
@pytest.mark.parametrize("wrong", ["bias", "mask", "padding"])
def test_errors_are_short(wrong, capfd):
    """Also those of PyTorch's operators, which run where there is no PolyKernel."""
    x, weight, bias = torch.randn(1, 4, 6, 6), torch.randn(8, 4, 3, 3), torch.randn(3 if wrong == "bias" else 8)
    mask = torch.ones(1, 7 if wrong == "mask" else 6, 6, dtype=torch.bool)
    padding = (1, 1, 1) if wrong == "padding" else (1, 1, 1, 1)
    with warnings.catch_warnings(), pytest.raises(RuntimeError) as raised:
        warnings.simplefilter("ignore")
        torch.ops.distile.conv2d(x, weight, bias, mask, padding=padding)
    message = str(raised.value)
    assert message.startswith("distile: ") and wrong in message.replace("size of tensor", "mask")
    assert "\n" not in message and "failed at" not in message
    assert capfd.readouterr().err == ""
