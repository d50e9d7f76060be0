"""How much faster pruned layers are than a dense library."""
import collections

import rows

RESULTS = "pruned-epyc-2"
GPU_RESULTS = "pruned/h200"
BITMAP_RESULTS = "pruned/h200-bitmap"
TWO_FOUR_RESULTS = "pruned/h200-two-four"


def parts():
    return {"pruned": table(), "pruned mean": means(), "pruned gpu": gpu_table(), "bitmap": bitmap_table(),
            "bitmap device": rows.read(BITMAP_RESULTS)["header"]["device"],
            "two four": two_four_table(), "two four device": rows.read(TWO_FOUR_RESULTS)["header"]["device"]}


def bitmap_table():
    """Speed-ups over cuBLAS by tokens and zeros, over all sizes."""
    found = collections.defaultdict(list)
    for row in rows.measured(BITMAP_RESULTS, kind="bitmap"):
        found[row["tokens"], row["zeros"]].append(row["t_peer_us"] / row["t_us"])
    shares = sorted({zeros for _, zeros in found})
    lines = [f"| Tokens | {' | '.join(f'{100 * share:.0f} % zeros' for share in shares)} |", "|---" * (len(shares) + 1) + "|"]
    for tokens in sorted({tokens for tokens, _ in found}):
        cells = [rows.number(rows.geometric_mean(found[tokens, share])) for share in shares]
        lines.append(f"| {tokens} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def two_four_table():
    """Speed-ups over cuBLAS and cuSPARSELt by size and tokens, in float16."""
    found = {(f"{row['columns']} -> {row['rows']}", row["tokens"]): row
             for row in rows.measured(TWO_FOUR_RESULTS, kind="two_four", type="float16")}
    tokens = sorted({count for _, count in found})
    lines = [f"| Layer | Over | {' | '.join(f'{count} tokens' for count in tokens)} |", "|---|---" + "|---" * len(tokens) + "|"]
    for layer in dict.fromkeys(layer for layer, _ in found):
        for name, peer in (("cuBLAS", "cublas"), ("cuSPARSELt", "cusparselt")):
            of_layer = [found.get((layer, count), {}) for count in tokens]
            cells = [rows.number(row[peer]["t_us"] / row["t_us"]) if peer in row else "-" for row in of_layer]
            lines.append(f"| {layer} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _found():
    """Speed-ups over the dense peer, by percent of zeros and operator: at each density."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for row in rows.measured(RESULTS, kind="own"):
        density = row["row"].split("/")[3]
        if (row["mask"], density) in (("blob", "0.3"), ("dense", "1.0")):
            way, = row["ways"]
            percent = round(100 * row["weight_zeros"])
            found[percent][_name(row["op"])][density] = row["t_peer_us"] / way["t_masked_us"]
    return found


def _name(operator):
    """ "pruned90_1x1_64_256_56" in words."""
    _, kind, *numbers = operator.split("_")
    size = f", {numbers[-1]} x {numbers[-1]}" if kind != "linear" else ", 256 tokens"
    outputs = numbers[0] if kind == "3x3" else numbers[1]
    return f"{kind} {numbers[0]} -> {outputs}{size}"


def table():
    found = _found()
    shares = sorted(found)
    head = "".join(f"| {share} %, all | {share} %, .3 " for share in shares)
    lines = [f"| Layer {head}|", "|---" + "|---|---" * len(shares) + "|"]
    for operator in sorted({operator for share in shares for operator in found[share]}):
        cells = ""
        for share in shares:
            speedups = found[share].get(operator, {})
            for density in ("1.0", "0.3"):
                cells += f" {rows.number(speedups[density])} |" if density in speedups else " - |"
        lines.append(f"| {operator} |{cells}")
    return "\n".join(lines) + "\n"


def means():
    """The geometric means over the layers, with every pixel active."""
    found = _found()
    texts = []
    for share in sorted(found):
        speedups = [of_operator["1.0"] for of_operator in found[share].values() if "1.0" in of_operator]
        texts.append(f"{rows.number(rows.geometric_mean(speedups))} at {share} % zeros")
    return " and ".join([", ".join(texts[:-1])] * bool(texts[:-1]) + texts[-1:])


def gpu_table():
    """Speed-ups on a GPU: over the fastest dense library in float32 and in TF32, and over the sparse one."""
    lines = ["| Layer | Zeros | Dense, all | Dense, .3 | Dense, from the byte mask | TF32, all | cuSPARSE, all |",
             "|---|---|---|---|---|---|---|"]
    for row in sorted(rows.measured(GPU_RESULTS, kind="pruned"), key=lambda row: (_name(row["op"]), row["weight_zeros"])):
        times = {name: time["median"] for name, time in row["times_us"].items()}
        ours, dense = times["kernels"], row["t_peer_us"]
        narrow = min(time for name, time in times.items() if name.startswith("TF32"))
        sparse = row["t_sparse_us"]
        speedups = [dense / ours, dense / times["kernels .3"], dense / row["t_all_us"], narrow / ours,
                    sparse / ours if sparse else None]
        cells = " | ".join(rows.number(speedup) if speedup else "-" for speedup in speedups)
        lines.append(f"| {_name(row['op'])} | {100 * row['weight_zeros']:.0f} % | {cells} |")
    return "\n".join(lines) + "\n"
