"""distile for ONNX Runtime: masked operators in the domain `distile`, and tools that put them into models.

    options = distile.onnx.session_options()
    session = onnxruntime.InferenceSession("masked.onnx", options)

docs/onnx.md in the repository explains them. Needs no PyTorch.
"""

from .._onnxruntime import cache_folder, library_path
from ..on_demand import set_build, still_dense
from ..rules import Rule
from .conversion import Left, Replaced, convert
from .exporting import translations
from .library import session_options
from .weights import load, save

__all__ = [
    "Left", "Replaced", "Rule", "cache_folder", "convert", "library_path", "load", "save", "session_options",
    "set_build", "still_dense", "translations",
]  # fmt: skip
