import json
import xml.etree.ElementTree

import pytest
import torch
from torch import nn

import distile
from distile import stage_trace
from distile.nn import MaskedConv2d, MaskUnit

SVG = "{http://www.w3.org/2000/svg}"


class Block(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.unit = MaskUnit(channels)
        self.first = MaskedConv2d(channels, channels, 1, activation="relu")
        self.second = MaskedConv2d(channels, channels, 3, padding=1, activation="relu")

    def forward(self, x):
        mask = self.unit(x)
        return self.second(self.first(x, mask), mask)


@pytest.fixture
def fused(device):
    torch.manual_seed(0)
    block = Block().eval()
    x = torch.randn(1, 64, 9, 11).to(memory_format=torch.channels_last)
    if device == "cuda":
        block, x = block.half(), x.half()
    with torch.no_grad():
        return distile.fuse(block, x), x


def test_a_trace_is_a_file_and_a_picture(fused, device, tmp_path):
    model, x = fused
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("stages need compute capability 8.0")
    with torch.inference_mode(), distile.trace_stages(tmp_path / "stage.json"):
        for _ in range(2):
            model(x)
    events = json.loads((tmp_path / "stage.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    names = {event["name"] for event in events}
    assert {"0: mask unit", "2: 3x3, 64 channels", "products"} <= names
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    drawn = xml.etree.ElementTree.parse(tmp_path / "stage.svg").getroot()
    items = sum(event["name"] != "products" for event in events)
    assert len(drawn.findall(f"{SVG}rect")) == items
    # Nothing is traced behind the context.
    with torch.inference_mode(), distile.trace_stages(tmp_path / "empty.json"):
        pass
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"] == []


def test_results_are_those_without_a_trace(fused, tmp_path):
    model, x = fused
    with torch.inference_mode():
        expected = model(x)
        with distile.trace_stages(tmp_path / "stage.json"):
            assert torch.equal(model(x), expected)


def test_what_a_trace_refuses(tmp_path):
    with pytest.raises(ValueError, match="ends with .json"), distile.trace_stages(tmp_path / "stage.txt"):
        pass
    with distile.trace_stages(tmp_path / "outer.json"):
        with pytest.raises(RuntimeError, match="traced already"), distile.trace_stages(tmp_path / "inner.json"):
            pass
    assert not (tmp_path / "inner.json").exists()


def test_names_and_boxes_of_items():
    item = stage_trace.Item(0, 3, 0, 256, 3, 3, 7, 0, 10, 20, 30, 40, 50, 60)
    assert item.name() == "3: 3x3, 256 channels"
    assert item._replace(prepares=1).name() == "3: prepares its mask"
    first, second = stage_trace.chrome_trace([item])["traceEvents"]
    assert (first["ts"], first["dur"], first["tid"]) == (0.02, 0.03, 7)
    assert (second["name"], second["ts"], second["dur"]) == ("products", 0.03, 0.01)
    assert stage_trace.picture([]).count("<rect") == 0
