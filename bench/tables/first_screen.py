"""What the README shows first: a table of speed-ups by density, with one that loses, and docs/gain.svg, a mask and its
gain."""
import rows

import devices
import networks

DENSITIES = (0.1, 0.3, 1)
# What a line says, and its rows: the file, and their group, type, peer and batch in the tables of docs/benchmarks.md.
LINES = {
    "3x3 convolutions, 2 threads of a Xeon with AVX-512, against oneDNN in float32":
        ("cpu-avx512", "3x3 convolutions", "float32", "oneDNN", 1),
    "linear layers, 4096 tokens of 4 images, an H200, against cuBLAS in float16":
        ("h200-tokens", "linear layers", "float16", "cuBLAS", 4),
    "convolutions, 4 images, an H200, against cuDNN in TF32":
        ("h200-tensor", "convolutions", "tf32", "cuDNN", 4),
    "blocks of a ViT, 197 tokens of one image, an H100, against PyTorch in bfloat16":
        ("h100-blocks", "blocks of a ViT", "bfloat16", "PyTorch", 1),
}
MASK = "data/masks/sige_church_256.npy"
SIDES = {"onnxruntime": "ONNX Runtime, all pixels", "sige": "SIGE, its blocks", "distile": "distile, the white pixels"}
WIDTH, EXTENT, TOP = 560, 256, 74  # The width of the drawing, the extent of the mask, and the top of the bars.


def parts():
    head = " | ".join("every pixel" if density == 1 else f"{100 * density:.0f} %" for density in DENSITIES)
    lines = [f"| Times faster, with these pixels active | {head} |", "|---" * (1 + len(DENSITIES)) + "|"]
    lines += [f"| {name} | {' | '.join(map(rows.number, speedups(*asked)))} |" for name, asked in LINES.items()]
    return {"first screen": "\n".join(lines) + "\n"}


def speedups(file, group, dtype, peer, batch):
    """The geometric mean over the operators, for each density."""
    found = [(density, speedup) for row in rows.measured(file, batch=batch)
             for key, density, speedup in devices.points(file, row) if key == (group, dtype, peer)]
    return [rows.geometric_mean([speedup for at, speedup in found if at == density]) for density in DENSITIES]


def picture():
    """An SVG: the mask of an edit, and the times of a network that computes the edit."""
    row, = rows.read("networks/sige-ddpm-cpu")["rows"]
    dense, _ = networks.fastest(row, networks.DENSE)
    times = {"onnxruntime": row["milliseconds"]["onnxruntime"], "sige": row["milliseconds"]["sige"],
             "distile": networks.fastest(row, networks.MASKED)[0]}
    assert dense == times["onnxruntime"], "another dense side is the fastest"
    bars = "\n".join(bar(number, name, times[side], dense) for number, (side, name) in enumerate(SIDES.items()))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{EXTENT}" viewBox="0 0 {WIDTH} {EXTENT}" \
font-family="sans-serif" font-size="13" fill="#1e2228">
<title>The mask of an edit, and the time of a step</title>
<rect width="{WIDTH}" height="{EXTENT}" fill="#ffffff"/>
<rect width="{EXTENT}" height="{EXTENT}"/>
<path d="{outline(mask())}" fill="#ffffff"/>
<text x="{EXTENT + 16}" y="22" font-size="15">A step of a DDPM UNet, 256 x 256:</text>
<text x="{EXTENT + 16}" y="42" font-size="15">{dense / times["distile"]:.1f} times faster</text>
{bars}
</svg>
"""


def bar(number, name, milliseconds, longest):
    y, length = TOP + 60 * number, milliseconds / longest * (WIDTH - EXTENT - 32)
    colour = "#266ebe" if name.startswith("distile") else "#969ca5"
    return (f'<text x="{EXTENT + 16}" y="{y}">{name}: {milliseconds:.0f} ms</text>\n'
            f'<rect x="{EXTENT + 16}" y="{y + 7}" width="{length:.1f}" height="20" fill="{colour}"/>')


def mask():
    """The rows of the mask, as bytes of 0 and 1."""
    data = (rows.REPOSITORY / MASK).read_bytes()[-EXTENT * EXTENT:]  # Behind the header of NumPy's format.
    return [data[start:start + EXTENT] for start in range(0, len(data), EXTENT)]


def outline(lines):
    """An SVG path of the runs of active pixels, row by row."""
    path = []
    for y, line in enumerate(lines):
        end = 0
        while (begin := line.find(1, end)) >= 0:
            end = line.find(0, begin) if 0 in line[begin:] else len(line)
            path.append(f"M{begin} {y}h{end - begin}v1h{begin - end}z")
    return "".join(path)
