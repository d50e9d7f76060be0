#!/usr/bin/env python3
"""Measures masked convolutions on a CPU beside PyTorch's dense ones in the same type, all sides in turns.

PyTorch's side is oneDNN's convolution with packed weights, channels last, with ReLU in the same call. Masks are blobs:
a smooth random field, cut off at the density.

Examples, for one machine and several numbers of threads:
  convolutions.py --library libdistile.so --objects folder --threads 16 --dtype bfloat16 --out conv.json
  convolutions.py --library libdistile.so --objects folder --threads 8 --dtype bfloat16 --out conv.json --resume

The folder has conv3x3_256, conv3x3_128, conv3x3s2_256 and conv1x1_256_1024, with _<dtype> unless that is float32, and
with the name of a plan behind it.
"""
import ctypes

import numpy as np

from c_api import DTYPES, Distile, RunArgs, Tensor
from measuring import CpuClock, Results, fastest, find_object, measure, parse_options, times_of, torch

# Operators of data/operators.csv: height and width, channels, kernel, stride.
OPERATORS = {"op3": ("conv3x3_256", 40, 256, 256, 3, 1), "op7": ("conv3x3_128", 128, 128, 128, 3, 1),
             "op12": ("conv3x3s2_256", 80, 256, 256, 3, 2), "op21": ("conv1x1_256_1024", 40, 256, 1024, 1, 1)}
BATCHES = [1, 4]
DENSITIES = [.3, .1, .5, 1.0]
SEED = 4711


def draw_blobs(batch, size, density, random):
    """Masks [batch, size, size] of the largest values of a Gaussian field, correlated over an eighth of the image."""
    frequency = np.fft.fftfreq(size)
    smooth = np.exp(-2 * (np.pi * size / 8) ** 2 * (frequency[:, None] ** 2 + frequency ** 2) / 2)
    masks = np.zeros((batch, size * size), np.uint8)
    for mask in masks:
        field = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) * smooth).real.reshape(-1)
        mask[np.argsort(field)[-max(1, round(density * size * size)):]] = 1
    return masks.reshape(batch, size, size)


class Problem:
    def __init__(self, operator, batch, density, dtype):
        self.name, size, self.inputs, self.outputs, self.kernel, self.stride = OPERATORS[operator]
        random, self.batch, self.dtype = np.random.default_rng(SEED), batch, dtype
        self.padding, self.size = self.kernel // 2, size // self.stride
        fan_in = self.inputs * self.kernel ** 2
        self.filter = random.standard_normal((self.outputs, self.inputs, self.kernel, self.kernel), np.float32) * (
            2 / fan_in) ** .5
        self.bias = random.uniform(-.1, .1, self.outputs).astype(np.float32)
        image = torch.from_numpy(random.standard_normal((batch, self.inputs, size, size), np.float32))
        self.image = image.to(getattr(torch, dtype)).contiguous(memory_format=torch.channels_last)
        self.mask = torch.from_numpy(draw_blobs(batch, self.size, density, random))
        self.density = float(self.mask.float().mean())

    def expected(self):
        """In float32, with the type's roundings of the image alone."""
        result = torch.nn.functional.conv2d(self.image.float(), torch.from_numpy(self.filter),
                                            torch.from_numpy(self.bias), self.stride, self.padding)
        return result.relu()


def tensor_of(image, dtype):
    """A tensor of the C API, over a PyTorch tensor with channels last."""
    batch, channels, height, width = image.shape
    return ctypes.pointer(Tensor(image.data_ptr(), DTYPES[dtype], batch, height, width, channels,
                                 height * width * channels, width * channels, channels))


class Masked:
    """Our side."""

    def __init__(self, distile, kernel, problem):
        self.distile, self.kernel, self.problem = distile, kernel, problem
        self.mask = distile.mask()
        self.output = torch.full((problem.batch, problem.outputs, problem.size, problem.size), 7,
                                 dtype=problem.image.dtype).contiguous(memory_format=torch.channels_last)
        self.args = RunArgs(input=tensor_of(problem.image, problem.dtype), mask=self.mask,
                            output=tensor_of(self.output, problem.dtype),
                            weights=distile.weights(kernel, problem.filter, problem.bias))
        self.set_mask()
        self.variant = distile.chosen(kernel, self.mask)

    def set_mask(self):
        problem = self.problem
        self.distile.set_mask(self.mask, problem.mask.data_ptr(), problem.batch, problem.size, problem.size)

    def sides(self):
        return self.distile.sides(self.kernel, self.args, self.set_mask)

    def error(self):
        """The largest error of active pixels by the largest value; throws if another pixel was written."""
        active = self.problem.mask.bool()[:, None].expand_as(self.output)
        if not (self.output[~active] == 7).all():
            raise RuntimeError("an inactive pixel was written")
        expected = self.problem.expected()
        return float((self.output.float() - expected)[active].abs().max() / expected.abs().max())


def torch_sides(problem):
    filter_, bias = (torch.from_numpy(array).to(problem.image.dtype) for array in (problem.filter, problem.bias))
    window = [[problem.padding] * 2, [problem.stride] * 2, [1, 1], 1]
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(filter_.to_mkldnn(), *window, list(problem.image.shape))
    return {"dense PyTorch": lambda: torch.ops.mkldnn._convolution_pointwise(
        problem.image, packed, bias, *window, "relu", [], "")}


def measure_row(distile, kernel, problem, options):
    ours = Masked(distile, kernel, problem)
    times = measure(CpuClock(), {**ours.sides(), **torch_sides(problem)}, options.rounds)
    masked, kernels = times["masked"]["median"], times["kernels"]["median"]
    peer, peer_us = fastest(times, "dense")
    return {"status": "measured", "kind": "scaling", "shape": problem.name, "dtype": problem.dtype,
            "batch": problem.batch, "threads": options.threads, "mask": "blob", "mode": "keep",
            "density": problem.density, "max_rel_err": ours.error(), "variant": ours.variant.decode(),
            "t_masked_us": masked, "t_kernels_us": kernels, "t_peer_us": peer_us, "peer": peer,
            "eta": peer_us * problem.density / masked, "eta_kernel": peer_us * problem.density / kernels,
            "times_us": times}


def main():
    options = parse_options(__doc__, ["cpu"], ["float32", "bfloat16", "float16"])
    if torch is None:
        raise SystemExit("convolutions.py: PyTorch is needed")
    results = Results(options)
    distile = Distile(options.library, options.threads)
    rows = [(operator, batch, density) for density in DENSITIES for operator in OPERATORS for batch in BATCHES]
    for number, (operator, batch, density) in enumerate(rows, 1):
        name = f"{operator}/{density}/n{batch}/{options.dtype}/t{options.threads}"
        if not results.wants(name):
            continue
        plan = OPERATORS[operator][0] + ("" if options.dtype == "float32" else f"_{options.dtype}")
        path = find_object(options.objects, plan)
        if path is None:
            results.add(name, {"status": "skipped", "reason": f"'{options.objects}' has no {plan}"})
            print(f"[{number}/{len(rows)}] {name}: skipped, no {plan}", flush=True)
            continue
        problem = Problem(operator, batch, density, options.dtype)
        row = measure_row(distile, distile.kernel(path, times_of(options, path)), problem, options)
        results.add(name, {"op": operator, **row})
        print(f"[{number}/{len(rows)}] {name}: {row['variant']} {row['t_masked_us']:.1f} us, {row['peer']} "
              f"{row['t_peer_us']:.1f}: eta {row['eta']:.2f} ({row['eta_kernel']:.2f}), error {row['max_rel_err']:.0e}",
              flush=True)


main()
