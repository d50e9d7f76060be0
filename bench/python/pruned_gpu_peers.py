"""What layers with pruned weights are measured beside on an NVIDIA GPU, for the problems of pruned.py: what PyTorch calls
of cuBLAS and cuDNN, which multiply with all weights, and of cuSPARSE's CSR; cuSPARSE's blocked ELL for weights that are 0
in blocks, which multiplies in TF32; and Sputnik's product, if the environment's SPUTNIK names its library. That has no
package: in a checkout of github.com/google-research/sputnik,

  nvcc -shared -Xcompiler -fPIC -O3 -std=c++17 -arch=sm_90 -x cu -I . sputnik/spmm/cuda_spmm.cu.cc -o libspmm.so
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


class BlockedEll:
    """cuSPARSE's product of blocks, as many for each row of blocks, with [inputs, pixels]: PyTorch has no call of it."""

    # Enumerators of cusparse.h and library_types.h.
    INDEX_32, BASE_0, FLOAT32, COLUMNS_FIRST, AS_IT_IS, BLOCKED_ELL = 2, 0, 0, 1, 0, 13
    NO_BLOCK = -1

    def __init__(self, matrix, columns, size, device):
        self.cusparse = ctypes.CDLL("libcusparse.so.12")
        (rows, inputs), pixels = matrix.shape, columns.shape[1]
        blocks = matrix.reshape(rows // size, size, inputs // size, size).transpose(0, 2, 1, 3)
        there = blocks.any(axis=(2, 3))
        most = int(there.sum(axis=1).max())
        order = np.argsort(~there, axis=1, kind="stable")[:, :most]
        is_block = np.take_along_axis(there, order, axis=1)
        self.share = most * size / inputs
        values = np.take_along_axis(blocks, order[:, :, None, None], axis=1) * is_block[:, :, None, None]
        # Rows of the blocks' rows, with the blocks side by side.
        given = (values.transpose(0, 2, 1, 3), np.where(is_block, order, self.NO_BLOCK).astype(np.int32), columns.T)
        self.values, self.places, self.columns = (torch.from_numpy(np.ascontiguousarray(one)).to(device) for one in given)
        self.output = torch.empty(pixels, rows, device=device)
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)
        self.handle, weights, input_, output = (ctypes.c_void_p() for _ in range(4))
        self._call("cusparseCreate", ctypes.byref(self.handle))
        self._call("cusparseCreateBlockedEll", ctypes.byref(weights), *map(ctypes.c_int64, (rows, inputs, size, most * size)),
                   *map(self._address, (self.places, self.values)), self.INDEX_32, self.BASE_0, self.FLOAT32)
        for descriptor, height, tensor in ((input_, inputs, self.columns), (output, rows, self.output)):
            self._call("cusparseCreateDnMat", ctypes.byref(descriptor), *map(ctypes.c_int64, (height, pixels, height)),
                       self._address(tensor), self.FLOAT32, self.COLUMNS_FIRST)
        self.product = (self.handle, self.AS_IT_IS, self.AS_IT_IS, ctypes.byref(self.one), weights, input_,
                        ctypes.byref(self.zero), output, self.FLOAT32, self.BLOCKED_ELL)
        needed = ctypes.c_size_t()
        self._call("cusparseSpMM_bufferSize", *self.product, ctypes.byref(needed))
        self.buffer = torch.empty(max(1, needed.value), dtype=torch.uint8, device=device)

    def __call__(self):
        self._call("cusparseSetStream", self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        self._call("cusparseSpMM", *self.product, self._address(self.buffer))
        return self.output.t()

    @staticmethod
    def _address(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def _call(self, name, *args):
        status = getattr(self.cusparse, name)(*args)
        if status:
            raise RuntimeError(f"{name} returned {status}")


def blocked(problem):
    """Blocked ELL in blocks of 16 and 32, where it leaves out half of the weights or more. The columns of a kernel
    position lie side by side, as its blocks do."""
    taps = problem.kernel ** 2
    matrix = problem.matrix.reshape(problem.outputs, problem.inputs, taps).transpose(0, 2, 1).reshape(problem.outputs, -1)
    columns = problem.columns.reshape(problem.inputs, taps, -1).transpose(1, 0, 2).reshape(matrix.shape[1], -1)
    for size in (16, 32):
        if problem.outputs % size == 0 and problem.inputs % size == 0:
            product = BlockedEll(matrix, columns, size, problem.device)
            if product.share <= .5:
                yield f"blocks of {size}, TF32 cuSPARSE", product, NARROW_BOUND


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
        for sides in (dense, sparse, blocked, sputnik):
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
