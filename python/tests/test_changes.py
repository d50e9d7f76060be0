"""Video by differences: what is compared with is what was last computed."""

import pytest
import torch

import distile
from distile import dense

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


@torch.no_grad()
def test_small_changes_add_up_to_a_change():
    torch.manual_seed(0)
    frame, weight = torch.rand(1, 3, 9, 8), torch.randn(4, 3, 3, 3)
    changes, kept = distile.Changes(0.05), torch.zeros(1, 4, 9, 8).to(memory_format=torch.channels_last)
    computed = 0
    for number in range(100):
        frame = frame + 0.01 * torch.rand(1, 1, 9, 8)
        changed = changes.update(frame)
        assert (changes.frame - frame).abs().max() <= 0.0501
        window = distile.masks.affected_output(changed, [9, 8], kernel=3, padding=1)
        ops.conv2d.out(changes.frame, weight, None, window, padding=[1] * 4, out=kept)
        everywhere = torch.ones(1, 9, 8, dtype=torch.bool)
        expected = dense.conv2d(changes.frame, weight, None, everywhere, None, (1, 1), (1,) * 4, (1, 1), 1, "none")
        torch.testing.assert_close(kept, expected, rtol=1e-4, atol=1e-4)
        computed += int(changed.sum()) * (number > 0)
    assert 0 < computed < 30 * 72


@torch.no_grad()
def test_only_changed_pixels_are_taken_over():
    changes, frame = distile.Changes(0.5), torch.zeros(2, 2, 3, 4)
    assert changes.update(frame).all() and changes.frame is not frame
    frame[0, 0, 1, 2], frame[1, 1, 0, 0] = 0.75, 0.25
    changed = changes.update(frame)
    assert changed.nonzero().tolist() == [[0, 1, 2]]
    assert changes.frame[0, 0, 1, 2] == 0.75 and changes.frame[1, 1, 0, 0] == 0
    frame[1, 1, 0, 0] = 0.6  # From what was computed, not from the frame before.
    assert changes.update(frame).nonzero().tolist() == [[1, 0, 0]]
    assert changes.update(torch.zeros(2, 2, 3, 5)).all() and changes.update(torch.zeros(1, 5, 7)).shape == (1, 5)
