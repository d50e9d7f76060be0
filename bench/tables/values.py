"""Figures in sentences of documents: each is computed from committed rows, and has a name."""
import collections
import statistics

import rows


def values():
    masks = {f"masks-{size}{part}": rows.span([row["t_us"] for row in rows.measured(f"h200{part}", kind="mask")
                                               if row["row"].startswith(f"mask/{size}x{size}/")], 1)
             for size in (40, 256) for part in ("", "-16sm")}
    zeros = {f"zeros-{batch}": rows.span(added_by_zeros(batch), 1) for batch in (1, 4, 32)}
    choices = {f"choice-{batch}": f"{lost_by_choices(batch):.1f}" for batch in (1, 4, 32)}
    return {**masks, **zeros, **choices, **planners(), **sige(),
            "own-eta": own_eta(),
            "dp4a-1": f"{by_dp4a(1):.1f}", "dp4a-32": f"{by_dp4a(32):.1f}",
            "linked": rows.span([row["t_linked_us"] / row["t_peer_us"] for row in rows.measured("h100-attention-linked")
                                 if row["density"] == 1], 2),
            "flex": rows.span([row["t_flex_us"] / row["t_masked_us"] for row in rows.measured("h100-attention")], 2),
            "layouts": rows.span([row["ratio"] for row in rows.measured("cpu-avx512", kind="layout")], 1),
            "opencl": rows.span([by_opencl(batch) for batch in (1, 4, 32)], 2),
            **overheads(), **compiled(), "types-cpu": missed_types("cpu-avx512"), "types-gpu": missed_types("h200-kinds")}


def added_by_zeros(batch):
    """Microseconds that mode zero adds to mode keep on an H200."""
    times = {row["row"]: row["t_masked_us"] for row in rows.measured("h200", kind="convolution", batch=batch)}
    return [us - times[name.replace("/zero/", "/keep/")] for name, us in times.items() if "/zero/" in name]


def lost_by_choices(batch):
    """Microseconds that the choice of the GPU takes more than the best variant named: the median."""
    chosen = rows.measured("h200-choice", chooser="device", batch=batch)
    return statistics.median(row["loss_us"] for row in chosen)


def planners():
    found = rows.measured("h200-masks", kind="planner")
    ways = ("t_written_us", "t_all_us", "t_background_us")
    cheapest = sum(row["t_zero_us"] <= min(row[way] for way in ways) for row in found)
    saved = [row["t_all_us"] - row["t_written_us"] for row in found]
    return {"zeros-cheapest": f"{cheapest} of {len(found)}", "written-loses": f"{-min(saved):.1f}",
            "written-wins": f"{max(saved):.1f}"}


def own_eta():
    """Means over the operators that do not ship, by plans of the bound, for densities from a tenth on."""
    found = collections.defaultdict(list)
    for row in rows.measured("own-cpu", mask="blob", in_means=True):
        density = row["row"].split("/")[3]
        found[density] += [way["eta"] for way in row["ways"] if way["way"] == "bound"]
    return rows.span([rows.geometric_mean(etas) for density, etas in found.items() if float(density) >= 0.1], 2)


def by_dp4a(batch):
    """A masked convolution at .3 by dp4a, over cuDNN's dense one in float16."""
    row, = (row for row in rows.measured("h100-dp4a", batch=batch) if row["row"].startswith("op3/0.3/"))
    return row["t_masked_us"] / row["t_peer_us"]


def by_opencl(batch):
    found = rows.measured("h200-opencl", batch=batch)
    return rows.geometric_mean([row["ratio"] for row in found if abs(row["density"] - 0.3) < 0.01])


def missed_types(name):
    """How many rows of 16-bit types miss their goal against float32, and the most of them."""
    found = rows.measured(name, kind="type")
    missed = [row["ratio"] for row in found if not row["met"]]
    return f"{len(missed)} of {len(found)} rows miss it, by up to {max(missed):.2f}"


def overheads():
    """Microseconds that a call from Python takes longer than that of the C library, in the median of the networks."""
    found = collections.defaultdict(list)
    for network in ("avit-s", "avit-t", "dynconv-pose", "dynconv-resnet", "dynconv-resnet-224", "video"):
        for name, us in rows.read(f"networks/{network}-cpu")["overhead, us"].items():
            found[name].append(us)
    medians = {name: statistics.median(each) for name, each in found.items()}
    modules = [medians["module MaskedLinear"], medians["module MaskedConv2d"]]
    return {"overhead-linear": f"{medians['operator linear']:.0f}", "overhead-conv2d": f"{medians['operator conv2d']:.0f}",
            "overhead-modules": rows.span(modules, 0)}


def compiled():
    """By how many percent torch.compile shortens the steps of masked networks that gain by their masks."""
    saved = collections.defaultdict(list)
    for name, network in (("resnet", "dynconv-resnet-224"), ("pose", "dynconv-pose"), ("avit-t", "avit-t")):
        for row in rows.read(f"networks/{network}-cpu")["rows"]:
            density = statistics.mean(row["densities"])
            if "milliseconds" in row and (name != "resnet" or density < 0.4):
                times = row["milliseconds"]
                saved[name].append(100 * (1 - times["distile-compile"] / times["distile"]))
    return {f"compiled-{name}": rows.span(each, 0) for name, each in saved.items()}


def sige():
    """How many times as long as ours SIGE's own code takes."""
    found = {}
    for network in ("sige-ddpm", "sige-gaugan", "sige-stable-diffusion"):
        row, = rows.read(f"networks/{network}-cpu")["rows"]
        ours = min(time for side, time in row["milliseconds"].items() if side.startswith("distile"))
        found[network] = f"{row['milliseconds']['sige'] / ours:.1f}"
    return found
