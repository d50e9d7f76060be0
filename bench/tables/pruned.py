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
        if row["mask"] in ("blob", "dense") and density in ("0.3", "1.0"):
            way, = row["ways"]
            operator = row["op"].split("_", 1)[1]
            speedup = row["t_peer_us"] / way["t_masked_us"]
            best = found[round(100 * row["weight_zeros"])][operator].get(density, 0)
            found[round(100 * row["weight_zeros"])][operator][density] = max(best, speedup)
    return found


def table():
    found = _found()
    shares = sorted(found)
    head = "".join(f"| {share} %, all | {share} %, .3 " for share in shares)
    lines = [f"| Layer {head}|", "|---" + "|---|---" * len(shares) + "|"]
    for operator in sorted({operator for share in shares for operator in found[share]}):
        cells = ""
        for share in shares:
            speedups = found[share].get(operator, {})
            cells += "".join(f" {rows.number(speedups[density])} |" if density in speedups else " |" for density in ("1.0", "0.3"))
        lines.append(f"| {operator.replace('_', ' ')} |{cells}")
    return "\n".join(lines) + "\n"


def means():
    """The geometric means over the layers, with every pixel active."""
    found = _found()
    texts = []
    for share in sorted(found):
        speedups = [of_operator["1.0"] for of_operator in found[share].values() if "1.0" in of_operator]
        texts.append(f"{rows.number(rows.geometric_mean(speedups))} at {share} % zeros")
    return " and ".join([", ".join(texts[:-1])] * bool(texts[:-1]) + texts[-1:])
