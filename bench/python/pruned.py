#!/usr/bin/env python3
"""Measures layers with pruned weights beside dense and sparse libraries, all sides in turns, in float32.

Dense: oneDNN by itself and by PyTorch, ONNX Runtime and OpenVINO, 1x1 convolutions also as a product. Sparse: OpenVINO with
its option for sparse weights, XNNPACK for 1x1 kernels (Debian's libxnnpack0), and CSR of oneDNN, SciPy, MKL
(inspector-executor) and PyTorch. A sparse library gets its images in the layout that it is fastest with, and for 3x3
kernels unfolded before, which is not timed; neither are bias and relu, which products of CSR lack. Ours is timed from the byte mask, with all pixels active and with three tenths.

With --refine, each variant is checked and measured at the densities of the rows first, and these times are added to the
kernel's table, by which it chooses.

On a GPU, ours is also timed for masks that are set ("kernels"), by the variant that the host chooses for each mask.
Beside it: cuBLAS, and cuDNN for convolutions, in float32, in TF32 and in float16, and cuSPARSE's CSR. "peer" is the
fastest in float32.

Example; run_pruned.sh compiles the PolyKernels of the operators of bench/own/pruned_operators.py, and calls this:
  run_pruned.sh build/release/autoscheduler/distile build/release/runtime/libdistile.so folder --weights *.npy
  pruned.py --library libdistile_cuda.so --objects folder --device cuda --out h200-pruned.json

--weights has matrices [output channels, input channels and kernel] of layers, which run with the PolyKernel of their
shape. Needs PyTorch; what else is not installed is left out (pip install -r requirements/bench-python.txt, and onednn of
requirements/bench.txt).
"""
import ctypes
import functools
import pathlib
import sys

import numpy as np

import pruned_gpu_peers
import pruned_peers
from c_api import DTYPES, Distile, RunArgs, Tensor
from measuring import (CpuClock, GpuClock, Results, add_times, draw_blobs, fastest, find_object, measure, parse_options,
                       times_of, torch)
from pruned_peers import BOUND, error

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "own"))
import pruned_operators

SEED = 4711
DENSITIES = {"masked": 1.0, "masked .3": .3}


class Problem:
    """A layer, with random numbers: a convolution, or a linear layer as one of 1x1 over a row of tokens."""

    def __init__(self, name, operator, zeros, device, zero_block=(1, 1), weights=None):
        self.device = device
        params, typical = operator["params"], operator["typical"]
        self.name, self.is_linear = name, operator["generator"] == "masked_linear"
        self.inputs, self.outputs = params["in_channels"], params["out_channels"]
        self.kernel = params.get("kernel_h", 1)
        self.height, self.width = typical.get("height", 1), typical.get("width", typical.get("tokens"))
        random = np.random.default_rng(SEED)
        shape = self.outputs, self.inputs, self.kernel, self.kernel
        if weights is None:
            scale = np.float32(self.inputs * self.kernel ** 2) ** -.5
            filter_ = random.standard_normal(shape).astype(np.float32) * scale
            rows, columns = zero_block
            blocks = random.random((-(-self.outputs // rows), -(-self.inputs // columns), *shape[2:])) < zeros
            filter_[blocks.repeat(rows, axis=0).repeat(columns, axis=1)[:self.outputs, :self.inputs]] = 0
        else:
            filter_ = np.ascontiguousarray(weights.reshape(shape), np.float32)
        self.filter, self.zeros = filter_, float((filter_ == 0).mean())
        self.matrix = filter_.reshape(self.outputs, -1)
        self.bias = random.uniform(-.1, .1, self.outputs).astype(np.float32)
        self.image = random.standard_normal((1, self.inputs, self.height, self.width)).astype(np.float32)
        self.random = random

    def images(self):
        return torch.from_numpy(self.image).to(self.device).contiguous(memory_format=torch.channels_last)

    @functools.cached_property
    def products(self):
        """The product of a sparse library: [output channels, pixels]."""
        return (self.matrix.astype(np.float64) @ self.columns).astype(np.float32)

    @functools.cached_property
    def columns(self):
        """What the weights multiply, [input channels and kernel, pixels]."""
        unfolded = torch.nn.functional.unfold(torch.from_numpy(self.image), self.kernel, padding=self.kernel // 2)
        return np.ascontiguousarray(unfolded[0].numpy())

    @functools.cached_property
    def expected(self):
        """The result of the layer, [output channels, rows, columns]."""
        sums = self.products + self.bias[:, None]
        return self.finish(sums).reshape(self.outputs, self.height, self.width)

    def finish(self, sums):
        return sums if self.is_linear else np.maximum(sums, 0)


class Masked:
    """Our side, for one density. The images have their channels last."""

    def __init__(self, distile, kernel, problem, density):
        self.distile, self.problem, self.kernel = distile, problem, kernel
        height, width = problem.height, problem.width
        mask = np.ones((1, height, width), np.uint8)
        if density < 1:
            mask = (draw_blobs(1, width, density, problem.random) if height > 1 else
                    (problem.random.random(mask.shape) < density).astype(np.uint8))
        self.bytes, self.image = mask, problem.images()
        output = torch.full((1, problem.outputs, height, width), 7., device=problem.device)
        self.output = output.contiguous(memory_format=torch.channels_last)
        self.on_device = torch.from_numpy(mask).to(problem.device)
        self.mask = distile.mask()
        self.args = RunArgs(input=self._tensor(self.image), output=self._tensor(self.output), mask=self.mask,
                            weights=distile.weights(kernel, problem.filter, problem.bias))
        set_mask = distile.mask_setter(self.mask, self.on_device.data_ptr(), 1, width, height)
        set_mask()
        self.sides = distile.sides(kernel, self.args, set_mask)
        self.variant = None

    def refine(self, clock):
        """Checks each variant, and adds its time to the table."""
        add_times(self.distile, self.kernel, self.args, self.bytes[0], self.sides["kernels"], clock, self.check)

    def choose(self):
        """Finds which variant runs. A graph that sets a mask must be told."""
        chosen = self.distile.chosen(self.kernel, self.mask)
        self.variant = chosen.decode()
        if self.problem.device == "cuda":
            self.args.variant = chosen

    def check(self, what):
        """The error; throws if it is too large."""
        largest = self.error()
        if not largest <= BOUND:
            raise RuntimeError(f"{what} is wrong at {self.problem.name}: its error is {largest:.1e}")
        return largest

    @staticmethod
    def _tensor(image):
        _, channels, height, width = image.shape
        return ctypes.pointer(Tensor(image.data_ptr(), DTYPES["float32"], 1, height, width, channels,
                                     height * width * channels, width * channels, channels))

    def error(self):
        """The largest error of active pixels by the largest value; throws if another pixel was written."""
        wait = torch.cuda.synchronize if self.problem.device == "cuda" else lambda: None
        wait()
        self.sides["masked"]()
        wait()
        active = self.bytes[0].astype(bool)
        result = self.output[0].cpu().numpy()
        if not (result[:, ~active] == 7).all():
            raise RuntimeError("an inactive pixel was written")
        return error(result[:, active], self.problem.expected[:, active])


def block(text):
    """The output and input channels of a block, from text as 4x1."""
    rows, columns = map(int, text.split("x"))
    if min(rows, columns) < 1:
        raise ValueError(text)
    return rows, columns


def problems(paths, device, zero_block):
    """Names of rows, names of operators, and the functions that make their problems: of random weights, which become 0 in
    blocks of output by input channels, and of those in files, whose operator has their shape and nearly their share of
    zeros."""
    operators = {}
    for shape, operator, percents in pruned_operators.operators():
        for percent in percents:
            operators[f"pruned{percent}_{shape}"] = operator, percent / 100
    places = "random" if zero_block == (1, 1) else "random{}x{}".format(*zero_block)
    for name, (operator, zeros) in operators.items():
        yield f"{places}/{name}", name, functools.partial(Problem, name, operator, zeros, device, zero_block)
    for path in paths:
        weights = np.load(path)
        zeros = float((weights == 0).mean())
        fitting = [name for name, (operator, _) in operators.items() if shape_of(operator) == weights.shape]
        if not fitting:
            raise SystemExit(f"error: no operator has weights {weights.shape}, as '{path}'")
        name = min(fitting, key=lambda one: abs(operators[one][1] - zeros))
        yield f"{path.stem}/{name}", name, functools.partial(Problem, name, operators[name][0], zeros, device,
                                                                  weights=weights)


def shape_of(operator):
    params = operator["params"]
    return params["out_channels"], params["in_channels"] * params.get("kernel_h", 1) * params.get("kernel_w", 1)


def measure_row(distile, path, problem, options):
    ours = {name: Masked(distile, distile.kernel(path, times_of(options, path)), problem, density)
            for name, density in DENSITIES.items()}
    on_gpu = options.device == "cuda"
    peers = pruned_gpu_peers.sides_of(problem) if on_gpu else pruned_peers.sides_of(problem, options.threads)
    sides = {**{name: side.sides["masked"] for name, side in ours.items()}, **peers}
    if on_gpu:
        sides |= {name.replace("masked", "kernels"): side.sides["kernels"] for name, side in ours.items()}
    clock = GpuClock(distile) if on_gpu else CpuClock(any("ONNX" in name for name in sides))
    for side in ours.values():
        if options.refine:
            side.refine(clock)
        side.choose()
    times = measure(clock, sides, options.rounds)
    (dense, dense_us), (sparse, sparse_us) = fastest(times, "dense"), fastest(times, "sparse")
    all_us, part_us = (times[name]["median"] for name in DENSITIES)
    return {"status": "measured", "kind": "pruned", "op": problem.name, "threads": options.threads, "mode": "keep",
            "weight_zeros": round(problem.zeros, 4), "density": float(ours["masked .3"].bytes.mean()),
            "variants": {name: side.variant for name, side in ours.items()},
            "max_rel_err": max(side.check(name) for name, side in ours.items()),
            "t_all_us": all_us, "t_masked_us": part_us, "peer": dense, "t_peer_us": dense_us,
            "sparse_peer": sparse, "t_sparse_us": sparse_us, "times_us": times}


def main():
    def more(parser):
        parser.add_argument("--weights", nargs="*", default=[], type=pathlib.Path, help=".npy files of layers")
        parser.add_argument("--block", type=block, default=(1, 1), help="output by input channels that are 0 together")
        parser.add_argument("--refine", action="store_true", help="measure the times of the variants here")

    options = parse_options(__doc__, more=more)
    if torch is None:
        raise SystemExit("pruned.py: PyTorch is needed")
    cuda = options.device == "cuda"
    versions = pruned_gpu_peers.versions() if cuda else pruned_peers.versions(options.threads)
    results, distile = Results(options, versions), Distile(options.library, options.threads, cuda)
    for name, operator, make in problems(options.weights, options.device, options.block):
        if not results.wants(name):
            continue
        path = find_object(options.objects, operator) or find_object(options.objects, f"{operator}.plan")
        if path is None:
            print(f"{name}: skipped, no PolyKernel", flush=True)
            continue
        row = measure_row(distile, path, make(), options)
        results.add(name, row)
        figures = ", ".join(f"{side} {time['median']:.0f}" for side, time in row["times_us"].items())
        print(f"{name}: {figures} us, error {row['max_rel_err']:.0e}", flush=True)


if __name__ == "__main__":
    main()
