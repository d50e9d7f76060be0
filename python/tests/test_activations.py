"""The table of activations: its values are PyTorch's functions of the same names, and its gradients are theirs."""

import math
import re

import pytest
import torch
from torch import nn

import distile
from distile import _facts, dense, fusion
from distile.activations import split_slope, with_slope
from distile.autograd import _activate

ops = torch.ops.distile
# What the values call.
PRIMITIVES = {
    "AT_LEAST": lambda x, low: torch.clamp(x, min=low),
    "LIMIT": torch.clamp,
    "ONE_PLUS_EXP_MINUS": lambda x: 1 + torch.exp(-x),
    "ERF": torch.erf,
    "TANH": torch.tanh,
    "KEEP_NAN": lambda x, value: value,
    "CHOOSE": torch.where,
}
# Every row, and those with a slope with several.
TEXTS = (*_facts.ACTIVATIONS, *(f"leaky_relu({slope})" for slope in ("0.2", "0.0", "1.0", "-0.5", "1.75")))
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-310, 1e-40, -1e-40, 87.0, -87.0, 89.0, -89.0, 1e30, -1e30]


def inputs():
    return torch.cat([torch.linspace(-20, 20, 4001, dtype=torch.float64), torch.tensor(SPECIAL, dtype=torch.float64)])


@pytest.mark.parametrize("text", TEXTS)
def test_value(text):
    name, slope = split_slope(text)
    value = eval(f"lambda x, slope: {_facts.ACTIVATIONS[name][0]}", PRIMITIVES)
    x = inputs()
    torch.testing.assert_close(value(x, slope), dense.ACTIVATIONS[text](x), rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("text", TEXTS)
def test_gradient(text):
    # PyTorch's gradients at the corners differ from function to function.
    x = inputs()
    x = x[x.isfinite() & ~torch.isin(x, torch.tensor([0.0, -3, 3, 6], dtype=x.dtype))].requires_grad_()
    g = torch.linspace(-2, 2, len(x), dtype=x.dtype)
    (due,) = torch.autograd.grad(dense.ACTIVATIONS[text](x), x, g)
    torch.testing.assert_close(_activate(text, x.detach(), g), due, rtol=1e-6, atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("text", TEXTS)
def test_operator(text):
    x = inputs().float().view(1, -1, 1, 1)
    result = ops.activate(x, torch.ones(1, 1, 1, dtype=torch.bool), activation=text)
    due = dense.ACTIVATIONS[text](x)
    if text == "gelu":
        due[x == math.inf] = math.inf  # PyTorch 2.15 has NaN.
    torch.testing.assert_close(result, due, rtol=1e-5, atol=1e-6, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("module, name", fusion.ACTIVATIONS.items())
def test_conversion(module, name):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), module()).eval(), torch.randn(2, 3, 6, 5)
    expected = model(x)
    converted = distile.convert(model)
    assert converted[0].activation == name and type(converted[1]) is nn.Identity
    mask = torch.rand(2, 6, 5) < 0.5
    with distile.mask(mask):
        torch.testing.assert_close(converted(x), torch.where(mask[:, None], expected, 0), rtol=1e-5, atol=1e-5)


def test_modules():
    """Every activation but none is a module of PyTorch, and a layer that takes it in computes the same."""
    assert set(fusion.ACTIVATIONS.values()) == set(_facts.ACTIVATIONS) - {"none"}
    for module, name in fusion.ACTIVATIONS.items():
        assert fusion.activation_of(module()) == name
        x = torch.randn(100)
        torch.testing.assert_close(module()(x), dense.ACTIVATIONS[name](x))
    assert fusion.activation_of(nn.GELU("tanh")) is fusion.activation_of(nn.ELU(0.5)) is None


@torch.no_grad()
def test_conversion_with_a_slope():
    torch.manual_seed(0)
    layers = (module for slope in (0.2, 0.01, -1.5) for module in (nn.Conv2d(3, 3, 3, padding=1), nn.LeakyReLU(slope)))
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 6, 5)
    expected = model(x)
    converted = distile.convert(model)
    names = [layer.activation for layer in converted if not isinstance(layer, nn.Identity)]
    assert names == ["leaky_relu(0.2)", "leaky_relu", "leaky_relu(-1.5)"]
    with distile.mask(torch.ones(2, 6, 5, dtype=torch.bool)):
        torch.testing.assert_close(converted(x), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_changed_slope_is_packed_again():
    layer, x = distile.nn.MaskedLinear(8, 16, activation="leaky_relu(0.5)").eval(), torch.randn(1, 7, 8)
    for slope in (0.5, -2.0, 0.01):
        layer.activation = with_slope("leaky_relu", slope)
        with distile.mask(torch.ones(1, 7, dtype=torch.bool)):
            found = layer(x)
        dense_result = nn.functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(found, nn.functional.leaky_relu(dense_result, slope))


@pytest.mark.parametrize(
    "text, words",
    [
        ("leaky", "there is no activation 'leaky'; there are none, relu"),
        ("relu(0.2)", "'relu' has none to give"),
        ("leaky_relu(", "has no number in its parentheses"),
        ("leaky_relu()", "has no number in its parentheses"),
        ("leaky_relu(0.2", "has no number in its parentheses"),
        ("leaky_relu(0.2))", "has no number in its parentheses"),
        ("leaky_relu(x)", "has no number in its parentheses"),
    ],
)
def test_wrong_texts(text, words):
    for call in (
        lambda: distile.nn.MaskedConv2d(3, 8, 3, activation=text),
        lambda: ops.activate(torch.ones(1, 3, 2, 2), torch.ones(1, 2, 2, dtype=torch.bool), activation=text),
    ):
        with pytest.raises((ValueError, RuntimeError), match=re.escape(words)):
            call()
