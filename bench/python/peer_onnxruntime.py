"""Dense convolutions in float32 by ONNX Runtime, whose own layout of images is NCHW."""
import numpy as np
import torch

try:
    import onnx
    import onnxruntime
except ImportError:
    onnx = onnxruntime = None


def sides(problem, threads):
    if onnxruntime is None or onnx is None or problem.dtype != "float32" or problem.image.is_cuda:
        return {}
    before, after = problem.margins
    nodes = [onnx.helper.make_node("Conv", ["image", "filter", "bias"], ["sums"], pads=[before] * 2 + [after] * 2,
                                   strides=[problem.stride] * 2, group=problem.groups)]
    constants = {"filter": problem.filter, "bias": problem.bias}
    arrays = {"image": problem.image.contiguous().numpy()}
    if problem.activation == "add":
        arrays["residual"] = problem.residual.contiguous().numpy()
        nodes.append(onnx.helper.make_node("Add", ["sums", "residual"], ["output"]))
    elif problem.activation == "relu":
        nodes.append(onnx.helper.make_node("Relu", ["sums"], ["output"]))
    else:
        constants |= {"least": np.float32(0), "most": np.float32(6)}
        nodes.append(onnx.helper.make_node("Clip", ["sums", "least", "most"], ["output"]))
    arrays["output"] = np.zeros((problem.batch, problem.outputs, problem.size, problem.size), np.float32)
    *inputs, output = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
                       for name, array in arrays.items())
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "convolution", inputs, [output], [
            onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]),
        ir_version=9, opset_imports=[onnx.helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in [*arrays][:-1]:
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(arrays[name]))
    binding.bind_ortvalue_output("output", onnxruntime.OrtValue.ortvalue_from_numpy(arrays["output"]))

    def run():
        session.run_with_iobinding(binding)
        return torch.from_numpy(arrays["output"])

    return {"dense ONNX Runtime": run}
