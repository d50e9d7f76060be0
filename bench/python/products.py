#!/usr/bin/env python3
"""Measures the two products of attention on a CPU, masked scores and masked values, with full and with packed columns,
beside the dense matrix products of ONNX Runtime, PyTorch, and oneDNN of version 3 and of version 2, whichever there
are, and beside theirs over packed rows and columns.

All sides take turns in one process. The libraries get what suits them: heads as the outer dimension, contiguous.
Packing gathers the active rows and columns, multiplies, and scatters the result; it is given the lists of both. NumPy
gathers and scatters, faster than PyTorch at most densities. Each product is checked before it is timed.

Example:
  products.py --library build/release/runtime/libdistile.so --objects folder --threads 2 --out cpu-products.json

The folder has scores_<heads>_<head_dim>[_packed][_<plan>].so and values_..., as `distile plan` and `distile compile`
make them of the operators in data/operators and bench/python/operators. Each row is in the file as soon as it is
measured; --resume keeps those that the file has.
"""
import ctypes
import functools

import numpy as np

import onednn
from c_api import Distile, RunArgs, Tensor, Tokens
from measuring import CpuClock, Results, fastest, find_object, measure, onnxruntime, parse_options, times_of, torch

TOKENS, HEAD_DIM = 197, 64
DENSITIES = [.3, .5, .1, .05, .7, 1.0]
TOLERANCE = 1e-4  # of the largest value


def aligned(values):
    """A copy that begins with a cache line."""
    memory = np.empty(values.size + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4
    copy = memory[first:first + values.size].reshape(values.shape)
    copy[...] = values
    return copy


class Problem:
    """Random tokens of an image, scores of them, and a mask for rows and columns. Packed columns are the first ones,
    else they are those of the active keys.

    Libraries compute left x right. Packing gathers `parts`, arrays [heads, rows, ...]: their active rows, or where
    `elements` is true the elements in active rows and columns."""

    def __init__(self, heads, packed, density, seed):
        self.heads, self.channels = heads, heads * HEAD_DIM
        random = np.random.default_rng(seed)
        self.count = max(1, round(density * TOKENS))
        self.active = np.sort(random.permutation(TOKENS)[:self.count])
        self.columns, self.layout = (np.arange(self.count), "packed") if packed else (self.active, "full")
        self.packed = packed
        self.bytes = np.zeros(TOKENS, np.uint8)
        self.bytes[self.active] = 1
        self.density = self.count / TOKENS
        self.query, self.key = (random.standard_normal((TOKENS, self.channels), np.float32) for _ in range(2))
        self.square = aligned(random.random((heads, TOKENS, TOKENS), np.float32))
        self.grid = np.ix_(range(heads), self.active, self.columns)
        # The elements of the grid in the flat square.
        self.places = np.ravel_multi_index(self.grid, self.square.shape).reshape(-1)

    def by_heads(self, tokens):
        return aligned(tokens.reshape(TOKENS, self.heads, HEAD_DIM).transpose(1, 0, 2))

    def all_scores(self, scores):
        """The square of all heads as a tensor of the C API."""
        return ctypes.pointer(Tensor(scores.ctypes.data, 1, 1, self.heads, TOKENS, TOKENS, self.heads * TOKENS * TOKENS,
                                 TOKENS * TOKENS, TOKENS))

    def tokens(self, array):
        return Tokens(array.ctypes.data, "float32", 1, TOKENS, self.channels).pointer()

    def buffers(self):
        """Arrays for what packing gathers."""
        return [aligned(np.zeros((self.heads, self.count, self.count if elements else part.shape[2]), np.float32))
                for part, elements in self.parts]

    def gather(self, buffers):
        for (part, elements), buffer in zip(self.parts, buffers):
            if elements:  # "clip" writes to the buffer without another one.
                np.take(part.reshape(-1), self.places, out=buffer.reshape(-1), mode="clip")
            elif part.flags.c_contiguous:
                np.take(part, self.active, axis=1, out=buffer, mode="clip")
            else:
                buffer[...] = part[:, self.active]


class Scores(Problem):
    """query x key."""

    scale = HEAD_DIM ** -.5

    def __init__(self, *args):
        super().__init__(*args)
        self.output = np.full_like(self.square, 7)
        keys = self.by_heads(self.key * np.float32(self.scale))
        self.left, self.right = self.by_heads(self.query), aligned(keys.swapaxes(1, 2))
        # Rows of keys are faster to gather than columns of keys that are transposed.
        self.parts = (self.left, False), (keys, False)

    def arguments(self):
        return {"input": self.tokens(self.query), "key": self.tokens(self.key), "output": self.all_scores(self.output)}

    def factors(self, buffers):
        return buffers[0], buffers[1].swapaxes(1, 2)

    def scatter(self, output, result):
        if self.packed:
            output[:, self.active, :self.count] = result
        else:
            output.reshape(-1)[self.places] = result.reshape(-1)

    def active_part(self, product):
        return product[self.grid]

    def expected(self):
        return self.left[:, self.active].astype(np.float64) @ self.right[:, :, self.active]


class Values(Problem):
    """Probabilities x value."""

    def __init__(self, *args):
        super().__init__(*args)
        self.output = np.full_like(self.query, 7)
        self.left, self.right = self.square, self.by_heads(self.key)
        left = (self.left[:, :, :self.count], False) if self.packed else (self.left, True)
        self.parts = left, (self.right, False)

    def arguments(self):
        return {"input": self.all_scores(self.square), "value": self.tokens(self.key),
                "output": self.tokens(self.output)}

    def factors(self, buffers):
        return buffers

    def scatter(self, output, result):
        output[:, self.active] = result

    def active_part(self, product):
        return product[:, self.active]

    def expected(self):
        return self.square[self.grid].astype(np.float64) @ self.right[:, self.active]


def error(values, expected):
    """The largest error by the largest value."""
    return float(np.abs(values - expected).max() / np.abs(expected).max())


def our_error(problem):
    output = problem.output if isinstance(problem, Scores) else problem.by_heads(problem.output)
    return error(problem.active_part(output), problem.expected())


def masked_sides(distile, kernel, problem):
    mask = distile.mask()
    args = RunArgs(mask=mask, key_mask=mask, **problem.arguments())

    set_mask = distile.mask_setter(mask, problem.bytes.ctypes.data, 1, TOKENS)
    set_mask()
    return distile.sides(kernel, args, set_mask)


def torch_product(left, right, output):
    left, right, output = (torch.from_numpy(array) for array in (left, right, output))
    return lambda: torch.matmul(left, right, out=output)


def onnxruntime_product(threads, left, right, output):
    """The right factor may be of keys [heads, columns, rows], in a view that transposes them."""
    import onnx
    transposed = not right.flags.c_contiguous
    arrays = {"left": left, "right": right.swapaxes(1, 2) if transposed else right, "output": output}
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
             for name, array in arrays.items()]
    node = onnx.helper.make_node("FusedMatMul", ["left", "right"], ["output"], domain="com.microsoft",
                                 transB=int(transposed))
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "product", infos[:2], infos[2:]), ir_version=9,
                                   opset_imports=opsets)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    # On a CPU, these values are the arrays.
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name in ("left", "right"):
        binding.bind_ortvalue_input(name, values[name])
    binding.bind_ortvalue_output("output", values["output"])
    return lambda: session.run_with_iobinding(binding)


def library_sides(name, product, problem):
    """The dense product of a library, and that over what packing gathers. Both are checked here."""
    left, right = problem.left, problem.right
    dense_output = aligned(np.zeros((problem.heads, TOKENS, right.shape[2]), np.float32))
    packed_output = np.zeros_like(dense_output)
    buffers = problem.buffers()
    factors = problem.factors(buffers)
    result = aligned(np.zeros((problem.heads, problem.count, factors[1].shape[2]), np.float32))
    dense, multiply = product(left, right, dense_output), product(*factors, result)

    def packed():
        problem.gather(buffers)
        multiply()
        problem.scatter(packed_output, result)

    dense()
    packed()
    errors = {"dense": error(dense_output, left.astype(np.float64) @ right),
              "packed": error(problem.active_part(packed_output), problem.expected())}
    for kind, largest in errors.items():
        if not largest <= TOLERANCE:
            raise RuntimeError(f"{name}'s {kind} product differs from NumPy's by {largest:.0e} of the largest value")
    return {f"dense {name}": dense, f"packed {name}": packed}


def measure_row(distile, kernel, problem, products, options):
    sides = masked_sides(distile, kernel, problem)
    for name, product in products.items():
        sides.update(library_sides(name, product, problem))
    times = measure(CpuClock(), sides, options.rounds)
    masked, kernels = times["masked"]["median"], times["kernels"]["median"]
    fraction = problem.density ** 2
    row = {"status": "measured", "kind": type(problem).__name__.lower(), "op": f"{problem.heads} heads of {HEAD_DIM}",
           "shape": f"{TOKENS} tokens, {problem.layout} columns", "keys": "active", "dtype": "float32", "batch": 1,
           "mask": "random", "mode": "keep", "density": problem.density, "work_fraction": fraction,
           "max_rel_err": our_error(problem),
           "t_masked_us": masked, "t_kernels_us": kernels, "times_us": times}
    (dense, dense_us), (packed, packed_us) = fastest(times, "dense"), fastest(times, "packed")
    if dense:
        row.update(peer=dense, t_peer_us=dense_us, t_gather_us=packed_us, gathering_peer=packed,
                   eta=dense_us * fraction / masked, eta_kernel=dense_us * fraction / kernels)
    return row


def main():
    options = parse_options(__doc__, ["cpu"])
    libraries, missing = onednn.find(options.threads)
    print(*missing, sep="\n", end="\n" if missing else "")
    products = {f"oneDNN {library.version}": library.matmul for library in libraries}
    if onnxruntime:
        products["ONNX Runtime"] = functools.partial(onnxruntime_product, options.threads)
    if torch:
        products["PyTorch"] = torch_product
    results = Results(options, {"oneDNN": " and ".join(library.description for library in libraries) or None})
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
            results.add(name, {"status": "skipped", "reason": "no PolyKernel for it was given"})
            print(f"[{number}/{len(rows)}] {name}: skipped, no PolyKernel", flush=True)
            continue
        problem = kind(heads, packed, density, number)
        row = measure_row(distile, distile.kernel(path, times_of(options, path)), problem, products, options)
        results.add(name, row)
        figures = ", ".join(f"{side} {time['median']:.1f}" for side, time in row["times_us"].items())
        print(f"[{number}/{len(rows)}] {name}: {figures} us, eta {row.get('eta', float('nan')):.2f}, by the kernel "
              f"{row.get('eta_kernel', float('nan')):.2f}, error {row['max_rel_err']:.0e}", flush=True)


main()
