"""Ways to make items from masks: what they save by the time tables of plans, and what making them takes."""
import collections
import json
import re

import rows

RESULTS, GPU_RESULTS, GPU_COVERS, GPU_RUNS = "items/epyc", "items/h200", "items/h200-cover", "items/h200-cover-run"


def parts():
    gain, plan = max(gains_of_placing())
    return {"placed": placed(), "placed-gain": f"{gain:.2f}", "placed-plan": f"`{plan}`", "covers": covers(),
            "gpu-covers": gpu_covers(), "gpu-cover-gains": gpu_cover_gains(), **gpu_thresholds(), "orders": orders(RESULTS), "gpu-orders": orders(GPU_RESULTS)}


def _us(value):
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def placed():
    names = {"blob": "blobs, {:.1f}", "squares": "squares of 8 x 8, {:.1f}", "random": "random, {:.1f}",
             "sige_church": "an edit, {:.2f}"}
    lines = ["| Mask, density | Tile | On a grid | By component | By row | Grid, us | Component, us | Row, us |",
             "|" + "---|" * 8]
    for row in rows.measured(RESULTS, kind="placed", size=256):
        shown = row["row"].split("/")[3] in ("0", "0.1", "0.3")
        if shown and (row["tile_h"], row["tile_w"]) in ((1, 4), (8, 8)):
            mask = names[row["mask"]].format(row["active"] / row["size"]**2)
            lines.append(f"| {mask} | {row['tile_h']} x {row['tile_w']} | {row['on_grid']} | {row['by_component']} "
                         f"| {row['by_row']} | {_us(row['t_grid_us'])} | {_us(row['t_component_us'])} "
                         f"| {_us(row['t_row_us'])} |")
    return "\n".join(lines) + "\n"


def covers():
    names = {"nothing": "nothing", "square": "a square of an eighth of the extent walks",
             "everything": "everything moves by a pixel", "other": "another mask"}
    lines = ["| What changes | Image | Nodes that change | A new planner, us | The old planner, us |", "|" + "---|" * 5]
    for row in rows.measured(RESULTS, kind="cover"):
        if row["row"].endswith("/rows"):
            lines.append(f"| {names[row['change']]} | {row['size']} x {row['size']} "
                         f"| {100 * row['changed_nodes'] / row['nodes']:.1f} % | {_us(row['t_new_us'])} "
                         f"| {_us(row['t_kept_us'])} |")
    return "\n".join(lines) + "\n"


def gpu_covers():
    found = [row["t_us"] for row in rows.measured(GPU_COVERS, kind="gpu_cover") if row["size"] == 1024]
    return f"{rows.span(found, 1)} us"


def gpu_cover_gains():
    """How many times as fast as the best single granularity a cover is, from a mask to the result."""
    masks = {"full": "Every pixel", "blob-0.3": "Blobs, 0.3", "blob-0.6": "0.6", "blob-0.9": "0.9",
             "mixed": "Blobs and speckle, 0.6", "edit": "An edit"}
    found = collections.defaultdict(dict)
    for row in rows.measured(GPU_RUNS):
        found[row["type"], row["channels"], row["size"], row["batch"]][row["row"].split("/")[-1]] = row["gain"]
    lines = [f"| Type | Convolution | Images | {' | '.join(masks.values())} |", "|" + "---|" * (3 + len(masks))]
    for (dtype, channels, size, batch), gains in found.items():
        lines.append(f"| {'TF32' if dtype == 'tf32' else dtype} | {channels} channels, {size} x {size} | {batch} | "
                     f"{' | '.join(rows.number(gains[mask]) for mask in masks)} |")
    return "\n".join(lines) + "\n"


def gpu_thresholds():
    """How much longer covers take than by the best of the measured thresholds: by the one that times of all pixels give, on
    average over what one of them at random gives, and by the best of the three that divide them evenly."""
    computed, random, grid = [], [], []
    full = {(row["type"], row["channels"], row["batch"]): row for row in rows.measured(GPU_RUNS)
            if row["row"].endswith("/full")}
    for row in rows.measured(GPU_RUNS):
        if row["row"].endswith("/full"):
            continue
        of_all = full[row["type"], row["channels"], row["batch"]]
        times = {int(threshold): us for threshold, us in row["thresholds_us"][row["cover_kernel"]].items()}
        best, wanted = min(times.values()), 64 * of_all["t_tiles_us"] / of_all["t_pixels_us"]
        near = min(times, key=lambda threshold: abs(threshold - wanted))
        ordered = sorted(times)
        computed.append(times[near] / best - 1)
        random.append(sum(times.values()) / len(times) / best - 1)
        grid.append(min(times[ordered[len(ordered) * part // 6]] for part in (1, 3, 5)) / best - 1)
    mean = {name: f"{100 * sum(losses) / len(losses):.1f} %"
            for name, losses in (("computed", computed), ("random", random), ("grid", grid))}
    return {f"gpu-threshold-{name}": text for name, text in mean.items()}


def orders(results):
    lines = ["| Operator | Image | Density | Rows, ms | Morton | Hilbert | Blocks along Hilbert |", "|" + "---|" * 7]
    for row in rows.measured(results, kind="order"):
        ratios = " | ".join(rows.number(row[f"t_{order}_us"] / row["t_rows_us"])
                            for order in ("morton", "hilbert", "blocks"))
        lines.append(f"| `{row['kernel']}` | {row['size']} x {row['size']} | {row['density']:.1f} "
                     f"| {row['t_rows_us'] / 1000:.3g} | {ratios} |")
    return "\n".join(lines) + "\n"


def _predict(points, tiles):
    """As predict_time() in runtime/choice/choose_variant.h."""
    above = next((i for i, point in enumerate(points) if point[0] >= tiles), len(points))
    if above == 0:
        return points[0][1]
    if above == len(points):
        return points[-1][1] * tiles / max(points[-1][0], 1)
    (low, low_us), (high, high_us) = points[above - 1:above + 1]
    return low_us + (high_us - low_us) * (tiles - low) / (high - low)


def _timed_plans():
    """The variants of each plan for CPUs and each number of threads: tiles, whether they are dense, and times."""
    for path in sorted((rows.REPOSITORY / "data/plans").glob("*.json")):
        plan = json.loads(re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
        if plan["backend"] != "cpu" or "profile" not in plan:
            continue
        points = collections.defaultdict(list)
        for time in plan["profile"]["times"]:
            points[time["threads"], time["variant"]].append((time["tiles"], time["us"]))
        for threads in {threads for threads, _ in points}:
            variants = []
            for variant in plan["variants"]:
                knobs, = variant["code"].values()
                times = sorted(points.get((threads, variant["name"]), []))
                tile = knobs.get("tile_h", 1), knobs.get("tile_w", 1)
                if times:
                    variants.append((tile, variant.get("dense", False), times))
            yield plan["name"], variants


def gains_of_placing():
    """How many times faster placed tiles of a masked variant are than what the dispatcher takes today, what placing
    takes included: for each plan that has larger tiles, the most over all masks."""
    by_mask = collections.defaultdict(dict)
    for row in rows.measured(RESULTS, kind="placed"):
        by_mask[row["row"].rsplit("/", 1)[0]][row["tile_h"], row["tile_w"]] = row
    for name, variants in _timed_plans():
        found = []
        for tiles in by_mask.values():
            some = next(iter(tiles.values()))

            def count(tile, dense):
                height, width = tile
                if dense:
                    return -(-some["size"] // height) * -(-some["size"] // width)
                return some["active"] if tile == (1, 1) else tiles[tile]["on_grid"]

            known = [each for each in variants if each[1] or each[0] == (1, 1) or each[0] in tiles]
            for tile, dense, times in known:
                if dense or tile == (1, 1):
                    continue
                today = min(_predict(other, count(at, whole)) for at, whole, other in known)
                row = tiles[tile]
                ours = min(_predict(times, row[f"by_{way}"]) + row[f"t_{way}_us"] for way in ("row", "component"))
                found.append(today / ours)
        if found:
            yield max(found), name
