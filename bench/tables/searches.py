"""The table of docs/tuning.md: what searches found, by their reports."""
import rows

# The reports' files, in the order of the table, and what their operators are called.
DEVICES = {"cpu": "AMD EPYC, 2 cores", "h200": "H200", "h200-16sm": "H200, 16 multiprocessors"}
OPERATORS = {"conv3x3_256": "3x3, 256 -> 256", "conv3x3s2_256": "3x3, stride 2, 256 -> 256",
             "conv1x1_256_1024": "1x1, 256 -> 1024"}
SIZES = (1, 2, 3, 4, 6)


def parts():
    lines = ["| Device | Operator | Trials | Seconds | By hand | k = 1 | 2 | 3 | 4 | 6 | All |", "|---" * 11 + "|"]
    lines += [line(f"{device}-{operator}") for device in DEVICES for operator in OPERATORS
              if (rows.RESULTS / f"search/{device}-{operator}-report.json").exists()]
    return {"searches": "\n".join(lines) + "\n"}


def line(name):
    report = rows.read(f"search/{name}-report")
    device, operator = name.rsplit("-", 1)
    by_hand = [f"{plan['held_out']:.3f} (k = {plan['k']})" for plan in report["plans"]]
    # A set of fewer schedules that nothing improves is that of more, too.
    costs = [min(chosen["held_out"] for chosen in report["sets"] if chosen["k"] <= size) for size in SIZES]
    cells = [DEVICES[device], OPERATORS[operator], report["trials"], f"{report['seconds']:.0f}", *(by_hand or ["-"]),
             *(f"{cost:.3f}" for cost in [*costs, report["held_out_oracle"]])]
    return "| " + " | ".join(map(str, cells)) + " |"
