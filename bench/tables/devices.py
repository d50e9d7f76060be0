"""A table for each device of docs/benchmarks.md: speed-ups over the fastest dense library, by operators and density."""
import collections
import re

import rows

DENSITIES = (0.05, 0.1, 0.3, 0.5, 1.0)
TYPES = ("float32", "tf32", "float16", "bfloat16", "uint8")
# Devices with their files. A pair is a file and the number of threads of the rows that count.
DEVICES = {
    "xeon": ("An Intel Xeon with AVX-512, 2 threads", ["cpu-avx512", "own-cpu"]),
    "xeon-amx": ("An Intel Xeon with AMX, 2 and 16 threads", [("xeon-16", 2), ("xeon-16-uint8", 2), ("xeon-16", 16),
                                                              ("xeon-16-uint8", 16)]),
    "cascade-lake": ("An Intel Xeon (Cascade Lake) with AVX512-VNNI, 2 threads", ["cascade-lake-2"]),
    "epyc-avx2": ("An AMD EPYC with AVX2, 2 threads", ["cpu-tokens-avx2"]),
    "epyc": ("An AMD EPYC with AVX-512, of a generation that was not recorded, 2 threads", ["cpu-tokens"]),
    "zen4": ("An AMD EPYC (Zen 4) with AVX-512, 2 threads", ["cpu-zen4", "epyc-2", "cpu-products"]),
    "zen5": ("An AMD EPYC (Zen 5) with AVX-512, 2 threads", ["zen5-2", "cpu-tokens-zen5"]),
    "h100": ("An NVIDIA H100", ["h100-quantized", "h100-dp4a", "h100-attention", "h100-blocks"]),
    "h200": ("An NVIDIA H200", ["h200", "h200-tensor", "h200-convolutions", "h200-kinds", "h200-tokens",
                                "h200-attention", "h200-blocks"]),
    "h200-16sm": ("16 of the H200's 132 multiprocessors", ["h200-16sm", "h200-tensor-16sm"]),
}
CATEGORIES = {"conv3k": "3x3 convolutions", "conv2s": "3x3 convolutions, stride 2", "conv1k": "1x1 convolutions",
              "depthwise": "depthwise convolutions",
              "transposed": "transposed convolutions", "upsampled": "3x3 after upsampling", "linear": "linear layers"}
# The benchmark of GPUs has means over four convolutions, and no peer after upsampling.
GPU_CATEGORIES = {**dict.fromkeys(("conv3k", "conv2s", "conv1k"), "convolutions"),
                  **{name: CATEGORIES[name] for name in ("depthwise", "transposed", "linear")}}
SHAPES = {"conv3x3": "3x3 convolutions", "conv1x1": "1x1 convolutions", "depthwise": "depthwise convolutions"}


def table(device):
    title, files = DEVICES[device]
    found = collections.defaultdict(list)
    for file in files:
        name, *threads = file if isinstance(file, tuple) else (file,)
        for row in rows.measured(name):
            if not threads or row["threads"] == threads[0]:
                for key, density, speedup in points(name, row):
                    found[(*key, *threads)].append((row["batch"], density, row["op"], speedup))
    used = [density for density in DENSITIES if any(density in (point[1] for point in each) for each in found.values())]
    head = ["Operators", "Type", "Against", *(["Threads"] if isinstance(files[0], tuple) else []), "Batch"]
    lines = [f"{title}, {dates(files)}.", "", f"| {' | '.join([*head, *map('{:g}'.format, used)])} |",
             "|---" * (len(head) + len(used)) + "|"]
    for (group, *key), each in sorted(found.items(), key=order):
        batches, operators = (sorted({point[at] for point in each}) for at in (0, 2))
        texts = [f"{group} ({len(operators)})" if len(operators) > 1 else group, *key, ", ".join(map(str, batches))]
        texts += [cell([point for point in each if point[1] == density], batches) for density in used]
        lines.append(f"| {' | '.join(map(str, texts))} |")
    return "\n".join(lines) + "\n"


def order(item):
    (group, dtype, peer, *threads), _ = item
    return threads, TYPES.index(dtype), group, peer


def dates(files):
    found = {rows.read(file[0] if isinstance(file, tuple) else file)["header"]["date"][:10] for file in files}
    return " to ".join(sorted({min(found), max(found)}))


def cell(each, batches):
    """The mean speed-up of each batch, and in brackets the least of an operator."""
    of_batch = [[speedup for batch, _, _, speedup in each if batch == wanted] for wanted in batches]
    if not each:
        return "-"
    text = ", ".join(rows.number(rows.geometric_mean(one)) if one else "-" for one in of_batch)
    return text if len(each) == 1 else f"{text} ({rows.number(min(point[3] for point in each))})"


def points(file, row):
    """What a row adds to a table: (group, type, peer), density, speed-up. Rows of other masks, modes, layouts, states
    and peers add nothing: build/pages has them."""
    asked = re.search(r"/(?:rows)?(\d\.\d+|1)(?=/|$)", row["row"])  # What a mask of few tokens has may differ.
    group = group_of(file, row)
    if asked is None or float(asked[1]) not in DENSITIES or group is None:
        return
    density = float(asked[1])
    key = group, row.get("dtype", "float32")
    ours = bound_us(row) if row["kind"] == "own" else row["t_masked_us"]
    yield (*key, peer_of(row)), density, row["t_peer_us"] / ours
    if group == "convolutions" and "t_peer_tf32_us" in row:
        yield (*key, "cuDNN in TF32"), density, row["t_peer_tf32_us"] / ours


def bound_us(row):
    return next(way["t_masked_us"] for way in row["ways"] if way["way"] == "bound")


def group_of(file, row):
    """The name of a row's operators; None if no table has them."""
    kind = row["kind"]
    if kind in ("convolution", "linear"):
        return group_of_convolution(file, row)
    if kind in ("scaling", "quantized"):
        group = next(group for shape, group in SHAPES.items() if row["shape"].startswith(shape))
        return f"{group}, by dp4a" if file == "h100-dp4a" else group
    if kind == "own":
        return group_of_own(row)
    if kind == "attention":
        return f"attention, {row['shape']}"
    if kind in ("scores", "values"):
        return f"{kind} of attention"
    if kind == "block":
        return {"vit": "blocks of a ViT", "diffusion": "block of a diffusion transformer"}[row["op"]]
    return None


def group_of_own(row):
    if row["mask"] != "blob":
        return None
    if row["in_means"]:
        return "operators without a plan"
    return f"{row['op']} without a plan" if row["layout"] == "bordered" else None


def group_of_convolution(file, row):
    on_gpu, category = row["backend"] == "cuda", row["category"]
    if (row["mode"], row["state"], row["linked"]) != ("keep", "hot", False) or row["peer_name"] == "dense":
        return None
    if row["mask"] != ("random" if row["peer_name"] == "cublas" else "blob"):
        return None
    if row["layout"] != ("plain" if on_gpu or category in ("conv1k", "linear") else "bordered"):
        return None
    group = (GPU_CATEGORIES if on_gpu else CATEGORIES)[category]
    return f"other {group}, plans of the bound" if file == "h200-convolutions" else group


def peer_of(row):
    if row["kind"] in ("convolution", "linear", "own"):
        return {"onednn3": "oneDNN", "cudnn": "cuDNN", "cublas": "cuBLAS"}[row["peer_name"]]
    peer = row.get("peer", "").removeprefix("dense ")
    if peer.startswith("cu"):
        return peer
    if row["kind"] in ("scores", "values"):
        return "oneDNN"
    if row.get("backend") == "cuda" or row["kind"] == "block":
        return "PyTorch"
    others = [name for name in ("oneDNN", "OpenVINO", "Halide") if any(
        side.startswith(f"dense {name}") for side in row.get("times_us", ()))]
    return ", ".join(["PyTorch", "ONNX Runtime", *others])
