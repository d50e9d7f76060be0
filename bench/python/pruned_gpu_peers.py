"""What layers with pruned weights are measured beside on an NVIDIA GPU, for the problems of pruned.py: what PyTorch calls
of cuBLAS and cuDNN, which multiply with all weights, and of cuSPARSE; and Sputnik's product, if the environment's SPUTNIK
names its library. That has no package: in a checkout of github.com/google-research/sputnik,

  nvcc -shared -Xcompiler -fPIC -O3 -std=c++17 -arch=sm_90 -x cu -I . -I <glog> sputnik/spmm/cuda_spmm.cu.cc -o libspmm.so
"""
import contextlib
import ctypes
import os
import warnings

import numpy as np

from measuring import torch
from pruned_peers import BOUND, error

NARROW_BOUND = 1e-2  # For TF32 and float16, relative to the largest value.


@contextlib.contextmanager
def tf32(allowed):
    """Whether cuBLAS and cuDNN may multiply float32 in TF32: what a graph that is captured meanwhile keeps."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def products(problem, dtype):
    """The product of cuBLAS with pixels or tokens in rows, as images with their channels last have them."""
    columns = torch.from_numpy(np.ascontiguousarray(problem.columns.T)).to(problem.device, dtype)
    matrix = torch.from_numpy(problem.matrix).to(problem.device, dtype).t()
    output = torch.empty(len(columns), problem.outputs, device=problem.device, dtype=dtype)

    def run():
        torch.mm(columns, matrix, out=output)
        return output.t()

    return run


def convolutions(problem, dtype):
    """The convolution of cuDNN. Bias and activation are left out, as of a product."""
    images = problem.images().to(dtype)
    weights = torch.from_numpy(problem.filter).to(problem.device, dtype).contiguous(memory_format=torch.channels_last)
    return lambda: torch.nn.functional.conv2d(images, weights, padding=problem.kernel // 2)[0].flatten(1)


def dense(problem):
    makers = {"cuBLAS": products}
    if not problem.is_linear:
        makers["cuDNN"] = convolutions
    for name, make in makers.items():
        # cuBLAS takes no 3x3 kernel: what is unfolded for it before is not timed.
        for kind, dtype, allowed in (("dense", torch.float32, False), ("TF32", torch.float32, True),
                                     ("float16", torch.float16, False)):
            call = make(problem, dtype)

            def run(call=call, allowed=allowed):
                with tf32(allowed):
                    return call()

            yield f"{kind} {name}", run, BOUND if kind == "dense" else NARROW_BOUND


def sparse(problem):
    wide = torch.from_numpy(problem.matrix).to_sparse_csr()
    matrix = torch.sparse_csr_tensor(wide.crow_indices().int(), wide.col_indices().int(), wide.values(), wide.shape,
                                     device=problem.device)
    for order, columns in (("rows", problem.columns), ("columns", np.ascontiguousarray(problem.columns.T))):
        given = torch.from_numpy(columns).to(problem.device)
        given = given if order == "rows" else given.t()
        yield f"sparse cuSPARSE, {order}", (lambda given=given: matrix @ given), BOUND


# sputnik::CudaSpmm(m, k, n, nonzeros, rows by length, values, row offsets, columns, dense matrix, output, stream)
SPUTNIK_PRODUCT = "_ZN7sputnik8CudaSpmmEiiiiPKiPKfS1_S1_S3_PfP11CUstream_st"


def sputnik(problem):
    path = os.environ.get("SPUTNIK")
    if not path:
        return
    multiply = getattr(ctypes.CDLL(path), SPUTNIK_PRODUCT)
    wide = torch.from_numpy(problem.matrix).to_sparse_csr()
    lengths = wide.crow_indices().diff()
    parts = (lengths.argsort(descending=True).int(), wide.values(), wide.crow_indices().int(), wide.col_indices().int(),
             torch.from_numpy(problem.columns))
    on_device = [part.to(problem.device).contiguous() for part in parts]
    output = torch.empty(problem.outputs, problem.columns.shape[1], device=problem.device)
    sizes = *problem.matrix.shape, output.shape[1], len(wide.values())

    def run():
        status = multiply(*map(ctypes.c_int, sizes), *(ctypes.c_void_p(part.data_ptr()) for part in (*on_device, output)),
                          ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise RuntimeError(f"Sputnik's product returned {status}")
        return output

    yield "sparse Sputnik", run, BOUND


def can_be_captured(call):
    """Whether a graph can hold a call."""
    if not torch.cuda.is_available():
        return True
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return False
    return True


def sides_of(problem):
    """The calls of all libraries. Each was checked."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that sparse tensors are new.
        for sides in (dense, sparse, sputnik):
            for name, call, bound in sides(problem):
                largest = error(call().float().cpu(), problem.products)
                if not largest <= bound:
                    raise RuntimeError(f"{name} is wrong at {problem.name}: its error is {largest:.1e}")
                if can_be_captured(call):
                    found[name] = call
                else:
                    print(f"{problem.name}: {name} is left out, because a graph cannot hold it", flush=True)
    return found


def versions():
    """The versions of libraries that a header of results does not name by itself."""
    return {"CUDA": torch.version.cuda, "cuDNN": str(torch.backends.cudnn.version())}
