"""Matrix products and convolutions by oneDNN's C API, of versions 2 and 3: of the wheel (requirements/bench.txt) and the system."""
import contextlib
import ctypes
import os
import pathlib
import re
import sys

import numpy as np

FLOAT32, INT32, CPU, IN_ORDER = 3, 4, 1, 1
SOURCE, WEIGHTS, BIAS, DESTINATION = 1, 33, 41, 17
ANY_LAYOUT, INFERENCE, DIRECT, WEIGHTS_LAYOUT = 1, 96, 1, 131
RELU = {2: 0x1f, 3: 0x20}  # By version.
RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB", 8: "thread pool", 512: "SYCL, TBB"}
DESCRIPTOR_BYTES = 8192  # More than any descriptor of version 2, which callers allocate.


class Version(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_int) for name in ("major", "minor", "patch")] + [("hash", ctypes.c_char_p)]
                + [(name, ctypes.c_uint) for name in ("cpu_runtime", "gpu_runtime")])


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_int), ("memory", ctypes.c_void_p)]


def load(path):
    """Loads a library, and before it those of its folder that it needs: a wheel's find one another only through the
    program. Each calls what it was linked with, as its own OpenMP, whatever PyTorch has loaded."""
    while True:
        try:
            return ctypes.CDLL(str(path), os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND)
        except OSError as error:
            missing = re.match(r"([^\s:]+): cannot open shared object file", str(error))
            needed = pathlib.Path(path).parent / missing[1] if missing else None
            if needed is None or needed == pathlib.Path(path) or not needed.exists():
                raise
            load(needed)


class Cores:
    """Lets this thread, and those that it starts, run on `count` cores only; at the end, on those that it had before.
    TBB takes its number of threads from the cores, and has no other limit that oneDNN asks for."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.before, self.others = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
        os.sched_setaffinity(0, sorted(self.before)[:self.count])

    def __exit__(self, *_):
        os.sched_setaffinity(0, self.before)
        for thread in set(os.listdir("/proc/self/task")) - self.others:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), self.before)


class OneDnn:
    """An engine on a CPU. What it makes lives as long as the process."""

    def __init__(self, path, threads):
        # SYCL finds a CPU by this driver only, and by OpenCL's loader from the same folder.
        driver = pathlib.Path(path).parent / "libintelocl.so"
        if driver.exists():
            os.environ.setdefault("OCL_ICD_FILENAMES", str(driver))
            load(driver.parent / "libtbb.so.12")  # A system's may be older than what the driver calls.
            load(driver.parent / "libOpenCL.so.1")
        self.library = load(path)
        self.library.dnnl_version.restype = ctypes.POINTER(Version)
        self.library.dnnl_status2str.restype = ctypes.c_char_p
        version = self.library.dnnl_version().contents
        self.major = version.major
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        self.description = f"{self.version} ({RUNTIMES.get(version.cpu_runtime, 'unknown runtime')})"
        if version.cpu_runtime == 2:
            self.library.omp_set_num_threads(threads)
        self.engine, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        with Cores(threads):
            self.call("dnnl_engine_create", ctypes.byref(self.engine), CPU, ctypes.c_size_t(0))
            self.call("dnnl_stream_create", ctypes.byref(self.stream), self.engine, IN_ORDER)
            self.matmul(*np.zeros((3, threads, 64, 64), np.float32))()  # Starts the threads.

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"oneDNN {self.version}: {name} returned {self.status_name(status)}")

    def status_name(self, status):
        return self.library.dnnl_status2str(status).decode()

    def describe(self, array):
        """The layout of an array, as version 3 makes it or version 2 fills it in."""
        numbers = [(ctypes.c_int64 * array.ndim)(*numbers)
                   for numbers in (array.shape, (stride // array.itemsize for stride in array.strides))]
        if self.major >= 3:
            layout = ctypes.c_void_p()
            self.call("dnnl_memory_desc_create_with_strides", ctypes.byref(layout), array.ndim, numbers[0], FLOAT32,
                      numbers[1])
        else:
            layout = ctypes.create_string_buffer(DESCRIPTOR_BYTES)
            self.call("dnnl_memory_desc_init_by_strides", layout, array.ndim, numbers[0], FLOAT32, numbers[1])
        return layout

    def matmul(self, left, right, output):
        """A call that writes left x right of each head to the output: arrays [heads, rows, columns] of float32, of any
        strides. Shapes and addresses are fixed, and the code for them is generated here."""
        arrays = {SOURCE: left, WEIGHTS: right, DESTINATION: output}
        layouts = {index: self.describe(array) for index, array in arrays.items()}
        matrices = layouts[SOURCE], layouts[WEIGHTS], None, layouts[DESTINATION]
        descriptor, primitive = ctypes.c_void_p(), ctypes.c_void_p()
        if self.major >= 3:
            self.call("dnnl_matmul_primitive_desc_create", ctypes.byref(descriptor), self.engine, *matrices, None)
        else:
            product = ctypes.create_string_buffer(DESCRIPTOR_BYTES)
            self.call("dnnl_matmul_desc_init", product, *matrices)
            self.call("dnnl_primitive_desc_create", ctypes.byref(descriptor), product, None, self.engine, None)
        self.call("dnnl_primitive_create", ctypes.byref(primitive), descriptor)
        return self.caller(primitive, arrays, layouts)

    def sparse_matmul(self, left, right, output):
        """As matmul(), of matrices; the left one is in CSR: its values of float32, its columns and its row pointers of
        int32. None in versions that have no such product."""
        if not hasattr(self.library, "dnnl_memory_desc_create_with_csr_encoding"):
            return None
        arrays = {SOURCE: left, WEIGHTS: right, DESTINATION: output}
        layouts = {SOURCE: ctypes.c_void_p(), **{index: self.describe(arrays[index]) for index in (WEIGHTS, DESTINATION)}}
        extents = (ctypes.c_int64 * 2)(output.shape[0], right.shape[0])
        self.call("dnnl_memory_desc_create_with_csr_encoding", ctypes.byref(layouts[SOURCE]), 2, extents, FLOAT32,
                  ctypes.c_int64(len(left[0])), INT32, INT32)
        descriptor, primitive = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("dnnl_matmul_primitive_desc_create", ctypes.byref(descriptor), self.engine, layouts[SOURCE],
                  layouts[WEIGHTS], None, layouts[DESTINATION], None)
        self.call("dnnl_primitive_create", ctypes.byref(primitive), descriptor)
        return self.caller(primitive, arrays, layouts)

    def memory(self, array, layout):
        """The memory of an array, or of those of a matrix in CSR."""
        memory = ctypes.c_void_p()
        if isinstance(array, tuple):
            parts = (ctypes.c_void_p * len(array))(*(part.ctypes.data for part in array))
            self.call("dnnl_memory_create_v2", ctypes.byref(memory), layout, self.engine, len(array), parts)
        else:
            self.call("dnnl_memory_create", ctypes.byref(memory), layout, self.engine, ctypes.c_void_p(array.ctypes.data))
        return memory.value

    def caller(self, primitive, arrays, layouts):
        """A call of a primitive on arrays."""
        arguments = (Argument * len(arrays))()
        for argument, (index, array) in zip(arguments, arrays.items()):
            argument.index, argument.memory = index, self.memory(array, layouts[index])
        # Python takes half a microsecond for a call of converted arguments.
        execute, wait, stream = self.library.dnnl_primitive_execute, self.library.dnnl_stream_wait, self.stream
        count = ctypes.c_int(len(arguments))

        def multiply():
            status = execute(primitive, stream, count, arguments) or wait(stream)
            if status:
                raise RuntimeError(f"oneDNN {self.version} cannot multiply: {self.status_name(status)}")

        # Keeps what oneDNN does not own alive: the arrays' memory, and layouts of version 2.
        multiply.arrays = arrays, layouts
        return multiply

    def any_layout(self, shape):
        """The layout of weights that oneDNN may choose."""
        numbers = (ctypes.c_int64 * len(shape))(*shape)
        if self.major >= 3:
            layout = ctypes.c_void_p()
            self.call("dnnl_memory_desc_create_with_tag", ctypes.byref(layout), len(shape), numbers, FLOAT32, ANY_LAYOUT)
        else:
            layout = ctypes.create_string_buffer(DESCRIPTOR_BYTES)
            self.call("dnnl_memory_desc_init_by_tag", layout, len(shape), numbers, FLOAT32, ANY_LAYOUT)
        return layout

    def with_relu(self):
        """Attributes of a primitive whose results pass a ReLU."""
        attributes, after = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("dnnl_primitive_attr_create", ctypes.byref(attributes))
        self.call("dnnl_post_ops_create", ctypes.byref(after))
        numbers = ctypes.c_float(0), ctypes.c_float(0)
        if self.major >= 3:
            self.call("dnnl_post_ops_append_eltwise", after, RELU[3], *numbers)
        else:
            self.call("dnnl_post_ops_append_eltwise", after, ctypes.c_float(1), RELU[2], *numbers)
        self.call("dnnl_primitive_attr_set_post_ops", attributes, after)
        return attributes

    def packed(self, weights, layout):
        """The weights in another layout, as bytes that begin with a cache line."""
        self.library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        size = self.library.dnnl_memory_desc_get_size(layout)
        memory = np.empty(size + 64, np.uint8)
        first = -memory.ctypes.data % 64
        packed = memory[first:first + size]
        given = self.describe(weights)
        descriptor, primitive = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("dnnl_reorder_primitive_desc_create", ctypes.byref(descriptor), given, self.engine, layout, self.engine,
                  None)
        self.call("dnnl_primitive_create", ctypes.byref(primitive), descriptor)
        self.caller(primitive, {SOURCE: weights, DESTINATION: packed}, {SOURCE: given, DESTINATION: layout})()
        return packed

    def convolution(self, image, weights, bias, output, stride, margins):
        """A call that writes a convolution with a bias and a ReLU to the output: arrays of float32, images [batch,
        channels, rows, columns] of any strides, weights [outputs, inputs, rows, columns]. It is direct, so no result is
        less exact than by sums of products; weights have the layout that oneDNN prefers."""
        layouts = {SOURCE: self.describe(image), WEIGHTS: self.any_layout(weights.shape), BIAS: self.describe(bias),
                   DESTINATION: self.describe(output)}
        tensors = [layouts[index] for index in (SOURCE, WEIGHTS, BIAS, DESTINATION)]
        strides, dilations, before, after = ((ctypes.c_int64 * 2)(number, number) for number in (stride, 0, *margins))
        descriptor, primitive = ctypes.c_void_p(), ctypes.c_void_p()
        if self.major >= 3:
            self.call("dnnl_convolution_forward_primitive_desc_create", ctypes.byref(descriptor), self.engine, INFERENCE,
                      DIRECT, *tensors, strides, dilations, before, after, self.with_relu())
        else:
            product = ctypes.create_string_buffer(DESCRIPTOR_BYTES)
            self.call("dnnl_convolution_forward_desc_init", product, INFERENCE, DIRECT, *tensors, strides, before, after)
            self.call("dnnl_primitive_desc_create", ctypes.byref(descriptor), product, self.with_relu(), self.engine, None)
        self.call("dnnl_primitive_create", ctypes.byref(primitive), descriptor)
        self.library.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        wanted = ctypes.c_void_p(self.library.dnnl_primitive_desc_query_md(descriptor, WEIGHTS_LAYOUT, 0))
        layouts[WEIGHTS] = wanted
        arrays = {SOURCE: image, WEIGHTS: self.packed(weights, wanted), BIAS: bias, DESTINATION: output}
        return self.caller(primitive, arrays, layouts)


def find(threads):
    """The libraries that there are, and for each version that there is not, why."""
    folders = sys.prefix, pathlib.Path(__file__).resolve().parents[2] / ".venv"
    wheels = [path for path in (pathlib.Path(folder) / "lib/libdnnl.so.3" for folder in folders) if path.exists()]
    found, missing = [], []
    # OpenCL's loader is that of the library that is loaded first: only the wheel's finds the wheel's driver.
    for name, paths in (("oneDNN 3", [*wheels, "libdnnl.so.3"]), ("oneDNN 2", ["libdnnl.so.2"])):
        reasons = []
        for path in paths:
            try:
                found.append(OneDnn(path, threads))
                break
            except (OSError, RuntimeError) as error:
                reasons.append(str(error))
        else:
            missing.append(f"{name} is absent: {'; '.join(reasons)}")
    return found, missing
