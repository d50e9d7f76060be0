"""How much faster than a dense library code for any shape is, and convolutions with groups."""
import collections
import re

import rows

TWO_THREADS, ONE_THREAD = "own-epyc", "own-epyc-1"


def parts():
    return {"general": general(), "grouped": grouped()}


def _speedups(results, way):
    """By operator and density asked for: the speed-up over the dense peer on blobs with a border."""
    found = collections.defaultdict(dict)
    for row in rows.measured(results, kind="own", mask="blob"):
        for each in row["ways"]:
            if each["way"] == way and row["layout"] == "bordered":
                found[row["op"]][row["row"].split("/")[3]] = row["t_peer_us"] / each["t_masked_us"]
            elif each["way"] == way and "conv1x1" in row["op"]:  # They read no border.
                found[row["op"]][row["row"].split("/")[3]] = row["t_peer_us"] / each["t_masked_us"]
    return found


def _group(operator):
    kind, kernel, stride = re.match(r"(conv|depthwise|grouped)(\d)x\d(s\d)?_", operator).groups()
    name = "depthwise convolution" if kind == "depthwise" else f"{kernel}x{kernel} convolutions"
    if kind == "grouped":
        name += " with groups"
    return f"{name}, stride {stride[1:]}" if stride else name


def general():
    densities = ("0.05", "0.1", "0.3", "0.5", "1.0")
    ways = {"code for any shape": _speedups(TWO_THREADS, "general"), "compiled, tuned": _speedups(TWO_THREADS, "plan")}
    lines = [f"| Operators | Code | {' | '.join(densities)} |", "|---|---|" + "---|" * len(densities)]
    groups = collections.defaultdict(list)
    for operator in ways["code for any shape"]:
        groups[_group(operator)].append(operator)
    for group, operators in sorted(groups.items()):
        for way, found in ways.items():
            cells = [
                rows.number(rows.geometric_mean([found[operator][density] for operator in operators]))
                for density in densities
            ]
            name = f"{group} ({len(operators)})" if len(operators) > 1 else group
            lines.append(f"| {name} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def grouped():
    densities = ("0.1", "0.3", "0.5", "1.0")
    head = "".join(f"| {density}, 2 threads, 1 thread " for density in densities)
    lines = [f"| Groups x channels {head}|", "|---|" + "---|" * len(densities)]
    two, one = (_speedups(results, "bound") for results in (TWO_THREADS, ONE_THREAD))
    for operator in sorted((name for name in two if name.startswith("grouped")), key=_width):
        groups, width, size = re.match(r"grouped3x3_(\d+)x(\d+)_(\d+)", operator).groups()
        cells = [f"{rows.number(two[operator][at])}, {rows.number(one[operator][at])}" for at in densities]
        lines.append(f"| {groups} x {width}, {size} x {size} pixels | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _width(operator):
    return int(re.match(r"grouped3x3_\d+x(\d+)_", operator)[1])
