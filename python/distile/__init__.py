"""distile for PyTorch: operators that compute only where a mask says so.

torch.ops.distile has the operators, distile.nn the modules. Masks are tensors of type bool, [N, H, W], or [N, T] for
tokens. docs/python.md in the repository explains them.
"""
from . import autograd, dense, shapes  # noqa: F401
from .polykernels import cache_folder, missing

__version__ = "0.2.0"
__all__ = ["cache_folder", "missing"]
