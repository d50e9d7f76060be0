"""Pictures of a network: its input, its mask, its output, and where the time goes. Needs Pillow."""

from __future__ import annotations

import pathlib

import torch
from PIL import Image, ImageDraw, ImageFont

PANEL, GAP, CAPTION = 200, 12, 18
COLOURS = ("#3b6ea5", "#d98e32", "#5a9e5f", "#b5483a", "#7d63a8", "#8a6d4b", "#8a8a8a", "#c2b33a")


def panel(picture: torch.Tensor, size: int = PANEL) -> Image.Image:
    """A tensor [3, H, W] or [H, W] from 0 to 1 as an image of this width."""
    pixels = picture.detach().float().cpu().clamp(0, 1)
    pixels = pixels.permute(1, 2, 0) if pixels.dim() == 3 else pixels[:, :, None].expand(-1, -1, 3)
    made = Image.fromarray((pixels * 255).byte().numpy())
    height = round(size * made.height / made.width)
    return made.resize((size, height), Image.Resampling.NEAREST if made.width < size else Image.Resampling.BILINEAR)


def bars(by_kind: dict[str, dict[str, float]], width: int, height: int) -> Image.Image:
    """Two bars of milliseconds by kind of layer, of the dense network and of distile."""
    made = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(made), ImageFont.load_default(12)
    total = max(sum(kinds.values()) for kinds in by_kind.values()) or 1
    weights = {
        kind: max(kinds.get(kind, 0) for kinds in by_kind.values()) for kinds in by_kind.values() for kind in kinds
    }
    shown = sorted(weights, key=weights.get, reverse=True)[: len(COLOURS)]
    top = 0
    for name in ("dense", "distile"):
        draw.text((0, top), f"{name}: {sum(by_kind[name].values()):.1f} ms", fill="black", font=font)
        left = 0.0
        for colour, kind in zip(COLOURS, shown):
            right = left + by_kind[name].get(kind, 0) / total * (width - 1)
            draw.rectangle((left, top + CAPTION, right, top + CAPTION + 22), fill=colour)
            left = right
        top += CAPTION + 32
    for colour, kind in zip(COLOURS, shown):
        draw.rectangle((0, top + 3, 9, top + 12), fill=colour)
        draw.text((14, top), kind, fill="black", font=font)
        top += 15
    return made


def strip(pictures: dict[str, torch.Tensor], by_kind: dict[str, dict[str, float]] | None = None) -> Image.Image:
    """The pictures side by side with their captions, and the bars."""
    panels = {caption: panel(picture) for caption, picture in pictures.items()}
    height = max(made.height for made in panels.values())
    if by_kind:
        panels["where the time goes"] = bars(by_kind, PANEL, max(height, 230))
        height = max(made.height for made in panels.values())
    made = Image.new("RGB", ((PANEL + GAP) * len(panels) - GAP, height + CAPTION), "white")
    draw, font = ImageDraw.Draw(made), ImageFont.load_default(12)
    for number, (caption, picture) in enumerate(panels.items()):
        draw.text((number * (PANEL + GAP), 0), caption, fill="black", font=font)
        made.paste(picture, (number * (PANEL + GAP), CAPTION))
    return made


def save(path: pathlib.Path, picture: Image.Image) -> None:
    """Writes a PNG of few colours, which is small."""
    picture.quantize(128).save(path, optimize=True)


def save_animation(path: pathlib.Path, frames: list[Image.Image], milliseconds: int = 80) -> None:
    """Writes a GIF."""
    shown = [frame.quantize(64) for frame in frames]
    shown[0].save(path, save_all=True, append_images=shown[1:], duration=milliseconds, loop=0)
