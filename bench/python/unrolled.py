#!/usr/bin/env python3
"""Measures straight-line code for pruned weights on an NVIDIA GPU, in float32, beside dense and sparse libraries.

The pattern of a layer's nonzeros becomes code: an FFMA for each, whose accumulator the instruction names. Three ways
give it the weights: immediates, which only another compilation changes; constants; and loads of four weights at a time.
All sides take turns, with the layers and peers of pruned.py, bias and ReLU included in ours, with all pixels active and
with three tenths at random places. Needs nvcc and PyTorch.

Example:
  unrolled.py --out bench/results/pruned/h200-unrolled.json
"""
import argparse
import collections
import concurrent.futures
import ctypes
import os
import pathlib
import subprocess
import tempfile
import time
import types

import numpy as np

import pruned
import pruned_gpu_peers
from measuring import GpuClock, Results, fastest, measure, torch

TEMPLATE = pathlib.Path(__file__).resolve().parents[1] / "gpu/kernels/unrolled.cuh"
CHUNK, STAGES = 32, 3  # Channels that are staged at once, and stages, as in the template.
ACTIVE = .3
ABOUT = "; compile_s: seconds of nvcc, several at once"

# Output channels, warps of other pixels and of other inputs in a block, blocks that share an output, blocks of a
# multiprocessor.
Blocks = collections.namedtuple("Blocks", "channels warps groups splits resident")
BLOCKS = {"1x1_512_512_160": Blocks(128, 12, 1, 1, 1), "3x3_128_112": Blocks(64, 4, 1, 2, 4),
          "1x1_256_64_56": Blocks(64, 2, 4, 1, 2), "1x1_512_128_28": Blocks(32, 2, 4, 2, 2),
          "1x1_512_512_14": Blocks(32, 4, 2, 4, 2), "3x3_64_56": Blocks(64, 4, 1, 4, 4),
          "3x3_256_14": Blocks(32, 4, 2, 8, 2)}
WAYS = {"immediates": tuple(BLOCKS), "constants": ("1x1_256_64_56", "3x3_64_56"),
        "loads": ("1x1_256_64_56", "3x3_64_56")}


class Code:
    """The code of a layer, and its weights in the order of their use."""

    def __init__(self, problem, blocks, way):
        self.problem, self.blocks, self.way, self.weights = problem, blocks, way, []
        taps = problem.kernel ** 2
        self.matrix = problem.matrix.reshape(problem.outputs, problem.inputs, taps).transpose(0, 2, 1)
        self.chunks = [(tap, channel) for tap in range(taps) for channel in range(0, problem.inputs, CHUNK)]

    def weight(self, value):
        """How an instruction names the next weight, and a line before it."""
        index = len(self.weights)
        self.weights.append(value)
        if self.way == "immediates":
            return f"{float(value).hex()}f", ""
        if self.way == "constants":
            return f"constants[{index}]", ""
        load = f"const float4 w{index // 4} = __ldg(reinterpret_cast<const float4 *>(a.weights) + {index // 4});\n"
        return f"w{index // 4}.{'xyzw'[index % 4]}", load if index % 4 == 0 else ""

    def products(self, first_channel, tap, channel, stage):
        """The products of a chunk."""
        lines = []
        for quad in range(CHUNK // 4):
            first = channel + quad * 4
            weights = self.matrix[first_channel:first_channel + self.blocks.channels, tap, first:first + 4]
            if weights.any():
                lines.append(f"const float4 x{quad} = staged.quad({stage}, {quad});\n")
            for column, row in np.argwhere(weights.T):
                name, load = self.weight(weights[row, column])
                lines.append(f"{load}sums[{row}] = fmaf(x{quad}.{'xyzw'[column]}, {name}, sums[{row}]);\n")
        while self.way == "loads" and len(self.weights) % 4:
            self.weights.append(0)  # The next chunk is another scope.
        return "".join(lines)

    def function(self, index, first_channel, chunks):
        """The function of some output channels and chunks."""
        fills = [f"staged.fill({i % STAGES}, {tap}, {channel});\n" for i, (tap, channel) in enumerate(chunks)]
        fills += [""] * STAGES
        parts = [f"static __noinline__ __device__ void multiply_{index}(Arguments a) {{\n"
                 "const Staged staged(a);\nfloat sums[channels] = {};\n"]
        parts += [f"{fill}staged.commit();\n" for fill in fills[:STAGES - 1]]
        for i, (tap, channel) in enumerate(chunks):
            parts.append(f"staged.wait();\n{fills[i + STAGES - 1]}staged.commit();\n"
                         f"{{\n{self.products(first_channel, tap, channel, i % STAGES)}}}\n")
        return "".join([*parts, f"staged.write(sums, {first_channel});\n}}\n"])

    def source(self):
        problem, blocks = self.problem, self.blocks
        parts = blocks.splits * blocks.groups
        numbers = {"inputs": problem.inputs, "outputs": problem.outputs, "kernel": problem.kernel,
                   "height": problem.height, "width": problem.width, "channels": blocks.channels, "warps": blocks.warps,
                   "groups": blocks.groups, "splits": blocks.splits}
        functions, cases = [], []
        for first in range(0, problem.outputs, blocks.channels):
            for part in range(parts):
                begin, end = (len(self.chunks) * one // parts for one in (part, part + 1))
                cases.append(f"case {len(functions)}: multiply_{len(functions)}(a); break;\n")
                functions.append(self.function(len(functions), first, self.chunks[begin:end]))
        constants = len(self.weights) if self.way == "constants" else 1
        return "".join([
            *(f"constexpr int {name} = {number};\n" for name, number in numbers.items()), f'#include "{TEMPLATE}"\n',
            f"__constant__ float constants[{constants}];\n", *functions,
            f"__global__ void __launch_bounds__(threads, {blocks.resident}) multiply(Arguments a) {{\n",
            "const int group = static_cast<int>(threadIdx.x) / lanes / warps;\n",
            "const int part = static_cast<int>(blockIdx.x) % splits * groups + group;\n",
            "const int block = static_cast<int>(blockIdx.x) / splits % (outputs / channels);\n",
            "switch (block * splits * groups + part) {\n", *cases, "}\n",
            "if (shares_sums) {\nadd_sums(a, block * channels);\n}\n}\n",
            'extern "C" int run(const Arguments *a, cudaStream_t stream) {\n',
            "return launch_kernel(multiply, *a, stream);\n}\n",
            'extern "C" int set_constants(const float *weights, int count) {\n',
            "return cudaMemcpyToSymbol(constants, weights, count * 4);\n}\n"])

    def compile(self, folder, places):
        """The library, which the folder may have, and how many seconds nvcc took."""
        source = self.source()
        path = folder / f"{places}_{self.problem.name}_{self.way}.cu"
        library, seconds = path.with_suffix(".so"), path.with_suffix(".seconds")
        if seconds.exists():
            return library, float(seconds.read_text(encoding="utf-8"))
        path.write_text(source, encoding="utf-8")
        registers = 65536 // (self.blocks.warps * self.blocks.groups * self.blocks.resident * 32) // 8 * 8
        start = time.monotonic()
        subprocess.run(["nvcc", "-O3", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", "-shared",
                        "-Xcompiler", "-fPIC", "-cudart", "static", "-maxrregcount", str(min(registers, 255)), path,
                        "-o", library], check=True)
        seconds.write_text(f"{time.monotonic() - start:.1f}", encoding="utf-8")
        return library, float(seconds.read_text(encoding="utf-8"))


class Arguments(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("input", "bias", "weights", "zeros", "pixels", "output")]
    _fields_ += [("count", ctypes.c_int)]


class Unrolled:
    """Our side, with all pixels or some."""

    def __init__(self, problem, library, weights, pixels=None):
        numbers = problem.images().permute(0, 2, 3, 1).reshape(-1)
        self.problem, self.run = problem, ctypes.CDLL(str(library)).run
        self.input = torch.cat([numbers, numbers.new_zeros(4)])
        self.bias, self.weights = (torch.from_numpy(given).to(problem.device) for given in (problem.bias, weights))
        size = problem.height * problem.width
        self.pixels = torch.arange(size) if pixels is None else pixels
        self.on_device = None if pixels is None else pixels.int().to(problem.device)
        self.output = torch.full((size, problem.outputs), 7., device=problem.device)
        places = [given.data_ptr() for given in (self.input, self.bias, self.weights)]
        places += [self.input.data_ptr() + numbers.numel() * 4, None if pixels is None else self.on_device.data_ptr(),
                   self.output.data_ptr()]
        self.args = Arguments(*places, len(self.pixels))

    def __call__(self):
        status = self.run(ctypes.byref(self.args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise RuntimeError(f"the launch returned {status}")

    def check(self):
        """The error; throws if it is too large, or if an inactive pixel was written."""
        self()
        output = self.output.cpu().numpy().T
        inactive = np.ones(output.shape[1], bool)
        inactive[self.pixels.numpy()] = False
        sums = np.maximum(self.problem.products + self.problem.bias[:, None], 0)
        largest = pruned.error(output[:, ~inactive], sums[:, ~inactive])
        if not largest <= pruned.BOUND or not (output[:, inactive] == 7).all():
            raise RuntimeError(f"{self.problem.name} is wrong: its error is {largest:.1e}")
        return largest


def measure_row(problem, built, options):
    """The row of a layer whose code was built."""
    random = torch.rand(problem.height * problem.width, generator=torch.Generator().manual_seed(pruned.SEED))
    some = torch.nonzero(random < ACTIVE).flatten()
    ours, seconds = {}, {}
    for way, (library, took, weights) in built.items():
        weights = np.array(weights, np.float32)
        if way == "constants":
            given = weights.ctypes.data_as(ctypes.c_void_p)
            if ctypes.CDLL(str(library)).set_constants(given, len(weights)):
                raise RuntimeError("the constants could not be set")
        ours[way] = Unrolled(problem, library, weights)
        ours[f"{way} .3"] = Unrolled(problem, library, weights, some)
        seconds[way] = took
    largest = max(side.check() for side in ours.values())
    clock = GpuClock(types.SimpleNamespace(set_stream=lambda stream: None))
    times = measure(clock, {**ours, **pruned_gpu_peers.sides_of(problem)}, options.rounds)
    (dense, dense_us), (sparse, sparse_us) = fastest(times, "dense"), fastest(times, "sparse")
    return {"status": "measured", "kind": "unrolled", "op": problem.name, "weight_zeros": round(problem.zeros, 4),
            "nonzeros": int((problem.matrix != 0).sum()), "density": len(some) / len(random), "max_rel_err": float(largest),
            "compile_s": seconds, "peer": dense, "t_peer_us": dense_us, "sparse_peer": sparse, "t_sparse_us": sparse_us,
            "times_us": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="JSON file of results")
    parser.add_argument("--filter", default="", help="regular expression on the names of rows")
    parser.add_argument("--block", type=pruned.block, default=(1, 1), help="output by input channels that are 0 together")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the libraries here, and take those that are here")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--source", default="", help="the version of the source, for the header")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    options = parser.parse_args()
    options.device, options.threads = "cuda", len(os.sched_getaffinity(0))
    torch.set_grad_enabled(False)
    results = Results(options, pruned_gpu_peers.versions())
    results.file["header"]["about"] += ABOUT
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(options.threads) as executor:
        folder, layers = options.folder or pathlib.Path(temporary), []
        folder.mkdir(parents=True, exist_ok=True)
        for name, operator, make in pruned.problems([], "cuda", options.block):
            shape = operator.split("_", 1)[1]
            if shape in BLOCKS and operator[:8] in ("pruned90", "pruned95") and results.wants(name):
                problem = make()
                codes = {way: Code(problem, BLOCKS[shape], way) for way, shapes in WAYS.items() if shape in shapes}
                compiled = {way: executor.submit(code.compile, folder, name.split("/")[0]) for way, code in codes.items()}
                layers.append((name, problem, codes, compiled))
        for name, problem, codes, compiled in layers:
            built = {way: (*future.result(), codes[way].weights) for way, future in compiled.items()}
            results.add(name, measure_row(problem, built, options))
            row = results.file["rows"][-1]
            print(f"{name}:", ", ".join(f"{side} {time['median']:.1f}" for side, time in row["times_us"].items()), flush=True)


if __name__ == "__main__":
    main()
