"""Text on a recorded screen: PP-OCR's detector runs only where a frame differs from the one before.

    pip install -r ../../requirements/screen.txt
    python onnx_screen.py --build --picture screen.png

The detector marks the pixels of text. Most of a screen stays as it was, and keeps its marks.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import time

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

import distile.onnx
from distile.onnx import Rule, building

WORDS = "queue worker retry batch latency shard cache model token stream index commit quota region import parse".split()
MARGIN = 48  # Pixels around a change that are computed too: the detector looks at what is around text.
THRESHOLD = 0.3  # PP-OCR's own, for the pixels of text.


def frame(step: int, height: int, width: int) -> Image.Image:
    """A screen on which a clock, a counter, two numbers and a line of text change with each step."""
    fixed, live = np.random.default_rng(0), np.random.default_rng(1 + step)
    screen = Image.new("RGB", (width, height), "#f6f7f9")
    draw, font = ImageDraw.Draw(screen), ImageFont.load_default(20)
    draw.rectangle((0, 0, width, 44), fill="#263246")
    draw.text((16, 10), "Cluster monitor", font=font, fill="white")
    draw.text((width - 130, 10), f"12:{step:02d}:{live.integers(10, 60)}", font=font, fill="white")
    for row in range((height - 140) // 40):
        y, middle = 70 + 40 * row, width // 2
        number = (live if row in (3, 9) else fixed).integers(1000, 9999)
        name, note = (" ".join((live if row == 6 and part else fixed).choice(WORDS, 2 + part)) for part in (0, 1))
        for x, text in ((24, f"{row + 1:02d}  {name}"), (middle - 90, f"{number} ms"), (middle + 60, note)):
            draw.text((x, y), text, font=font, fill="#1e1e28")
        draw.line((24, y + 32, width - 24, y + 32), fill="#d7dae0")
    draw.text((24, height - 44), f"processed {live.integers(10**6, 10**7):,} jobs", font=font, fill="#1e5aa0")
    return screen


def pixels(screen: Image.Image) -> np.ndarray:
    """What the detector takes: [1, 3, H, W] from -1 to 1."""
    return np.asarray(screen, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1


def changed(before: Image.Image, now: Image.Image, margin: int = MARGIN) -> np.ndarray:
    """The mask: pixels that differ, and those around them. [1, H, W]"""
    mask = (np.asarray(before) != np.asarray(now)).any(-1)
    for axis in (0, 1):
        ends = np.pad(mask, [(margin, margin) if one == axis else (0, 0) for one in (0, 1)])
        mask = np.lib.stride_tricks.sliding_window_view(ends, 2 * margin + 1, axis).any(-1)
    return mask[None]


def detector(height: int, width: int) -> onnx.ModelProto:
    """PP-OCRv4's detector from the package rapidocr_onnxruntime, for images of this size."""
    package = pathlib.Path(importlib.util.find_spec("rapidocr_onnxruntime").origin).parent
    model = onnx.load(package / "models/ch_PP-OCRv4_det_infer.onnx")
    for dimension, extent in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, 3, height, width)):
        dimension.dim_value = extent
    return model


def session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    """Its threads sleep after each run, so that sessions in turn do not take each other's time."""
    options = distile.onnx.session_options(threads=threads)
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def blobs(density: float, height: int, width: int) -> np.ndarray:
    """A mask of this density: the largest values of a smooth random field. [1, H, W]"""
    rows, columns = np.fft.fftfreq(height) * height, np.fft.fftfreq(width) * width
    falloff = np.exp(-(rows[:, None] ** 2 + columns**2) / 32)
    field = np.fft.ifft2(np.fft.fft2(np.random.default_rng(0).standard_normal((height, width))) * falloff).real
    return (field >= np.quantile(field, 1 - density))[None]


def times(sides: list, seconds: float) -> list[float]:
    """The median time in milliseconds of each function, called in turn."""
    found: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while len(found[0]) < 8 or time.perf_counter() < end:
        for run, own in zip(sides, found):
            start = time.perf_counter()
            run()
            own.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own[1:]) for own in found]


def processor() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def picture(panels: list[tuple[str, np.ndarray]], path: pathlib.Path) -> None:
    """Images side by side, with captions."""
    width, height = 560, 322
    whole = Image.new("RGB", (width * len(panels), height + 24), "white")
    for place, (caption, image) in enumerate(panels):
        whole.paste(Image.fromarray(image.astype(np.uint8)).resize((width - 8, height)), (width * place, 24))
        ImageDraw.Draw(whole).text((width * place, 2), caption, font=ImageFont.load_default(16), fill="black")
    whole.quantize(48).save(path, optimize=True)


def marked(screen: Image.Image, text: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A frame with its text in orange, darker where nothing was computed."""
    image = np.asarray(screen).astype(np.float32)
    image[text] = image[text] / 2 + np.array([127, 60, 0])
    return np.where(mask[..., None], image, image * 0.45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=2, default=(736, 1280), help="height and width, multiples of 32")
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--build", action="store_true", help="compile the PolyKernels that are missing first")
    parser.add_argument("--density", type=float, nargs="*", default=[], help="also time masks of these densities")
    parser.add_argument("--seconds", type=float, default=10, help="to time each mask (default: %(default)s)")
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the times")
    options = parser.parse_args()
    size = tuple(options.size)

    model = detector(*size)
    converted, report = distile.onnx.convert(model, [Rule("*", "mask")], mask_sizes={"mask": size})
    if options.build:
        building.build(report, progress=print)
    dense, masked = session(model, options.threads), session(converted, options.threads)
    text_of = lambda x: dense.run(None, {"x": x})[0][0, 0] > THRESHOLD
    masked_text_of = lambda x, mask: masked.run(None, {"x": x, "mask": mask})[0][0, 0] > THRESHOLD
    rows = []

    def timed(kind: str, x: np.ndarray, mask: np.ndarray) -> str:
        dense_ms, masked_ms = times([lambda: text_of(x), lambda: masked_text_of(x, mask)], options.seconds)
        rows.append({"height": size[0], "width": size[1], "mask": kind, "density": round(float(mask.mean()), 3),
                     "dense_ms": round(dense_ms, 1), "masked_ms": round(masked_ms, 1)})  # fmt: skip
        return f"dense {dense_ms:.1f} ms, masked {masked_ms:.1f} ms, {dense_ms / masked_ms:.2f} times"

    before = frame(0, *size)
    text = text_of(pixels(before))
    for step in range(1, 1 + options.frames):
        now = frame(step, *size)
        mask, x = changed(before, now), pixels(now)
        text = np.where(mask[0], masked_text_of(x, mask), text)  # The rest keeps its marks.
        expected, near = text_of(x), changed(before, now, margin=8)[0]
        same = (text & expected & near).sum() / ((text | expected) & near).sum()
        print(
            f"frame {step}: active {mask.mean():.1%}, {timed('frame', x, mask)}; "
            f"text at changes: {same:.0%} in common with the dense detector's"
        )
        last, before = (before, now, mask[0], expected), now
    for density in options.density:
        print(f"density {density}: {timed('blobs', x, blobs(density, *size))}")
    if options.json:
        about = {"model": "PP-OCRv4 detector", "machine": processor(), "threads": options.threads}
        options.json.write_text(json.dumps({**about, "onnxruntime": onnxruntime.__version__, "rows": rows}) + "\n")
    if options.picture:
        earlier, now, mask, expected = last
        captions = ["a frame", "the next, its text found where it changed", "the same by the dense detector"]
        nothing, whole = np.zeros_like(text), np.ones_like(mask)
        images = [marked(earlier, nothing, whole), marked(now, text, mask), marked(now, expected, whole)]
        picture(list(zip(captions, images)), options.picture)


if __name__ == "__main__":
    main()
