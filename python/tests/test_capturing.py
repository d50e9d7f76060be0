"""CUDA graphs that choose among ways to compute the same. `pytest --device cuda` tests them; without a GPU, refusals."""

import gc

import pytest
import torch
from torch import nn

import distile
from distile import capturing
from distile.nn import MaskedConv2d, MaskUnit

pytestmark = pytest.mark.filterwarnings("ignore:distile")


def on_gpu(device):
    if device != "cuda" or not torch.cuda.is_available():
        pytest.skip("for NVIDIA GPUs")


def busy(rounds):
    """A function that takes time by its rounds, and doubles its input."""
    matrix = torch.zeros(1024, 1024, device="cuda")

    def way(x, *_):
        total = torch.zeros((), device="cuda")
        for _ in range(rounds):
            total = total + (matrix @ matrix).sum()
        return x * 2 + total

    return way


@pytest.mark.cpu
def test_a_capture_refuses_what_makes_no_sense():
    x = torch.zeros(2)
    with pytest.raises(TypeError, match="inputs of a call"):
        distile.capture(abs)
    with pytest.raises(TypeError, match="tensors"):
        distile.capture(abs, 3)
    with pytest.raises(RuntimeError, match="NVIDIA GPU.*cpu"):
        distile.capture(abs, x)


@pytest.mark.cpu
def test_calls_that_need_no_choice():
    """The GPU chooses until the fastest way is known, and then for few calls."""
    direct = capturing._Direct(2)
    answers = iter([None, ([3, 0], [9.0, None]), ([9, 2], [9.0, 8.0])])
    assert [direct.next(lambda: next(answers)) for _ in range(3)] == [None] * 3
    known = ([9, 3], [9.0, 8.0])
    for look, way in ((known, 1), (([40, 3], [7.0, 8.0]), 0), (None, None)):
        assert direct.next(lambda: look) is None and direct.last is None
        if way is not None:
            found = [direct.next(None) for _ in range(capturing.CHOICES - 1)]
            assert set(found) == {way} and direct.last == way
    assert direct.next(lambda: known) is None  # The GPU was busy, so this call looked again.
    assert direct.next(None) == 1
    assert direct.runs == [capturing.CHOICES - 1, capturing.CHOICES]
    direct.give(0)
    assert [direct.next(None) for _ in range(6)] == [None] * capturing.FIRST_RUNS + [0] * 3
    direct.settle([3.0, 2.0])
    assert [direct.next(None) for _ in range(3)] == [1] * 3
    direct.settle([None, None])
    assert direct.next(None) is None
    direct.learn()
    assert direct.next(lambda: known) is None and direct.next(None) == 1


def test_ways_run_without_a_choice(device):
    """Without masks among the inputs, calls that wait for the GPU soon take a way's own graph, of the same results."""
    on_gpu(device)
    x = torch.zeros(64)
    step = distile.capture({"slow": busy(40), "fast": busy(2)}, x)
    for round in range(200):
        given = torch.rand(64)
        assert torch.equal(step(given), given * 2)
        torch.cuda.synchronize()
    info = step.info()
    assert sum(info.runs.values()) == 200 and info.runs["fast"] > 180
    assert step._direct.runs[1] > 100
    step.use("settled")
    before = sum(step._direct.runs)
    given = torch.rand(64)
    assert torch.equal(step(given), given * 2) and step.info().way == "fast"
    assert sum(step._direct.runs) == before + 1


def test_arguments_that_make_no_sense(device):
    on_gpu(device)
    x = torch.zeros(2)
    for budget in (0, -1, 2, float("nan")):
        with pytest.raises(ValueError, match="budget"):
            distile.capture(abs, x, budget=budget)
    with pytest.raises(ValueError, match="1 to 8 ways"):
        distile.capture({}, x)
    with pytest.raises(ValueError, match="1 to 8 ways"):
        distile.capture({str(number): abs for number in range(9)}, x)
    with pytest.raises(ValueError, match="'learned'"):
        distile.capture({"learned": abs, "b": abs}, x)
    with pytest.raises(ValueError, match="not contiguous"):
        distile.capture({"a": abs, "b": abs}, x, torch.zeros(1, 4, 6, dtype=torch.bool)[..., ::2])
    with pytest.raises(ValueError, match="different structures"):
        distile.capture({"a": lambda x: x + 1, "b": lambda x: (x + 1, x)}, x)
    with pytest.raises(ValueError, match=r"\[2\] of float32 where 'b' returns \[1\]"):
        distile.capture({"a": lambda x: x + 1, "b": lambda x: x[:1] + 1}, x)
    step = distile.capture({"a": lambda x: x + 1, "b": lambda x: 1 + x}, x)
    with pytest.raises(TypeError, match="1 inputs"):
        step()
    with pytest.raises(ValueError, match="captured as"):
        step(torch.zeros(3))
    with pytest.raises(ValueError, match="'c'; there are a, b, learned, settled"):
        step.use("c")


def test_one_way_is_a_graph(device):
    on_gpu(device)
    step = distile.capture(lambda x: {"y": x + 1, "name": "z"}, torch.zeros(4))
    for value in (0.0, 3.0):
        found = step(torch.full((4,), value))
        assert found["y"].tolist() == [value + 1] * 4 and found["name"] == "z"
    assert step.info().way is None


def test_a_given_way_runs(device):
    on_gpu(device)
    x = torch.zeros(64)
    step = distile.capture({"one": lambda x: (x + 1, x * 0 + 1), "two": lambda x: (x + 1, x * 0 + 2)}, x)
    assert step.info().way is None and set(step.info().runs.values()) == {0}
    for round, (name, mark) in enumerate((("two", 2), ("one", 1), ("two", 2), ("two", 2))):
        step.use(name)
        given = torch.rand(64)
        y, marks = step(given)
        assert torch.equal(y, given + 1) and marks.tolist() == [mark] * 64
        info = step.info()
        assert info.way == name and sum(info.runs.values()) == round + 1
    assert info.runs == {"one": 1, "two": 3}
    assert all(0 < time < 1e6 for time in info.microseconds.values())


def test_the_fastest_way_is_learned(device):
    on_gpu(device)
    x = torch.rand(64)
    step = distile.capture({"slow": busy(40), "fast": busy(2), "middle": busy(12)}, x)
    for _ in range(400):
        y = step(x)
    assert torch.equal(y, x * 2)
    info = step.info()
    assert info.runs["fast"] > 380, info
    assert info.microseconds["fast"] < info.microseconds["middle"] < info.microseconds["slow"]
    step.use("settled")
    before = step.info().runs
    for _ in range(100):
        step.replay()
    assert step.info().runs == {**before, "fast": before["fast"] + 100}


def test_masks_decide_about_their_own_call(device):
    on_gpu(device)
    x, mask = torch.rand(64), torch.zeros(1, 64, 37, dtype=torch.bool)
    step = distile.capture({"a": busy(1), "b": busy(2)}, x, mask, torch.zeros(3, 5, 7, dtype=torch.uint8))
    pixels = mask.numel() + 3 * 5 * 7
    for share in (0, 0.1, 0.5, 0.9, 1):
        given, few = torch.rand(mask.shape) < share, torch.randint(0, 3, (3, 5, 7), dtype=torch.uint8)
        for _ in range(20):
            step(x, given, few)
        info = step.info()
        active = int(given.sum()) + int((few != 0).sum())
        assert info.density == round(active / pixels * 16) / 16
        assert info.way is not None
    assert sum(info.runs.values()) == 100


def test_tries_stay_in_the_budget(device):
    on_gpu(device)
    x = torch.rand(64)
    for budget, most in ((0.01, 30), (1.0, 400)):
        step = distile.capture({"slow": busy(40), "fast": busy(4)}, x, budget=budget)
        for _ in range(1500):
            step.replay()
        assert 1 <= step.info().runs["slow"] <= most, step.info()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit = MaskUnit(64)
        self.first, self.second = MaskedConv2d(64, 64, 3, padding=1), MaskedConv2d(64, 64, 1)

    def forward(self, x):
        mask = self.unit(x)
        return x + self.second(self.first(x, mask), mask)


def test_a_model_with_stages_has_three_ways(device):
    on_gpu(device)
    torch.manual_seed(0)
    model = Net().half().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 64, 20, 24).half().to(memory_format=torch.channels_last)
    with torch.no_grad():
        fused = distile.fuse(model, x)
        step = distile.capture(fused, x)
        assert step.ways == ("stages", "layers", "dense")
        for _ in range(5):
            given = torch.randn(x.shape).half().to(memory_format=torch.channels_last)
            expected = model(given)
            for way in step.ways:
                step.use(way)
                found = step(given)
                assert step.info().way == way
                torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_what_a_graph_uses_stays_alive(device):
    on_gpu(device)

    def make():
        weight = torch.full((256,), 3.0)
        return distile.capture({"a": lambda x: x * weight, "b": lambda x: weight * x}, torch.ones(256))

    step = make()
    del make
    gc.collect()
    rubbish = [torch.full((256,), 9.0) for _ in range(200)]
    for way in ("a", "b"):
        step.use(way)
        assert step(torch.full((256,), 2.0)).tolist() == [6.0] * 256
    del step, rubbish
    gc.collect()
    torch.cuda.synchronize()


def test_a_capture_takes_in_no_switch(device):
    on_gpu(device)
    x = torch.zeros(4)
    step = distile.capture({"a": lambda x: x + 1, "b": lambda x: 1 + x}, x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="takes in no switch"):
        with torch.cuda.graph(graph):
            step.replay()
    torch.cuda.synchronize()
    assert step(x).tolist() == [1.0] * 4


def test_other_streams_and_devices(device):
    on_gpu(device)
    x = torch.zeros(1024)
    step = distile.capture({"a": lambda x: x + 1, "b": lambda x: 1 + x}, x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = step(torch.full((1024,), 5.0)).clone()
    torch.cuda.current_stream().wait_stream(side)
    assert found.tolist() == [6.0] * 1024
    if torch.cuda.device_count() > 1:
        y = torch.zeros(8, device="cuda:1")
        other = distile.capture({"a": lambda x: x + 1, "b": lambda x: 1 + x}, y)
        assert other(torch.ones(8, device="cuda:1")).tolist() == [2.0] * 8
        with pytest.raises(RuntimeError, match="cuda:0, cuda:1"):
            distile.capture(abs, x, y)
