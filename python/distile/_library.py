"""Loads the library of operators into torch.ops.distile."""

import pathlib

import torch

FOLDER = pathlib.Path(__file__).parent

torch.ops.load_library(FOLDER / "distile_torch.so")
ops = torch.ops.distile
