"""Measures masked attention on a GPU against PyTorch's, all sides in captured graphs and in turns.

Usage: attention_rows.py [--side libdistile_attention_side.so --objects FOLDER [--times FOLDER] [--linked]]
                         [--filter REGEX] --out results.json

The other sides are dense scaled_dot_product_attention, the fastest of the backends that run; the same over the active
tokens, with gathering them before and scattering the results after it in the time (the lists are given); and, with
--flex, FlexAttention over gathered rows, with a block mask of keys that is made beforehand. Ours is `distile
compile`'s PLAN.so in the folder, for instance attention_24_64_bfloat16_sm90.so; rows without it are reported as
skipped. With --linked, ours is measured once more with PyTorch's fastest dense backend as a dense candidate, from which
the host chooses by measured times.
"""
import argparse
import ctypes
import datetime
import pathlib
import re
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# In a packed benchmark, these are beside this file.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import json_rows
from c_api import DTYPES

# Heads, channels of a head, images, tokens.
SHAPES = [(24, 64, 1, 4096), (24, 64, 4, 4096), (8, 40, 1, 4096), (12, 64, 1, 577), (6, 64, 16, 197)]
# Densities of rows and of keys; None: all keys, without a mask.
DENSITIES = [(.3, None), (.3, .3), (.1, None), (.1, .1), (.5, None), (.5, .5), (1.0, None)]
# The type of the tensors, and the capability of our code.
TYPES = {"bfloat16": ("bfloat16", "sm90"), "float16": ("float16", "sm90"), "tf32": ("float32", "sm80")}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
LINKED = b"pytorch"  # The dense candidate's name.
TOLERANCE = .02  # Relative to the largest value: the type rounds probabilities and results.
SEED = 9001
ABOUT = """times are medians in microseconds of replayed graphs, all sides in turns; t_peer_us: PyTorch's dense
attention by its fastest backend; t_gather_us: the same over the active tokens, gathered before and scattered after it
by lists that are given; t_flex_us: FlexAttention over gathered rows, with its block mask of keys given; t_kernels_us:
ours for known masks; t_masked_us: from the byte masks; t_linked_us: ours for known masks by linked_variant, which the
host chose from ours and PyTorch's dense attention with a copy of its result; work_fraction: the share of products of
rows and keys that the masks ask for""".replace("\n", " ")


class Ours:
    """An operator of ours on tensors of PyTorch's."""

    def __init__(self, library, path, stream, dtype, batch, tokens, query, key, value, output):
        self.functions = library
        self.failure = ""  # Why the dense candidate failed.
        self.side = library.attention_side_open(
            str(path).encode(), stream, dtype, batch, tokens, key.shape[1], query.shape[2],
            *(tensor.data_ptr() for tensor in (query, key, value, output)))
        self.require(self.side)

    def require(self, good):
        if not good:
            raise RuntimeError(self.functions.attention_side_message().decode() + self.failure)
        return good

    def load_times(self, path):
        self.require(self.functions.attention_side_load_times(self.side, str(path).encode()) == 0)

    def link(self, dense):
        """`dense(stream, output)`, given addresses, becomes a dense candidate."""
        def run(stream, output):
            try:
                dense(stream, output)
                return 0
            except Exception as error:  # No exception may pass through C.
                self.failure = ": " + str(error)
                return 1
        self.dense = DENSE(run)
        self.require(self.functions.attention_side_link(self.side, LINKED, self.dense) == 0)

    def add_time(self, variant, rows, microseconds):
        self.require(self.functions.attention_side_add_time(self.side, variant, rows, microseconds) == 0)

    def set(self, rows, keys):
        self.require(self.functions.attention_side_set(
            self.side, rows.data_ptr(), None if keys is None else keys.data_ptr()) == 0)

    def choose(self):
        """Makes the call with the variant that the host chooses, and returns its name."""
        return self.require(self.functions.attention_side_choose(self.side))

    def run(self, variant):
        self.require(self.functions.attention_side_run(self.side, variant) == 0)

    def close(self):
        self.functions.attention_side_close(self.side)


DENSE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Memory:
    """Elements of the GPU's memory, as PyTorch takes them: integers of the size of a type."""

    def __init__(self, address, elements, dtype):
        self.__cuda_array_interface__ = {
            "shape": (elements,), "typestr": f"<i{dtype.itemsize}", "data": (address, False), "version": 3}


def load(path):
    library = ctypes.CDLL(path)
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
    for name, result, arguments in (
            ("open", pointer, [text, pointer] + [integer] * 5 + [pointer] * 4), ("close", None, [pointer]),
            ("load_times", ctypes.c_int, [pointer, text]), ("link", ctypes.c_int, [pointer, text, DENSE]),
            ("add_time", ctypes.c_int, [pointer, text, ctypes.c_int64, ctypes.c_double]),
            ("set", ctypes.c_int, [pointer] * 3),
            ("choose", text, [pointer]), ("run", ctypes.c_int, [pointer, text]), ("message", text, [])):
        function = getattr(library, "attention_side_" + name)
        function.restype, function.argtypes = result, arguments
    return library


class Graph:
    """A call, captured as often as it takes for a clock to tell."""

    def __init__(self, stream, call):
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
            stream.synchronize()
            once = self.elapsed(stream, call)
            self.calls = max(1, min(50, int(1 / max(once, .01))))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                for _ in range(self.calls):
                    call()
        self.stream = stream

    @staticmethod
    def elapsed(stream, call):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        call()
        end.record(stream)
        end.synchronize()
        return begin.elapsed_time(end)

    def time(self):
        """Microseconds of one call."""
        with torch.cuda.stream(self.stream):
            return self.elapsed(self.stream, self.graph.replay) * 1e3 / self.calls


def in_turns(graphs, rounds):
    times = {name: [] for name in graphs}
    for turn in range(-1, rounds):
        for name, graph in graphs.items():
            time = graph.time()
            if turn >= 0:
                times[name].append(time)
    return {name: statistics.median(values) for name, values in times.items()}


def draw(batch, tokens, density, generator):
    """A mask of bytes, with the same number of active tokens in each image."""
    active = max(1, round(density * tokens))
    mask = torch.zeros(batch, tokens, dtype=torch.uint8)
    for image in range(batch):
        mask[image, torch.randperm(tokens, generator=generator)[:active]] = 1
    return mask.cuda()


class Problem:
    def __init__(self, shape, dtype, densities):
        self.heads, self.size, self.batch, self.tokens = shape
        generator = torch.Generator().manual_seed(SEED)
        channels = self.heads * self.size
        self.query, self.key, self.value = (
            torch.randn(self.batch, self.tokens, channels, generator=generator).to("cuda", dtype) for _ in range(3))
        self.output = torch.zeros_like(self.query)
        rows, keys = densities
        self.rows = draw(self.batch, self.tokens, rows, generator)
        self.keys = None if keys is None else draw(self.batch, self.tokens, keys, generator)
        self.row_list = self.list_of(self.rows)
        self.key_list = None if keys is None else self.list_of(self.keys)

    @staticmethod
    def list_of(mask):
        return mask.flatten().nonzero().flatten()

    def heads_of(self, tensor):
        """[batch, tokens, channels] as [batch, heads, tokens, size], without a copy."""
        return tensor.view(self.batch, -1, self.heads, self.size).transpose(1, 2)

    def attention(self, query, key, value, backend):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*map(self.heads_of, (query, key, value)))

    def take(self, tensor, indices):
        flat = tensor.view(self.batch * self.tokens, -1)
        return flat.index_select(0, indices).view(self.batch, -1, tensor.shape[2])

    def dense(self, backend):
        return self.attention(self.query, self.key, self.value, backend)

    def dense_into(self, backend, address):
        """Computes dense attention into memory like the output's."""
        memory = torch.as_tensor(Memory(address, self.output.numel(), self.output.dtype), device="cuda")
        result = self.dense(backend).transpose(1, 2)
        memory.view(self.output.dtype).view(result.shape).copy_(result)

    def packed(self, backend):
        query = self.take(self.query, self.row_list)
        key, value = self.key, self.value
        if self.key_list is not None:
            key, value = self.take(key, self.key_list), self.take(value, self.key_list)
        self.put(self.attention(query, key, value, backend))

    def put(self, result):
        """Scatters the active rows' results, [batch, heads, rows, size]."""
        rows = result.transpose(1, 2).reshape(-1, self.output.shape[2])
        self.output.view(-1, rows.shape[1]).index_copy_(0, self.row_list, rows)

    def flex(self):
        """A call of FlexAttention, compiled. Rows are gathered and scattered, because it computes all rows of a block;
        keys stay where they are."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        blocks = None
        if self.keys is not None:
            keys = self.keys.bool()
            blocks = create_block_mask(lambda b, h, q, k: keys[b, k], self.batch, None,
                                       len(self.row_list) // self.batch, self.tokens, device="cuda")
        compiled = torch.compile(flex_attention, dynamic=False)

        def call():
            query = self.take(self.query, self.row_list)
            self.put(compiled(*map(self.heads_of, (query, self.key, self.value)), block_mask=blocks))
        return call

    def error(self):
        """The largest difference of some active rows from float64, by the largest value. Throws where other rows were
        written."""
        indices = self.row_list
        sample = indices[torch.linspace(0, len(indices) - 1, min(64, len(indices))).long().cuda()]
        flat = self.output.view(-1, self.output.shape[2])
        inactive = torch.ones(len(flat), dtype=torch.bool, device="cuda")
        inactive[indices] = False
        if flat[inactive].any():
            raise RuntimeError("an inactive row was written")
        worst = largest = 0.
        for index in sample.tolist():
            image, token = divmod(index, self.tokens)
            query = self.query[image, token].view(self.heads, 1, self.size).double()
            key, value = (tensor[image].view(self.tokens, self.heads, self.size).transpose(0, 1).double()
                          for tensor in (self.key, self.value))
            if self.keys is not None:
                key, value = key[:, self.keys[image].bool()], value[:, self.keys[image].bool()]
            weights = torch.softmax(query @ key.transpose(1, 2) / self.size ** .5, dim=2)
            wanted = (weights @ value).flatten()
            worst = max(worst, (flat[index].double() - wanted).abs().max().item())
            largest = max(largest, wanted.abs().max().item())
        if not worst <= TOLERANCE * largest:
            raise RuntimeError(f"active rows differ from float64 by {worst / largest:.3g} of the largest value")
        return worst / largest


def fastest(stream, calls):
    """The graph of the fastest call that runs, and its name."""
    best = None
    reasons = []
    for name, call in calls.items():
        try:
            graph = Graph(stream, call)
            graph.time()
            time = min(graph.time() for _ in range(3))
        except RuntimeError as error:
            reasons.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        if best is None or time < best[0]:
            best = (time, graph, name)
    if best is None:
        raise RuntimeError("no backend of PyTorch's runs: " + "; ".join(reasons))
    return best[1:]


def measure(row, shape, densities, options, library):
    heads, size, batch, tokens = shape
    stored, capability = TYPES[row["dtype"]]
    dtype = getattr(torch, stored)
    problem = Problem(shape, dtype, densities)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    row["density"] = round(len(problem.row_list) / (batch * tokens), 4)
    row["key_density"] = 1 if problem.keys is None else round(len(problem.key_list) / (batch * tokens), 4)
    row["work_fraction"] = round(row["density"] * row["key_density"], 4)
    graphs = {}
    graphs["peer"], row["peer_implementation"] = fastest(
        stream, {name: lambda backend=backend: problem.dense(backend) for name, backend in BACKENDS.items()})
    graphs["gather"], row["gather_implementation"] = fastest(
        stream, {name: lambda backend=backend: problem.packed(backend) for name, backend in BACKENDS.items()})
    stream.synchronize()
    row["gather_max_rel_err"] = problem.error()
    if options.flex:
        try:
            problem.output.zero_()
            torch.cuda.synchronize()
            graph = Graph(stream, problem.flex())
            graph.time()
            row["flex_max_rel_err"] = problem.error()
            graphs["flex"] = graph
        except Exception as error:  # It may lack a compiler.
            row["flex"] = str(error).splitlines()[0]
    path = pathlib.Path(options.objects or "") / f"attention_{heads}_{size}_{row['dtype']}_{capability}.so"

    def open_ours():
        opened = Ours(library, path, stream.cuda_stream, DTYPES[stored], batch, tokens, problem.query, problem.key,
                      problem.value, problem.output)
        times = pathlib.Path(options.times or "") / f"{path.stem}.json"
        if options.times and times.exists():
            opened.load_times(times)
        return opened

    def choose(side):
        """The variant that the host chooses, and the error of its result."""
        side.set(problem.rows, problem.keys)
        problem.output.zero_()
        torch.cuda.synchronize()
        chosen = side.choose()
        stream.synchronize()
        return chosen, problem.error()
    ours = linked = None
    if library and path.exists():
        ours = open_ours()
        variant, row["max_rel_err"] = choose(ours)
        row["variant"] = variant.decode()
        graphs["kernels"] = Graph(stream, lambda: ours.run(variant))

        def from_bytes():
            ours.set(problem.rows, problem.keys)
            ours.run(variant)
        graphs["masked"] = Graph(stream, from_bytes)
    if ours and options.linked:
        linked = open_ours()
        backend = BACKENDS[row["peer_implementation"]]

        def dense(given, address):
            with torch.cuda.stream(torch.cuda.ExternalStream(given)):
                problem.dense_into(backend, address)
        linked.link(dense)
        # The candidate's time for these rows, with the copy of the active ones if there are others. Calls name no
        # variant: only the host's choice reads how many rows are active, and if all are, nothing is copied.
        linked.set(problem.rows, None)
        all_rows = problem.batch * problem.tokens
        linked.add_time(LINKED, all_rows, 1e-3)
        times = in_turns({"dense": Graph(stream, lambda: linked.run(None)), "kernels": graphs["kernels"]},
                         options.rounds)
        linked.add_time(LINKED, all_rows, times["dense"])
        # Without times ours would take no part.
        linked.add_time(variant, int(problem.rows.sum()), times["kernels"])
        linked_variant, row["linked_max_rel_err"] = choose(linked)
        row["linked_variant"] = linked_variant.decode()
        graphs["linked"] = Graph(stream, lambda: linked.run(None))
    for name, time in in_turns(graphs, options.rounds).items():
        row[f"t_{name}_us"] = round(time, 3)
    row["status"] = "measured" if ours else "skipped"
    if not ours:
        row["reason"] = f"there is no {path}, or no --side"
    else:
        row["speedup"] = round(row["t_peer_us"] / row["t_masked_us"], 4)
        row["speedup_over_gather"] = round(row["t_gather_us"] / row["t_masked_us"], 4)
    graphs.clear()
    stream.synchronize()
    for side in filter(None, (ours, linked)):
        side.close()


def rows_of(filter_text):
    wanted = re.compile(filter_text)
    for dtype in TYPES:
        for shape in SHAPES:
            heads, size, batch, tokens = shape
            for rows, keys in DENSITIES:
                name = f"attention/{heads}x{size}/{tokens}/rows{rows}/keys{keys or 'all'}/n{batch}/{dtype}"
                if wanted.search(name):
                    yield shape, (rows, keys), {
                        "row": name, "kind": "attention", "op": f"{heads} heads of {size}",
                        "shape": f"{tokens} tokens, {'active' if keys else 'all'} keys",
                        "keys": "active" if keys else "all", "batch": batch, "dtype": dtype, "mask": "random",
                        "mode": "keep", "backend": "cuda"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", help="libdistile_attention_side.so; without it, only PyTorch is measured")
    parser.add_argument("--objects", help="folder of PolyKernels, PLAN.so")
    parser.add_argument("--times", help="folder of time tables, PLAN.json")
    parser.add_argument("--filter", default="", help="measure rows whose names match this regular expression")
    parser.add_argument("--rounds", type=int, default=7, help="replays of each side")
    parser.add_argument("--flex", action="store_true", help="measure FlexAttention too; it compiles for each shape")
    parser.add_argument("--linked", action="store_true",
                        help="measure ours with PyTorch's dense attention as a dense candidate too")
    parser.add_argument("--version", default="unknown", help="the commit of ours")
    parser.add_argument("--out", required=True, help="the results, written after each row")
    options = parser.parse_args()
    library = load(options.side) if options.side else None
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.cuda.get_device_properties(0)
    results = {
        "distile_bench": 1,
        "header": {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "backend": "cuda",
            "device": device.name, "multiprocessors": device.multi_processor_count,
            "threads": device.multi_processor_count,
            "versions": {"source": options.version, "PyTorch": torch.__version__},
            "rounds": options.rounds,
            "about": ABOUT},
        "rows": []}
    failed = 0
    for shape, densities, row in rows_of(options.filter):
        try:
            measure(row, shape, densities, options, library)
        except RuntimeError as error:
            row["status"], row["reason"], failed = "failed", str(error).splitlines()[0], 1
        results["rows"].append(row)
        json_rows.write(options.out, results)
        sides = [name for name in ("masked", "kernels", "linked", "peer", "gather", "flex") if f"t_{name}_us" in row]
        times = "  ".join(f"{name} {row[f't_{name}_us']:.1f}" for name in sides)
        print(row["row"], times, row.get("reason", ""), flush=True)
        torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main())
