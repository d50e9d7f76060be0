"""Dense convolutions by OpenVINO on a CPU, on images with channels last. In float32 it is told to compute in it: on CPUs
with AVX512-BF16 it would take bfloat16."""
import importlib.metadata

import numpy as np
import torch


def version():
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return None


def sides(problem, threads):
    if version() is None or problem.dtype not in ("float32", "bfloat16") or problem.image.is_cuda:
        return {}
    # It loads a loader of OpenCL's, after which oneDNN's engine would find no CPU.
    import openvino
    from openvino import opset13 as opset
    element = openvino.Type.f32 if problem.dtype == "float32" else openvino.Type.bf16
    images = {"image": problem.image}
    if problem.activation == "add":
        images["residual"] = problem.residual
    inputs = {name: opset.parameter(list(image.shape), np.float32, name) for name, image in images.items()}
    before, after = problem.margins
    strides, pads = [problem.stride] * 2, ([before] * 2, [after] * 2)
    if problem.groups == 1:
        sums = opset.convolution(inputs["image"], opset.constant(problem.filter), strides, *pads, [1, 1])
    else:
        grouped = problem.filter.reshape(problem.groups, -1, *problem.filter.shape[1:])
        sums = opset.group_convolution(inputs["image"], opset.constant(grouped), strides, *pads, [1, 1])
    sums = opset.add(sums, opset.constant(problem.bias.reshape(1, -1, 1, 1)))
    if problem.activation == "add":
        result = opset.add(sums, inputs["residual"])
    else:
        result = opset.relu(sums) if problem.activation == "relu" else opset.clamp(sums, 0., 6.)
    model = openvino.Model([result], [*inputs.values()], "convolution")
    layouts = openvino.preprocess.PrePostProcessor(model)
    for index in range(len(inputs)):
        layouts.input(index).tensor().set_layout(openvino.Layout("NHWC")).set_element_type(element)
        layouts.input(index).model().set_layout(openvino.Layout("NCHW"))
    layouts.output().tensor().set_layout(openvino.Layout("NHWC")).set_element_type(element)
    layouts.output().model().set_layout(openvino.Layout("NCHW"))
    compiled = openvino.Core().compile_model(layouts.build(), "CPU", {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32" if problem.dtype == "float32" else "bf16"})
    request = compiled.create_infer_request()
    output = torch.zeros(problem.batch, problem.size, problem.size, problem.outputs, dtype=problem.image.dtype)
    tensors = [image.permute(0, 2, 3, 1).contiguous() for image in images.values()]
    for index, tensor in enumerate(tensors):
        request.set_input_tensor(index, as_openvino(tensor, element))
    request.set_output_tensor(0, as_openvino(output, element))

    def run(tensors=tensors):
        # The tensors live as long as this function.
        request.start_async()
        request.wait()
        return output.permute(0, 3, 1, 2)

    return {"dense OpenVINO": run}


def as_openvino(tensor, element):
    """A tensor over the memory of one of PyTorch's; NumPy has no bfloat16."""
    import openvino
    numbers = tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return openvino.Tensor(numbers, list(tensor.shape), element)
