"""The table of docs/onnx.md's example: what python/examples/onnx_screen.py wrote with --json."""
import rows

HEAD = """{machine}, {threads} threads, ONNX Runtime {onnxruntime}, medians of a step, both sides in turns.

| Pixels | Active | dense, ms | masked, ms | times faster |
|---|---|---|---|---|
"""


def parts():
    found = rows.read("onnx/pp-ocrv4")
    lines = [f"| {row['height']} x {row['width']} | {active(row)} | {row['dense_ms']:.1f} | {row['masked_ms']:.1f} "
             f"| {row['dense_ms'] / row['masked_ms']:.2f} |\n" for row in found["rows"]]
    return {"onnx-screen": HEAD.format(**found) + "".join(lines)}


def active(row):
    density = f"{row['density']:g}".removeprefix("0")
    return f"{density}, a frame" if row["mask"] == "frame" else density
