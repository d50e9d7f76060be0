"""distile for PyTorch and ONNX Runtime: operators that compute only where a mask says so.

torch.ops.distile has the operators, distile.nn the modules. Masks are tensors of type bool, [N, H, W], or [N, T] for
tokens. docs/python.md in the repository explains them. distile.onnx, for ONNX Runtime, works without PyTorch too
(docs/onnx.md).
"""

import importlib
import importlib.util

if importlib.util.find_spec("torch"):
    from . import autocast, autograd, dense, layers, mask_algebra, masks, nn, on_demand, parallel, shapes  # noqa: F401
    from .building import build
    from .capturing import capture
    from .changes import Changes
    from .conversion import convert, trace
    from .mappings import image, tokens
    from .masks import SharedMask, mask
    from .numerics import set_math
    from .on_demand import set_build
    from .planner import Planner
    from .polykernels import cache_folder, load_own_weights, missing, still_dense
    from .pruning import prune
    from .stage_fusing import fuse
    from .stage_description import Stage, read_stage
    from .stage_module import run_stage
    from .stage_trace import trace_stages
    from .stages import bordered, mark_scratch, stage, stage_teams
    from .weights import cast_weights, forget, set_weights_check

    def __getattr__(name: str):
        # `python -m distile.explain` would complain of a module that is there already.
        if name == "explain":
            return importlib.import_module(".explain", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    load_own_weights()
    on_demand.start_early()
    __all__ = [
        "Changes", "Planner", "SharedMask", "Stage", "bordered", "build", "cache_folder", "capture", "cast_weights", "convert",
        "forget", "fuse", "image", "mark_scratch", "mask", "masks", "missing", "nn", "parallel", "prune", "read_stage", "run_stage", "set_build", "set_math",
        "set_weights_check", "stage", "stage_teams", "still_dense", "tokens", "trace", "trace_stages",
    ]  # fmt: skip

else:

    def __getattr__(name: str):
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}"
            + ("" if name.startswith("_") else " without PyTorch, which is not installed: pip install torch")
        )


__version__ = "0.2.0"
