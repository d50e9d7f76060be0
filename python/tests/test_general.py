"""Code for any shape: what runs on a CPU where nobody compiled a PolyKernel."""

import concurrent.futures
import warnings

import pytest
import torch
from torch import nn

import distile
from distile import dense, polykernels

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def no_warnings():
    """Nothing runs dense, so nobody is warned."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "distile: no PolyKernel")
        yield


def mask_of(*shape):
    return torch.rand(shape) < 0.3


def convolve(outs, x, mask, residual=None, **more):
    weight, bias = torch.randn(outs, x.shape[1], 3, 3), torch.randn(outs)
    result = torch.ops.distile.conv2d(
        x, weight, bias, mask, residual, stride=[2, 1], padding=[1, 0, 2, 1], activation="silu", **more
    )
    expected = dense.conv2d(x, weight, bias, mask, residual, (2, 1), (1, 0, 2, 1), (1, 1), 1, "silu")
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    return result


@pytest.mark.parametrize("outs", (1, 19, 64, 100))
def test_convolutions(outs):
    x, mask = torch.randn(2, 13, 9, 14), mask_of(2, 4, 15)
    convolve(outs, x, mask)
    convolve(outs, x.to(memory_format=torch.channels_last), mask, torch.randn(2, outs, 4, 15))
    found = [operator for operator in distile.missing() if dict(operator.params).get("out_channels") == outs]
    assert found and not any(operator in distile.still_dense() for operator in found)


@pytest.mark.parametrize(("ins", "outs", "groups"), ((24, 64, 2), (24, 36, 12), (15, 15, 3), (24, 24, 6)))
def test_groups(ins, outs, groups):
    x, weight, mask = torch.randn(2, ins, 8, 9), torch.randn(outs, ins // groups, 3, 3), mask_of(2, 8, 9)
    result = torch.ops.distile.conv2d(x, weight, None, mask, padding=[1] * 4, groups=groups, activation="relu")
    expected = dense.conv2d(x, weight, None, mask, None, (1, 1), (1,) * 4, (1, 1), groups, "relu")
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_linear_layers():
    x, weight, mask = torch.randn(3, 50, 41), torch.randn(23, 41), mask_of(3, 50)
    result = torch.ops.distile.linear(x, weight, None, mask, activation="gelu")
    torch.testing.assert_close(result, dense.linear(x, weight, None, mask, None, "gelu"), rtol=1e-4, atol=1e-4)


def test_weights_of_16_bits():
    layer = distile.nn.MaskedConv2d(21, 35, 3, padding=1)
    narrow = distile.cast_weights(layer, torch.bfloat16)
    assert narrow
    x, mask = torch.randn(1, 21, 8, 8), mask_of(1, 8, 8)
    expected = dense.conv2d(
        x, layer.weight.float(), layer.bias.float(), mask, None, (1, 1), (1,) * 4, (1, 1), 1, "none"
    )
    with torch.no_grad():
        torch.testing.assert_close(layer(x, mask), expected, rtol=1e-3, atol=1e-3)


def test_written_in_place():
    x, mask = torch.randn(1, 12, 7, 9), mask_of(1, 7, 9)
    weight = torch.randn(20, 12, 1, 1)
    out = torch.full((1, 20, 7, 9), 5.0).contiguous(memory_format=torch.channels_last)
    torch.ops.distile.conv2d.out(x, weight, None, mask, zero=False, out=out)
    expected = dense.conv2d(x, weight, None, mask, None, (1, 1), (0,) * 4, (1, 1), 1, "none")
    torch.testing.assert_close(out, torch.where(mask[:, None], expected, 5.0), rtol=1e-4, atol=1e-4)


def test_later_calls_do_not_ask(monkeypatch):
    """Python decides once for an operator."""
    x, mask = torch.randn(1, 14, 6, 6), mask_of(1, 3, 7)
    convolve(15, x, mask)
    monkeypatch.setattr(polykernels, "provide", lambda *_: pytest.fail("a later call asks"))
    convolve(15, x, mask)


def test_what_collects_sees_every_call():
    x, mask = torch.randn(1, 14, 6, 6), mask_of(1, 3, 7)
    for _ in range(2):
        with polykernels.recording() as found:
            convolve(17, x, mask)
        assert [dict(operator.params)["out_channels"] for operator in found] == [17]


def test_other_operators_stay_dense():
    """Other types and transposed convolutions have no such code."""
    x, mask = torch.randn(1, 6, 5, 5), mask_of(1, 5, 5)
    calls = (
        lambda: torch.ops.distile.conv2d(x.half(), torch.randn(22, 6, 1, 1).half(), None, mask),
        lambda: torch.ops.distile.conv_transpose2d(x, torch.randn(6, 22, 1, 1), None, mask),
    )
    for call in calls:
        with polykernels.recording() as found:
            call()
        (operator,) = found
        assert not operator.has_general_code and operator in distile.still_dense()


def test_threads():
    x, mask = torch.randn(1, 10, 6, 6), mask_of(1, 3, 7)
    weights = [torch.randn(1 + number % 5, 10, 3, 3) for number in range(40)]

    def run(weight):
        return torch.ops.distile.conv2d(x, weight, None, mask, stride=[2, 1], padding=[1, 0, 2, 1])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, weights))
    for weight, result in zip(weights, results):
        expected = dense.conv2d(x, weight, None, mask, None, (2, 1), (1, 0, 2, 1), (1, 1), 1, "none")
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_compiled():
    layer, mask = distile.nn.MaskedConv2d(9, 28, 3, padding=1).eval(), mask_of(1, 10, 10)
    x = torch.randn(1, 9, 10, 10)
    with torch.no_grad():
        expected = layer(x, mask)
        compiled = torch.compile(layer, fullgraph=True)
        torch.testing.assert_close(compiled(x, mask), expected)
        torch.testing.assert_close(compiled(x, mask), expected)


def test_a_model_without_polykernels():
    model = nn.Sequential(nn.Conv2d(3, 26, 3, 2, 1), nn.SiLU(), nn.Conv2d(26, 31, 1)).eval()
    x, mask = torch.randn(1, 3, 20, 20), torch.zeros(1, 20, 20, dtype=torch.bool)
    mask[:, 4:9, 5:15] = True
    with torch.no_grad():
        expected = model(x)
        masked = distile.convert(model, example=x)
        with distile.mask(mask):
            result = masked(x)
    active = result.abs().sum(1, keepdim=True).ne(0).expand_as(result)
    assert 0 < active.float().mean() < 1
    torch.testing.assert_close(result[active], expected[active], rtol=1e-4, atol=1e-4)
