"""Pruned layers: PolyKernels that multiply with the nonzero weights alone."""

import pytest
import torch
import torch.nn.utils.prune

import distile
from distile import polykernels, toolchain
from distile.building import needed_by
from distile.nn import MaskedConv2d, MaskedLinear

pytestmark = pytest.mark.filterwarnings("ignore:distile")


def prune(layer, zeros: float):
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < zeros] = 0


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.parametrize("zeros", [0.3, 0.9])
@torch.no_grad()
def test_pruned_layers(zeros):
    channels = int(zeros * 40)  # Other shapes for each, which have PolyKernels of their own.
    layers = [MaskedConv2d(19, channels, 3, padding=1, activation="relu"), MaskedLinear(channels, 70)]
    for layer in layers:
        prune(layer, zeros)
        x = torch.randn(2, 9, channels) if isinstance(layer, MaskedLinear) else torch.randn(2, 19, 17, 21)
        whole = layer(x)
        mask = torch.rand(whole.shape[:2] if whole.dim() == 3 else (2, *whole.shape[2:])) < 0.5
        spread = mask[..., None] if whole.dim() == 3 else mask[:, None]
        (operator,) = distile.build(layer, x, mask=mask)
        assert not distile.build(layer, x, mask=mask)  # It is there.
        skips = b"cpu-nonzeros" in polykernels.shared_object(operator).read_bytes()
        assert skips == (zeros > 0.5)
        torch.testing.assert_close(layer(x, mask), torch.where(spread, whole, 0.0), rtol=1e-4, atol=1e-4)
        # Other zeros, and none, need no other PolyKernel.
        for other in (0.9, 0.0):
            torch.nn.init.normal_(layer.weight)
            prune(layer, other)
            with polykernels.recording() as missing:
                result = layer(x, mask)
            assert not missing
            torch.testing.assert_close(result, torch.where(spread, layer(x), 0.0), rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_pruned_layers_of_a_shape_that_ships():
    # Another shape than ONNX Runtime's test builds into the same folder.
    layer = MaskedConv2d(256, 1024, 1, activation="relu")
    x, mask = torch.randn(1, 256, 5, 6), torch.rand(1, 5, 6) < 0.5
    with polykernels.recording() as missing:
        layer(x, mask)
    assert not missing  # It ships.
    assert not distile.build(layer, x, mask=mask)
    prune(layer, 0.9)
    (operator,) = distile.build(layer, x, mask=mask)
    assert operator.skips_zeros and str(operator).endswith("with pruned weights")
    assert polykernels.typical_size(operator)["weight_zeros"] > 0.8
    path = polykernels.shared_object(operator)
    assert path.name.endswith("_nonzeros.so") and b"cpu-nonzeros" in path.read_bytes()
    torch.testing.assert_close(layer(x, mask), torch.where(mask[:, None], layer(x), 0.0), rtol=1e-4, atol=1e-4)
    assert not distile.build(layer, x, mask=mask)


@pytest.mark.parametrize("form", ["module", "module with out", "operator", "operator with out"])
def test_pruned_calls_of_every_form(form):
    layer, x, mask = MaskedLinear(384, 1536, activation="gelu"), torch.randn(1, 30, 384), torch.rand(1, 30) < 0.5
    prune(layer, 0.9)
    out = torch.zeros(1, 30, 1536)
    linear, tensors = torch.ops.distile.linear, (x, layer.weight, layer.bias, mask)
    calls = {
        "module": lambda: layer(x, mask),
        "module with out": lambda: layer(x, mask, out=out),
        "operator": lambda: linear(*tensors, activation="gelu"),
        "operator with out": lambda: linear.out(*tensors, activation="gelu", out=out),
    }
    (operator,) = needed_by(calls[form])
    assert operator.skips_zeros


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo, torch.sparse_bsr])
@torch.no_grad()
def test_sparse_layouts(layout):
    layer, x, mask = torch.nn.Linear(32, 16), torch.randn(2, 5, 32), torch.rand(2, 5) < 0.5
    prune(layer, 0.9)
    expected = torch.where(mask[..., None], layer(x), 0.0)
    block = {"blocksize": (2, 2)} if layout == torch.sparse_bsr else {}
    layer.weight = torch.nn.Parameter(layer.weight.to_sparse(layout=layout, **block), requires_grad=False)
    converted = distile.convert(torch.nn.Sequential(layer))
    with distile.mask(mask):
        torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-4)
    assert layer.weight.layout == layout


@torch.no_grad()
def test_weights_pruned_by_pytorch():
    layer, x, mask = torch.nn.Conv2d(8, 16, 3, padding=1), torch.randn(1, 8, 9, 7), torch.rand(1, 9, 7) < 0.5
    torch.nn.utils.prune.l1_unstructured(layer, "weight", amount=0.8)
    expected = torch.where(mask[:, None], layer(x), 0.0)
    converted = distile.convert(torch.nn.Sequential(layer))
    with distile.mask(mask):
        torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_report_says_what_layers_gain(monkeypatch):
    layers = {
        "pruned": torch.nn.Conv2d(20, 24, 3, padding=1),
        "depthwise": torch.nn.Conv2d(24, 24, 3, padding=1, groups=24),
        "narrow": torch.nn.Conv2d(24, 24, 1).half(),
        "whole": torch.nn.Conv2d(24, 24, 1),
        "transposed": torch.nn.ConvTranspose2d(24, 24, 2, 2),
        "norm": torch.nn.BatchNorm2d(24),
    }
    for name, layer in layers.items():
        if name not in ("whole", "norm"):
            layer.weight[torch.rand(layer.weight.shape) < 0.8] = 0
    # What torch.nn.utils.prune leaves is no parameter.
    layers["masked"] = torch.nn.utils.prune.l1_unstructured(torch.nn.Linear(100, 50), "weight", amount=0.7)
    report = []
    distile.convert(torch.nn.ModuleDict(layers), report=report, fuse=False)
    rows = {row.name: row for row in report}
    for name, zeros in (("pruned", 0.8), ("narrow", 0.8), ("masked", 0.7)):
        share = int(rows[name].zeros.removesuffix("% zeros")) / 100
        assert share == pytest.approx(zeros, abs=0.07) and rows[name].work == pytest.approx(1 - share)
    assert "zeros, which are multiplied: code that skips them is for convolutions" in rows["depthwise"].zeros
    assert all(rows[name].work == 1 for name in ("depthwise", "whole", "transposed", "norm"))
    assert all(rows[name].zeros == "" for name in ("whole", "transposed", "norm"))


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_explain_counts_mask_and_zeros():
    layer, x = MaskedConv2d(24, 43, 3, padding=1), torch.randn(1, 24, 16, 16)
    mask = torch.zeros(1, 16, 16, dtype=torch.bool)
    mask[:, :4] = True
    prune(layer, 0.9)
    model = torch.nn.Sequential(layer)
    for built in (False, True):
        if built:
            distile.build(model, x, mask=mask)
        (row,), _ = distile.explain.explain(model, x, mask=mask, seconds=0.01, full=True)
        zeros = int(row.zeros.split("%")[0]) / 100
        left = 1 - zeros if built else 1
        assert row.work == pytest.approx(0.25 * left * row.dense_work)
        assert row.predicted_us == pytest.approx(row.dense_us * 0.25 * left)
        assert ("--build makes one" in row.zeros) == (not built)
        # By the line through its times with this mask and with all pixels.
        assert row.full_us > 0 and (row.break_even is None or 0 <= row.break_even <= 1)


def test_cache_that_cannot_be_loaded(monkeypatch, tmp_path):
    """The import of the package must not fail."""
    monkeypatch.setenv("DISTILE_CACHE", str(tmp_path))
    polykernels.load_own_weights()  # There is no folder.
    polykernels.cache_folder().mkdir(parents=True)
    (polykernels.cache_folder() / "broken_nonzeros.so").write_bytes(b"no library")
    with pytest.warns(UserWarning, match="broken_nonzeros.so.*remove the file"):
        polykernels.load_own_weights()

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DISTILE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", no_home)
    polykernels.load_own_weights()


def test_prune():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3), torch.nn.Conv2d(16, 16, 3, groups=16), torch.nn.Flatten(), torch.nn.Linear(18, 10)
    )
    whole = {name: weight.clone() for name, weight in model.state_dict().items()}
    shares = distile.prune(model, 0.75)
    assert shares == {"0": 0.75, "3": 0.75}
    for name, weight in model.state_dict().items():
        if name in ("0.weight", "3.weight"):
            kept, before = weight != 0, whole[name]
            assert (weight[kept] == before[kept]).all()
            assert before[kept].abs().min() >= before[~kept].abs().max()
        else:
            assert (weight == whole[name]).all()


def test_prune_of_all_layers_and_of_blocks():
    small, large = torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, bias=False)
    with torch.no_grad():
        small.weight.mul_(1e-3)
    shares = distile.prune(torch.nn.Sequential(small, large), 0.5, scope="global")
    assert shares["0"] > 0.9 and shares["0"] + shares["1"] == pytest.approx(1)
    layer = torch.nn.Linear(9, 8)
    distile.prune(layer, 0.5, block=(4, 2))
    blocks = (layer.weight[:, :8] == 0).unflatten(0, (2, 4)).unflatten(2, (4, 2)).sum((1, 3))
    assert sorted(blocks.flatten().tolist()) == [0] * 4 + [8] * 4
    assert (layer.weight[:, 8] != 0).all()


@pytest.mark.parametrize("layer", [torch.nn.Conv2d(24, 8, 3), torch.nn.Linear(32, 10), torch.nn.Conv2d(20, 6, 1, groups=2)])
def test_prune_by_pattern(layer):
    before = layer.weight.clone()
    shares = distile.prune(layer, pattern="2:4")
    weight = layer.weight.movedim(1, -1).flatten(0, -2)
    fours, whole = (torch.nn.functional.pad(t, (0, -t.shape[1] % 4)).unflatten(1, (-1, 4))
                    for t in (weight, before.movedim(1, -1).flatten(0, -2)))
    # Ten input channels leave two of the last four.
    kept = (fours != 0).sum(-1)
    assert (kept == 2).all()
    assert shares == {"": float((layer.weight == 0).double().mean())}
    assert (fours[fours != 0] == whole[fours != 0]).all()
    least = torch.where(fours != 0, fours.abs(), torch.inf).amin(-1)
    left_out = torch.where(fours == 0, whole.abs(), torch.zeros_like(whole)).amax(-1)
    assert (least >= left_out).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"zeros": 1.0},
        {"zeros": 0.5, "scope": "all"},
        {"zeros": 0.5, "block": (0, 1)},
        {},
        {"pattern": "1:4"},
        {"pattern": "2:4", "zeros": 0.5},
        {"pattern": "2:4", "scope": "global"},
        {"pattern": "2:4", "block": (4, 1)},
    ],
)
def test_wrong_arguments(arguments):
    layer = torch.nn.Linear(4, 4)
    before = layer.weight.clone()
    with pytest.raises(ValueError):
        distile.prune(layer, **arguments)
    assert (layer.weight == before).all()
