"""Planners: what they hand out is zero outside the mask, aliases few buffers, and serves layers as `out`."""

import copy
import gc
import pickle
import threading

import pytest
import torch

import distile
from distile._facts import FLOAT_TYPES
from distile.nn import MaskedConv2d, MaskedLinear

CLEARINGS = ("written", "all", "background")


def random_mask(*shape):
    """Blobs or single pixels, of any density, also none and all."""
    noise = torch.rand(shape)
    if len(shape) == 3 and torch.rand(()) < 0.5:
        noise = torch.nn.functional.avg_pool2d(noise[:, None], 3, 1, 1)[:, 0]
    return noise < torch.rand(()) * 1.2 - 0.1


@pytest.mark.parametrize("clearing", CLEARINGS)
@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_zero_outside_the_mask(clearing, buffers):
    torch.manual_seed(buffers)
    planner = distile.Planner(buffers=buffers, clearing=clearing)
    types = [getattr(torch, name) for name in FLOAT_TYPES]
    for number in range(60):
        tokens, whole, channels = number % 4 == 3, number % 5 == 4, (16, 5, 33)[number % 3]
        mask = random_mask(2, 19) if tokens else random_mask(*((1, 23, 70), (2, 9, 8))[number % 2])
        out = planner.next(mask, channels, dtype=types[number % 7 % len(types)], whole=whole)
        spread = mask[..., None] if tokens else mask[:, None]
        assert out.shape == ((2, 19, channels) if tokens else (mask.shape[0], channels, *mask.shape[1:]))
        assert out.dtype == types[number % 7 % len(types)] and out.stride(2 if tokens else 1) == 1
        assert not (out if whole else torch.where(spread, 0, out)).float().any()
        # A layer writes the active pixels, and where it may, the others.
        out.copy_(torch.where(spread | whole, torch.full_like(out, torch.nan if number % 2 else 3), out))


@torch.no_grad()
def test_layers_write_into_it(no_dense):
    """A chain of layers computes what it computes into new tensors."""
    torch.manual_seed(0)
    layers = [MaskedConv2d(128, 128, 3, padding=1, activation="relu") for _ in range(3)]
    planner = distile.Planner()
    x = torch.randn(1, 128, 20, 33).to(memory_format=torch.channels_last)
    for _ in range(8):
        mask = random_mask(1, 20, 33)
        expected = actual = x
        for layer in layers:
            expected = layer(expected, mask)
            actual = layer(actual, mask, out=planner.next(mask, 128))
        assert torch.equal(actual, expected)
    linear = MaskedLinear(384, 1152)
    tokens, mask = torch.randn(2, 11, 384), random_mask(2, 11)
    assert torch.equal(linear(tokens, mask, out=planner.next(mask, 1152)), linear(tokens, mask))


def test_buffers_are_used_again():
    planner = distile.Planner(buffers=4)
    mask = torch.rand(1, 16, 16) < 0.3
    assert planner.nbytes == 0
    places = [planner.next(mask, 8).data_ptr() for _ in range(20)]
    assert len(set(places[:4])) == 4 and places == places[:4] * 5
    held = planner.nbytes
    assert 4 * mask.numel() * 8 * 4 <= held < 8 * mask.numel() * 8 * 4
    for _ in range(200):
        planner.next(torch.rand(1, 16, 16) < 0.5, 8)
    assert planner.nbytes == held


def test_tensors_outlive_the_planner():
    planner = distile.Planner()
    mask = torch.ones(1, 4, 5, dtype=torch.bool)
    out = planner.next(mask, 64).fill_(7)
    view = out[:, 3:5, 1:]
    del planner, out
    gc.collect()
    others = [torch.zeros(1, 64, 4, 5) for _ in range(8)]
    assert (view == 7).all() and not any(other.any() for other in others)


def test_copies_have_buffers_of_their_own():
    planner = distile.Planner(buffers=2, clearing="all")
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    for other in (copy.deepcopy(planner), pickle.loads(pickle.dumps(planner))):
        assert other.next(mask, 4).data_ptr() != planner.next(mask, 4).data_ptr()
        assert other.next(mask, 4).data_ptr() != other.next(mask, 4).data_ptr()


def test_threads_share_a_planner():
    planner = distile.Planner(buffers=64)
    mask = torch.ones(1, 8, 8, dtype=torch.bool)
    places, lock = [], threading.Lock()

    def take():
        for _ in range(16):
            place = planner.next(mask, 4).data_ptr()
            with lock:
                places.append(place)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == len(places) == 64


def test_compiled_functions_call_it():
    planner = distile.Planner()
    layer = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
    x = torch.randn(1, 128, 9, 9).to(memory_format=torch.channels_last)

    def step(x, mask):
        return layer(x, mask, out=planner.next(mask, 128)) * 2

    compiled = torch.compile(step, backend="eager")
    with torch.no_grad():
        for _ in range(4):
            mask = torch.rand(1, 9, 9) < 0.5
            assert torch.equal(compiled(x, mask), layer(x, mask) * 2)


def test_wrong_use():
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="no clearing 'never'; there are written"):
        distile.Planner(clearing="never")
    for buffers in (-1, 0, 1, 65):
        with pytest.raises(ValueError, match=f"2 to 64 buffers, not {buffers}"):
            distile.Planner(buffers=buffers)
    with pytest.raises(ValueError, match="not for meta"):
        distile.Planner(device="meta")
    planner = distile.Planner()
    with pytest.raises(RuntimeError, match="there are 0 channels"):
        planner.next(mask, 0)
    with pytest.raises(RuntimeError, match="float16, bfloat16, float8_e4m3fn or float8_e5m2"):
        planner.next(mask, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"\[N, H, W\]"):
        planner.next(mask[0, 0], 4)
    with pytest.raises(RuntimeError, match="the mask has no pixels"):
        planner.next(mask[:0], 4)
    # None of them took a buffer.
    places = [planner.next(mask, 4).data_ptr() for _ in range(6)]
    assert places[:3] == places[3:]
