"""The tables of docs/networks.md: of times, for the devices cpu and cuda, one for each machine; of memory; and of the
densities up to which a network gains on a GPU."""
import rows

DENSE = {
    "eager": "PyTorch",
    "eager-graph": "PyTorch",
    "compile": "PyTorch, compiled",
    "compile-graph": "PyTorch, compiled",
    "max-autotune": "PyTorch, autotuned",
    "max-autotune-graph": "PyTorch, autotuned",
    "onnxruntime": "ONNX Runtime",
}
GATHERING = {"gather": "pixels", "tiles": "tiles", "sige": "SIGE"}
MASKED = {"distile": "", "distile-graph": "", "distile-compile": "compiled", "distile-stages": "stages"}
CHOSEN = "distile-capture"
TYPES = {"float32": 0, "float32, weights float16": 0.3, "float32, weights bfloat16": 0.5, "TF32": 1, "float16": 2, "bfloat16": 3}


def parts():
    results = [rows.read(f"networks/{path.stem}") for path in sorted((rows.RESULTS / "networks").glob("*.json"))]
    on_gpu, on_cpu = ([result for result in results if result["device"] == device] for device in ("cuda", "cpu"))
    return {"networks-cpu": tables(on_cpu), "networks-cuda": tables(on_gpu), "networks-memory": memory(results),
            "networks-break-even": break_even(on_gpu)}


def tables(results: list[dict]) -> str:
    machines: dict[str, list[dict]] = {}
    for result in results:
        machines.setdefault(f"{result['machine']['device']}, PyTorch {result['torch']}", []).append(result)
    return "\n".join(table(machine, machines[machine]) for machine in sorted(machines))


def table(machine: str, results: list[dict]) -> str:
    pairs = [(result, row) for result in results for row in result["rows"] if "milliseconds" in row]
    heads = ["Network", "Type", "Batch", "Density", "Dense", "", "distile", "Times faster"]
    if has_choice := any(CHOSEN in row["milliseconds"] for _, row in pairs):
        heads += ["Chosen", "Times faster"]
    heads += ["By gathering", "", "Times faster"]
    lines = [f"{machine}. Medians, in milliseconds.", "", f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    lines += [line(result, row, has_choice) for result, row in sorted(pairs, key=order)]
    return "\n".join(lines) + "\n"


def memory(results: list[dict]) -> str:
    """The memory of each network in float32 and the smallest batch; no machine changes it."""
    lines = ["| Network | Batch | Weights | Kept | Step | Step, dense |", "|---|---|---|---|---|---|"]
    known = set()
    for result in sorted(results, key=lambda result: (result["network"], result["batch"])):
        if result["network"] not in known and type_of(result) == "float32" and result["rows"]:
            known.add(result["network"])
            found = result["rows"][0]["bytes"]
            masked, dense = ([found[side][name] / 1e6 for name in ("weights", "kept", "step")]
                             for side in ("distile", "dense"))
            cells = [f"`{result['network']}`", str(result["batch"]), *map(figure, masked), figure(dense[2])]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def break_even(results: list[dict]) -> str:
    """The mean density up to which the masked network is at least as fast as the fastest dense one, between those
    measured: the ratio of their times is taken to be linear there."""
    lines = ["| Network | Type | Batch | Gains up to a density of | |", "|---|---|---|---|---|"]
    for result in sorted(results, key=lambda result: (result["network"], TYPES[type_of(result)], result["batch"])):
        points = sorted((density_of(row), ratio) for row in result["rows"] if (ratio := speed_up(row)) is not None)
        if points:
            cells = [f"`{result['network']}`", type_of(result), str(result["batch"]), *crossing(points)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def speed_up(row: dict) -> float | None:
    if "milliseconds" not in row:
        return None
    dense, (masked, _) = fastest(row, DENSE), fastest(row, MASKED)
    return None if dense is None else dense[0] / masked


def crossing(points: list[tuple[float, float]]) -> tuple[str, str]:
    """Where the speed-up falls to 1, and the densities between which it was measured."""
    densities = " to ".join(two_digits(density) for density in sorted({points[0][0], points[-1][0]}))
    if points[0][1] < 1:
        return f"below {two_digits(points[0][0])}", f"measured at {densities}"
    for (density, ratio), (next_density, next_ratio) in zip(points, points[1:]):
        if next_ratio < 1:
            found = density + (next_density - density) * (ratio - 1) / (ratio - next_ratio)
            return two_digits(found), f"measured at {densities}"
    return f"at least {two_digits(points[-1][0])}", f"measured at {densities}"


def order(item):
    result, row = item
    return result["network"], TYPES[type_of(result)], result["batch"], density_of(row)


def type_of(result: dict) -> str:
    weights = f", weights {result['weights_dtype']}" if "weights_dtype" in result else ""
    return "TF32" if result["tf32"] else result["dtype"] + weights


def density_of(row: dict) -> float:
    return sum(row["densities"]) / len(row["densities"])


def line(result: dict, row: dict, has_choice: bool) -> str:
    masked, how = fastest(row, MASKED)
    cells = [f"`{result['network']}`", type_of(result), str(result["batch"]), two_digits(density_of(row))]
    *dense, times_faster = figures(fastest(row, DENSE), masked)
    ours = f"{figure(masked)}, {how}" if how else figure(masked)
    cells += [*dense, ours, times_faster]
    if has_choice:
        chosen = row["milliseconds"].get(CHOSEN)
        cells += ["-", "-"] if chosen is None else [figure(chosen), figures(fastest(row, DENSE), chosen)[-1]]
    cells += [*figures(fastest(row, GATHERING), masked)]
    return "| " + " | ".join(cells) + " |"


def fastest(row: dict, names: dict[str, str]) -> tuple[float, str] | None:
    """Milliseconds and the name of the fastest of these sides."""
    return min(((row["milliseconds"][name], names[name]) for name in names if name in row["milliseconds"]), default=None)


def figures(peer: tuple[float, str] | None, masked: float) -> list[str]:
    return ["-", "", "-"] if peer is None else [figure(peer[0]), peer[1], two_digits(peer[0] / masked)]


def figure(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def two_digits(number: float) -> str:
    return f"{number:.2f}".removeprefix("0")
