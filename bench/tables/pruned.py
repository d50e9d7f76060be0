"""How much faster pruned layers are than a dense library."""
import collections

import rows

RESULTS = "pruned/epyc-2"
AVX512_RESULTS = "pruned/zen5-2"
GPU_RESULTS = "pruned/h200"
BITMAP_RESULTS = "pruned/h200-bitmap"
TWO_FOUR_RESULTS = "pruned/h200-two-four"
UNROLLED_RESULTS = "pruned/h200-unrolled"


def parts():
    return {"pruned": table("random"), "pruned files": table("files"), "pruned mean": means("t_peer_us"),
            "pruned sparse mean": means("t_sparse_us"), "pruned least": least(), "pruned break even": break_even(),
            "pruned avx512 device": rows.read(AVX512_RESULTS)["header"]["device"],
            "pruned avx512 mean": means("t_peer_us", AVX512_RESULTS),
            "pruned avx512 masked mean": means("t_peer_us", AVX512_RESULTS, "t_masked_us"),
            "pruned avx512 sparse mean": means("t_sparse_us", AVX512_RESULTS),
            "pruned avx512 least": least(AVX512_RESULTS),
            "pruned gpu": gpu_table(), "unrolled": unrolled_table(), "bitmap": bitmap_table(),
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


def _cpu_rows(places, results=RESULTS):
    """The rows of zeros at random places, or of weights from files."""
    found = [row for row in rows.measured(results, kind="pruned") if row["row"].startswith("random/") == (places == "random")]
    return sorted(found, key=lambda row: (_name(row["op"]), row["weight_zeros"], row["row"]))


def _percent(row):
    return round(100 * row["weight_zeros"])


def _name(operator):
    """ "pruned90_1x1_64_256_56" in words."""
    _, kind, *numbers = operator.split("_")
    size = f", {numbers[-1]} x {numbers[-1]}" if kind != "linear" else ", 256 tokens"
    outputs = numbers[0] if kind == "3x3" else numbers[1]
    return f"{kind} {numbers[0]} -> {outputs}{size}"


def table(places):
    """Speed-ups over the fastest dense library, at both densities, and over the fastest sparse one."""
    lines = ["| Layer | Zeros | Dense, all | Dense, .3 | Sparse, all | Fastest dense | Fastest sparse |",
             "|---|---|---|---|---|---|---|"]
    for row in _cpu_rows(places):
        speedups = row["t_peer_us"] / row["t_all_us"], row["t_peer_us"] / row["t_masked_us"], row["t_sparse_us"] / row["t_all_us"]
        peers = row["peer"].removeprefix("dense "), row["sparse_peer"].removeprefix("sparse ")
        cells = " | ".join([*map(rows.number, speedups), *peers])
        lines.append(f"| {_name(row['op'])} | {_percent(row)} % | {cells} |")
    return "\n".join(lines) + "\n"


def means(peer, results=RESULTS, ours="t_all_us"):
    """The geometric means over the layers, by default with every pixel active, of the shares that most of them have."""
    found = collections.defaultdict(list)
    for row in _cpu_rows("random", results):
        found[_percent(row)].append(row[peer] / row[ours])
    texts = [f"{rows.number(rows.geometric_mean(found[share]))} at {share} % zeros" for share in sorted(found)
             if share >= 70 and len(found[share]) > 1]
    return " and ".join([", ".join(texts[:-1])] * bool(texts[:-1]) + texts[-1:])


def least(results=RESULTS):
    """The least speed-up over the fastest sparse library."""
    return rows.number(min(row["t_sparse_us"] / row["t_all_us"] for row in _cpu_rows("random", results)))


def break_even():
    """At which shares of zeros layers that are measured with several take as long as the fastest dense library, by the
    lines between their times."""
    found = collections.defaultdict(list)
    for row in _cpu_rows("random"):
        found[_name(row["op"])].append((row["weight_zeros"], row["t_all_us"] / row["t_peer_us"]))
    shares = []
    for points in found.values():
        for (before, slower), (after, faster) in zip(points, points[1:]):
            if slower > 1 >= faster:
                shares.append(before + (after - before) * (slower - 1) / (slower - faster))
        if len(points) > 2 and points[0][1] <= 1:
            shares.append(points[0][0])
    return f"{rows.span([100 * share for share in shares], 0)} %" if shares else "-"


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


def unrolled_table():
    """Speed-ups of straight-line code, of the code that ships and of sparse libraries over the fastest dense library in
    float32."""
    shipped = {row["op"]: row["t_peer_us"] / row["times_us"]["kernels"]["median"]
               for row in rows.measured(GPU_RESULTS, kind="pruned")}
    sides = {"Immediates, all": "immediates", "Immediates, .3": "immediates .3", "Constants, all": "constants",
             "Loads, all": "loads", "Sputnik": "sparse Sputnik", "Blocked ELL, TF32": "blocks of 16, TF32 cuSPARSE"}
    lines = [f"| Layer | Zeros | {' | '.join(sides)} | The code above, all |", "|---" * (len(sides) + 3) + "|"]
    found = rows.measured(UNROLLED_RESULTS, kind="unrolled")
    for row in sorted(found, key=lambda row: (_name(row["op"]), row["row"])):
        medians = {name: time["median"] for name, time in row["times_us"].items()}
        speedups = [row["t_peer_us"] / medians[side] if side in medians else None for side in sides.values()]
        is_random = row["row"].startswith("random/")
        speedups.append(shipped.get(row["op"]) if is_random else None)
        cells = " | ".join(rows.number(speedup) if speedup else "-" for speedup in speedups)
        name = _name(row["op"]) + ("" if is_random else ", blocks of 16 x 16")
        lines.append(f"| {name} | {_percent(row)} % | {cells} |")
    return "\n".join(lines) + "\n"
