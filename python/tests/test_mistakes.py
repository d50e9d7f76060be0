"""What newcomers get wrong, and how they are told."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import distile

X, MASK = torch.randn(1, 3, 9, 8), torch.ones(1, 9, 8, dtype=torch.bool)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).eval()


def test_what_convert_takes():
    with pytest.raises(TypeError, match="an input as example=x"):
        distile.convert(model(), X)
    with pytest.raises(TypeError, match="not of function"):
        distile.convert(lambda x: x, example=X)
    with pytest.warns(FutureWarning):
        scripted = torch.jit.script(model())
    with pytest.raises(TypeError, match="of Python code, not of RecursiveScriptModule"):
        distile.convert(scripted, example=X)


def test_nothing_to_convert():
    with pytest.warns(UserWarning, match="replaced no layer of Sequential, so masks change nothing"):
        distile.convert(nn.Sequential(nn.ReLU(), nn.Flatten()), example=X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = distile.convert(model(), example=X)
        distile.convert(converted, example=X)  # The masked layers stay.
        distile.convert(model(), [], example=X)  # As asked.


@pytest.mark.filterwarnings("ignore:distile. no PolyKernel")
def test_builds_of_nothing(no_build):
    with pytest.raises(TypeError, match="a model and its example inputs"):
        distile.build(model())
    with pytest.warns(UserWarning, match="the model has no masked layer: distile.convert"):
        assert not distile.build(model(), X)
    converted = distile.convert(model(), example=X)
    with pytest.warns(UserWarning, match="no layer ran with a mask: give one"):
        assert not distile.build(converted, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        distile.build(converted, X, mask=MASK)
        with distile.mask(MASK):
            distile.build(converted, X)


@pytest.fixture
def no_build(monkeypatch):
    """Nothing is compiled."""
    monkeypatch.setattr(distile.building, "find_compiler", lambda caller: None)
    monkeypatch.setattr(distile.building, "_build", lambda *_: None)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:distile. no PolyKernel")
def test_export_in_a_context():
    """The mask of the context is a constant then, which a warning says; a mask that is an argument is none."""
    converted = distile.convert(model(), example=X)
    with distile.mask(MASK), pytest.warns(UserWarning, match="keeps the mask of distile.mask as a constant"):
        torch.export.export(converted, (X,))
    layer = distile.nn.MaskedConv2d(3, 8, 3, padding=1)

    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = converted

        def forward(self, x, mask):
            with distile.mask({"mask": mask, "other": None}):
                return self.model(x)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*keeps the mask")
        torch.export.export(converted, (X,))
        torch.export.export(layer, (X, MASK))
        program = torch.export.export(Given(), (X, MASK)).module()
    for mask in (MASK, ~MASK):
        torch.testing.assert_close(program(X, mask), Given()(X, mask))


def test_values():
    """What is none of the values that a function takes."""
    with pytest.raises(ValueError, match=r"an activation is a name, as 'relu', not ReLU\(\)"):
        distile.nn.MaskedConv2d(3, 8, 3, activation=nn.ReLU())
    with pytest.raises(TypeError, match="a frame is a tensor of PyTorch, not list"):
        distile.Changes().update([1.0])


def test_explain_needs_no_import():
    command = "import distile; distile.explain.explain"
    assert subprocess.run([sys.executable, "-W", "error", "-c", command], check=False).returncode == 0
    command = [sys.executable, "-m", "distile.explain", "--help"]
    assert not subprocess.run(command, capture_output=True, check=True).stderr
    with pytest.raises(AttributeError, match="no attribute 'explane'"):
        distile.explane
