"""XNNPACK's convolution of images that lie channel by channel, which multiplies with the nonzero weights of a 1x1 kernel alone.

The library is Debian's package libxnnpack0, with libpthreadpool0."""
import ctypes
import ctypes.util
import subprocess

import numpy as np

# enum xnn_status
SUCCESS = 0


def is_there():
    return all(ctypes.util.find_library(name) for name in ("XNNPACK", "pthreadpool"))


def version():
    """The version of Debian's package; None if it is not there."""
    asked = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "libxnnpack0"], capture_output=True, text=True)
    return asked.stdout or None


class Xnnpack:
    def __init__(self, threads):
        self._pools = ctypes.CDLL(ctypes.util.find_library("pthreadpool"))
        self._library = ctypes.CDLL(ctypes.util.find_library("XNNPACK"))
        self._pools.pthreadpool_create.restype = ctypes.c_void_p
        self._pool = ctypes.c_void_p(self._pools.pthreadpool_create(ctypes.c_size_t(threads)))
        self._check("xnn_initialize", self._library.xnn_initialize(None))

    @staticmethod
    def _check(name, status):
        if status != SUCCESS:
            raise RuntimeError(f"XNNPACK: {name} returned {status}")

    def convolution(self, matrix, bias, columns, output, least):
        """A call that sets `output` [output channels, pixels] to matrix * columns + bias, at least `least`. Arrays are
        contiguous and float32."""
        outputs, inputs = matrix.shape
        no_padding, ones, one_group, no_flags = [0] * 4, [1] * 6, 1, 0
        operator = ctypes.c_void_p()
        sizes = (ctypes.c_size_t(size) for size in (inputs, outputs, inputs, outputs))
        status = self._library.xnn_create_convolution2d_nchw_f32(
            *map(ctypes.c_uint32, (*no_padding, *ones, one_group)), *sizes, ctypes.c_void_p(matrix.ctypes.data),
            ctypes.c_void_p(bias.ctypes.data), ctypes.c_float(least), ctypes.c_float(np.inf), ctypes.c_uint32(no_flags),
            ctypes.byref(operator))
        self._check("xnn_create_convolution2d_nchw_f32", status)
        status = self._library.xnn_setup_convolution2d_nchw_f32(
            operator, *map(ctypes.c_size_t, (1, 1, columns.shape[1])), ctypes.c_void_p(columns.ctypes.data),
            ctypes.c_void_p(output.ctypes.data), self._pool)
        self._check("xnn_setup_convolution2d_nchw_f32", status)

        def run():
            self._check("xnn_run_operator", self._library.xnn_run_operator(operator, self._pool))
            return output

        run.arrays = columns, output  # XNNPACK does not own their memory.
        return run
