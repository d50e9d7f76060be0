"""Groups whose devices are of several processes: ranks of torch.distributed, by gloo on CPUs. `pytest --device cuda` gives
each rank a GPU of its own, by NCCL."""

import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback

import pytest
import torch
from chains import agree, blobs, chain_of, convolutions, image, one_by_one, threads_of
from torch import distributed, nn

import distile
from distile.nn import MaskedConv2d, MaskedLinear
from distile.parallel import Group

pytestmark = pytest.mark.filterwarnings("ignore:distile")
ANSWER = 240
"""Seconds that a test's processes get for what they do."""


class Here:
    """A rank's place among the others."""

    def __init__(self, device: str, process_group):
        self.process_group = process_group
        self.rank, self.ranks = distributed.get_rank(process_group), distributed.get_world_size(process_group)
        self.device = device

    def group(self, devices=1, **keywords):
        """A group in which this rank has some devices, which may be the same GPU."""
        given = [self.device] * devices
        return Group(given, process_group=self.process_group, **threads_of(self.device), **keywords)

    def alone(self):
        return Group([self.device], **threads_of(self.device))


def _serve(pipe, rank, ranks, device, rendezvous):
    """A rank's process: calls what the test asks for."""
    torch.set_num_threads(1)
    if device == "cuda":
        device = f"cuda:{rank}"
        torch.cuda.set_device(device)
        distile.set_math("float32")
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    while True:
        work, arguments = pipe.recv()
        if work is None:
            break
        try:
            torch.manual_seed(0)
            with torch.inference_mode():
                answer = ("done", work(Here(device, distributed.group.WORLD), *arguments))
        except pytest.skip.Exception as skipped:
            answer = ("skipped", str(skipped))
        except BaseException:
            answer = ("failed", traceback.format_exc())
        pipe.send(answer)


class Processes:
    """Processes with a rank each."""

    def __init__(self, ranks: int, device: str, folder):
        context = multiprocessing.get_context("spawn")
        self.ranks, self.pipes, self.processes = ranks, [], []
        for rank in range(ranks):
            own, other = context.Pipe()
            arguments = (other, rank, ranks, device, folder / "rendezvous")
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self.pipes.append(own)
            self.processes.append(process)

    def begin(self, work, *arguments):
        for pipe in self.pipes:
            pipe.send((work, arguments))

    def answers(self, but=()):
        """What all ranks but some return. Fails if one failed, and skips if one skipped."""
        found = []
        for rank, pipe in enumerate(self.pipes):
            if rank in but:
                continue
            assert pipe.poll(ANSWER), f"rank {rank} does not answer"
            found.append(pipe.recv())
        for rank, (kind, what) in enumerate(found):
            assert kind != "failed", f"rank {rank}:\n{what}"
        for kind, what in found:
            if kind == "skipped":
                pytest.skip(what)
        return [what for _, what in found]

    def run(self, work, *arguments):
        self.begin(work, *arguments)
        return self.answers()

    def end(self):
        for pipe, process in zip(self.pipes, self.processes):
            if process.is_alive():
                try:
                    pipe.send((None, ()))
                except OSError:
                    pass
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def started(ranks, device, folder):
    if device == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"for {ranks} NVIDIA GPUs")
    return Processes(ranks, device, folder)


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def processes(request, tmp_path_factory):
    made = started(request.param, request.config.getoption("device"), tmp_path_factory.mktemp("ranks"))
    yield made
    made.end()


@pytest.fixture
def own_processes(request, tmp_path):
    """For a test that breaks them."""
    made = started(2, request.config.getoption("device"), tmp_path)
    yield made
    made.end()


def one_mask(here, density, dtype, overlap):
    channels = 256 if dtype == torch.float16 else 128
    layers = convolutions(here.device, channels=channels, dtype=dtype)
    x, mask = image(here.device, 1, channels, 37, 52, dtype=dtype), blobs(here.device, 1, 37, 52, density)
    mask = torch.ones_like(mask) if density == 1 else mask if density else torch.zeros_like(mask)
    with here.group(overlap=overlap) as group, here.alone() as alone:
        chain = chain_of(group, layers)
        y = chain(x, mask)
        agree(y, one_by_one(layers, x, [mask] * 3))
        assert torch.equal(y, chain_of(alone, layers)(x, mask))
        assert y.is_contiguous(memory_format=torch.channels_last) and y.device == x.device
        assert torch.equal(chain(x.contiguous(), mask.byte()), y)
        info = chain.info()
        assert info.devices == here.ranks and info.plans == 1
        assert re.search(f"rank {here.rank} of {here.ranks}", repr(group))
    return info


@pytest.mark.parametrize("density", [0.0, 0.02, 0.4, 1.0])
@pytest.mark.parametrize("overlap", ["auto", "always", "never"])
def test_one_mask(processes, density, overlap):
    infos = processes.run(one_mask, density, torch.float32, overlap)
    assert infos == infos[:1] * processes.ranks


def several_devices(here, overlap):
    """Ranks with one device, two and three."""
    layers = convolutions(here.device, layers=3)
    devices = 1 + (here.rank + 1) % 3
    x, mask = image(here.device, 2, 128, 45, 38), blobs(here.device, 2, 45, 38, 0.6)
    expected = one_by_one(layers, x, [mask] * 3)
    with here.group(devices, overlap=overlap) as group, here.alone() as alone:
        chain = chain_of(group, layers)
        y = chain(x, mask)
        agree(y, expected)
        assert torch.equal(y, chain_of(alone, layers)(x, mask))
        first = here.rank == 0
        agree(chain(x if first else x.to("meta"), mask if first else mask.to("meta")), expected)
        chain.keep(x if first else x.to("meta"), mask)
        for step in range(3):
            images = chain.images()
            new = (mask.roll(9 * step + 4, dims=2) & (torch.rand(2, 45, 38) < 0.7).to(mask.device))
            chain.step(new)
            result = torch.where(new[:, None], one_by_one(layers, images, [new] * 3), images)
            agree(chain.images(), result)
        assert str(here.device) in repr(group)
        return chain.info().devices, chain.info().busy_devices


@pytest.mark.parametrize("overlap", ["auto", "always"])
def test_several_devices_a_rank(processes, overlap):
    count = 5 if processes.ranks == 2 else 6
    assert processes.run(several_devices, overlap) == [(count, count)] * processes.ranks


def masks_of_the_first_rank(here):
    layers = convolutions(here.device)
    x = image(here.device, 1, 128, 24, 31)
    first = here.rank == 0
    with here.group(1 + here.rank % 2) as group:
        chain = chain_of(group, layers)
        for turn in range(4):
            masks = [blobs(here.device, 1, 24, 31, density) for density in (0.8, 0.5, 0.3 + 0.1 * turn)]
            masks[1] = masks[0] if turn == 2 else masks[1]
            expected = one_by_one(layers, x, masks)
            given = masks if first or turn == 3 else [mask.to("meta") for mask in masks]
            agree(chain(x, given), expected)
            agree(chain(x, given), expected)  # Nothing travels.
            out = torch.full_like(x, 7.0)
            chain(x, given, out=out, inactive="zero")
            agree(out, expected)
            # The last run was of the same masks, on a rank that had them.
            agree(chain(x, masks), expected)
        one = masks[0]
        agree(chain(x, one if first else one.to("meta")), one_by_one(layers, x, [one] * 3))
        with torch.inference_mode(False), torch.no_grad():
            layers[1].weight.mul_(1.5)
        agree(chain(x, one if first else one.to("meta")), one_by_one(layers, x, [one] * 3))
        assert chain.info().plans >= 1
        with pytest.raises(RuntimeError, match="rank 0: the array of masks is null"):
            chain(x, one.to("meta"))
        with pytest.raises(ValueError, match="some masks are on meta"):
            chain(x, [one, one.to("meta"), one])
        agree(chain(x, one), one_by_one(layers, x, [one] * 3))


def test_masks_of_the_first_rank(processes):
    processes.run(masks_of_the_first_rank)


def test_float16(processes, device):
    if device == "cpu":
        pytest.skip("none ships")
    processes.run(one_mask, 0.4, torch.float16, "auto")


def batches_with_strides(here, seed):
    torch.manual_seed(seed)
    layers = nn.Sequential(
        MaskedConv2d(5, 16, 3, padding=1, stride=2, activation="silu"),
        nn.Sequential(
            MaskedConv2d(16, 16, 5, padding="same", groups=16, activation="leaky_relu(0.2)"), nn.Identity()
        ),
        MaskedConv2d(16, 24, 1, bias=False),
        MaskedConv2d(24, 8, 3, padding=(1, 2), dilation=(1, 2), stride=(1, 2), groups=4, activation="gelu"),
    ).to(here.device)
    with here.group(overlap="always" if seed % 2 else "never") as group:
        chain = chain_of(group, layers)
        for height, width in ((33, 40), (8, 7)):
            x = image(here.device, 3, 5, height, width)
            size, masks = x.shape[2:], []
            for layer in chain.layers:
                size = layer(torch.zeros(1, layer.in_channels, *size, device=here.device)).shape[2:]
                masks.append((torch.rand(3, *size) < torch.rand(3, 1, 1)).to(here.device))
            agree(chain(x, masks), one_by_one(chain.layers, x, masks))


@pytest.mark.parametrize("seed", range(4))
def test_batches_with_strides_and_unequal_masks(processes, seed):
    processes.run(batches_with_strides, seed)


def strides_that_ship(here):
    layers = [MaskedConv2d(256, 256, 3, padding=1, stride=s, activation="relu").to(here.device) for s in (1, 2, 1, 2)]
    x = image(here.device, 2, 256, 43, 38)
    masks = [blobs(here.device, 2, *size, 0.5) for size in ((43, 38), (22, 19), (22, 19), (11, 10))]
    masks[1][1] = False
    with here.group() as group, here.alone() as alone:
        y = chain_of(group, layers)(x, masks)
        agree(y, one_by_one(layers, x, masks))
        assert torch.equal(y, chain_of(alone, layers)(x, masks))


def test_strides_of_shapes_that_ship(processes):
    processes.run(strides_that_ship)


def residuals(here):
    layers = convolutions(here.device, layers=5, channels=24)
    given = {1: 0, 3: 2, 4: 0}
    x = image(here.device, 2, 24, 30, 21)
    masks = [blobs(here.device, 2, 30, 21, density) for density in (0.8, 0.6, 0.7, 0.4, 0.5)]
    with here.group() as group:
        chain = chain_of(group, layers, residuals=given)
        agree(chain(x, masks), one_by_one(layers, x, masks, given))


def test_residuals(processes):
    processes.run(residuals)


def tokens(here):
    layers = nn.Sequential(MaskedLinear(384, 1536, activation="gelu"), MaskedLinear(1536, 384)).to(here.device)
    mask = (torch.rand(2, 301) < 0.4).to(here.device)
    x = torch.randn(2, 301, 384).to(here.device)
    with here.group() as group:
        chain = chain_of(group, layers, residuals={1: 0})
        y = one_by_one(layers, x, [mask] * 2, {1: 0})
        agree(chain(x, mask), y)
        given = x if here.rank == 0 else x.to("meta")
        agree(chain(given, mask), y)
        chain.keep(given, mask)
        agree(chain.images(), torch.where(mask[..., None], y, x))


def test_tokens(processes):
    processes.run(tokens)


def inputs_and_outputs(here):
    layers = convolutions(here.device)
    x, mask = image(here.device, 2, 128, 20, 24), blobs(here.device, 2, 20, 24, 0.3)
    expected = one_by_one(layers, x, [mask] * 3)
    with here.group() as group:
        chain = chain_of(group, layers)
        agree(chain(x if here.rank == 0 else x.to("meta"), mask), expected)
        for wants in range(here.ranks):
            out = torch.full_like(x, 7.0)
            given = out if here.rank == wants else out.to("meta")
            assert chain(x if here.rank == 0 else x.to("meta"), mask, out=given) is given
            if here.rank == wants:
                agree(out, torch.where(mask[:, None], expected, 7.0))
                agree(chain(x, mask, out=given, inactive="zero"), expected)
            else:
                chain(x, mask, out=given, inactive="zero")
                assert (out == 7).all()
        assert chain(x[:0], mask[:0]).shape == (0, 128, 20, 24)
        # What a rank has elsewhere has the same sizes and type.
        with pytest.raises(ValueError, match="`out` is torch.float64"):
            chain(x, mask, out=x.double().to("meta"))
        with pytest.raises(RuntimeError, match="rank 0: the first rank has no input"):
            chain(x.to("meta"), mask)
        with pytest.raises(RuntimeError, match="no rank wants the output"):
            chain(x, mask, out=x.to("meta"))
        agree(chain(x, mask), expected)


def test_inputs_and_outputs(processes):
    processes.run(inputs_and_outputs)


def kept_images(here):
    layers = convolutions(here.device, layers=2)
    given = {} if here.device != "cpu" else {1: 0}
    with here.group(imbalance=0.05) as group:
        chain = chain_of(group, layers, residuals=given)
        with pytest.raises(RuntimeError, match="the devices keep no images"):
            chain.images()
        for height, width in ((40, 64), (16, 20)):
            images = image(here.device, 2, 128, height, width)
            for step in range(6):
                # The active pixels wander, so that images are cut anew.
                mask = torch.zeros(2, height, width, dtype=torch.bool)
                mask[:, :, width // 8 * step : width // 8 * step + width // 4] = True
                mask = (mask & (torch.rand(2, height, width) < 0.8)).to(here.device)
                new = chain(images, mask)
                agree(new, one_by_one(layers, images, [mask] * 2, given))
                if step == 0:
                    chain.keep(images if here.rank == 0 else images.to("meta"), mask)
                else:
                    assert torch.equal(chain(None, mask), new)
                    assert torch.equal(chain.images(), images)  # They stay as they were.
                    chain.step(mask)
                images = torch.where(mask[:, None], new, images)
                assert torch.equal(chain.images(), images)
        out = torch.zeros_like(images) if here.rank == 1 else torch.empty_like(images, device="meta")
        assert chain.images(out) is out and (here.rank != 1 or torch.equal(out, images))
        return chain.info().partitions


def test_kept_images(processes):
    partitions = processes.run(kept_images)
    assert len(set(partitions)) == 1 and (processes.ranks < 3 or partitions[0] > 1)


def written_weights(here):
    layers = convolutions(here.device)
    x, mask = image(here.device, 1, 128, 24, 20), blobs(here.device, 1, 24, 20, 0.5)
    with here.group() as group:
        chain = chain_of(group, layers)
        with torch.inference_mode(False), torch.no_grad():
            agree(chain(x, mask), one_by_one(layers, x, [mask] * 3))
            layers[1].weight.mul_(1.5)
            agree(chain(x, mask), one_by_one(layers, x, [mask] * 3))
            chain.keep(x, mask)
            images = chain.images()
            layers[0].weight.mul_(0.7)
            agree(chain(None, mask), one_by_one(layers, images, [mask] * 3))
            assert torch.equal(chain.images(), images)
            # On the last rank alone.
            if here.rank == here.ranks - 1:
                layers[2].bias.add_(1)
            with pytest.raises(RuntimeError, match="ranks make the same calls"):
                chain(x, mask)
            layers[2].bias.fill_(0.25)
            agree(chain(x, mask), one_by_one(layers, x, [mask] * 3))


def test_weights_that_are_written(processes):
    processes.run(written_weights)


def differences(here):
    layers = convolutions(here.device)
    last = here.rank == here.ranks - 1
    x, mask = image(here.device, 1, 128, 24, 20), blobs(here.device, 1, 24, 20, 0.5)
    expected = one_by_one(layers, x, [mask] * 3)
    with here.group() as group:
        chain = chain_of(group, layers)
        other = mask.clone()
        other[0, 3, 4] ^= last
        with pytest.raises(RuntimeError, match=rf"ranks 0 and {here.ranks - 1} have different masks \(.*BAD_VALUE"):
            chain(x, other)
        agree(chain(x, mask), expected)
        with pytest.raises(RuntimeError, match="have different sizes of the input"):
            chain(x[:, :, 1:] if last else x, mask[:, 1:] if last else mask)
        with pytest.raises(RuntimeError, match="have different arguments"):
            chain(x, mask, out=torch.empty_like(x), inactive="zero" if last else "keep")
        with pytest.raises(RuntimeError, match="have different arguments"):
            chain.keep(x, mask) if last else chain(x, mask, out=torch.empty_like(x))
        with pytest.raises(RuntimeError, match="ranks make the same calls"):
            chain.keep(x, mask)
            chain.images() if last else chain(x, mask)
        agree(chain(x, mask), expected)
        torch.manual_seed(here.rank)
        with pytest.raises(RuntimeError, match="ranks 0 and 1 have different weights"):
            group.chain(convolutions(here.device))
        with pytest.raises(RuntimeError, match="have different layers"):
            group.chain(layers[:2] if last else layers)
        agree(chain(x, mask), expected)
    with pytest.raises(RuntimeError, match="have different settings of imbalance"):
        here.group(imbalance=0.2 if last else 0.1)


def test_ranks_that_differ(processes):
    processes.run(differences)


def unequal_speeds(here):
    layers = convolutions(here.device)
    x, mask = image(here.device, 1, 128, 48, 48), torch.ones(1, 48, 48, dtype=torch.bool, device=here.device)
    # The last has nothing to do, because it takes longer to begin than all others need.
    speed = (1e9, 1.0) if here.rank == here.ranks - 1 else (0, 1.0)
    with here.group(speeds=[speed]) as group:
        chain = chain_of(group, layers)
        agree(chain(x, mask), one_by_one(layers, x, [mask] * 3))
        chain.keep(x, mask)
        agree(chain.images(), one_by_one(layers, x, [mask] * 3))
        return chain.info().busy_devices


def test_unequal_speeds(processes):
    assert processes.run(unequal_speeds) == [processes.ranks - 1] * processes.ranks


def some_ranks(here):
    """The last two."""
    members = list(range(here.ranks - 2, here.ranks))
    process_group = distributed.new_group(members)
    if here.rank in members:
        inner = Here(here.device, process_group)
        one_mask(inner, 0.4, torch.float32, "auto")


def test_some_ranks(processes):
    processes.run(some_ranks)


def late_rank(here):
    layers = convolutions(here.device)
    x, mask = image(here.device, 1, 128, 24, 20), blobs(here.device, 1, 24, 20, 0.5)
    group = here.group(timeout=2)
    chain = chain_of(group, layers)
    chain(x, mask)
    if here.rank != 1:
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match="DEVICE_LOST"):
            chain(x, mask)
        assert time.monotonic() - begin < 30
        with pytest.raises(RuntimeError, match="make another group"):
            chain(x, mask)
        with pytest.raises(RuntimeError, match="make another group"):
            group.chain(layers)
        group.close()
    # The caller's process group is as it was, and makes other groups.
    total = torch.ones(1)
    distributed.all_reduce(total)
    assert total == here.ranks
    with here.group() as other:
        agree(chain_of(other, layers)(x, mask), one_by_one(layers, x, [mask] * 3))


def test_time_outs(processes):
    processes.run(late_rank)


def dying_rank(here):
    layers = convolutions(here.device)
    x, mask = image(here.device, 1, 128, 24, 20), blobs(here.device, 1, 24, 20, 0.5)
    chain = chain_of(here.group(timeout=15), layers)
    chain(x, mask)
    if here.rank == 1:
        time.sleep(2)  # Let the other end its run.
        os._exit(3)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="DEVICE_LOST"):
        for _ in range(1000):
            chain(x, mask)
    return time.monotonic() - begin


def test_a_rank_that_dies(own_processes):
    own_processes.begin(dying_rank)
    (took,) = own_processes.answers(but=[1])
    assert took < 60


def missing_rank(here):
    if here.rank == 0:
        begin = time.monotonic()
        with pytest.raises(RuntimeError):
            here.group(timeout=3)
        assert time.monotonic() - begin < 60


@pytest.mark.cpu
def test_a_rank_that_makes_no_group(own_processes):
    own_processes.run(missing_rank)


def wrong_groups(here):
    with pytest.raises(ValueError, match="2 speeds for 1 devices"):
        here.group(speeds=[1, 2])


def test_wrong_groups(processes):
    processes.run(wrong_groups)


@pytest.mark.cpu
def test_example():
    """One device, and two ranks, print equal numbers."""
    program = pathlib.Path(__file__).parents[1] / "examples" / "several_ranks.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    lines = []
    for command in ([program], [*launcher, program]):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout.strip())
    one, two = (re.fullmatch(r"(\d) devices, (an output of [\d.]+, images of [\d.]+)", line) for line in lines)
    assert (one[1], two[1]) == ("1", "2") and one[2] == two[2]
