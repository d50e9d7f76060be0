"""Attention, norms, packing and mask algebra against plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from distile import dense, mask_algebra, masks

ops = torch.ops.distile


@pytest.mark.parametrize("heads, head_dim", [(3, 64), (6, 64), (8, 40)])
@pytest.mark.parametrize("density", [0, 0.3, 1])
def test_attention(heads, head_dim, density, no_dense):
    torch.manual_seed(0)
    batch, tokens = 2, 37
    qkv = torch.randn(batch, tokens, 3, heads, head_dim)
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    mask, key_mask = torch.rand(batch, tokens) < density, torch.rand(batch, tokens) < density
    for keys in (None, key_mask):
        expected = dense.attention(query, key, value, mask, keys, 0, False)
        actual = ops.attention(query, key, value, mask, keys)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        # Contiguous heads, which are copied, give the same result.
        copied = ops.attention(query.contiguous(), key.contiguous(), value.contiguous(), mask, keys)
        assert torch.equal(copied, actual)
        out = torch.full((batch, tokens, heads, head_dim), 7.0).transpose(1, 2)
        ops.attention.out(query, key, value, mask, keys, out=out)
        spread = mask[:, None, :, None].expand_as(out)
        assert torch.equal(out[spread], actual[spread]) and (out[~spread] == 7).all()


def test_causal_attention_runs_dense(recwarn):
    query, key, value = torch.randn(3, 1, 2, 9, 8).unbind(0)
    mask = torch.rand(1, 9) < 0.5
    actual = ops.attention(query, key, value, mask, causal=True)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(actual, torch.where(mask[:, None, :, None], expected, 0.0))


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_norms(dtype, bound):
    torch.manual_seed(0)
    x = (torch.randn(2, 19, 48) * 3 + 1).to(dtype)
    weight, bias, mask = torch.randn(48), torch.randn(48), torch.rand(2, 19) < 0.4
    expected = dense.layer_norm(x.float(), mask, weight, bias, 1e-5)
    torch.testing.assert_close(ops.layer_norm(x, mask, weight, bias).float(), expected, rtol=bound, atol=bound)
    expected = dense.rms_norm(x.float(), mask, weight, 1e-6)
    torch.testing.assert_close(ops.rms_norm(x, mask, weight).float(), expected, rtol=bound, atol=bound)
    out = x.clone()
    ops.layer_norm.out(x, mask, None, None, out=out)
    assert torch.equal(out[~mask], x[~mask])
    images = torch.randn(2, 48, 5, 7).to(memory_format=torch.channels_last)
    mask = torch.rand(2, 5, 7) < 0.5
    torch.testing.assert_close(
        ops.layer_norm(images, mask, weight, bias),
        dense.layer_norm(images, mask, weight, bias, 1e-5),
        rtol=1e-5,
        atol=1e-5,
    )


def test_packing():
    torch.manual_seed(0)
    x, mask = torch.randn(3, 11, 20), torch.rand(3, 11) < 0.4
    packed = ops.pack(x, mask)
    assert torch.equal(packed, x[mask])
    assert torch.equal(ops.unpack(packed, mask), torch.where(mask[..., None], x, 0.0))
    assert ops.cumulative_lengths(mask).tolist() == [0, *mask.sum(1).cumsum(0).tolist()]
    nothing = torch.zeros_like(mask)
    assert ops.pack(x, nothing).shape == (0, 20)
    assert not ops.unpack(ops.pack(x, nothing), nothing).any()
    room = torch.zeros(33, 20)
    ops.pack.out(x, mask, out=room)
    assert torch.equal(room[: len(packed)], packed)


@pytest.mark.parametrize("shape", [(1, 5, 7), (2, 33, 70), (1, 64, 64)])
def test_algebra(shape):
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.1
    pooled = F.max_pool2d(mask.float()[:, None], (5, 3), 1, (2, 1))[:, 0] > 0
    assert torch.equal(masks.dilate(mask, (2, 1)), pooled)
    assert torch.equal(masks.erode(mask, 1), ~masks.dilate(~mask, 1))
    assert torch.equal(masks.pool(mask, (2, 3)), F.max_pool2d(mask.float(), (2, 3), ceil_mode=True) > 0)
    # A convolution with stride 2 reads what contributes to it.
    out = [(extent - 1) // 2 + 1 for extent in shape[1:]]
    window = dict(kernel=3, stride=2, padding=1)
    reached = F.conv2d(mask.float()[:, None], torch.ones(1, 1, 3, 3), stride=2, padding=1)[:, 0] > 0
    assert torch.equal(masks.affected_output(mask, out, **window), reached)
    active = torch.rand(shape[0], *out) < 0.2
    read = (
        F.conv_transpose2d(
            active.float()[:, None],
            torch.ones(1, 1, 3, 3),
            stride=2,
            padding=1,
            output_padding=[shape[1 + i] - (2 * out[i] - 1) for i in (0, 1)],
        )[:, 0]
        > 0
    )
    assert torch.equal(masks.needed_input(active, shape[1:], **window), read)
    bits = ops.mask_to_bits(mask)
    assert torch.equal(ops.mask_from_bits(bits, shape[2]), mask)


def test_difference_and_indices():
    torch.manual_seed(0)
    a = torch.randn(2, 6, 9, 8)
    b = a.clone()
    b[1, 3, 4, 5] += 0.5
    changed = masks.difference(a, b, 0.25)
    assert changed.nonzero().tolist() == [[1, 4, 5]]
    assert not masks.difference(a, b, 1).any()
    mask = ops.mask_from_indices(torch.tensor([[0, 9, 9]], dtype=torch.int32), 2, 8)
    assert mask.nonzero().tolist() == [[0, 0, 0], [0, 1, 1]]


WINDOWS = [
    dict(kernel=(3, 3), padding=(1, 1)),
    dict(kernel=(3, 2), stride=(2, 3), padding=(1, 0)),
    dict(kernel=(2, 3), stride=(1, 2), dilation=(3, 2), padding=(2, 1)),
    dict(kernel=(1, 1), stride=(2, 2)),
    dict(kernel=(4, 4), stride=(2, 2), padding=(1, 1)),
]


@torch.no_grad()
def test_shared_masks_that_do_not_change():
    torch.manual_seed(0)
    mask = torch.rand(2, 12, 16) < 0.2
    x, small = torch.randn(2, 8, 12, 16), torch.randn(2, 8, 6, 8)
    shared = masks.SharedMask(mask)
    with shared.fixed():
        for _ in range(2):
            assert torch.equal(ops.activate(x, shared.at(12, 16)), torch.where(mask[:, None], x, 0))
            pooled = mask_algebra.pool(mask, 2, 2)
            assert torch.equal(ops.activate(small, shared.at(6, 8)), torch.where(pooled[:, None], small, 0))
    mask.logical_not_()
    assert torch.equal(ops.activate(x, mask), torch.where(mask[:, None], x, 0))


def test_a_shared_mask_has_its_own_stride():
    shared = masks.SharedMask(torch.ones(1, 4, 4, dtype=torch.bool), stride=2)
    for given in (shared, {"mask": shared}):
        with pytest.raises(ValueError, match="SharedMask has its own stride"):
            masks.mask(given, stride=4)
    assert masks.mask(shared).shared is shared


@pytest.mark.parametrize("kind", [mask_algebra.CONV, mask_algebra.TRANSPOSED, mask_algebra.UPSAMPLED])
@pytest.mark.parametrize("window", WINDOWS)
def test_algebra_of_gpus(kind, window):
    """What runs on GPUs computes what the library computes on a CPU."""
    torch.manual_seed(0)
    for density in (0.03, 0.3):
        mask = torch.rand(2, 13, 17) < density
        for size in ((13, 17), (7, 6), (26, 31)):
            for name in ("mask_needed_input", "mask_affected_output"):
                found = mask_algebra.ALGEBRA[name](mask, size, **window, kind=kind)
                assert found.shape == (2, *size)
                assert torch.equal(found, getattr(ops, name)(mask, size, **window, kind=kind))


def test_rest_of_the_algebra_of_gpus():
    torch.manual_seed(0)
    mask = torch.rand(3, 13, 17) < 0.1
    assert torch.equal(mask_algebra.dilate(mask, 2, 1), ops.mask_dilate(mask, 2, 1))
    assert torch.equal(mask_algebra.pool(mask, 2, 3), ops.mask_pool(mask, 2, 3))
    lengths = mask_algebra.cumulative_lengths(mask.flatten(1))
    assert torch.equal(lengths, ops.cumulative_lengths(mask.flatten(1))) and lengths.dtype == torch.int32
    a = torch.randn(2, 5, 4, 6)
    b = torch.where(torch.rand(2, 5, 4, 6) < 0.1, a + 0.3, a)
    a[0, 1, 2, 3] = torch.nan
    a[1, 0, 0, 0] = b[1, 0, 0, 0] = torch.inf
    for threshold in (0, 0.2, 0.5):
        assert torch.equal(mask_algebra.difference(a, b, threshold), ops.mask_difference(a, b, threshold))
        tokens = (a[0].permute(1, 2, 0), b[0].permute(1, 2, 0))
        assert torch.equal(mask_algebra.difference(*tokens, threshold), ops.mask_difference(*tokens, threshold))
