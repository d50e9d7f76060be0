"""How much faster pruned layers are than a dense library."""
import collections

import rows

RESULTS = "pruned-epyc-2"


def parts():
    return {"pruned": table(), "pruned mean": means()}


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
