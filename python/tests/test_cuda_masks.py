"""Masks in CUDA graphs, in memory that stays: the `out` forms of mask algebra. With `pytest --device cuda`."""

import pytest
import torch
from distile import layers, mask_algebra, masks

ops = torch.ops.distile
WINDOW = dict(stride=(2, 2), padding=(1, 1))


@pytest.fixture(autouse=True)
def on_a_gpu(device):
    if device != "cuda":
        pytest.skip("for NVIDIA GPUs")


def captured(run):
    """A graph of these calls, after some without it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            run()
        with torch.cuda.graph(graph, stream=stream):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def test_a_chain_of_masks():
    torch.manual_seed(0)
    before, after = (torch.randn(1, 8, 24, 20).contiguous(memory_format=torch.channels_last) for _ in range(2))
    changed, wide, read = (torch.empty(1, 24, 20, dtype=torch.bool) for _ in range(3))
    low, reached = torch.empty(1, 12, 10, dtype=torch.bool), torch.empty(1, 12, 10, dtype=torch.bool)
    scored, lengths = torch.empty(1, 24, 20, dtype=torch.bool), torch.empty(2, dtype=torch.int32)
    mean, variance, pooled = torch.empty(1, 2), torch.empty(1, 2), torch.empty(1, 8, 1, 1)
    unpacked = torch.zeros(1, 8, 24, 20).contiguous(memory_format=torch.channels_last)
    packed, bits = torch.zeros(480, 8), torch.empty(1, 24, 1, dtype=torch.int32)

    def run():
        ops.mask_difference.out(before, after, 1.0, out=changed)
        ops.mask_dilate.out(changed, 1, 1, out=wide)
        ops.mask_pool.out(changed, 2, 2, out=low)
        ops.mask_affected_output.out(changed, (12, 10), (3, 3), **WINDOW, out=reached)
        ops.mask_needed_input.out(low, (24, 20), (3, 3), **WINDOW, out=read)
        ops.mask_scores.out(after, None, threshold=1.0, out=scored)
        ops.cumulative_lengths.out(changed, out=lengths)
        ops.mask_to_bits.out(changed, out=bits)
        ops.group_statistics.out(after, changed, groups=2, mean=mean, variance=variance)
        ops.global_pool.out(after, changed, out=pooled)
        ops.pack.out(after, changed, out=packed)
        ops.unpack.out(packed, changed, zero=True, out=unpacked)

    graph = captured(run)
    for density in (0.05, 0.5, 0):
        after.copy_(torch.where(torch.rand(1, 1, 24, 20) < density, before + 2, before))
        graph.replay()
        expected = mask_algebra.difference(before, after, 1.0)
        assert torch.equal(changed, expected)
        assert torch.equal(wide, mask_algebra.dilate(expected, 1, 1))
        assert torch.equal(low, mask_algebra.pool(expected, 2, 2))
        assert torch.equal(reached, mask_algebra.affected_output(expected, (12, 10), (3, 3), **WINDOW))
        assert torch.equal(read, mask_algebra.needed_input(low, (24, 20), (3, 3), **WINDOW))
        sums = after.sum(1)
        sure = (sums - 1).abs() > 1e-4
        assert torch.equal(scored[sure], (sums > 1)[sure])
        assert torch.equal(lengths, mask_algebra.cumulative_lengths(expected))
        assert torch.equal(bits, mask_algebra.to_bits(expected))
        for found, right in zip((mean, variance), layers.group_statistics(after, expected, groups=2)):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pooled, layers.global_pool(after, expected), rtol=1e-4, atol=1e-4)
        assert torch.equal(unpacked, torch.where(expected[:, None], after, 0))


def test_indices_and_bits():
    indices = torch.tensor([[0, 9, 9]], dtype=torch.int32)
    chosen, again = torch.empty(1, 2, 8, dtype=torch.bool), torch.empty(1, 2, 8, dtype=torch.bool)
    words = torch.tensor([[[5], [1]]], dtype=torch.int32)

    def run():
        ops.mask_from_indices.out(indices, 2, 8, out=chosen)
        ops.mask_from_bits.out(words, 8, out=again)

    graph = captured(run)
    indices.copy_(torch.tensor([[1, 2, 15]], dtype=torch.int32))
    words.copy_(torch.tensor([[[2], [128]]], dtype=torch.int32))
    graph.replay()
    assert torch.equal(chosen, mask_algebra.from_indices(indices, 2, 8))
    assert torch.equal(again, mask_algebra.from_bits(words, 8))


@torch.no_grad()
def test_a_mask_written_again_is_no_longer_fixed():
    torch.manual_seed(0)
    x, mask = torch.randn(1, 8, 12, 16), torch.rand(1, 12, 16) < 0.1
    wide = torch.empty_like(mask)
    with masks.fixed(mask):
        ops.mask_dilate.out(mask, 1, 1, out=wide)
        with masks.fixed(wide):
            ops.activate(x, wide)
            ops.mask_dilate.out(mask, 2, 2, out=wide)
            assert torch.equal(ops.activate(x, wide), torch.where(mask_algebra.dilate(mask, 2, 2)[:, None], x, 0))
