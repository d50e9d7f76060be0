"""Groups of devices: the bits of one device, whichever devices share the images. `pytest --device cuda` tests GPUs."""

import contextlib
import gc
import itertools
import multiprocessing
import subprocess
import sys
import threading

import pytest
import torch
from chains import agree, blobs, chain_of, convolutions, image, one_by_one, threads_of
from torch import nn

import distile
from distile.nn import MaskedConv2d, MaskedLinear, MaskedUpsampleConv2d
from distile.parallel import Group

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")
FULL = torch.ones(1, 1, 1, dtype=torch.bool)


@pytest.fixture(params=["cpu", "one GPU", "all GPUs"])
def devices(request, device):
    """The devices of a group. Modules run on as many threads as a context has, so they choose the same variants."""
    if request.param == "cpu":
        if device != "cpu":
            pytest.skip("not for GPUs")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield ["cpu"] * 3
        torch.set_num_threads(threads)
        return
    if device != "cuda" or not torch.cuda.is_available():
        pytest.skip("for NVIDIA GPUs")
    count = torch.cuda.device_count()
    if request.param == "all GPUs" and count < 2:
        pytest.skip("for several NVIDIA GPUs")
    yield ["cuda:0"] * 3 if request.param == "one GPU" else [f"cuda:{number}" for number in range(count)]


@contextlib.contextmanager
def group_of(devices, **keywords):
    with Group(devices, **threads_of(devices[0]), **keywords) as group:
        yield group


@torch.inference_mode()
@pytest.mark.parametrize("density", [0.0, 0.02, 0.4, 1.0])
def test_one_mask(devices, density):
    torch.manual_seed(0)
    first = devices[0]
    layers = convolutions(first)
    x, mask = image(first, 1, 128, 37, 52), blobs(first, 1, 37, 52, density)
    mask = torch.ones_like(mask) if density == 1 else mask if density else torch.zeros_like(mask)
    with group_of(devices) as group, group_of(devices[:1]) as alone:
        chain = chain_of(group, layers)
        y = chain(x, mask)
        agree(y, one_by_one(layers, x, [mask] * 3))
        assert torch.equal(y, chain_of(alone, layers)(x, mask))
        assert y.is_contiguous(memory_format=torch.channels_last) and y.device == x.device
        assert torch.equal(chain(x.contiguous(), mask.byte()), y)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types(devices, dtype):
    """On CPUs, weights of 16 bits alone have code for any shape."""
    torch.manual_seed(0)
    first = devices[0]
    layers = convolutions(first, channels=256, dtype=dtype)
    x, mask = image(first, 1, 256, 24, 30, dtype=dtype), blobs(first, 1, 24, 30, 0.5)
    with group_of(devices) as group:
        if first == "cpu":
            with pytest.raises(ValueError, match=r"no PolyKernel computes masked_conv2d.*distile\.build\("):
                group.chain(convolutions(first, channels=40, dtype=dtype))
            operator = distile.missing()[-1]
            assert dict(operator.params)["dtype"] == str(dtype).removeprefix("torch.")
            chain = group.chain(layers, dtype=torch.float32)
            agree(chain(x.float(), mask), one_by_one(layers, x.float(), [mask] * 3))
            if dtype == torch.float16:  # None ships.
                return
        agree(chain_of(group, layers)(x, mask), one_by_one(layers, x, [mask] * 3))


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(6))
def test_batches_with_strides_and_unequal_masks(devices, seed):
    torch.manual_seed(seed)
    first = devices[0]
    layers = nn.Sequential(
        MaskedConv2d(5, 16, 3, padding=1, stride=2, activation="silu"),
        nn.Sequential(
            MaskedConv2d(16, 16, 5, padding="same", groups=16, activation="leaky_relu(0.2)"), nn.Identity()
        ),
        MaskedConv2d(16, 24, 1, bias=False),
        MaskedConv2d(24, 8, 3, padding=(1, 2), dilation=(1, 2), stride=(1, 2), groups=4, activation="gelu"),
    ).to(first)
    with group_of(devices, overlap="always" if seed % 2 else "never", any_order=seed % 3 == 2) as group:
        chain = chain_of(group, layers)
        assert len(chain.layers) == 4
        for height, width in ((33, 40), (8, 7)):
            x = image(first, 3, 5, height, width)
            size, masks = x.shape[2:], []
            for layer in chain.layers:
                size = layer(torch.zeros(1, layer.in_channels, *size, device=first)).shape[2:]
                density = torch.rand(3, 1, 1, device=first)
                masks.append(torch.rand(3, *size, device=first) < density)
            agree(chain(x, masks), one_by_one(chain.layers, x, masks))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_strides_of_shapes_that_ship(devices, dtype):
    if devices[0] == "cpu" and dtype == torch.float16 or devices[0] != "cpu" and dtype == torch.bfloat16:
        pytest.skip("none ships")
    torch.manual_seed(8)
    first = devices[0]
    layers = [MaskedConv2d(256, 256, 3, padding=1, stride=s, activation="relu").to(first, dtype) for s in (1, 2, 1, 2)]
    x = image(first, 2, 256, 43, 38, dtype=dtype)
    masks = [blobs(first, 2, *size, 0.5) for size in ((43, 38), (22, 19), (22, 19), (11, 10))]
    masks[1][1] = False
    with group_of(devices) as group, group_of(devices[:1]) as alone:
        y = chain_of(group, layers)(x, masks)
        agree(y, one_by_one(layers, x, masks))
        assert torch.equal(y, chain_of(alone, layers)(x, masks))


@torch.inference_mode()
def test_residuals(devices):
    torch.manual_seed(1)
    first = devices[0]
    layers = convolutions(first, layers=5, channels=24)
    residuals = {1: 0, 3: 2, 4: 0}
    x = image(first, 2, 24, 30, 21)
    masks = [blobs(first, 2, 30, 21, density) for density in (0.8, 0.6, 0.7, 0.4, 0.5)]
    with group_of(devices) as group:
        chain = chain_of(group, layers, residuals=residuals)
        agree(chain(x, masks), one_by_one(layers, x, masks, residuals))


@torch.inference_mode()
def test_tokens(devices):
    torch.manual_seed(2)
    first = devices[0]
    layers = nn.Sequential(MaskedLinear(384, 1536, activation="gelu"), MaskedLinear(1536, 384)).to(first)
    mask = torch.rand(2, 301, device=first) < 0.4
    x = torch.randn(2, 301, 384, device=first)
    with group_of(devices) as group:
        chain = chain_of(group, layers, residuals={1: 0})
        agree(chain(x, mask), one_by_one(layers, x, [mask] * 2, {1: 0}))
        chain.keep(x, mask)
        assert chain.images().shape == x.shape
        agree(chain.images(), torch.where(mask[..., None], chain(x, mask), x))
        # More tokens than an image has columns are rows of it.
        mask = torch.rand(1, 70000, device=first) < 0.01
        x = torch.randn(1, 70000, 384, device=first)
        agree(chain(x, mask), one_by_one(layers, x, [mask] * 2, {1: 0}))


@torch.inference_mode()
def test_outputs(devices):
    torch.manual_seed(3)
    first = devices[0]
    layers = convolutions(first)
    wide = image(first, 2, 160, 20, 24)
    x, mask = wide[:, 16:144], blobs(first, 2, 20, 24, 0.3)
    expected = one_by_one(layers, x, [mask] * 3)
    with group_of(devices) as group:
        chain = chain_of(group, layers)
        out = torch.full_like(wide, 7.0)
        part = out[:, 32:]
        assert chain(x, mask, out=part) is part
        agree(part, torch.where(mask[:, None], expected, 7.0))
        assert (out[:, :32] == 7).all()
        agree(chain(x, mask, out=part, inactive="zero"), expected)
        assert (out[:, :32] == 7).all()
        assert chain(x[:0], mask[:0]).shape == (0, 128, 20, 24)


@torch.no_grad()
def test_forms_of_masks(devices):
    torch.manual_seed(4)
    first = devices[0]
    model = nn.Sequential(
        MaskedConv2d(3, 16, 3, stride=2, padding=1, activation="relu"), MaskedConv2d(16, 16, 3, padding=1)
    ).to(first)
    x, mask = image(first, 2, 3, 32, 48), blobs(first, 2, 32, 48, 0.3)
    distile.trace(model, torch.zeros(2, 3, 32, 48, device=first))
    half = distile.masks.pool(mask, 2)
    with group_of(devices) as group:
        chain = chain_of(group, model)
        expected = chain(x, [half, half])
        with distile.mask(mask):
            agree(expected, model(x))
            assert torch.equal(chain(x), expected)
        assert torch.equal(chain(x, distile.SharedMask(mask)), expected)
        assert torch.equal(chain(x, half.long()[:, None]), expected)
        assert torch.equal(chain(x, half[:1]), chain(x, half[:1].expand(2, -1, -1)))
        with distile.mask({"mask": mask, "other": None}):
            assert torch.equal(chain(x), expected)
        # Without any, every pixel is active.
        torch.testing.assert_close(chain(x), model(x), rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_kept_images(devices):
    torch.manual_seed(5)
    first = devices[0]
    layers = convolutions(first, layers=2)
    with group_of(devices, imbalance=0.05) as group:
        chain = chain_of(group, layers, residuals={} if first != "cpu" else {1: 0})
        residuals = chain._residuals
        for height, width in ((40, 64), (16, 20)):
            images = image(first, 2, 128, height, width)
            for step in range(6):
                # The active pixels wander, so that images are cut anew.
                mask = torch.zeros(2, height, width, dtype=torch.bool, device=first)
                mask[:, :, width // 8 * step : width // 8 * step + width // 4] = True
                mask &= torch.rand(2, height, width, device=first) < 0.8
                new = chain(images, mask)
                agree(new, one_by_one(layers, images, [mask] * 2, residuals))
                if step == 0:
                    chain.keep(images, mask)
                else:
                    assert torch.equal(chain(None, mask), new)
                    assert torch.equal(chain.images(), images)  # They stay as they were.
                    chain.step(mask)
                images = torch.where(mask[:, None], new, images)
                assert torch.equal(chain.images(), images)
        out = torch.zeros_like(images)
        assert chain.images(out) is out and torch.equal(out, images)
        assert len(devices) < 3 or chain.info().partitions > 1


@torch.inference_mode()
def test_weights_that_are_written(devices):
    torch.manual_seed(6)
    first = devices[0]
    layers = convolutions(first)
    x, mask = image(first, 1, 128, 24, 20), blobs(first, 1, 24, 20, 0.5)
    with torch.inference_mode(False):
        # Tensors of inference mode have no count of writes, which decides on GPUs.
        layers = convolutions(first)
    with group_of(devices) as group:
        chain = chain_of(group, layers)

        def check(packed, masks=mask):
            before = ops._times_packed()
            y = chain(x, masks)
            assert ops._times_packed() - before == packed
            agree(y, one_by_one(layers, x, [mask] * 3))

        with torch.inference_mode(False), torch.no_grad():
            check(0)
            layers[1].weight.mul_(1.5)
            check(3)
            check(0)
            layers[2].bias.add_(1)
            check(3)
            layers[0].weight = nn.Parameter(torch.randn_like(layers[0].weight) / 30)
            check(3)
            if first == "cpu":
                layers[0].weight.data.mul_(0.5)
                check(3)
                layers[0].weight.numpy()[0] = 0
                check(3)
            # The devices still keep their images.
            chain.keep(x, mask)
            images = chain.images()
            layers[0].weight.mul_(0.7)
            new = one_by_one(layers, images, [mask] * 3)
            agree(chain(None, mask), new)
            assert torch.equal(chain.images(), images)
            layers[0].weight.mul_(0.9)
            check(3)
            assert torch.equal(chain.images(), images)
            layers[1].weight.mul_(1.2)
            chain.step(mask)
            agree(chain.images(), torch.where(mask[:, None], one_by_one(layers, images, [mask] * 3), images))


@torch.inference_mode()
def test_layers_that_change(devices):
    first = devices[0]
    layers = convolutions(first)
    x, mask = image(first, 1, 128, 8, 8), FULL.to(first).expand(1, 8, 8)
    with group_of(devices) as group:
        chain = chain_of(group, layers)
        chain(x, mask)
        layers[1].activation = "silu"
        with pytest.raises(RuntimeError, match="no longer what the chain was made of"):
            chain(x, mask)
        layers[1].activation = "relu"
        chain(x, mask)
        layers[1].register_forward_hook(lambda *_: None)
        with pytest.raises(RuntimeError, match="no longer what the chain was made of"):
            chain(x, mask)
        with pytest.raises(ValueError, match="layer 1, MaskedConv2d, has a forward or hooks"):
            group.chain(layers)


@torch.inference_mode()
def test_info(devices):
    first = devices[0]
    x, mask = image(first, 1, 128, 48, 48), FULL.to(first).expand(1, 48, 48)
    with group_of(devices) as group, group_of(devices, speeds=[1, *[(0, 0.5)] * (len(devices) - 1)]) as unequal:
        chain = chain_of(group, convolutions(first))
        info = chain.info()
        assert info == distile.parallel.ChainInfo(*[0] * 10) and isinstance(info.pixels, int)
        chain(x, mask)
        info = chain.info()
        assert info.devices == info.busy_devices == len(devices)
        assert info.pixels >= 3 * 48 * 48 and info.input_bytes >= 48 * 48 * 128 * 4
        assert 0 <= info.imbalance < 0.3 and isinstance(info.imbalance, float)
        assert 0 < info.halo_bytes <= info.row_bytes
        assert (info.plans, info.partitions, info.moved_pixels) == (1, 1, 0)
        chain(x, mask.clone())
        assert chain.info() == info
        chain(x, blobs(first, 1, 48, 48, 0.5))
        assert chain.info().plans == 2
        # The first of unequal devices gets more.
        other = chain_of(unequal, convolutions(first))
        other(x, mask)
        assert other.info().imbalance < 0.3


def parts(devices):
    group = Group(devices, **({"threads": 1} if devices[0] == "cpu" else {}))
    first, second = (chain_of(group, convolutions(devices[0], layers=1)) for _ in range(2))
    x = image(devices[0], 1, 128, 8, 8)
    first.keep(x, FULL.to(devices[0]).expand(1, 8, 8))
    return {"group": group, "first": first, "second": second}


@torch.inference_mode()
@pytest.mark.parametrize("how", ["delete", "close"])
def test_freeing_in_any_order(devices, how):
    for order in itertools.permutations(("group", "first", "second")):
        alive = parts(devices)
        native = (alive["first"]._number, alive["second"]._number)
        for name in order:
            one = alive.pop(name)
            if how == "close":
                one.close()
                one.close()
            if "first" in alive and (how == "delete" or name != "group" and "group" in alive):
                assert alive["first"].images().shape == (1, 128, 8, 8)
        del one
        gc.collect()
        for number in native:
            with pytest.raises(RuntimeError, match="there is no chain of layers with the number"):
                ops._chain_info(number)


@torch.inference_mode()
def test_use_after_close(devices):
    x, mask = image(devices[0], 1, 128, 8, 8), FULL.to(devices[0]).expand(1, 8, 8)
    alive = parts(devices)
    group, chain = alive["group"], alive["first"]
    chain.close()
    for use in (lambda: chain(x, mask), lambda: chain.keep(x, mask), chain.step, chain.images, chain.info):
        with pytest.raises(RuntimeError, match="the chain is closed"):
            use()
    assert "closed" in repr(chain) and "closed" not in repr(group)
    alive["second"](x, mask)
    group.close()
    assert "closed" in repr(group)
    with pytest.raises(RuntimeError, match="the chain is closed"):
        alive["second"](x, mask)
    with pytest.raises(RuntimeError, match="the group is closed"):
        group.chain(convolutions(devices[0]))


@pytest.mark.cpu
def test_end_of_a_process():
    """Objects that live until then."""
    program = """
import torch, distile
group = distile.parallel.Group(["cpu", "cpu"], threads=1)
chain = group.chain([distile.nn.MaskedConv2d(4, 4, 3, padding=1)])
with torch.inference_mode():
    chain.keep(torch.randn(1, 4, 9, 9), torch.ones(1, 9, 9, dtype=torch.bool))
print(chain.images().shape)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "torch.Size([1, 4, 9, 9])\n" and not done.stderr


def use_in_child(chain, x, mask, answer):
    with torch.inference_mode():
        try:
            chain(x, mask)
        except RuntimeError as error:
            answer.put(str(error))


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork():
    x, mask = torch.randn(1, 4, 9, 9), torch.ones(1, 9, 9, dtype=torch.bool)
    with Group(["cpu", "cpu"], threads=1) as group, torch.inference_mode():
        chain = group.chain([MaskedConv2d(4, 4, 3, padding=1)])
        y = chain(x, mask)
        context = multiprocessing.get_context("fork")
        answer = context.SimpleQueue()
        child = context.Process(target=use_in_child, args=(chain, x, mask, answer))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and "a parent process" in answer.get()
        assert torch.equal(chain(x, mask), y)


@torch.inference_mode()
def test_threads_share_a_group(devices):
    first = devices[0]
    layers = convolutions(first)
    with group_of(devices) as group:
        shared = chain_of(group, layers)
        inputs = [image(first, 1, 128, 16, 24 + number) for number in range(4)]
        masks = [blobs(first, 1, 16, 24 + number, 0.4) for number in range(4)]
        expected = [shared(x, mask) for x, mask in zip(inputs, masks)]
        results = [[] for _ in inputs]

        @torch.inference_mode()
        def work(number):
            own = group.chain(layers)  # Freed while others run.
            for chain in (shared, own, shared):
                results[number].append(chain(inputs[number], masks[number]))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for found, wanted in zip(results, expected):
            assert len(found) == 3 and all(torch.equal(one, wanted) for one in found)


@pytest.mark.cpu
@torch.no_grad()
def test_parametrized_weights():
    layer = nn.utils.parametrizations.weight_norm(MaskedConv2d(6, 6, 3, padding=1))
    x, mask = image("cpu", 1, 6, 9, 9), torch.rand(1, 9, 9) < 0.5
    with Group(["cpu", "cpu"], threads=1) as group:
        chain = group.chain([layer])
        for _ in range(2):
            agree(chain(x, mask), layer(x, mask))
            layer.parametrizations.weight.original0.mul_(2)


@torch.inference_mode()
def test_closing_while_others_run(devices):
    first = devices[0]
    x, mask = image(first, 1, 128, 24, 24), FULL.to(first).expand(1, 24, 24)
    for _ in range(5):
        alive = parts(devices)
        begun, ends = threading.Event(), []

        @torch.inference_mode()
        def work(chain):
            try:
                while True:
                    chain(x, mask)
                    begun.set()
            except RuntimeError as error:
                ends.append(str(error))

        threads = [threading.Thread(target=work, args=(alive[name],)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        begun.wait(60)
        alive["group"].close()
        for thread in threads:
            thread.join()
        assert len(ends) == 2 and all("the chain is closed" in end or "there is no chain" in end for end in ends)


@pytest.mark.cpu
@torch.inference_mode()
def test_time_outs():
    """What a run that took too long may still use stays, also when all is freed."""
    for rounds in range(3):
        group = Group(["cpu", "cpu"], threads=1, timeout=0.001)
        chain = group.chain(convolutions("cpu"))
        x, mask = image("cpu", 1, 128, 200, 200), torch.ones(1, 200, 200, dtype=torch.bool)
        with pytest.raises(RuntimeError, match="DEVICE_LOST"):
            chain(x, mask)
        del x, mask, chain, group
        gc.collect()
        torch.randn(1, 128, 200, 200)


def test_streams(devices):
    """A run comes after what PyTorch's current stream has to do, and before what it gets to do."""
    if devices[0] == "cpu":
        pytest.skip("for NVIDIA GPUs")
    first = devices[0]
    layers = convolutions(first)
    x, mask = image(first, 1, 128, 64, 64), blobs(first, 1, 64, 64, 0.5)
    with group_of(devices) as group, torch.inference_mode():
        chain = chain_of(group, layers)
        expected = chain(x, mask)
        for stream in (torch.cuda.Stream(first), torch.cuda.Stream(first), torch.cuda.default_stream(first)):
            stream.wait_stream(torch.cuda.current_stream(first))
            with torch.cuda.stream(stream):
                late = torch.zeros_like(x)
                late_mask = torch.zeros_like(mask)
                torch.cuda._sleep(20_000_000)
                late.copy_(x)
                late_mask.copy_(mask)
                y = chain(late, late_mask)
                late.zero_()
                twice = y * 2
            torch.cuda.synchronize(first)
            assert torch.equal(y, expected) and torch.equal(twice, expected * 2)
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="cannot capture a chain"):
            with torch.cuda.graph(graph):
                chain(x, mask)


@pytest.mark.cpu
def test_wrong_groups():
    for wrong, error, message in (
        ("cpu", TypeError, "devices are a list"),
        (torch.device("cpu"), TypeError, "devices are a list"),
        ([], ValueError, "the list is empty"),
        (["cpu", "meta"], ValueError, "not of meta"),
        (["cpu", "nothing"], ValueError, "'nothing' is no device"),
        (["cpu", None], ValueError, "None is no device"),
        (["cpu", "cuda:99"], ValueError, "there is no cuda:99"),
    ):
        with pytest.raises(error, match=message):
            Group(wrong)
    for keywords, message in (
        ({"threads": 0}, "1 to 4096 threads, not 0"),
        ({"threads": [1, 5000]}, "1 to 4096 threads"),
        ({"threads": [1]}, "1 numbers of threads for 2 devices"),
        ({"speeds": [1]}, "1 speeds for 2 devices"),
        ({"speeds": [1, 0]}, "more than 0 products"),
        ({"speeds": [1, (-1, 2)]}, "at least 0 us"),
        ({"speeds": [1, float("nan")]}, "more than 0 products"),
        ({"speeds": [1, "fast"]}, "a speed is a number, or a pair"),
        ({"imbalance": 0}, "the imbalance is a part of the time above 0, not 0"),
        ({"imbalance": float("inf")}, "the imbalance"),
        ({"timeout": 0}, "the timeout is seconds above 0"),
        ({"timeout": -1}, "the timeout is seconds above 0"),
        ({"overlap": "sometimes"}, "no overlap 'sometimes'; there are auto, always, never"),
    ):
        with pytest.raises(ValueError, match=message):
            Group(["cpu", "cpu"], **keywords)
    with Group(["cpu"]) as group:  # One device computes alone.
        assert group.devices == (torch.device("cpu"),) and repr(group) == "Group(['cpu'])"
        for copied in (group, group.chain([MaskedConv2d(3, 3, 1)])):
            with pytest.raises(TypeError, match="is not copied"):
                __import__("copy").deepcopy(copied)


@pytest.mark.cpu
def test_gpus_that_are_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    for devices, message in (
        (["cuda:0", "cuda:1"], "cuda:0 cannot use the memory of cuda:1, as GPUs of a group must"),
        (["cuda:0", "cuda:2"], "there is no cuda:2: PyTorch finds 2 GPUs"),
        (["cuda:0", "cpu"], "a group has CPUs or NVIDIA GPUs, not both"),
    ):
        with pytest.raises(ValueError, match=message):
            Group(devices)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="there is no cuda:0: PyTorch finds no NVIDIA GPU"):
        Group(["cuda:0"])


def test_mixed_devices(devices):
    if devices[0] == "cpu":
        pytest.skip("for NVIDIA GPUs")
    with pytest.raises(ValueError, match="not both"):
        Group([devices[0], "cpu"])
    with pytest.raises(ValueError, match="threads are of CPUs"):
        Group(devices, threads=2)
    with pytest.raises(ValueError, match=f"there is no cuda:{torch.cuda.device_count()}: PyTorch finds"):
        Group([f"cuda:{torch.cuda.device_count()}"])


@pytest.mark.cpu
def test_wrong_chains():
    with Group(["cpu", "cpu"], threads=1) as group:
        conv, strided = MaskedConv2d(8, 8, 3, padding=1), MaskedConv2d(8, 8, 3, padding=1, stride=2)

        class Own(MaskedConv2d):
            def forward(self, *tensors):
                return super().forward(*tensors) + 1

        for layers, keywords, error, message in (
            ([], {}, ValueError, "at least one layer"),
            (conv, {}, TypeError, "a list of layers or a Sequential, not of MaskedConv2d"),
            ([nn.Conv2d(8, 8, 3)], {}, ValueError, "layer 0 is Conv2d; a chain takes distile.nn.MaskedConv2d"),
            ([conv, nn.ReLU()], {}, ValueError, "layer 1 is ReLU"),
            ([MaskedUpsampleConv2d(8, 8, 3)], {}, ValueError, "layer 0 is MaskedUpsampleConv2d"),
            ([Own(8, 8, 3)], {}, ValueError, "layer 0, Own, has a forward"),
            ([MaskedConv2d(8, 8, 1), MaskedLinear(8, 8)], {}, ValueError, "not both"),
            ([conv, MaskedConv2d(9, 8, 3)], {}, RuntimeError, "layer 1 reads 9 channels.*BAD_CHANNELS"),
            ([conv], {"residuals": {1: 0}}, ValueError, "residuals have a layer 1"),
            ([conv, conv], {"residuals": {0: 1}}, ValueError, "layer 0 cannot add tensor 1"),
            ([conv, conv], {"residuals": {0: -1}}, ValueError, "layer 0 cannot add tensor -1"),
            ([conv, strided], {"residuals": {1: 0}}, RuntimeError, "another size than the output.*BAD_SHAPE"),
            ([strided] * 9, {}, RuntimeError, "the strides multiply to 512.*BAD_VALUE"),
            ([conv], {"dtype": torch.float64}, ValueError, "not in torch.float64"),
            ([MaskedConv2d(8, 8, 3, dtype=torch.float64)], {}, ValueError, "not in torch.float64"),
            ([conv], {"dtype": torch.float16}, ValueError, "no PolyKernel computes masked_conv2d"),
        ):
            with pytest.raises(error, match=message):
                group.chain(layers, **keywords)
        weight = MaskedConv2d(8, 8, 3)
        weight.padding_mode = "circular"
        with pytest.raises(ValueError, match="padding_mode is 'circular'"):
            group.chain([weight])


@pytest.mark.cpu
def test_wrong_runs():
    torch.manual_seed(0)
    x, mask = image("cpu", 2, 8, 12, 10), torch.rand(2, 12, 10) < 0.5
    layers = [MaskedConv2d(8, 8, 3, padding=1), MaskedConv2d(8, 8, 3, padding=1)]
    with Group(["cpu", "cpu"], threads=1) as group:
        chain = group.chain(layers)
        strided = group.chain([MaskedConv2d(8, 4, 3, padding=1, stride=2)])
        for use, error, message in (
            (lambda: chain(x, mask), RuntimeError, "a chain has no gradients"),
            (lambda: chain(x.requires_grad_(), mask), RuntimeError, "a chain has no gradients"),
        ):
            with pytest.raises(error, match=message):
                use()
        x.requires_grad_(False)
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            with pytest.raises(RuntimeError, match="no derivatives in forward mode"):
                chain(dual, mask)
        with torch.inference_mode():
            for use, error, message in (
                (lambda: chain(x.double(), mask), ValueError, "in torch.float32, and its input is torch.float64"),
                (lambda: chain(x.numpy(), mask), TypeError, "a tensor of PyTorch, not ndarray"),
                (lambda: chain(x[0], mask), ValueError, r"reads images \[N, C, H, W\], not \[8, 12, 10\]"),
                (lambda: chain(x[:, :7], mask), ValueError, "the first layer reads 8 channels, but the input has 7"),
                (lambda: chain(x.to("meta"), mask), ValueError, "the input is on meta"),
                (lambda: chain(x, mask[:, 1:]), ValueError, r"mask of layer 0 is \[2, 11, 10\].* \[2, 12, 10\]"),
                (lambda: chain(x, [mask]), ValueError, "1 masks for 2 layers"),
                (lambda: chain(x, [mask, mask[..., 1:]]), ValueError, "the mask of layer 1"),
                (lambda: chain(x, mask.float()), ValueError, "does not say what is active"),
                (lambda: chain(x, mask.numpy()), TypeError, "a mask is a tensor of PyTorch"),
                (lambda: chain(x, torch.cat([mask, mask])), ValueError, "does not fit an input with a batch of 2"),
                (lambda: chain(x, mask.to("meta")), ValueError, "the mask of layer 0 is on meta"),
                (lambda: chain(x, mask, out=x[:, 1:]), ValueError, r"`out` is \[2, 7, 12, 10\], but"),
                (lambda: chain(x, mask, out=x), RuntimeError, "overlap.*ALIASING"),
                (lambda: chain(x, mask, out=x.contiguous()), RuntimeError, "channels are not innermost"),
                (lambda: chain(x, mask, out=x.double()), RuntimeError, "`out` has another type"),
                (lambda: chain(x, mask, inactive="drop"), ValueError, "no 'drop'; there are keep, zero"),
                (lambda: chain(None, mask), RuntimeError, "the devices keep no images"),
                (lambda: chain.step(mask), RuntimeError, "the devices keep no images"),
                (chain.images, RuntimeError, "the devices keep no images"),
                (lambda: chain.keep(None, mask), ValueError, "there are no images to keep"),
                (lambda: strided.keep(x, mask[:, ::2, ::2]), RuntimeError, "not the input's size.*BAD_SHAPE"),
                (
                    lambda: group.chain([MaskedConv2d(8, 8, 7)])(x[:, :, :5], mask),
                    ValueError,
                    "the output of layer 0 would be -1 x 4",
                ),
            ):
                with pytest.raises(error, match=message):
                    use()
            # None of them did anything.
            assert chain.info().plans == 0
            chain.keep(x, mask)
            with pytest.raises(ValueError, match=r"`out` is \[2, 8, 12\], but the images are \[2, 8, 12, 10\]"):
                chain.images(x[..., 0])
            agree(chain(x, mask), one_by_one(layers, x, [mask] * 2))


def test_compiled_functions_call_it(devices):
    first = devices[0]
    layers = convolutions(first)
    x, mask = image(first, 1, 128, 9, 9), FULL.to(first).expand(1, 9, 9)
    with group_of(devices) as group, torch.inference_mode():
        chain = chain_of(group, layers)
        compiled = torch.compile(lambda x, mask: chain(x + 1, mask) * 2, backend="eager")
        assert torch.equal(compiled(x, mask), chain(x + 1, mask) * 2)
