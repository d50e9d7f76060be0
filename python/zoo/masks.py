"""Masks to try models on."""

import numpy as np


def blobs(size: tuple[int, int], density: float = 0.15, batch: int = 2) -> np.ndarray:
    """Masks [N, H, W]: a smooth random field, whose largest values are active."""
    field = np.random.default_rng(1).standard_normal((batch, *size))
    rows, columns = (np.fft.fftfreq(extent) * extent for extent in size)
    field = np.fft.ifft2(np.fft.fft2(field) * np.exp(-(rows[:, None] ** 2 + columns**2) / 5)).real
    return field > np.quantile(field, 1 - density, axis=(1, 2), keepdims=True)
