"""distile for PyTorch: operators that compute only where a mask says so.

torch.ops.distile has the operators, distile.nn the modules. Masks are tensors of type bool, [N, H, W], or [N, T] for
tokens. docs/python.md in the repository explains them.
"""

from . import autograd, dense, layers, mask_algebra, masks, nn, shapes  # noqa: F401
from .building import build
from .conversion import convert
from .masks import SharedMask, mask
from .polykernels import cache_folder, missing

__version__ = "0.2.0"
__all__ = ["SharedMask", "build", "cache_folder", "convert", "mask", "masks", "missing", "nn"]
