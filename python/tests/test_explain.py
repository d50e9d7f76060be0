"""The table of distile.explain."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import distile
import models
from distile import explain

pytestmark = pytest.mark.filterwarnings("ignore:distile")


MODEL = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.ConvTranspose2d(4, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(),
                         nn.BatchNorm2d(128))

def example():
    return torch.randn(1, 4, 16, 16)
"""


@pytest.mark.cpu
def test_explain(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL)
    assert explain.main([str(tmp_path / "model.py"), "--masks", ".25", "--seconds", ".01"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert "4-128" in lines[2] and "runs dense" in lines[2]
    assert "conv 3x3 128-128" in lines[3] and "runs dense" not in lines[3]
    active = round(0.25 * 256)
    assert abs(float(lines[3].split()[4]) * 256 - active) <= 8
    assert lines[4].startswith("4 ") and "batch norm" in lines[4]
    assert lines[6].startswith("total") and lines[-1].startswith("whole model: dense") and "stay dense" not in text


def test_explain_is_a_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "distile.explain", "--help"], capture_output=True, text=True, check=True
    )
    assert "--masks" in done.stdout


VIT = """
import torch
from models import ViT

def model():
    return ViT(size=(32, 32), patch=8, dim=24)

def example():
    return torch.randn(2, 3, 32, 32)
"""


@pytest.mark.cpu
def test_rules_and_json(tmp_path, capsys):
    model, rules, found = tmp_path / "model.py", tmp_path / "rules.json", tmp_path / "found.json"
    model.write_text(VIT)
    rules.write_text(json.dumps(["blocks.1.fc?=", "blocks.*=inner"]))
    mask = np.zeros((32, 32), bool)
    mask[:8, :8] = True
    np.save(tmp_path / "masks.npy", mask)
    arguments = [str(model), "--seconds", ".001", "--json", str(found)]
    given = ["--rules", str(rules), "*=mask", "--masks", f"inner={tmp_path / 'masks.npy'}", "1.0"]
    assert explain.main([*arguments, *given]) == 0
    written = json.loads(found.read_text())
    rows = {row["name"]: row for row in written["layers"]}
    assert list(rows) == [
        "patch_embed", *(f"blocks.0.{name}" for name in ("norm1", "attn", "norm2", "fc1", "fc2")),
        *(f"blocks.1.{name}" for name in ("norm1", "attn", "norm2")), "norm",
    ]  # fmt: skip
    assert rows["norm"]["density"] == 1 and rows["blocks.0.fc1"]["density"] == pytest.approx(2 / 17)
    # Two of 17 tokens: the class token and one patch.
    projected, pairs = 4 * 2 * 17 * 24**2, 2 * 2 * 24
    assert rows["blocks.0.attn"]["dense_work"] == projected + pairs * 17**2
    assert rows["blocks.0.attn"]["work"] == pytest.approx(projected * 2 / 17 + pairs * 2**2)
    assert rows["blocks.0.attn"]["kind"] == "attention 3x8"
    assert written["dense"] == [
        "blocks.1.fc1: Linear: by rule", "blocks.1.fc2: Linear: by rule", "head: Linear: its output has no positions"
    ]  # fmt: skip
    assert written["whole"]["dense_us"] > 0 and written["whole"]["masked_us"] > 0
    assert "by rule" in capsys.readouterr().out


MIXER = """
import torch
from torch import nn

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.back = nn.Conv2d(3, 8, 8, 8), nn.Linear(16, 16), nn.Linear(8, 8)
        self.image = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.back(self.mix(self.embed(x).flatten(2)).transpose(1, 2))
        return self.image(x.transpose(1, 2).unflatten(2, (4, 4)))

def model():
    return Mixer()

def example():
    return torch.randn(1, 3, 32, 32)
"""


@pytest.mark.cpu
def test_rules_with_a_grid(tmp_path, capsys):
    """For tokens and images whose places the model does not show."""
    model, found = tmp_path / "model.py", tmp_path / "found.json"
    model.write_text(MIXER)
    mask = np.zeros((32, 32), bool)
    mask[:8, :16] = True
    np.save(tmp_path / "mask.npy", mask)
    arguments = [str(model), "--seconds", ".001", "--json", str(found), "--masks", str(tmp_path / "mask.npy"), "--rules"]
    assert explain.main([*arguments, "*=mask"]) == 0
    assert [row["name"] for row in json.loads(found.read_text())["layers"]] == ["embed"]
    assert explain.main([*arguments, "back=mask@4x4", "image=mask@4x4/8", "*=mask"]) == 0
    rows = {row["name"]: row["density"] for row in json.loads(found.read_text())["layers"]}
    assert rows == {"embed": 2 / 16, "back": 2 / 16, "image": 2 / 16}


@pytest.mark.cpu
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--masks", "near=.5"], "but the masks of the layers are mask"),
        (["--masks", ".5", "--rules", "nothing"], "PATTERN=MASK"),
        (["--masks", ".5", "--rules", "*=mask,keys"], "a mask of keys, which only ONNX models have"),
        (["--masks", "mask=.5", "--rules", "blocks.*=inner", "*=mask"], "nothing about the masks inner"),
        (["--masks", "{}/three.npy"], "masks are"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, message):
    (tmp_path / "model.py").write_text(VIT)
    np.save(tmp_path / "three.npy", np.ones((1, 2, 3, 4)))
    with pytest.raises(SystemExit):
        explain.main([str(tmp_path / "model.py"), *(word.format(tmp_path) for word in arguments)])
    assert message in capsys.readouterr().err


def test_layers_with_masks_of_their_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = distile.nn.MaskedConv2d(3, 4, 1), nn.GroupNorm(2, 4)

        def forward(self, x):
            return self.rest(self.first(x, torch.ones(1, 4, 4, dtype=torch.bool)))

    model, x = Own(), torch.randn(1, 3, 4, 4)
    rows, whole = explain.explain(model, x, mask=None, seconds=0.001)
    assert [row.name for row in rows] == ["first"] and rows[0].density == 1 and whole is None
    assert explain.unsupported_layers(model) == ["rest: GroupNorm"]


def test_unsupported_layers():
    model = distile.convert(models.UNet())
    assert not explain.unsupported_layers(model)
    block = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Embedding(3, 4), distile.nn.MaskedAttention(8, 2))
    assert explain.unsupported_layers(block) == ["0: MultiheadAttention", "1: Embedding"]


RESIDUAL = """
import torch
from models import ResNet, settled

def model():
    made = settled(ResNet())
    made.maxpool = torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False)
    return made

def example():
    return torch.randn(1, 3, 32, 32)
"""


@pytest.mark.cpu
def test_stages(tmp_path, capsys):
    """What distile.fuse would run as a stage, and why the others are in none."""
    (tmp_path / "model.py").write_text(RESIDUAL)
    arguments = [str(tmp_path / "model.py"), "--masks", ".25", "--seconds", ".01", "--json", str(tmp_path / "found.json")]
    assert explain.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("distile.fuse(model, example) runs these as stages:")
    assert lines[at + 1 : at + 6] == [
        "  layer1.0.conv1 to layer1.0.conv2: 2 layers, 2 steps; ends: layer1.0.relu changes a tensor",
        "  layer1.1.conv1 to layer2.0.downsample.0: 5 layers, 5 steps; ends: the model ends",
        "These layers are in no stage:",
        "  conv1: it is alone: layer1.0.conv1 reads what maxpool makes, which is no step",
        "  maxpool: its average leaves out the padding",
    ]
    found = json.loads((tmp_path / "found.json").read_text())["stages"]
    assert [row["name"] for row in found] == ["distile_stage_0", "distile_stage_1", "conv1", "maxpool"]
