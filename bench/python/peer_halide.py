"""Convolutions in float32 by Halide: the dense operator as its autoschedulers Mullapudi2016 and Adams2019 schedule it, and
"Halide skipping empty tiles", DeltaCNN's way (CVPR 2022) on a CPU: every tile of the image is a task, which first looks
whether a pixel of it is active. There is no list of tiles; those with an active pixel are computed whole.

Both read an image with zeros around it, so that no schedule has to care for borders.
"""
import functools
import os
import pathlib

import numpy as np
import torch

try:
    import halide as hl
except ImportError:
    hl = None

AUTOSCHEDULERS = {"Mullapudi2016": {"last_level_cache_size": "32000000", "balance": "40"}, "Adams2019": {}}


def version():
    return "21" if hl else None


def fits(problem):
    return (hl is not None and problem.dtype == "float32" and not problem.image.is_cuda and problem.groups == 1
            and problem.activation == "relu")


class Convolution:
    """The algorithm, without a schedule. Dimensions of Halide's begin with the contiguous one."""

    def __init__(self, problem):
        self.image = hl.ImageParam(hl.Float(32), 4, "image")
        self.filter = hl.ImageParam(hl.Float(32), 4, "filter")
        self.bias = hl.ImageParam(hl.Float(32), 1, "bias")
        self.co, self.x, self.y, self.n = (hl.Var(name) for name in ("co", "x", "y", "n"))
        self.taps = hl.RDom([(0, problem.inputs), (0, problem.kernel), (0, problem.kernel)], "taps")
        ci, kx, ky = (self.taps[i] for i in range(3))
        self.sums, self.output = hl.Func("sums"), hl.Func("output")
        at = (self.co, self.x, self.y, self.n)
        self.sums[at] = self.bias[self.co]
        self.sums[at] += self.filter[self.co, ci, kx, ky] * self.image[
            ci, self.x * problem.stride + kx, self.y * problem.stride + ky, self.n]
        self.shape = [problem.outputs, problem.size, problem.size, problem.batch]
        extent = (problem.size - 1) * problem.stride + problem.kernel
        self.image.set_estimates([(0, problem.inputs), (0, extent), (0, extent), (0, problem.batch)])
        self.filter.set_estimates([(0, problem.outputs), (0, problem.inputs), (0, problem.kernel), (0, problem.kernel)])
        self.bias.set_estimates([(0, problem.outputs)])

    def take(self, problem):
        """Binds a problem's arrays, and returns one for its result: they live as long as what is returned."""
        before, after = problem.margins
        image = torch.nn.functional.pad(problem.image, (before, after, before, after)).permute(0, 2, 3, 1)
        # [ky, kx, ci, co]
        filter_ = np.ascontiguousarray(problem.filter.transpose(2, 3, 1, 0))
        arrays = [np.ascontiguousarray(image.numpy()), filter_, problem.bias]
        for parameter, array in zip((self.image, self.filter, self.bias), arrays):
            parameter.set(hl.Buffer(array, reverse_axes=True))
        result = np.zeros(self.shape[::-1], np.float32)
        return arrays, result


def plugin(name):
    folder = pathlib.Path(hl.__file__).parent
    found = [path for kind in ("lib64", "lib") for path in (folder / kind).glob(f"libautoschedule_{name.lower()}.so")]
    hl.load_plugin(str(found[0]))


@functools.lru_cache(maxsize=None)
def loaded(name):
    plugin(name)
    return name


def use_threads(threads):
    # Halide's pool starts with the first call.
    os.environ["HL_NUM_THREADS"] = str(threads)


compiled = {}


def key_of(problem, kind, threads):
    return (kind, problem.name, problem.size, problem.batch, threads)


def autoscheduled(problem, name, threads):
    convolution = Convolution(problem)
    at = (convolution.co, convolution.x, convolution.y, convolution.n)
    convolution.output[at] = hl.max(convolution.sums[at], 0)
    convolution.output.set_estimates([(0, extent) for extent in convolution.shape])
    pipeline = hl.Pipeline(convolution.output)
    target = hl.get_host_target()
    pipeline.apply_autoscheduler(
        target, hl.AutoschedulerParams(loaded(name), {"parallelism": str(threads), **AUTOSCHEDULERS[name]}))
    pipeline.compile_jit(target)
    return convolution, pipeline


def skipping_tiles(problem, threads):
    """A schedule by hand. Tiles of 8 x 8 or, where these do not divide the image, 4 x 4 pixels."""
    convolution = Convolution(problem)
    co, x, y, n = convolution.co, convolution.x, convolution.y, convolution.n
    side = 8 if problem.size % 8 == 0 else 4
    convolution.mask = hl.ImageParam(hl.UInt(8), 3, "mask")
    pixels = hl.RDom([(0, side), (0, side)], "pixels")
    flags = hl.Func("flags")
    flags[x, y, n] = hl.u8(0)
    flags[x, y, n] = flags[x, y, n] | convolution.mask[x * side + pixels.x, y * side + pixels.y, n]
    tiles = hl.RDom([(0, side), (0, side), (0, problem.size // side), (0, problem.size // side), (0, problem.batch)],
                    "tiles")
    dx, dy, tx, ty, tn = (tiles[i] for i in range(5))
    tiles.where(flags[tx, ty, tn] != 0)
    output = convolution.output
    # What lies outside the tiles keeps what it is.
    output[co, x, y, n] = hl.undef(hl.Float(32))
    output[co, tx * side + dx, ty * side + dy, tn] = hl.max(
        convolution.sums[co, tx * side + dx, ty * side + dy, tn], 0)
    lanes, block = 16, 32 if problem.outputs % 32 == 0 else 16
    coo, coi, cov, task = hl.Var("coo"), hl.Var("coi"), hl.Var("cov"), hl.RVar("task")
    flags.compute_root()
    update = output.update(0)
    update.allow_race_conditions()
    update.split(co, coo, coi, block).reorder(coi, dx, dy, coo, tx, ty, tn).vectorize(coi, lanes)
    update.fuse(ty, tn, task).parallel(task)
    convolution.sums.compute_at(output, dy).vectorize(co, lanes).unroll(co).unroll(x)
    ci, kx, ky = (convolution.taps[i] for i in range(3))
    convolution.sums.update(0).reorder(co, x, ci, kx, ky).split(co, co, cov, lanes).vectorize(cov).unroll(co).unroll(x)
    pipeline = hl.Pipeline(output)
    pipeline.compile_jit(hl.get_host_target())
    return convolution, pipeline


def side_of(problem, kind, threads, make):
    """A side whose code is compiled once for a shape."""
    use_threads(threads)
    key = key_of(problem, kind, threads)
    if key not in compiled:
        compiled[key] = make()
    convolution, pipeline = compiled[key]
    arrays, result = convolution.take(problem)
    if hasattr(convolution, "mask"):
        arrays.append(problem.mask.numpy())
        convolution.mask.set(hl.Buffer(arrays[-1], reverse_axes=True))
    buffer = hl.Buffer(result, reverse_axes=True)
    tensor = torch.from_numpy(result).permute(0, 3, 1, 2)

    def run(arrays=arrays):
        # The arrays live as long as this function.
        pipeline.realize(buffer)
        return tensor

    return run


def dense_sides(problem, threads):
    if not fits(problem):
        return {}
    return {f"dense Halide {name}": side_of(problem, name, threads, lambda name=name: autoscheduled(problem, name, threads))
            for name in AUTOSCHEDULERS}


def tile_sides(problem, threads):
    if not fits(problem) or problem.outputs % 16 != 0 or problem.size % 4 != 0:
        return {}
    return {"Halide skipping empty tiles": side_of(problem, "tiles", threads, lambda: skipping_tiles(problem, threads))}
