"""What layers with pruned weights are measured beside, for the problems of pruned.py: libraries that multiply with all
weights, and sparse ones."""
import ctypes
import importlib.util
import os
import pathlib
import sys
import warnings

import numpy as np

import peer_onednn
import peer_xnnpack
from measuring import onnxruntime, torch

BOUND = 1e-4  # Relative to the largest value.
# MKL's threads spin for 200 ms after a call by themselves, which is longer than the pause between sides (measuring.py).
os.environ.setdefault("KMP_BLOCKTIME", "20")


def error(result, expected):
    """The largest error by the largest value."""
    return float(np.abs(np.asarray(result).reshape(expected.shape) - expected).max() / np.abs(expected).max())


# Each function returns calls by name, and these their result in the order of what is expected.


def torch_sides(problem, threads):
    """oneDNN's convolution or product with packed weights, with the activation in the same call."""
    weights, bias, images = torch.from_numpy(problem.filter), torch.from_numpy(problem.bias), problem.images()
    if problem.is_linear:
        tokens = images[0, :, 0].t().contiguous()
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.from_numpy(problem.matrix), len(tokens))
        return {"dense PyTorch": lambda: torch.ops.mkldnn._linear_pointwise(tokens, packed, bias, "none", [], "").t()}
    window = [[problem.kernel // 2] * 2, [1, 1], [1, 1], 1]
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(weights.to_mkldnn(), *window, list(images.shape))
    return {"dense PyTorch": lambda: torch.ops.mkldnn._convolution_pointwise(
        images, packed, bias, *window, "relu", [], "")}


def model_of(problem, as_product):
    """The layer in ONNX. A product has [input channels, pixels], and a linear layer [tokens, input channels]."""
    import onnx
    pads = [problem.kernel // 2] * 4
    if problem.is_linear:
        constants = {"w": problem.matrix.T.copy(), "b": problem.bias}
        nodes, shapes = [("Gemm", ["x", "w", "b"], "y", {})], [problem.columns.T.shape, problem.products.T.shape]
    elif as_product:
        constants = {"w": problem.matrix, "b": problem.bias[:, None]}
        nodes = [("MatMul", ["w", "x"], "p", {}), ("Add", ["p", "b"], "s", {}), ("Relu", ["s"], "y", {})]
        shapes = [problem.columns.shape, problem.products.shape]
    else:
        constants = {"w": problem.filter, "b": problem.bias}
        nodes = [("Conv", ["x", "w", "b"], "s", {"pads": pads}), ("Relu", ["s"], "y", {})]
        shapes = [problem.image.shape, (1, *problem.expected.shape)]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
              for name, shape in zip("xy", shapes)]
    made = [onnx.helper.make_node(op, inputs, [output], **more) for op, inputs, output, more in nodes]
    graph = onnx.helper.make_graph(
        made, "layer", values[:1], values[1:], [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()])
    return onnx.helper.make_model(graph, ir_version=9, opset_imports=[onnx.helper.make_opsetid("", 17)])


def input_of(problem, as_product):
    if problem.is_linear:
        return np.ascontiguousarray(problem.columns.T)
    return problem.columns if as_product else problem.image


def ordered(problem, result):
    return result.T if problem.is_linear else result


def forms(problem):
    """The names of a layer's forms in ONNX, and whether each is a product."""
    return {"": False, " product": True} if problem.kernel == 1 and not problem.is_linear else {"": False}


def onnxruntime_sides(problem, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    sides = {}
    for form, as_product in forms(problem).items():
        session = onnxruntime.InferenceSession(model_of(problem, as_product).SerializeToString(), options,
                                               ["CPUExecutionProvider"])
        output = np.zeros(tuple(session.get_outputs()[0].shape), np.float32)
        binding, given = session.io_binding(), input_of(problem, as_product)
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(given))
        binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(output))

        def run(session=session, binding=binding, output=output, given=given):  # The session does not own the input.
            session.run_with_iobinding(binding)
            return ordered(problem, output)

        sides[f"dense ONNX Runtime{form}"] = run
    return sides


def openvino_sides(problem, threads):
    import openvino
    core, sides = openvino.Core(), {}
    common = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    ways = {"dense OpenVINO": {}, "sparse OpenVINO": {"CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": .5}}
    for form, as_product in forms(problem).items():
        model = core.read_model(model_of(problem, as_product).SerializeToString())
        for way, more in ways.items():
            request = core.compile_model(model, "CPU", {**common, **more}).create_infer_request()
            given = input_of(problem, as_product)
            request.set_input_tensor(openvino.Tensor(given, shared_memory=True))
            request.infer()
            output = request.get_output_tensor().data

            def run(request=request, output=output, given=given):  # The request does not own the input.
                request.infer()
                return ordered(problem, output)

            sides[way + form] = run
    return sides


def scipy_sides(problem, threads):
    """One thread: SciPy has no other way."""
    import scipy.sparse
    matrix = scipy.sparse.csr_matrix(problem.matrix)
    return {"sparse SciPy": lambda: matrix @ problem.columns}


def onednn_sides(problem, threads):
    """Its convolution, with weights in the layout that it prefers, and its product of a matrix in CSR."""
    sides = {}
    for library in peer_onednn.libraries(threads):
        name, margins = f"oneDNN {library.major}", [problem.kernel // 2] * 2
        if not problem.is_linear:
            # [images, channels, rows, columns] over memory with channels last.
            output = np.zeros((1, problem.height, problem.width, problem.outputs), np.float32).transpose(0, 3, 1, 2)
            convolve = library.convolution(problem.images().numpy(), problem.filter, problem.bias, output, 1, margins)
            sides[f"dense {name}"] = peer_onednn.returning(convolve, output)
        pointers, indices, values = csr_of(problem.matrix)
        product = np.zeros((problem.outputs, problem.columns.shape[1]), np.float32)
        multiply = library.sparse_matmul((values, indices, pointers), problem.columns, product)
        if multiply:
            sides[f"sparse {name}"] = peer_onednn.returning(multiply, product)
    return sides


def torch_sparse_sides(problem, threads):
    matrix, columns = torch.from_numpy(problem.matrix).to_sparse_csr(), torch.from_numpy(problem.columns)
    return {"sparse PyTorch": lambda: matrix @ columns}


def csr_of(matrix):
    """Row pointers, columns and values of a matrix."""
    csr = torch.from_numpy(matrix).to_sparse_csr()
    pointers, indices = (array.numpy().astype(np.int32) for array in (csr.crow_indices(), csr.col_indices()))
    return pointers, indices, csr.values().numpy()


class MatrixDescription(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "mode", "diag")]


def mkl_library():
    """The library of PyPI's package; None if it is not installed."""
    return next(iter(sorted(pathlib.Path(sys.prefix, "lib").glob("libmkl_rt.so*"))), None)


def mkl_sides(problem, threads):
    """The product of mkl_sparse_s_mm, with its hint for many calls: row after row."""
    library = ctypes.CDLL(str(mkl_library()))
    library.MKL_Set_Num_Threads(threads)

    def check(status, name):
        if status:
            raise RuntimeError(f"MKL: {name} returned {status}")

    rows, inner = problem.matrix.shape
    pixels = problem.columns.shape[1]
    pointers, indices, values = csr_of(problem.matrix)
    output = np.zeros((rows, pixels), np.float32)
    handle = ctypes.c_void_p()

    def address(array, offset=0):
        return ctypes.c_void_p(array.ctypes.data + offset)

    general, not_transposed, row_major, zero_based = 20, 10, 101, 0
    description = MatrixDescription(general, 0, 0)
    check(library.mkl_sparse_s_create_csr(ctypes.byref(handle), zero_based, rows, inner, address(pointers),
                                          address(pointers, 4), address(indices), address(values)),
          "mkl_sparse_s_create_csr")
    check(library.mkl_sparse_set_mm_hint(handle, not_transposed, description, row_major, pixels, 1000),
          "mkl_sparse_set_mm_hint")
    check(library.mkl_sparse_optimize(handle), "mkl_sparse_optimize")

    def run():
        check(library.mkl_sparse_s_mm(not_transposed, ctypes.c_float(1), handle, description, row_major,
                                      address(problem.columns), pixels, pixels, ctypes.c_float(0), address(output),
                                      pixels),
              "mkl_sparse_s_mm")
        return output

    run.arrays = pointers, indices, values  # MKL does not own their memory.
    return {"sparse MKL": run}


def xnnpack_sides(problem, threads):
    """Its convolution adds the bias and applies ReLU. It has no 3x3 kernels of several channels in this layout."""
    if problem.kernel > 1:
        return {}
    output = np.zeros((problem.outputs, problem.columns.shape[1]), np.float32)
    least = -np.inf if problem.is_linear else 0
    library = peer_xnnpack.Xnnpack(threads)
    return {"sparse XNNPACK": library.convolution(problem.matrix, problem.bias, problem.columns, output, least)}


def has(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


MAKERS = {torch_sides: True, onednn_sides: True, onnxruntime_sides: has("onnxruntime", "onnx"),
          openvino_sides: has("openvino", "onnx"), scipy_sides: has("scipy"), mkl_sides: mkl_library() is not None,
          torch_sparse_sides: True, xnnpack_sides: peer_xnnpack.is_there()}


def sides_of(problem, threads):
    """The calls of all libraries that are there. Each was checked."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that sparse tensors are new.
        for make, is_there in MAKERS.items():
            found.update(make(problem, threads) if is_there else {})
    for name, call in found.items():
        is_product = name.startswith("sparse") and not any(library in name for library in ("OpenVINO", "XNNPACK"))
        largest = error(call(), problem.products if is_product else problem.expected)
        if not largest <= BOUND:
            raise RuntimeError(f"{name} is wrong at {problem.name}: its error is {largest:.1e}")
    return found


def versions(threads):
    """The versions of libraries that a header of results does not name by itself."""
    from importlib import metadata
    # Before OpenVINO, whose TBB is older than what oneDNN's driver needs.
    return peer_onednn.versions(threads) | {name: metadata.version(package) if has(package) else None
            for name, package in (("OpenVINO", "openvino"), ("SciPy", "scipy"))} | {
                "MKL": metadata.version("mkl") if mkl_library() else None,
                "XNNPACK": peer_xnnpack.version() if peer_xnnpack.is_there() else None}
