"""Chains on several GPUs against one."""
import statistics

import rows

RESULTS, RANKS = "groups/h200", "groups/h200-ranks"


def parts():
    of_run, of_layer = overheads()
    alone = rows.measured(RESULTS, devices=1)[0]
    meeting, message = (float(f"{us:.2g}") for us in of_ranks())
    return {"ranks": ranks(), "groups": table(), "groups device": f"{rows.read(RESULTS)['header']['device']}s of one host",
            "groups run": f"{of_run / 1000:.1f}", "groups layer": f"{of_layer:.0f}",
            "groups run mb": f"{of_run / _mb(alone):.1f}", "groups layer mb": f"{of_layer / _mb(alone):.2f}",
            "ranks meeting": f"{meeting:.0f}", "ranks message": f"{message:.0f}"}


def overheads():
    """Microseconds that a group of one GPU takes beyond the layers: in a run, and in each layer."""
    alone = {row["layers"]: row["t_kept_us"] - row["t_one_us"] for row in rows.measured(RESULTS, devices=1)}
    most = max(alone)
    of_layer = (alone[most] - alone[1]) / (most - 1)
    return alone[1] - of_layer, of_layer


def _mb(row):
    """The active pixels of a layer's output in 256 channels."""
    return row["density"] * row["size"] ** 2 * 256 * (4 if row["type"] == "tf32" else 2) / 1e6


def of_ranks():
    """Microseconds of a meeting of two ranks and of their messages before a layer: large images take a run's two meetings
    longer than GPUs of one process, and small ones wait for messages."""
    group = {(row["type"], row["size"], round(row["density"], 2)): row
             for row in rows.measured(RESULTS, kind="group", devices=2) if row["batch"] == 1}
    ranks_of = {(row["type"], row["size"], round(row["density"], 2)): row["t_kept_us"] for row in rows.measured(RANKS)}
    most = max(size for _, size, _ in ranks_of)
    meetings = statistics.mean(us - group[key]["t_kept_us"] for key, us in ranks_of.items() if key[1] == most)
    messages = statistics.mean(us for key, us in ranks_of.items() if key[1] != most) - meetings
    return meetings / 2, messages / (next(iter(group.values()))["layers"] - 1)


def _images(row):
    images = f"{row['batch']} x " if row["batch"] > 1 else ""
    return f"{images}{row['size']} x {row['size']}"


def ranks():
    lines = ["| Images | Type | Density | Ranks | One, ms | Ranks, ms | Times faster |", "|" + "---|" * 7]
    for row in rows.measured(RANKS):
        lines.append(
            f"| {row['size']} x {row['size']} | {'TF32' if row['type'] == 'tf32' else row['type']} | {row['density']:.1f} "
            f"| {row['ranks']} | {row['t_one_us'] / 1000:.3g} | {row['t_kept_us'] / 1000:.3g} "
            f"| {rows.number(row['t_one_us'] / row['t_kept_us'])} |")
    return "\n".join(lines) + "\n"


def table():
    lines = [
        "| Images | Type | Density | GPUs | One, ms | Several, ms | Times faster | In any order | From an input | Model | Imbalance "
        "| Halos, MB | Rows, MB |",
        "|" + "---|" * 13,
    ]
    for row in rows.measured(RESULTS, kind="group"):
        if row["devices"] == 1:
            continue
        given, free = ("-" if row.get(name) is None else rows.number(row[name])
                       for name in ("speed_up_group", "speed_up_any_order"))
        lines.append(
            f"| {_images(row)} | {'TF32' if row['type'] == 'tf32' else row['type']} | {row['density']:.2f} "
            f"| {row['devices']} | {row['t_one_us'] / 1000:.3g} | {row['t_kept_us'] / 1000:.3g} "
            f"| {rows.number(row['speed_up_kept'])} | {free} | {given} "
            f"| {rows.number(row['predicted_speed_up'])} | {100 * row['imbalance']:.1f} % "
            f"| {row['halo_bytes'] / 1e6:.3g} | {row['row_bytes'] / 1e6:.3g} |")
    return "\n".join(lines) + "\n"
