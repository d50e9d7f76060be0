"""Whole networks, small: each against its dense layers followed by the mask, and the program that times them."""

import json
import math

import avit
import common
import distile
import dit_editing
import dynconv_pose
import dynconv_resnet
import editing
import gathered
import pruned
import pytest
import runner
import sige_ddpm
import sige_gaugan
import sige_stable_diffusion
import timing
import torch
import video_resnet
from distile.nn import MaskedGroupNorm
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.filterwarnings("ignore:distile")

SMALL = {
    "dynconv-resnet": lambda: dynconv_resnet.ResNet(64, 0.3, width=16, blocks=(1, 2, 2, 1)),
    "resnet-stage": lambda: dynconv_resnet.ThirdStage(10, 0.4, batch=2, count=3, width=16),
    "dynconv-resnet batch": lambda: dynconv_resnet.ResNet(72, 0.5, batch=2, width=32, blocks=(1, 1, 1, 1)),
    "dynconv-pose": lambda: dynconv_pose.PoseNetwork(64, 0.383, batch=2, stacks=1, levels=2),
    "avit-t": lambda: avit.AViT("T", 0.5, batch=2, layers=4, pixels=64),
    "avit-s": lambda: avit.AViT("S", 0.3, layers=3, pixels=112),
    "mobilenet": lambda: pruned.MobileNet(0.3, batch=2, pixels=64, width=16, pairs=pruned.PAIRS[:5]),
    "bert": lambda: pruned.Bert(0.5, batch=2, tokens=20, channels=64, heads=4, layers=2),
    "video": lambda: video_resnet.VideoResNet(128, blocks=(1, 1, 1, 1), objects=1),
    "ddpm": lambda: sige_ddpm.DDPM(64, 32, (1, 2), (32,)),
    "gaugan": lambda: sige_gaugan.GauGAN((64, 128), 8, 12, 16),
    "stable-diffusion": lambda: sige_stable_diffusion.StableDiffusion(16, 32, (1, 2), 4, 24, 7),
    "dit": lambda: dit_editing.DiT(8, 384, 6, 2),
}
EDITED = ("ddpm", "gaugan", "stable-diffusion", "dit")
# Networks whose masks do not change with the last bits.
BY_MASKS = [name for name in SMALL if name.startswith(("dynconv", "resnet", "video")) or name in EDITED]


def small(name, device="cpu"):
    """A small network, made on the CPU, where its weights are drawn."""
    with torch.inference_mode(False), torch.device("cpu"):
        network = SMALL[name]().eval()
        return network if device == "cpu" else common.move(network, device)



@pytest.mark.cpu
@pytest.mark.parametrize("name, stages", [("dynconv-resnet", 1), ("dynconv-pose", 1), ("resnet-stage", 2)])
def test_networks_as_stages(name, stages):
    network, rows = small(name), []
    with torch.no_grad():
        distile.fuse(network.functional().eval(), *network.dense_inputs(), report=rows)
        assert sum(isinstance(row, distile.stage_steps.Fused) for row in rows) == stages
        peers, missing = timing.peers_of(network, ["distile-stages", "eager"])
    assert peers.keys() == {"distile-stages", "eager"} and not missing


@torch.inference_mode()
@pytest.mark.parametrize("name", ["dynconv-resnet", "avit-t"])
def test_weights_of_16_bits(name):
    network = small(name)
    with torch.inference_mode(False):
        common.store_weights(network, torch.bfloat16)
    network.prepare()
    result = network.masked()
    assert common.error(network, result, network.expected()) <= network.bound
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32, torch.bfloat16}


@torch.inference_mode()
@pytest.mark.parametrize("name", SMALL)
def test_dense_then_mask(name, device):
    network = small(name, device)
    for _ in range(3):
        network.prepare()
        result = network.masked()
        found = common.error(network, result, network.expected())
        assert found <= network.bound
        densities = network.densities()
        assert all(0 <= density <= 1 for density in densities)
        if (name, device) != ("video", "cuda"):  # There the last bits of what is computed again may differ.
            assert min(densities) < 0.7
    if name != "video":  # The masks matter, so the comparison above can fail.
        dense = network.dense(*network.dense_inputs())
        assert common.error(network, result, dense) > 100 * network.bound
    assert all(picture.isfinite().all() and picture.dim() in (2, 3) for picture in network.pictures().values())


@torch.inference_mode()
@pytest.mark.parametrize("name", BY_MASKS)
def test_the_dense_form_makes_its_own_masks(name, device):
    network = small(name, device)
    network.prepare()
    result = network.masked()
    found = network.dense_masked(*network.inputs())
    assert common.error(network, result, found) <= network.bound


@torch.inference_mode()
@pytest.mark.parametrize("name", ["video", *EDITED])
def test_the_dense_form_keeps_what_the_masked_one_reads(name, device):
    """Steps in both forms, in turn, with other masks: each as if all had been of one form."""
    network, other = small(name, device), small(name, device)
    for dense in (True, False, True, True, False, False):
        for one in (network, other):
            one.vary()
        found = network.dense_masked(*network.inputs()) if dense else network.masked()
        found = [tensor.clone() for tensor in common.tensors_of(found)]
        expected = common.tensors_of(other.masked())
        assert common.error(network, tuple(found), tuple(expected)) <= network.bound
        assert common.error(network, tuple(found), network.expected()) <= network.bound
    if name in EDITED:  # The comparison above can fail.
        assert common.error(network, tuple(found), network.dense(*network.dense_inputs())) > 10 * network.bound


@torch.inference_mode()
@pytest.mark.parametrize("name", EDITED)
def test_the_dense_form_selects_only_what_is_read(name):
    """Selecting every result gives the same."""
    network, all_selected = small(name), small(name)
    all_selected.editor.around = set(all_selected.editor.kept)
    assert 0 < len(network.editor.around) < len(all_selected.editor.around)
    for _ in range(2):
        for one in (network, all_selected):
            one.vary()
        found, expected = (one.dense_masked(*one.inputs()) for one in (network, all_selected))
        assert common.error(network, found, expected) <= network.bound



class Called(TorchDispatchMode):
    """The operators of distile that are called, and how many others."""

    def __init__(self):
        super().__init__()
        self.ours, self.others = set(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        space, name = function.name().split("::")
        self.ours |= {name} if space == "distile" else set()
        self.others += space != "distile"
        return function(*args, **(kwargs or {}))


@torch.inference_mode()
@pytest.mark.parametrize("tile", [1, gathered.TILE])
@pytest.mark.parametrize("name", SMALL)
def test_gathered(name, tile, device):
    """The peers that gather compute what they must, and leave the state of our network alone."""
    network = small(name, device)
    if tile > 1 and name not in EDITED:
        with pytest.raises(NotImplementedError, match="edits"):
            gathered.Gathered(network, tile)
        return
    peer = gathered.Gathered(network, tile)
    network.prepare()
    before = [tensor.clone() for tensor in common.tensors_of(network.masked())]
    for _ in range(2):
        peer.prepare()
        with Called() as called:
            result = peer()
        # What computes no layer has a name with an underscore.
        assert all(name.startswith(("mask_", "_")) for name in called.ours) and called.others > 0
        assert common.error(network, result, peer.expected()) <= network.bound
    if name in EDITED:
        assert all(torch.equal(a, b) for a, b in zip(before, common.tensors_of(network.masked())))
    assert distile.nn_base.ops is torch.ops.distile


@torch.inference_mode()
@pytest.mark.parametrize("name", SMALL)
def test_by_sige(name, device):
    """SIGE's package computes what it must, by blocks, and leaves the state of our network alone."""
    by_sige = pytest.importorskip("by_sige", reason="the package sige is not installed")
    network = small(name, device)
    if name not in ("ddpm", "gaugan", "stable-diffusion"):
        with pytest.raises(NotImplementedError, match="no such model"):
            by_sige.Sige(network)
        return
    network.masked()
    peer = by_sige.Sige(network)
    result = tuple(tensor.clone() for tensor in common.tensors_of(peer()))
    assert common.error(network, result, peer.expected()) <= network.bound
    assert common.error(network, result, network.dense(*network.edited)) > 10 * network.bound
    assert common.error(network, result, network.masked()) > 10 * network.bound  # Blocks are more than the mask.
    assert common.error(network, network.masked(), network.expected()) <= network.bound


@torch.inference_mode()
@pytest.mark.parametrize("name", EDITED)
def test_edits(name, device):
    """Outside the mask, the result of the original stays; where all is edited, the result is the dense one."""
    network = small(name, device)
    editor = network.editor
    original = {key: tensor.clone() for key, tensor in editor.kept.items()}
    network.masked()
    changed = 0
    for key, before in original.items():
        mask = editor._mask(before)
        spread = mask[:, :, None] if before.dim() == 3 else mask[:, None] if mask.dim() == 3 else mask[:, None, :, None]
        assert torch.equal(torch.where(spread, 0, editor.kept[key]), torch.where(spread, 0, before))
        changed += not torch.equal(editor.kept[key], before)
    assert changed > len(original) / 2
    for layer in network.modules():
        if isinstance(layer, MaskedGroupNorm):
            layer.forget_statistics()
    everywhere = torch.ones_like(network.edit_mask())
    network.edit_mask = lambda: everywhere
    result = network.masked()
    assert common.error(network, result, network.dense(*network.dense_inputs())) <= network.bound


@torch.inference_mode()
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.cpu
def test_move(name, device):
    """All that a dense step reads moves; and what the network keeps."""
    network = small(name, device)
    network.prepare()
    network.masked()
    shapes = [tensor.shape for tensor in common.tensors_of(network.dense(*network.dense_inputs()))]
    kept = network.cached_bytes()
    assert common.move(network, "meta") is network
    found = common.tensors_of(network.dense(*network.dense_inputs()))
    assert [tensor.shape for tensor in found] == shapes and all(tensor.is_meta for tensor in found)
    if name in EDITED:
        assert all(tensor.is_meta for tensor in network.editor.kept.values())
    elif name.startswith("dynconv"):
        assert all(tensor.is_meta for tensor in network.buffers._kept.values()) and network.cached_bytes() == kept
    elif name == "video":
        assert all(layer.result.is_meta for layer in network.modules() if isinstance(layer, video_resnet.Kept))


@pytest.mark.cpu
@torch.inference_mode()
@pytest.mark.parametrize("name", SMALL)
def test_bfloat16(name, device):
    """Networks compute in another type, as far as it rounds."""
    network = small(name, device)
    with torch.inference_mode(False):
        common.move(network, device, torch.bfloat16)
    for _ in range(2):
        network.vary()
        results = common.tensors_of(network.masked())
        assert all(tensor.dtype == torch.bfloat16 for tensor in results)
        assert common.error(network, results, network.expected()) <= runner.BOUNDS["bfloat16"]


@pytest.mark.cpu
@torch.inference_mode()
def test_full_masks_are_dense():
    with torch.inference_mode(False):
        networks = (
            dynconv_resnet.ResNet(64, 1, width=16, blocks=(1, 1, 1, 1)),
            avit.AViT("T", 1, layers=2, pixels=64),
        )
    for network in networks:
        result = network.masked()
        assert network.densities() == [1.0] * len(network.densities())
        assert common.error(network, result, network.expected()) <= network.bound
    network = networks[0]
    assert common.error(network, network.masked(), network.dense(*network.dense_inputs())) <= network.bound


@pytest.mark.cpu
@torch.inference_mode()
def test_video():
    with torch.inference_mode(False):
        network = video_resnet.VideoResNet(96, blocks=(1, 1, 1, 1), objects=1)
    first = network.blocks[-1].second.result.clone()
    same = network.masked()  # This frame again: nothing is computed.
    assert torch.equal(same, first) and not any(network.densities())
    network.prepare()
    moved = network.masked().clone()
    assert not torch.equal(moved, first) and 0 < network.densities()[0] < 0.5
    assert common.error(network, moved, network.expected()) <= network.bound
    # Above every difference, a frame changes nothing.
    network.changes.threshold = 2.0
    network.prepare()
    assert torch.equal(network.masked(), moved)
    # Smaller changes add up until they count.
    network.changes.threshold = 0.05
    for _ in range(10):
        network.frame.add_(0.01)
        result = network.masked()
        assert common.error(network, result, network.expected()) <= network.bound
    assert (network.changes.frame - network.frame).abs().max() <= 0.0501 and not torch.equal(result, moved)


@pytest.mark.cpu
def test_numerics():
    """The runner's choice of numbers ends with its context, also inside another."""
    before = torch.backends.cudnn.allow_tf32, distile.set_math("default")
    with runner.numerics(True):
        with runner.numerics(False):
            assert distile.set_math("float32") == "float32" and not torch.backends.cudnn.allow_tf32
        assert distile.set_math("tf32") == "tf32" and torch.backends.cudnn.allow_tf32
    assert distile.set_math(before[1]) == "default" and torch.backends.cudnn.allow_tf32 == before[0]


@pytest.mark.parametrize("blocks, mean", [(57, 0.383), (33, 0.1), (33, 0.3), (16, 0.7), (5, 1)])
def test_profile(blocks, mean):
    found = common.profile(blocks, mean)
    assert len(found) == blocks and sum(found) / blocks == pytest.approx(mean, abs=1e-6)


def test_thresholds():
    scores = torch.tensor([[3.0, 1.0], [2.0, 4.0]])
    for density, kept in [(0, 0), (0.25, 1), (0.5, 2), (1, 4)]:
        assert (scores > common.threshold(scores, density)).sum() == kept


def test_error_sees_what_is_wrong():
    network = common.Network()
    assert common.error(network, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])) == pytest.approx(0.2)
    assert common.error(network, torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.5])) == math.inf


@pytest.mark.cpu
@torch.inference_mode()
def test_peers_that_are_wrong_are_left_out(monkeypatch):
    network = small("dynconv-pose")
    wrong = lambda network: timing.Peer(network, lambda *inputs: network.dense(*inputs) * 1.01)
    monkeypatch.setitem(timing.PEERS, "wrong", wrong)
    peers, absent = timing.peers_of(network, ["eager", "wrong"])
    assert set(peers) == {"eager"} and absent["wrong"].startswith("wrong: the largest error is")


@pytest.mark.cpu
def test_runner(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(runner.BY_DENSITY, "dynconv-pose", lambda density, batch: SMALL["dynconv-pose"]())
    monkeypatch.setitem(runner.WITH_MASKS, "video", lambda: video_resnet.VideoResNet(64, blocks=(1, 1, 1, 1), width=8))
    for name in ("dynconv-pose", "video"):
        options = [name, "--seconds", "0.01", "--peers", "eager", "gather", "tiles", "--out", str(tmp_path)]
        assert runner.main(options) == 0
        text = capsys.readouterr().out
        assert "weights are random" in text and "largest error" in text
        content = json.loads((tmp_path / f"{name}.json").read_text())
        (row,) = content["rows"]
        assert set(row["milliseconds"]) == {"distile", "eager", "gather"} and min(row["milliseconds"].values()) > 0
        assert "edits" in row["absent"]["tiles"]
        assert len(content["overhead, us"]) == 4 and min(content["overhead, us"].values()) > 0
        assert row["error"] <= row["bound"] and sum(row["milliseconds by kind"]["distile"].values()) > 0
        assert row["bytes"]["distile"]["step"] > 0
    if pytest.importorskip("PIL"):
        from PIL import Image

        assert Image.open(tmp_path / "dynconv-pose.png").width > 600
        assert Image.open(tmp_path / "video.gif").n_frames > 10
    with pytest.raises(SystemExit):
        runner.main(["video", "--density", "0.5"])


@torch.inference_mode()
@pytest.mark.parametrize("name", EDITED)
def test_plain_masks_of_edits(name, device):
    network = small(name, device)
    mask = network.edit_mask()
    assert torch.equal(network.plain_edit_mask(), mask) and mask.any() and not mask.all()
    shared, plain = distile.masks.SharedMask(mask), editing.Masks(mask)
    images = [kept for kept in network.editor.kept.values() if kept.dim() == 4 and kept.stride(1) == 1]
    for size in {tuple(image.shape[2:]) for image in images}:
        assert torch.equal(plain.at(*size), shared.at(*size))
