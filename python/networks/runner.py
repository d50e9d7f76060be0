"""Runs whole networks masked and dense: checks the result, times both by density, and writes JSON and pictures.

    python python/networks dynconv-resnet --density .1 .3 .5 --out results

Weights are random. Without PolyKernels for all layers, the others run dense; --build compiles those missing first.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import platform
import re
import sys

import torch

import distile
import timing
from avit import AViT
from common import error, move, store_weights, tensors_of
from distile.building import needed_by
from dit_editing import DiT
from dynconv_pose import PoseNetwork
from dynconv_resnet import ResNet, ThirdStage
from graphs import Replayed
from pruned import Bert, MobileNet
from sige_ddpm import DDPM
from sige_gaugan import GauGAN
from sige_stable_diffusion import StableDiffusion
from video_resnet import VideoResNet

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench/python"))  # Its results are the benchmark's.
import json_rows

# Networks of a mean density and a batch; and networks with masks of their own.
BY_DENSITY = {
    "dynconv-resnet": lambda density, batch: ResNet(640, density or 0.3, batch),
    "dynconv-resnet-224": lambda density, batch: ResNet(224, density or 0.3, batch),
    "resnet-stage-14": lambda density, batch: ThirdStage(14, density or 0.3, batch),
    "resnet-stage-40": lambda density, batch: ThirdStage(40, density or 0.3, batch),
    "dynconv-pose": lambda density, batch: PoseNetwork(256, density or 0.383, batch),
    "avit-t": lambda density, batch: AViT("T", density or 0.5, batch),
    "avit-s": lambda density, batch: AViT("S", density or 0.5, batch),
    "mobilenet-v1-pruned": lambda density, batch: MobileNet(density or 1.0, batch),
    "bert-base-pruned": lambda density, batch: Bert(density or 1.0, batch),
}
WITH_MASKS = {
    "video": lambda: VideoResNet(512),
    "sige-ddpm": lambda: DDPM(),
    "sige-gaugan": lambda: GauGAN(),
    "sige-stable-diffusion": lambda: StableDiffusion(),
    "dit-editing": lambda: DiT(side=32, channels=384, heads=6, blocks=6),
    "dit-editing-cuda": lambda: DiT(64, 1536, 24, 24, device="cuda", dtype=torch.bfloat16),
}
# The largest error, over the largest value, of networks that round more than float32: by type, or of float32 in TF32.
BOUNDS = {"float16": 3e-2, "bfloat16": 1e-1, "tf32": 2e-2}


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python python/networks", description=__doc__)
    parser.add_argument("network", choices=[*BY_DENSITY, *WITH_MASKS])
    parser.add_argument("--density", type=float, nargs="+", help="mean densities, for networks that take one")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of all sides")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="of all sides")
    parser.add_argument("--weights", choices=("float16", "bfloat16"), help="store those of masked float32 layers so, on a CPU")
    parser.add_argument("--tf32", action="store_true", help="multiply float32 in TF32 on a GPU, on all sides")
    parser.add_argument("--build", action="store_true", help="compile the PolyKernels that are missing first")
    parser.add_argument("--measure", action="store_true", help="with --build, measure the times by which they choose variants")
    parser.add_argument("--peers", nargs="*", choices=timing.PEERS, help="by default all but those that take minutes or are parts of others")
    parser.add_argument("--seconds", type=float, default=10, help="to time each density (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of all sides")
    parser.add_argument("--no-times", action="store_true", help="check the result and write pictures, without times")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for NAME.json, NAME.png and, of a video, NAME.gif")
    options = parser.parse_args(arguments)
    if options.network in WITH_MASKS and (options.density or options.batch != 1):
        parser.error(f"{options.network} has masks of its own, and takes no density and no batch")
    if options.tf32 and (options.device != "cuda" or options.dtype not in (None, "float32")):
        parser.error("--tf32 is for float32 on a GPU")
    if options.weights and (options.device != "cpu" or options.dtype not in (None, "float32")):
        parser.error("--weights is for float32 on a CPU")
    if options.peers is None:
        options.peers = timing.peers_on(options.device)
    with timing.threads(options.threads), numerics(options.tf32), weights_that_stay():
        run(options)
    return 0


@contextlib.contextmanager
def weights_that_stay():
    """Nothing writes the weights here but PyTorch's operators, whose count of writes costs nothing to read."""
    check = distile.set_weights_check("version")
    try:
        yield
    finally:
        distile.set_weights_check(check)


@contextlib.contextmanager
def numerics(tf32: bool):
    """How PyTorch and distile multiply float32 on a GPU."""
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = tf32
    math = distile.set_math("tf32" if tf32 else "float32")
    try:
        yield
    finally:
        for backend, allowed in zip(backends, before):
            backend.allow_tf32 = allowed
        distile.set_math(math)


def without_gradients(device: str):
    """Inference mode; on a GPU without it, because calls in a CUDA graph share masks that have versions."""
    return torch.no_grad() if device == "cuda" else torch.inference_mode()


def run(options) -> None:
    print("The weights are random. Shapes, masks and densities are those of the network.")
    rows = []
    for density in options.density or [None]:
        by_density = BY_DENSITY.get(options.network)
        network = (by_density(density, options.batch) if by_density else WITH_MASKS[options.network]()).eval()
        if options.device != "cpu" or options.dtype:
            network = move(network, options.device, getattr(torch, options.dtype or "", None))
        if options.weights:
            store_weights(network, getattr(torch, options.weights))
        network.bound = max(network.bound, BOUNDS.get("tf32" if options.tf32 else options.dtype, 0))
        with without_gradients(options.device):  # Weights made in it would be packed at each call.
            rows.append(measure(network, options))
        print_row(rows[-1])
    overhead = {} if options.no_times or options.device == "cuda" else timing.call_overhead()
    print_overhead(overhead)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        machine = {"device": device_name(options.device), "threads": torch.get_num_threads()}
        content = {"network": options.network, "batch": options.batch, "weights": "random", "torch": torch.__version__}
        dtype = str(tensors_of(network.dense_inputs())[0].dtype).removeprefix("torch.")
        content |= {"device": options.device, "dtype": dtype, "tf32": options.tf32}
        content |= {"weights_dtype": options.weights} if options.weights else {}
        content |= {"machine": machine, "overhead, us": overhead, "rows": rows}
        json_rows.write(options.out / f"{options.network}.json", content)
        with without_gradients(options.device):
            write_pictures(network, rows[-1], options)


def device_name(device: str) -> str:
    """The GPU, or the CPU, its generation, its vector instructions and the number of threads."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    facts = dict(re.findall(r"^(.*\S)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    vectors = torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX-512")
    name = facts.get("model name", platform.machine())
    # Virtual machines name a CPU of AMD no further, and a Zen 5 adds twice as many numbers at once as a Zen 4.
    if facts.get("vendor_id") == "AuthenticAMD" and vectors == "AVX-512":
        name += " Zen 4" if facts["cpu family"] == "25" else " Zen 5"
    return f"{name}, {vectors}, {torch.get_num_threads()} threads"


def missing_of(network) -> list:
    """The operators of a step that have no PolyKernel, or none that skips the zeros of their weights."""

    def step():
        network.prepare()
        network.masked()

    return needed_by(step)


def measure(network, options) -> dict:
    torch.compiler.reset()  # Else what it compiled for another density counts for this one, and it gives up.
    missing = missing_of(network)
    if options.build and missing:
        distile.build(*missing, measure=options.measure, progress=lambda text: print(text, file=sys.stderr))
        missing = missing_of(network)
    if options.device == "cuda" and not options.no_times:
        network.compile_between()
    network.prepare()
    result = network.masked()
    with numerics(False):  # What is right does not depend on TF32.
        found = error(network, result, network.expected())
    check(found, network.bound, "the result")
    if options.device == "cuda":
        replayed = Replayed(network)
        with numerics(False):
            check(replayed.error_of_others(), network.bound, "the result of a CUDA graph with other masks")
        del replayed
    checked = {
        "densities": [round(density, 4) for density in network.densities()],
        **({"weight_zeros": network.weight_zeros} if network.weight_zeros else {}),
        "error": found,
        "bound": network.bound,
        "without a PolyKernel": [str(operator) for operator in missing],
        "bytes": timing.memory(network),
    }
    if options.no_times:
        return checked
    peers, absent = timing.peers_of(network, options.peers)
    return {
        **checked,
        "milliseconds": timing.interleaved(network, peers, options.seconds),
        "absent": absent,
        "milliseconds by kind": timing.by_kind(network),
    }


def check(found: float, bound: float, what: str) -> None:
    if not found <= bound:
        raise SystemExit(f"{what} is wrong: the largest error is {found:.1e}, above {bound:.1e}")


def print_row(row: dict) -> None:
    densities = row["densities"]
    print(f"\nmean density {sum(densities) / len(densities):.3f} of {len(densities)} blocks")
    print(f"  largest error {row['error']:.1e} of the largest value, below {row['bound']:.1e}")
    if row["without a PolyKernel"]:
        print(f"  {len(row['without a PolyKernel'])} operators have no PolyKernel and ran dense: --build compiles them")
    if "milliseconds" in row:
        print_times(row)
    print(f"  {'memory, MB':20} {'distile':>9} {'dense':>9}")
    for name in ("weights", "kept", "step"):
        print(f"  {name:20} {row['bytes']['distile'][name] / 1e6:9.1f} {row['bytes']['dense'][name] / 1e6:9.1f}")


def print_times(row: dict) -> None:
    times = row["milliseconds"]
    for name, milliseconds in times.items():
        print(f"  {name:12} {milliseconds:9.2f} ms  {milliseconds / times['distile']:5.2f}")
    for name, reason in row["absent"].items():
        print(f"  {name:12} {'-':>9}     {reason}")
    kinds = row["milliseconds by kind"]
    print(f"  {'by kind, ms':20} {'distile':>9} {'dense':>9}")
    for kind in sorted({*kinds["distile"], *kinds["dense"]}):
        print(f"  {kind:20} {kinds['distile'].get(kind, 0):9.2f} {kinds['dense'].get(kind, 0):9.2f}")


def print_overhead(overhead: dict[str, float]) -> None:
    """What a call with nothing to compute takes."""
    if overhead:
        print(f"\n  {'overhead, us':20}")
    for name, microseconds in overhead.items():
        print(f"  {name:20} {microseconds:9.2f}")


def write_pictures(network, row: dict, options) -> None:
    try:
        import pictures
    except ImportError:
        print("no pictures: install Pillow", file=sys.stderr)
        return
    network.prepare()
    network.masked()
    pictures.save(
        options.out / f"{options.network}.png", pictures.strip(network.pictures(), row.get("milliseconds by kind"))
    )
    if isinstance(network, VideoResNet):
        frames = []
        for _ in range(40):
            network.prepare()
            network.masked()
            frames.append(pictures.strip(network.pictures()))
        pictures.save_animation(options.out / f"{options.network}.gif", frames)
