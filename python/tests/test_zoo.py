"""A handful of the zoo (python/zoo): architectures of timm and torchvision, converted, against their dense models with
masks that follow from another way of finding places."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:distile")]
ZOO = pathlib.Path(__file__).parents[1] / "zoo"
sys.path.insert(0, str(ZOO))

import check
import distile
import masks
import places
import reference
import results

HANDFUL = {
    "torchvision": ("torchvision/resnet18", "torchvision/squeezenet1_1"),
    "timm": ("vit_tiny_patch16_224", "tf_efficientnet_b0", "swinv2_cr_tiny_ns_224", "gcvit_xxtiny"),
}


@pytest.mark.parametrize("library, name", [(library, name) for library, names in HANDFUL.items() for name in names])
def test_is_exact(library, name):
    pytest.importorskip(library)
    threads = torch.get_num_threads()
    result = check.check(name)
    torch.set_num_threads(threads)
    assert results.is_exact(result), results.verdict(result)
    assert result["replaced"] > 20 and result["changed"] > 1e-2


def test_a_place_that_is_off_by_one_cell_is_seen(monkeypatch):
    pytest.importorskip("torchvision")
    moved = lambda size: places.images(*size) + torch.tensor([8, 0, 0, 0, 0]).view(5, 1, 1, 1)
    monkeypatch.setattr(check, "coordinates", lambda architecture: (moved(architecture.size),))
    result = check.check("torchvision/resnet18")
    assert not results.is_exact(result) and result["blobs"] > 1e-2


def test_places_of_a_network():
    """Strides, offsets, tokens and constants by hand."""
    stem = torch.nn.Conv2d(3, 4, 3, 2, 1)
    valid = torch.nn.Conv2d(4, 4, 3)
    model = torch.nn.Sequential(stem, torch.nn.ReLU(), valid, torch.nn.Flatten(2))
    found = places.find(model, ["0", "2"], (places.images(16, 12),))
    (first,), (second,) = found["0"], found["2"]
    assert first.y[0, :, 0].tolist() == [1, 3, 5, 7, 9, 11, 13, 15] and first.x[0, 0].tolist() == [1, 3, 5, 7, 9, 11]
    assert second.y[0, :, 0].tolist() == [3, 5, 7, 9, 11, 13] and (second.height == 2).all()
    mask = torch.zeros(1, 16, 12, dtype=torch.bool)
    mask[0, 3, 5] = True
    assert first.active(mask).nonzero().tolist() == [[0, 1, 2]]
    assert second.active(mask).nonzero().tolist() == [[0, 0, 1]]


def test_places_in_windows_and_beside_constants():
    """A padded window keeps its constants; so does a map of constants beside features."""

    class Windows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.beside = torch.nn.Conv2d(3, 2, 3, padding=1), torch.nn.Conv2d(4, 2, 1)

        def forward(self, x):
            constant = torch.ones(len(x), 1, *x.shape[2:])
            windows = torch.nn.functional.pad(x, (0, 2, 0, 0)).unflatten(3, (2, 4)).permute(0, 3, 1, 2, 4).flatten(0, 1)
            return self.inside(windows), self.beside(torch.cat([constant, x], 1))

    found = places.find(Windows(), ["inside", "beside"], (places.images(4, 6),))
    (inside,), (beside,) = found["inside"], found["beside"]
    assert inside.x[:, 0].tolist() == [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5, 0, 0]]
    assert inside.constant[:, 0].tolist() == [[False] * 4, [False, False, True, True]]
    assert beside.x[0, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5] and (beside.width == 1).all()


def windows_of(x):
    """Images [N, C, H, W] as windows of 2x2, [N, windows, 4, C]."""
    x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)


class EinsumInWindows(nn.Module):
    """Attention in windows, as torchvision's MaxViT has it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.merge = nn.Linear(3, 24), nn.Linear(8, 8)

    def forward(self, x):
        query, key, value = self.qkv(windows_of(x)).chunk(3, -1)
        scores = torch.einsum("n w i c, n w j c -> n w i j", query, key).softmax(-1)
        return self.merge(torch.einsum("n w i j, n w j c -> n w i c", scores, value))


@torch.no_grad()
def test_attention_by_einsum_in_windows():
    """Places and masks of its layers, and what they give, by a partition of the mask."""
    model, images = EinsumInWindows().eval(), torch.randn(2, 3, 4, 6)
    mask = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(3)) < 0.4
    active = windows_of(mask[:, None])
    for name, found in places.find(model, ["qkv", "merge"], (places.images(4, 6),)).items():
        assert torch.equal(found[0].active(mask), active[..., 0]), name
    converted = distile.convert(model, example=images)
    query, key, value = torch.where(active, model.qkv(windows_of(images)), 0).chunk(3, -1)
    scores = (query @ key.transpose(2, 3)).softmax(-1)
    with distile.mask(mask):
        torch.testing.assert_close(converted(images), torch.where(active, model.merge(scores @ value), 0))


class Writes(nn.Module):
    """Writes into tensors that are results of operators, and into new ones."""

    def __init__(self):
        super().__init__()
        self.first, self.sum, self.shifted = nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x):
        x = self.first(x)
        gated = x * x.mean((2, 3), keepdim=True)
        gated += x
        total = torch.zeros_like(x)
        total.add_(gated)
        shifted = x.new_zeros(x.shape)
        shifted[..., 1:] = x[..., :-1]
        return self.sum(total), self.shifted(shifted)


def test_places_of_tensors_that_are_written():
    found = places.find(Writes(), ["sum", "shifted"], (places.images(2, 4),))
    (total,), (shifted,) = found["sum"], found["shifted"]
    assert total.x[0, 0].tolist() == [0.5, 1.5, 2.5, 3.5] and (total.width == 1).all() and not total.constant.any()
    assert shifted.x[0, 0].tolist() == [-0.5, 0.5, 1.5, 2.5]  # A border of constants, as padding is.


def test_places_beside_a_single_cell():
    """Rows and columns of one cell, upsampled, lie in its parts."""
    model = nn.Sequential(nn.Conv2d(3, 2, 4, 4), nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 1))
    (found,) = places.find(model, ["2"], (places.images(4, 8),))["2"]
    assert found.y[0, :, 0].tolist() == [1, 3] and found.x[0, 0].tolist() == [1, 3, 5, 7]
    assert (found.height == 2).all() and (found.width == 2).all()


@pytest.mark.parametrize("name, function", [
    ("sort", lambda x: x.sort(3).values), ("cumsum", lambda x: x.cumsum(3)), ("max", lambda x: x.max(3, True).values),
    ("einsum", lambda x: torch.einsum("n...->n...", x)),
])  # fmt: skip
def test_an_operator_that_the_reference_does_not_know_is_an_error(name, function):
    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    with pytest.raises(NotImplementedError, match=name):
        places.find(Model(), [], (places.images(2, 4),))


@torch.no_grad()
@pytest.mark.parametrize("parts", ["weight bias", "weight", ""])
def test_a_group_norm_of_active_pixels(parts):
    """With weight and bias, with one of them, as PoolFormer v2's, and with none."""
    norm = nn.GroupNorm(2, 4, affine=bool(parts))
    for parameter in norm.parameters():
        parameter.normal_()
    norm.bias = norm.bias if "bias" in parts else None
    model, images = nn.Sequential(norm), torch.randn(2, 4, 5, 6)
    mask = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(4)) < 0.4
    row = types.SimpleNamespace(name="0", masked="MaskedGroupNorm", taken=[])
    reference.Masking(model, [row], places.find(model, ["0"], (places.images(5, 6).repeat(1, 2, 1, 1)[:, :4],)), mask)
    expected = torch.zeros_like(images)
    for image, seen in enumerate(mask):
        expected[image][:, seen] = F.group_norm(images[image][:, seen][None], 2, norm.weight, norm.bias)[0]
    torch.testing.assert_close(model(images), expected)


def test_a_layer_that_has_no_reference_is_an_error():
    row = types.SimpleNamespace(name="0", masked="MaskedGlobalPool", taken=[])
    with pytest.raises(NotImplementedError, match="MaskedGlobalPool"):
        reference.Masking(nn.Sequential(nn.AdaptiveAvgPool2d(1)), [row], {}, torch.ones(1, 4, 4))


def test_masks():
    found = masks.blobs((64, 96), 0.15, 2)
    assert found.shape == (2, 64, 96) and (abs(found.mean((1, 2)) - 0.15) < 0.01).all() and (found[0] != found[1]).any()


def test_an_interrupted_run_goes_on(tmp_path):
    out = tmp_path / "zoo.jsonl"
    done = {"architecture": "vit_tiny_patch16_224", "fault": "seen before"}
    out.write_text(json.dumps({**done, "code": results.code()}) + '\n{"architecture": "resn')
    command = [sys.executable, str(ZOO), "vit_tiny_patch16_224", "--out", str(out), "--tables", str(tmp_path / "zoo.json")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1 and "1 models" in process.stdout
    assert json.loads((tmp_path / "zoo.json").read_text()) == [done]
    assert "seen before" in (tmp_path / "zoo.md").read_text() and out.read_text().endswith("\n")


def test_results_of_other_code_are_found_anew(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("zoo", ZOO / "__main__.py")
    zoo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    monkeypatch.setattr(zoo, "run", lambda name, *_: {"architecture": name, "fault": "run again"})
    out = tmp_path / "zoo.jsonl"
    out.write_text(json.dumps({"architecture": "resnet18", "fault": "seen before", "code": "another"}) + "\n")
    zoo.main(["resnet18", "--out", str(out)])
    assert zoo.read(out) == {"resnet18": {"architecture": "resnet18", "fault": "run again", "code": results.code()}}
