"""Times of several sides that take turns, and a file of results that grows row by row."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import sys
import time

import json_rows
import numpy as np

try:
    import torch
except ImportError:
    torch = None
try:
    import onnxruntime
except ImportError:
    onnxruntime = None

CALLS = 10  # in a graph
ABOUT = """times are medians in microseconds, all sides in turns, on a GPU of replayed graphs; t_masked_us: from the byte
masks; t_kernels_us: for masks that are set; t_masks_us: the masks alone; t_peer_us: the fastest dense library;
t_gather_us: the fastest library over packed tokens, with gathering and scattering; work_fraction: multiplications of
the masked operator by those of the dense; eta = t_peer_us * work_fraction / t_masked_us; max_rel_err: the largest
difference to a plain implementation by the largest value""".replace("\n", " ")


class CpuClock:
    """Times calls on a CPU, each after a pause in which the threads of the other sides stop spinning, and after calls
    for a moment, in which the side's own wake and the system gives each a core: Linux moves threads at its ticks."""

    # ONNX Runtime's threads spin for a million pauses, PyTorch's for 300000
    PAUSE_S, SHORT_PAUSE_S, MOMENT_S = .05, .02, .02

    def __init__(self, onnxruntime_runs=True):
        self.pause_s = self.PAUSE_S if onnxruntime_runs else self.SHORT_PAUSE_S

    def prepare(self, call):
        call()
        return call

    def time_us(self, call):
        time.sleep(self.pause_s)
        awake = time.perf_counter() + self.MOMENT_S
        while time.perf_counter() < awake:
            call()
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e3


class GpuClock:
    """Times graphs of several calls."""

    def __init__(self, distile):
        self.distile = distile
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.stream = torch.cuda.Stream()

    def prepare(self, call):
        with torch.cuda.stream(self.stream):
            self.distile.set_stream(self.stream)
            for _ in range(3):
                call()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(CALLS):
                    call()
            graph.replay()
            self.stream.synchronize()
        return graph

    def time_us(self, graph):
        begin, end = self.events
        with torch.cuda.stream(self.stream):
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / CALLS


def draw_blobs(batch, size, density, random):
    """Masks [batch, size, size] of the largest values of a Gaussian field, correlated over an eighth of the image."""
    frequency = np.fft.fftfreq(size)
    smooth = np.exp(-2 * (np.pi * size / 8) ** 2 * (frequency[:, None] ** 2 + frequency ** 2) / 2)
    masks = np.zeros((batch, size * size), np.uint8)
    for mask in masks:
        field = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) * smooth).real.reshape(-1)
        mask[np.argsort(field)[-max(1, round(density * size * size)):]] = 1
    return masks.reshape(batch, size, size)


def measure(clock, sides, rounds):
    """The times of each side in microseconds: median and quartiles. The first rounds do not count."""
    prepared = {name: clock.prepare(side) for name, side in sides.items()}
    times = {name: [] for name in sides}
    for turn in range(rounds + 2):
        for name, side in prepared.items():
            microseconds = clock.time_us(side)
            if turn >= 2:
                times[name].append(microseconds)
    summaries = {}
    for name, values in times.items():
        quartiles = statistics.quantiles(values, n=4)
        summaries[name] = {"median": statistics.median(values), "q1": quartiles[0], "q3": quartiles[2]}
    return summaries


def fastest(times, kind):
    """The name and the median of the fastest side whose name begins so; None if there is none."""
    medians = {name: time["median"] for name, time in times.items() if name.startswith(kind)}
    return min(medians.items(), key=lambda item: item[1]) if medians else (None, None)


class Results:
    """A file of results. Each added row is in it at once. `versions`: of libraries that some programs compare with."""

    def __init__(self, options, versions=None):
        cuda = options.device == "cuda"
        self.path = pathlib.Path(options.out)
        self.filter = options.filter
        self.device = torch.cuda.get_device_name() if cuda else cpu_name()
        header = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "backend": options.device, "device": self.device, "system": platform.platform(),
            "threads": options.threads, "rounds": options.rounds,
            "versions": {"source": options.source, "PyTorch": torch.__version__ if torch else None,
                         "ONNX Runtime": onnxruntime.__version__ if onnxruntime else None, **(versions or {})},
            "about": ABOUT}
        if cuda:
            header["multiprocessors"] = torch.cuda.get_device_properties(0).multi_processor_count
        self.file = {"distile_bench": 1, "header": header, "rows": []}
        if options.resume and self.path.exists():
            old = json.loads(self.path.read_text(encoding="utf-8"))
            before, now = old["header"]["versions"], header["versions"]
            differs = any(before[name] != now[name] for name in before.keys() & now.keys())
            if differs or old["header"]["device"] != self.device:
                sys.exit(f"error: the results '{self.path}' are of another device or version; give another --out")
            header["versions"] = {**before, **now}
            self.file["rows"] = old["rows"]

    def wants(self, name):
        done = any(row["row"] == name and row["status"] == "measured" for row in self.file["rows"])
        return not done and re.search(self.filter, name) is not None

    def add(self, name, row):
        rows = [old for old in self.file["rows"] if old["row"] != name]
        self.file["rows"] = rows + [{"row": name, "device": self.device, **row}]
        json_rows.write(self.path, self.file)


def cpu_name():
    """The CPU with its vector instructions and, of AMD's with AVX-512, its generation, because virtual machines name
    several alike."""
    facts = {}
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    flags = facts.get("flags", "").split()
    vectors = next((text for flag, text in (("avx512f", ", AVX-512"), ("avx2", ", AVX2")) if flag in flags), "")
    name = facts.get("model name", platform.processor())
    if facts.get("vendor_id") == "AuthenticAMD" and "avx512f" in flags:
        name += " Zen 4" if facts.get("cpu family") == "25" else " Zen 5"
    return name + vectors


def parse_options(description, devices=("cpu", "cuda"), cpu_dtypes=("float32",), more=lambda parser: None):
    """`more` adds a program's own options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="the C library as a shared object")
    parser.add_argument("--objects", required=True, help="folder of PolyKernels, as `distile compile` makes them")
    parser.add_argument("--times", type=pathlib.Path,
                        help="folder of time tables, as `distile profile --json` prints them: <PolyKernel>.json")
    parser.add_argument("--device", choices=devices, default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16", "uint8"], default="float32",
                        help=f"on a CPU: {', '.join(cpu_dtypes)}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every side, on a CPU")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--filter", default="", help="regular expression on the names of rows")
    parser.add_argument("--source", default="", help="the version of the source, for the header")
    parser.add_argument("--out", required=True, help="JSON file of results")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    more(parser)
    options = parser.parse_args()
    if options.device == "cuda" and (torch is None or not torch.cuda.is_available()):
        parser.error("--device cuda needs PyTorch and an NVIDIA GPU")
    if options.device == "cpu" and options.dtype not in cpu_dtypes:
        parser.error(f"a CPU is measured in {', '.join(cpu_dtypes)}")
    if torch:
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
    return options


def times_of(options, path):
    """Where the time table of a PolyKernel would be; None without a folder of them."""
    return options.times / f"{path.stem}.json" if options.times else None


def add_times(distile, kernel, args, mask, call, clock, check):
    """Checks each variant at a mask [height, width], and adds its time to the kernel's table, by which it chooses."""
    height, width = mask.shape
    for index, name in enumerate(distile.variants(kernel)):
        info = distile.variant(kernel, index)
        rows, columns = -(-height // info.tile_h), -(-width // info.tile_w)
        tiles = np.zeros((rows * info.tile_h, columns * info.tile_w), bool)
        tiles[:height, :width] = mask if info.dense == 0 else 1
        count = tiles.reshape(rows, info.tile_h, columns, info.tile_w).any(axis=(1, 3)).sum()
        args.variant = name
        check(name.decode())
        prepared = clock.prepare(call)
        distile.add_time(kernel, name, int(count), min(clock.time_us(prepared) for _ in range(5)))
    args.variant = None


def find_object(folder, name):
    """The PolyKernel of a name, whatever is behind it for devices; None if there is none. Refuses several."""
    ending = re.compile(re.escape(name) + r"((_sm\d+a?|_cuda|_avx2|_avx512|_avx512_bf16|_amx_bf16|_amx_fp16|_avx512_vnni|_amx_int8|_avx_vnni|_portable)*)\.so")
    found = [path for path in sorted(pathlib.Path(folder).iterdir()) if ending.fullmatch(path.name)]
    if len(found) > 1:
        raise SystemExit(f"'{folder}' has several PolyKernels of {name}: {', '.join(path.name for path in found)}")
    return found[0] if found else None
