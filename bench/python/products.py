#!/usr/bin/env python3
"""Measures the two products of attention on a CPU, masked scores and masked values, with full and with packed columns,
beside the dense matrix products of ONNX Runtime and PyTorch, whichever Python finds, and beside theirs over packed rows
and columns.

All sides take turns in one process. The libraries get what suits them: heads as the outer dimension, contiguous. Packing
gathers the active rows and columns, multiplies, and scatters the result; it is given the lists of both.

Example:
  products.py --library build/release/runtime/libdistile.so --objects folder --threads 2 --out cpu-products.json

The folder has scores_<heads>_<head_dim>[_packed][_<plan>].so and values_..., as `distile plan` and `distile compile`
make them of the operators in bench/python/operators. Each row is in the file as soon as it is measured; --resume keeps
those that the file has.
"""
import ctypes

import numpy as np

from c_api import Distile, RunArgs, Tensor, Tokens
from measuring import CpuClock, Results, fastest, find_object, measure, onnxruntime, parse_options, times_of, torch

TOKENS, HEAD_DIM = 197, 64
DENSITIES = [.3, .5, .1, .05, .7, 1.0]


class Problem:
    """Random tokens of an image, scores of them, and a mask for rows and columns. Packed columns are the first ones, else
    they are those of the active keys."""

    def __init__(self, heads, packed, density, seed):
        self.heads, self.channels = heads, heads * HEAD_DIM
        random = np.random.default_rng(seed)
        count = max(1, round(density * TOKENS))
        self.active = np.sort(random.permutation(TOKENS)[:count])
        self.columns, self.layout = (np.arange(count), "packed") if packed else (self.active, "full")
        self.bytes = np.zeros(TOKENS, np.uint8)
        self.bytes[self.active] = 1
        self.density = count / TOKENS
        self.query, self.key = (random.standard_normal((TOKENS, self.channels), np.float32) for _ in range(2))
        self.square = random.random((heads, TOKENS, TOKENS), np.float32)
        self.grid = np.ix_(range(heads), self.active, self.columns)

    def by_heads(self, tokens):
        return np.ascontiguousarray(tokens.reshape(TOKENS, self.heads, HEAD_DIM).transpose(1, 0, 2))

    def all_scores(self, scores):
        """The square of all heads as a tensor of the C API."""
        return ctypes.pointer(Tensor(scores.ctypes.data, 1, 1, self.heads, TOKENS, TOKENS, self.heads * TOKENS * TOKENS,
                                 TOKENS * TOKENS, TOKENS))

    def tokens(self, array):
        return Tokens(array.ctypes.data, "float32", 1, TOKENS, self.channels).pointer()


class Scores(Problem):
    """query x key."""

    scale = HEAD_DIM ** -.5

    def __init__(self, *args):
        super().__init__(*args)
        self.output = np.full_like(self.square, 7)
        self.left = self.by_heads(self.query)
        self.right = np.ascontiguousarray(self.by_heads(self.key).transpose(0, 2, 1)) * np.float32(self.scale)

    def arguments(self):
        return {"input": self.tokens(self.query), "key": self.tokens(self.key), "output": self.all_scores(self.output)}

    def gather(self, take):
        return take(self.left, 1, self.active), take(self.right, 2, self.active)

    def scatter(self, output, result):
        output[self.grid] = result

    def error(self):
        expected = self.left[:, self.active].astype(np.float64) @ self.right[:, :, self.active]
        return float(np.abs(self.output[self.grid] - expected).max() / np.abs(expected).max())


class Values(Problem):
    """Probabilities x value."""

    def __init__(self, *args):
        super().__init__(*args)
        self.output = np.full_like(self.query, 7)
        self.left, self.right = self.square, self.by_heads(self.key)

    def arguments(self):
        return {"input": self.all_scores(self.square), "value": self.tokens(self.key),
                "output": self.tokens(self.output)}

    def gather(self, take):
        return take(take(self.left, 1, self.active), 2, self.columns), take(self.right, 1, self.active)

    def scatter(self, output, result):
        output[:, self.active] = result

    def error(self):
        expected = self.square[self.grid].astype(np.float64) @ self.right[:, self.active]
        output = self.by_heads(self.output)[:, self.active]
        return float(np.abs(output - expected).max() / np.abs(expected).max())


def masked_sides(distile, kernel, problem):
    mask = distile.mask()
    args = RunArgs(mask=mask, key_mask=mask, **problem.arguments())

    set_mask = distile.mask_setter(mask, problem.bytes.ctypes.data, 1, TOKENS)
    set_mask()
    return distile.sides(kernel, args, set_mask)


def torch_sides(problem):
    left, right = (torch.from_numpy(array) for array in (problem.left, problem.right))
    dense = torch.matmul(left, right)
    output = np.zeros_like(dense.numpy())

    def packed():
        parts = problem.gather(lambda array, axis, places: torch.as_tensor(array).index_select(
            axis, torch.from_numpy(places)))
        problem.scatter(output, torch.matmul(*parts).numpy())

    return {"dense PyTorch": lambda: torch.matmul(left, right, out=dense), "packed PyTorch": packed}


def onnxruntime_sides(problem, threads):
    import onnx
    tensor = onnx.helper.make_tensor_value_info
    infos = [tensor(name, onnx.TensorProto.FLOAT, [problem.heads, f"{name} rows", f"{name} columns"])
             for name in ("left", "right", "output")]
    node = onnx.helper.make_node("MatMul", ["left", "right"], ["output"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "product", infos[:2], infos[2:]), ir_version=9,
                                   opset_imports=[onnx.helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in (("left", problem.left), ("right", problem.right)):
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    output = np.zeros(problem.left.shape[:2] + problem.right.shape[2:], np.float32)
    binding.bind_ortvalue_output("output", onnxruntime.OrtValue.ortvalue_from_numpy(output))

    def packed():
        left, right = problem.gather(lambda array, axis, places: array.take(places, axis=axis))
        problem.scatter(output, session.run(None, {"left": left, "right": right})[0])

    return {"dense ONNX Runtime": lambda: session.run_with_iobinding(binding), "packed ONNX Runtime": packed}


def measure_row(distile, kernel, problem, options):
    sides = masked_sides(distile, kernel, problem)
    if onnxruntime:
        sides.update(onnxruntime_sides(problem, options.threads))
    if torch:
        sides.update(torch_sides(problem))
    times = measure(CpuClock(), sides, options.rounds)
    masked, kernels = times["masked"]["median"], times["kernels"]["median"]
    fraction = problem.density ** 2
    row = {"status": "measured", "kind": type(problem).__name__.lower(), "op": f"{problem.heads} heads of {HEAD_DIM}",
           "shape": f"{TOKENS} tokens, {problem.layout} columns", "keys": "active", "dtype": "float32", "batch": 1,
           "mask": "random", "mode": "keep", "density": problem.density, "work_fraction": fraction,
           "max_rel_err": problem.error(),
           "t_masked_us": masked, "t_kernels_us": kernels, "times_us": times}
    (dense, dense_us), (packed, packed_us) = fastest(times, "dense"), fastest(times, "packed")
    if dense:
        row.update(peer=dense, t_peer_us=dense_us, t_gather_us=packed_us, gathering_peer=packed,
                   eta=dense_us * fraction / masked, eta_kernel=dense_us * fraction / kernels)
    return row


def main():
    options = parse_options(__doc__, ["cpu"])
    results = Results(options)
    distile = Distile(options.library, options.threads)
    rows = [(kind, heads, packed, density) for kind in (Scores, Values) for heads in (3, 6) for packed in (False, True)
            for density in DENSITIES]
    for number, (kind, heads, packed, density) in enumerate(rows, 1):
        operator = f"{kind.__name__.lower()}_{heads}_{HEAD_DIM}{'_packed' if packed else ''}"
        name = f"{operator}/{density}"
        if not results.wants(name):
            continue
        path = find_object(options.objects, operator)
        if path is None:
            results.add(name, {"status": "skipped", "reason": f"'{options.objects}' has no PolyKernel for it"})
            print(f"[{number}/{len(rows)}] {name}: skipped, no PolyKernel", flush=True)
            continue
        problem = kind(heads, packed, density, number)
        row = measure_row(distile, distile.kernel(path, times_of(options, path)), problem, options)
        results.add(name, row)
        figures = ", ".join(f"{side} {time['median']:.1f}" for side, time in row["times_us"].items())
        print(f"[{number}/{len(rows)}] {name}: {figures} us, eta {row.get('eta', float('nan')):.2f}, by the kernel "
              f"{row.get('eta_kernel', float('nan')):.2f}, error {row['max_rel_err']:.0e}", flush=True)


main()
