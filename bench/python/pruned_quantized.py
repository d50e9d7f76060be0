#!/usr/bin/env python3
"""Measures quantized layers whose weights have quads of zeros, four input channels of an output channel and a kernel
position, beside dense ones, all sides in turns, on a CPU, in uint8 with weights of int8.

Ours is timed from the byte mask, with all pixels active and with three tenths. "own dense" is our code for all weights,
the fastest dense variant of the same PolyKernel; PyTorch's side is oneDNN's convolution or product with packed weights,
and ONNX Runtime's QLinearConv. "peer" is the fastest library.

Each variant is checked and measured at these densities first, and the times are added to the kernel's table, by which
it chooses.

Example:
  python bench/own/pruned_operators.py operators uint8
  for file in operators/pruned90*.json; do
      build/release/autoscheduler/distile plan $file -o plans --seconds 10
  done
  for plan in plans/*_avx512_vnni.json; do  # or _amx_int8, _avx_vnni, _avx2
      build/release/autoscheduler/distile compile $plan -o objects/$(basename $plan .json).so
  done
  pruned_quantized.py --library build/release/runtime/libdistile.so --objects objects --out pruned-int8.json

Needs PyTorch; ONNX Runtime is left out if it is not installed (pip install onnxruntime onnx).
"""
import functools
import pathlib
import sys

import numpy as np

import convolutions
from c_api import Distile
from measuring import (CpuClock, Results, add_times, draw_blobs, fastest, find_object, measure, onnxruntime,
                       parse_options, times_of, torch)

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "own"))
import pruned_operators

QUAD = 4
ONE_STEP = 1.5 / 255  # The expected results are rounded in float64.
DENSITIES = {"masked": 1.0, "masked .3": .3}


class Problem(convolutions.QuantizedProblem):
    """A layer with a ReLU; a linear one is a convolution of 1x1 over a row of tokens."""

    def __init__(self, name, operator, zeros):
        params, typical = operator["params"], operator["typical"]
        self.name, self.is_linear = name, operator["generator"] == "masked_linear"
        self.inputs, self.outputs, self.kernel = params["in_channels"], params["out_channels"], params.get("kernel_h", 1)
        self.stride, self.groups, self.activation, self.dtype, self.batch = 1, 1, "relu", "uint8", 1
        self.padding, self.residual = self.kernel // 2, None
        self.margins = (self.padding, self.padding)
        self.height, self.width = typical.get("height", 1), typical.get("width", typical.get("tokens"))
        self.size = self.width
        self.random = np.random.default_rng(convolutions.SEED)
        shape = self.outputs, self.inputs, self.kernel, self.kernel
        fan_in = max(1, (1 - zeros) * self.inputs * self.kernel ** 2)
        self.filter = self.random.standard_normal(shape, np.float32) * (2 / fan_in) ** .5
        quads = self.random.random((self.outputs, self.inputs // QUAD, self.kernel, self.kernel)) < zeros
        self.filter[np.repeat(quads, QUAD, axis=1)] = 0
        # A channel of zeros alone would have no scale.
        self.filter[:, 0, 0, 0] = np.where((self.filter == 0).all(axis=(1, 2, 3)), 1, self.filter[:, 0, 0, 0])
        self.zeros = float(quads.mean())
        self.bias = self.random.uniform(-.1, .1, self.outputs).astype(np.float32)
        numbers = self.random.standard_normal((1, self.inputs, self.height, self.width), np.float32)
        self.image = torch.from_numpy(numbers)
        self.store()

    def draw_mask(self, density):
        mask = np.ones((1, self.height, self.width), np.uint8)
        if density < 1:
            mask = (draw_blobs(1, self.width, density, self.random) if self.height > 1 else
                    (self.random.random(mask.shape) < density).astype(np.uint8))
        self.mask = torch.from_numpy(mask)
        return float(self.mask.float().mean())


def linear_sides(problem):
    """What PyTorch's compiler calls for quantized linear layers: oneDNN, with packed weights."""
    tokens = problem.image[0].permute(1, 2, 0).reshape(-1, problem.inputs).contiguous()
    packed = torch.ops.onednn.qlinear_prepack(
        torch.from_numpy(problem.filter.reshape(problem.outputs, -1)), list(tokens.shape))
    scales, zeros = torch.from_numpy(problem.scales), torch.zeros(problem.outputs, dtype=torch.int32)
    bias = torch.from_numpy((problem.bias * problem.image_scale * problem.scales).astype(np.float32))

    def run():
        result = torch.ops.onednn.qlinear_pointwise(
            tokens, problem.image_scale, 0, packed, scales, zeros, bias, problem.output_scale, 0, torch.uint8, "relu",
            [], "")
        return result.t().reshape(1, problem.outputs, problem.height, problem.width)

    return {"dense PyTorch linear": run}


def measure_row(distile, kernel, problem, options):
    sides, ours, densities, clock = {}, {}, {}, CpuClock(onnxruntime is not None)

    errors = []

    def check(side, name):
        errors.append(side.error())
        if not errors[-1] <= ONE_STEP:
            raise RuntimeError(f"{name} is wrong at {problem.name}: its error is {errors[-1]:.1e}")

    for name, density in DENSITIES.items():
        densities[name] = problem.draw_mask(density)
        ours[name] = convolutions.Masked(distile, kernel, problem)
        side, calls = ours[name], ours[name].sides()
        sides[name] = calls["masked"]
        add_times(distile, kernel, side.args, problem.mask.numpy()[0], calls["kernels"], clock,
                  functools.partial(check, side))
        side.variant = distile.chosen(kernel, side.mask)
    dense = [name for index, name in enumerate(distile.variants(kernel))
             if name.startswith(b"all_") and distile.variant(kernel, index).dense]
    if dense:
        ours["masked"].dense_args.variant = dense[0]
        sides["own dense"] = distile.runner(kernel, ours["masked"].dense_args)
    sides |= convolutions.dense_sides(problem, options.threads)
    if problem.is_linear:
        sides |= linear_sides(problem)
    times = measure(clock, sides, options.rounds)
    peer, peer_us = fastest(times, "dense")
    return {"status": "measured", "kind": "pruned", "op": problem.name, "dtype": "uint8", "threads": options.threads,
            "mode": "keep", "weight_zeros": round(problem.zeros, 4), "density": densities["masked .3"],
            "variants": {name: side.variant.decode() for name, side in ours.items()},
            "max_rel_err": max(errors),
            "t_all_us": times["masked"]["median"], "t_masked_us": times["masked .3"]["median"], "peer": peer,
            "t_peer_us": peer_us, "t_own_dense_us": times["own dense"]["median"] if dense else None, "times_us": times}


def main():
    options = parse_options(__doc__, ["cpu"])
    if torch is None:
        raise SystemExit("pruned_quantized.py: PyTorch is needed")
    results, distile = Results(options), Distile(options.library, options.threads)
    for shape, operator, percents in pruned_operators.quantized_operators():
        for percent in percents:
            name = f"pruned{percent}_{shape}"
            path = find_object(options.objects, name)
            if not results.wants(f"random/{name}") or path is None:
                continue
            kernel = distile.kernel(path, times_of(options, path))
            row = measure_row(distile, kernel, Problem(name, operator, percent / 100), options)
            results.add(f"random/{name}", row)
            figures = ", ".join(f"{side} {time['median']:.0f}" for side, time in row["times_us"].items())
            print(f"{name}: {figures} us, error {row['max_rel_err']:.0e}", flush=True)


main()
