#!/usr/bin/env python3
"""Measures masked attention on a CPU beside the dense attention of ONNX Runtime and PyTorch, whichever Python finds,
and beside theirs over packed tokens. (On a GPU: bench/gpu/attention_rows.py.)

All sides take turns in one process. Packing gathers the active queries, keys and values, calls the library, and
scatters its result; it is given the list of active tokens. All images have the same number of active tokens, so that a
packed batch is a tensor.

Example:
  attention.py --library build/release/runtime/libdistile.so --objects folder --threads 2 --out cpu-attention.json

The folder has attention_<heads>_<head_dim>[_<plan>].so. Each row is in the file as soon as it is measured; --resume
keeps those that the file has.
"""
import math

import numpy as np

from c_api import Distile, RunArgs, Tokens
from measuring import CpuClock, Results, fastest, find_object, measure, onnxruntime, parse_options, times_of, torch

# Heads, channels of a head, tokens, images.
SHAPES = [(3, 64, 197, 1), (6, 64, 197, 1), (6, 64, 197, 16), (8, 40, 4096, 1)]
DENSITIES = [.3, .1, .5, .05, .7, 1.0]


class Problem:
    """Random tokens and masks."""

    def __init__(self, shape, keys_masked, density, seed):
        self.heads, self.head_dim, self.tokens, self.batch = shape
        self.channels, self.keys_masked = self.heads * self.head_dim, keys_masked
        random = np.random.default_rng(seed)
        count = max(1, round(density * self.tokens))
        self.active = np.sort(np.stack([random.permutation(self.tokens)[:count] for _ in range(self.batch)]), axis=1)
        self.bytes = np.zeros((self.batch, self.tokens), np.uint8)
        np.put_along_axis(self.bytes, self.active, 1, axis=1)
        self.density = count / self.tokens
        self.fraction = self.density ** (2 if keys_masked else 1)
        self.values = [random.standard_normal((self.batch, self.tokens, self.channels), np.float32) for _ in range(3)]

    def all_rows(self):
        """The active tokens of all images, by their place in the batch."""
        return (self.active + np.arange(self.batch)[:, None] * self.tokens).reshape(-1)

    def expected(self, image, row):
        """A row of the output in double precision."""
        query, key, value = (array[image].astype(np.float64).reshape(self.tokens, self.heads, self.head_dim)
                             for array in self.values)
        keys = self.active[image] if self.keys_masked else slice(None)
        scores = np.einsum("hd,thd->ht", query[row], key[keys]) / math.sqrt(self.head_dim)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("ht,thd->hd", weights / weights.sum(axis=1, keepdims=True), value[keys]).reshape(-1)

    def error(self, output):
        """The largest error of some rows, by the largest value of the row."""
        worst = 0
        for image in {0, self.batch - 1}:
            for row in self.active[image][[0, len(self.active[image]) // 2, -1]]:
                expected = self.expected(image, row)
                worst = max(worst, np.abs(output[image, row] - expected).max() / np.abs(expected).max())
        return float(worst)


class Masked:
    """Our side: from the byte mask, and for a mask that is set."""

    def __init__(self, distile, kernel, problem, output):
        self.distile, self.kernel, self.problem = distile, kernel, problem
        self.mask = distile.mask()

        def tokens(array):
            return Tokens(array.ctypes.data, "float32", problem.batch, problem.tokens, problem.channels).pointer()

        query, key, value = (tokens(array) for array in problem.values)
        self.args = RunArgs(input=query, key=key, value=value, output=tokens(output), mask=self.mask,
                            key_mask=self.mask if problem.keys_masked else None)
        self.set_mask = distile.mask_setter(self.mask, problem.bytes.ctypes.data, problem.batch, problem.tokens)
        self.set_mask()
        self.variant = distile.chosen(kernel, self.mask)

    def sides(self):
        return self.distile.sides(self.kernel, self.args, self.set_mask)


def torch_sides(problem):
    """The dense call, and one that gathers before and scatters after it."""
    tensors = [torch.from_numpy(array) for array in problem.values]
    rows = torch.from_numpy(problem.all_rows())
    output = torch.zeros_like(tensors[0])

    def attend(*inputs):
        heads = [array.view(problem.batch, -1, problem.heads, problem.head_dim).transpose(1, 2) for array in inputs]
        return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)

    def packed():
        parts = [array.view(-1, problem.channels).index_select(0, rows) if i == 0 or problem.keys_masked else array
                 for i, array in enumerate(tensors)]
        output.view(-1, problem.channels).index_copy_(0, rows, attend(*parts).reshape(-1, problem.channels))

    return {"dense PyTorch": lambda: attend(*tensors), "packed PyTorch": packed}


def onnxruntime_sides(problem, threads):
    """The dense call by ONNX Runtime's MultiHeadAttention, and one that NumPy gathers before and scatters after it."""
    import onnx
    names, tensor = ["query", "key", "value"], onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MultiHeadAttention", names, ["output"], domain="com.microsoft",
                                 num_heads=problem.heads)
    infos = [tensor(name, onnx.TensorProto.FLOAT, [problem.batch, f"{name} tokens", problem.channels])
             for name in [*names, "output"]]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "attention", infos[:3], infos[3:]), ir_version=9,
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])

    def bind(inputs, output):
        binding = session.io_binding()
        for name, array in zip(names, inputs):
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        value = onnxruntime.OrtValue.ortvalue_from_numpy(output)
        binding.bind_ortvalue_output("output", value)
        return binding, value

    dense, _ = bind(problem.values, problem.values[0])
    rows = problem.all_rows()
    short = (problem.batch, problem.active.shape[1], problem.channels)
    flat = [array.reshape(-1, problem.channels) for array in problem.values]
    output = np.zeros_like(flat[0])

    def packed():
        parts = [array.take(rows, axis=0).reshape(short) if i == 0 or problem.keys_masked else problem.values[i]
                 for i, array in enumerate(flat)]
        result, = session.run(None, dict(zip(names, parts)))
        output[rows] = result.reshape(-1, problem.channels)

    return {"dense ONNX Runtime": lambda: session.run_with_iobinding(dense), "packed ONNX Runtime": packed}


def measure_row(distile, kernel, problem, options):
    output = np.full_like(problem.values[0], 7)
    ours = Masked(distile, kernel, problem, output)
    sides = ours.sides()
    if onnxruntime:
        sides.update(onnxruntime_sides(problem, options.threads))
    if torch:
        sides.update(torch_sides(problem))
    times = measure(CpuClock(), sides, options.rounds)
    return ours.variant, times, problem.error(output)


def row_of(problem, variant, times, error):
    masked, kernels = times["masked"]["median"], times["kernels"]["median"]
    (dense, dense_us), (packed, packed_us) = fastest(times, "dense"), fastest(times, "packed")
    keys = "active" if problem.keys_masked else "all"
    row = {"status": "measured", "kind": "attention", "op": f"{problem.heads} heads of {problem.head_dim}",
           "shape": f"{problem.tokens} tokens, {keys} keys", "keys": keys, "dtype": "float32",
           "batch": problem.batch, "mask": "random", "mode": "keep", "density": problem.density,
           "work_fraction": problem.fraction, "max_rel_err": error, "variant": variant.decode(), "t_masked_us": masked,
           "t_kernels_us": kernels, "times_us": times}
    if dense:
        row.update(peer=dense, t_peer_us=dense_us, t_gather_us=packed_us, gathering_peer=packed,
                   eta=dense_us * problem.fraction / masked, eta_kernel=dense_us * problem.fraction / kernels)
    return row


def main():
    options = parse_options(__doc__, ["cpu"])
    results = Results(options)
    distile = Distile(options.library, options.threads)
    rows = [(shape, keys_masked, density) for shape in SHAPES for keys_masked in (True, False)
            for density in DENSITIES]
    for number, (shape, keys_masked, density) in enumerate(rows, 1):
        heads, head_dim, tokens, batch = shape
        name = f"attention/{heads}x{head_dim}/{tokens}/n{batch}/{'keys' if keys_masked else 'rows'}/{density}"
        if not results.wants(name):
            continue
        path = find_object(options.objects, f"attention_{heads}_{head_dim}")
        if path is None:
            results.add(name, {"status": "skipped", "reason": "no PolyKernel for it was given"})
            print(f"[{number}/{len(rows)}] {name}: skipped, no PolyKernel", flush=True)
            continue
        problem = Problem(shape, keys_masked, density, number)
        row = row_of(problem, *measure_row(distile, distile.kernel(path, times_of(options, path)), problem, options))
        results.add(name, row)
        figures = ", ".join(f"{side} {time['median']:.1f}" for side, time in row["times_us"].items())
        print(f"[{number}/{len(rows)}] {name}: {figures} us, eta {row.get('eta', math.nan):.2f}, error "
              f"{row['max_rel_err']:.0e}", flush=True)


main()
