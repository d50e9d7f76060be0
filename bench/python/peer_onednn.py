"""Dense convolutions in float32 by oneDNN itself, of version 3 (requirements/bench.txt) and of version 2 (Debian's package
libdnnl2), whichever there are: on images with channels last, with weights in the layout that it prefers."""
import functools

import numpy as np
import torch

import onednn


@functools.lru_cache(maxsize=None)
def libraries(threads):
    return onednn.find(threads)[0]


def versions(threads):
    """What there is, for the header of results."""
    return {f"oneDNN {each.major}": each.description for each in libraries(threads)}


def sides(problem, threads):
    if problem.dtype != "float32" or problem.image.is_cuda or problem.groups != 1 or problem.activation != "relu":
        return {}
    sides = {}
    for library in libraries(threads):
        # [batch, channels, rows, columns] over memory with channels last.
        output = np.zeros((problem.batch, problem.size, problem.size, problem.outputs), np.float32).transpose(0, 3, 1, 2)
        convolve = library.convolution(problem.image.numpy(), problem.filter, problem.bias, output, problem.stride,
                                       problem.margins)
        sides[f"dense oneDNN {library.major}"] = returning(convolve, torch.from_numpy(output))
    return sides


def returning(call, result):
    def run():
        call()
        return result

    return run
