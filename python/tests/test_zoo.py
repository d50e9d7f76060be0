"""A handful of the zoo (python/zoo): architectures of timm and torchvision, converted, against their dense models with
masks that follow from another way of finding places."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:distile")]
ZOO = pathlib.Path(__file__).parents[1] / "zoo"
sys.path.insert(0, str(ZOO))

import check
import masks
import places
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


def test_masks():
    found = masks.blobs((64, 96), 0.15, 2)
    assert found.shape == (2, 64, 96) and (abs(found.mean((1, 2)) - 0.15) < 0.01).all() and (found[0] != found[1]).any()


def test_an_interrupted_run_goes_on(tmp_path):
    out = tmp_path / "zoo.jsonl"
    done = {"architecture": "vit_tiny_patch16_224", "fault": "seen before"}
    out.write_text(json.dumps(done) + '\n{"architecture": "resn')
    command = [sys.executable, str(ZOO), "vit_tiny_patch16_224", "--out", str(out), "--tables", str(tmp_path / "zoo.json")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1 and "1 models" in process.stdout
    assert json.loads((tmp_path / "zoo.json").read_text()) == [done]
    assert "seen before" in (tmp_path / "zoo.md").read_text() and out.read_text().endswith("\n")
