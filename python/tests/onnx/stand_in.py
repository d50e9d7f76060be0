"""Runs nodes of the library without ONNX Runtime: hosts its table of functions (OrtApi in its C header).

It stands in for ONNX Runtime's CUDA provider on machines that have a GPU and PyTorch, but not that provider. Tensors
are arrays of NumPy on CPUs, and PyTorch's on GPUs.
"""

import ctypes
import functools
import shutil
import tempfile

import ml_dtypes
import numpy as np

from distile.onnx import library_path

POINTER, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "bfloat16": 16}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ELEMENT_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}
PROVIDERS = {"cpu": b"CPUExecutionProvider", "cuda": b"CUDAExecutionProvider"}
HOST_INPUT = -2

_create = ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, POINTER, ctypes.POINTER(POINTER))
_text = ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)
_count = ctypes.CFUNCTYPE(SIZE, POINTER)
_of_place = ctypes.CFUNCTYPE(INT, POINTER, SIZE)


class CustomOperator(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("create", POINTER),
        ("name", _text),
        ("provider", _text),
        ("input_type", _of_place),
        ("num_inputs", _count),
        ("output_type", _of_place),
        ("num_outputs", _count),
        ("compute", POINTER),
        ("destroy", ctypes.CFUNCTYPE(None, POINTER)),
        ("input_presence", _of_place),
        ("output_presence", _of_place),
        ("input_memory", _of_place),
        ("variadic", POINTER * 4),
        ("create_with_status", _create),
        ("compute_with_status", ctypes.CFUNCTYPE(POINTER, POINTER, POINTER)),
    ]


class Node:
    """What a kernel is made from, and a call of it."""

    def __init__(self, inputs, constants, attributes, device, types):
        self.inputs, self.constants, self.attributes = inputs, constants, attributes
        self.device, self.types, self.outputs = device, types, {}


class Host:
    """The table, and the objects that its functions know by numbers."""

    def __init__(self):
        self.objects, self.operators, self._functions = {}, [], []
        lacking = ctypes.CFUNCTYPE(POINTER)(lambda: self.keep(b"the stand-in lacks this function"))
        self._functions.append(lacking)
        self.table = (POINTER * 278)(*[ctypes.cast(lacking, POINTER).value] * 278)
        for position, name, result, arguments in SIGNATURES:
            function = ctypes.CFUNCTYPE(result, *arguments)(getattr(self, name))
            self._functions.append(function)
            self.table[position] = ctypes.cast(function, POINTER).value
        get_api = ctypes.CFUNCTYPE(POINTER, ctypes.c_uint32)(lambda version: ctypes.addressof(self.table))
        self._functions.append(get_api)
        base = (POINTER * 2)(ctypes.cast(get_api, POINTER).value, None)
        # A copy of the library, because ONNX Runtime may have registered itself with the other.
        with tempfile.TemporaryDirectory() as folder:
            library = ctypes.CDLL(shutil.copy(library_path(), folder))
        library.RegisterCustomOps.restype = POINTER
        self.check(library.RegisterCustomOps(POINTER(1), base))

    def keep(self, thing):
        number = len(self.objects) + 1
        self.objects[number] = thing
        return number

    def check(self, status):
        if status:
            raise RuntimeError(self.objects[status].decode())

    # Functions of the table, in its order. Those that return a status return None for success.

    def create_status(self, code, message):
        return self.keep(message)

    def get_error_message(self, status):
        buffer = ctypes.create_string_buffer(self.objects[status])
        self._functions.append(buffer)
        return ctypes.addressof(buffer)

    def create_domain(self, name, domain):
        domain[0] = self.keep(name)

    def add_operator(self, domain, operator):
        self.operators.append((operator, CustomOperator.from_address(operator)))

    def add_domain(self, options, domain):
        pass

    def get_data(self, value, data):
        tensor = self.objects[value]
        data[0] = tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()

    def get_element_type(self, value, kind):
        kind[0] = ELEMENT_TYPES[str(self.objects[value].dtype).removeprefix("torch.")]

    def get_rank(self, value, rank):
        rank[0] = len(self.objects[value].shape)

    def get_dimensions(self, value, dimensions, rank):
        for place in range(rank):
            dimensions[place] = self.objects[value].shape[place]

    def same(self, value, other):
        """A value serves as its own description."""
        other[0] = value

    def get_device_number(self, value, number):
        number[0] = self.objects[value].device.index or 0

    def get_number(self, node, name, number):
        if name.decode() not in self.objects[node].attributes:
            return self.keep(b"no such attribute")
        number[0] = self.objects[node].attributes[name.decode()]

    def get_string(self, node, name, text, size):
        value = self.objects[node].attributes.get(name.decode())
        return self.keep(b"no such attribute") if value is None else self._write(value, text, size)

    def get_input_count(self, node, count):
        count[0] = len(self.objects[node].inputs)

    def get_input(self, node, place, value):
        tensor = self.objects[node].inputs[place]
        value[0] = None if tensor is None else self.keep(tensor)

    def get_output(self, node, place, shape, rank, value):
        node = self.objects[node]
        node.outputs[place] = _empty([shape[axis] for axis in range(rank)], node.types[place], node.device)
        value[0] = self.keep(node.outputs[place])

    def release(self, thing):
        pass

    def get_integers(self, node, name, values, size):
        given = self.objects[node].attributes.get(name.decode())
        if given is None:
            return self.keep(b"no such attribute")
        for place in range(len(given) if values else 0):
            values[place] = given[place]
        size[0] = len(given)

    def get_stream(self, node, stream):
        import torch

        stream[0] = torch.cuda.current_stream().cuda_stream

    def get_input_name(self, node, place, text, size):
        return self._write("" if self.objects[node].inputs[place] is None else "input", text, size)

    def has_session_entry(self, options, key, present):
        present[0] = 0

    def get_node_name(self, node, text, size):
        return self._write("node", text, size)

    def get_constant(self, node, place, constant, value):
        node = self.objects[node]
        constant[0] = place in node.constants and node.inputs[place] is not None
        value[0] = self.keep(node.inputs[place]) if constant[0] else None

    def parallel_for(self, node, body, count, batches, user):
        for place in range(count):
            body(user, place)

    @staticmethod
    def _write(value, text, size):
        if text:
            ctypes.memmove(text, value.encode() + b"\0", len(value) + 1)
        size[0] = len(value) + 1


_out, _size, _ints = ctypes.POINTER(POINTER), ctypes.POINTER(SIZE), ctypes.POINTER(ctypes.c_int64)
_int, _name = ctypes.POINTER(INT), ctypes.c_char_p
SIGNATURES = [
    (0, "create_status", POINTER, (INT, _name)),
    (2, "get_error_message", POINTER, (POINTER,)),
    (26, "create_domain", POINTER, (_name, _out)),
    (27, "add_operator", POINTER, (POINTER, POINTER)),
    (28, "add_domain", POINTER, (POINTER, POINTER)),
    (51, "get_data", POINTER, (POINTER, _out)),
    (60, "get_element_type", POINTER, (POINTER, _int)),
    (61, "get_rank", POINTER, (POINTER, _size)),
    (62, "get_dimensions", POINTER, (POINTER, _ints, SIZE)),
    (65, "same", POINTER, (POINTER, _out)),
    (72, "get_device_number", POINTER, (POINTER, _int)),
    (85, "get_number", POINTER, (POINTER, _name, ctypes.POINTER(ctypes.c_float))),
    (86, "get_number", POINTER, (POINTER, _name, _ints)),
    (87, "get_string", POINTER, (POINTER, _name, POINTER, _size)),
    (88, "get_input_count", POINTER, (POINTER, _size)),
    (90, "get_input", POINTER, (POINTER, SIZE, _out)),
    (91, "get_output", POINTER, (POINTER, SIZE, _ints, SIZE, _out)),
    (93, "release", None, (POINTER,)),
    (99, "release", None, (POINTER,)),
    (163, "get_integers", POINTER, (POINTER, _name, _ints, _size)),
    (193, "get_stream", POINTER, (POINTER, _out)),
    (194, "same", POINTER, (POINTER, _out)),
    (230, "get_input_count", POINTER, (POINTER, _size)),
    (232, "get_input_name", POINTER, (POINTER, SIZE, POINTER, _size)),
    (237, "has_session_entry", POINTER, (POINTER, _name, _int)),
    (244, "get_node_name", POINTER, (POINTER, POINTER, _size)),
    (249, "get_constant", POINTER, (POINTER, SIZE, _int, _out)),
    (274, "parallel_for", POINTER, (POINTER, ctypes.CFUNCTYPE(None, POINTER, SIZE), SIZE, SIZE, POINTER)),
]


def _empty(shape, dtype, device):
    if device == "cpu":
        return np.empty(shape, BFLOAT16 if dtype == "bfloat16" else dtype)
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def _moved(array, device):
    if array is None or device == "cpu":
        return None if array is None else np.ascontiguousarray(array)
    import torch

    array = np.ascontiguousarray(array)
    if array.dtype == BFLOAT16:  # PyTorch takes none from NumPy.
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def _on_host(tensor):
    if isinstance(tensor, np.ndarray):
        return tensor
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().view(torch.int16).numpy().view(BFLOAT16)
    return tensor.cpu().numpy()


@functools.cache
def host():
    return Host()


def _operator(op, inputs, device):
    """The registered operator whose inputs have these types."""
    found = [
        (address, one) for address, one in host().operators
        if one.name(address).decode() == op and one.provider(address) == PROVIDERS[device]
    ]  # fmt: skip
    for address, one in found:
        places = [place for place, value in enumerate(inputs) if value is not None]
        kinds = [ELEMENT_TYPES[str(inputs[place].dtype)] for place in places]
        if [one.input_type(address, place) for place in places] == kinds:
            return address, one
    raise LookupError(f"no {op} on {device} for these types")


@functools.cache
def _stream():
    """A stream of its own, so that work on another would be found out."""
    import torch

    return torch.cuda.Stream()


def run_node(op, inputs, constants=(), device="cpu", **attributes):
    """The results of one node, whose inputs are arrays or None; those whose places are in `constants` are
    initializers."""
    if device == "cpu":
        return _run(op, inputs, constants, device, attributes)
    import torch

    with torch.cuda.stream(_stream()):
        return _run(op, inputs, constants, device, attributes)


def _run(op, inputs, constants, device, attributes):
    address, operator = _operator(op, inputs, device)
    placed = [
        _moved(value, "cpu" if operator.input_memory(address, place) == HOST_INPUT else device)
        for place, value in enumerate(inputs)
    ]
    types = [ELEMENT_NAMES[operator.output_type(address, place)] for place in range(operator.num_outputs(address))]
    node = Node(placed, constants, attributes, device, types)
    handle, kernel = host().keep(node), POINTER()
    host().check(operator.create_with_status(address, ctypes.addressof(host().table), handle, ctypes.byref(kernel)))
    try:
        host().check(operator.compute_with_status(kernel, handle))
        return [_on_host(node.outputs[place]) for place in range(len(types))]
    finally:
        operator.destroy(kernel)
