"""Small networks for the tests, with random weights."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from distile.onnx import session_options

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("distile", 1)]


class Builder:
    """Collects nodes and weights of a graph."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.initializers = [], []

    def constant(self, name, value):
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, name, *shape):
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return self.constant(name, (self.random.standard_normal(shape) / np.sqrt(fan)).astype(np.float32))

    def add(self, op, inputs, output, name=None, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name or f"{op}_{output}", **attributes))
        return output

    def conv(self, name, x, out, inner, kernel=3, stride=1, groups=1, op="Conv", **more):
        shape = (inner, out) if op == "ConvTranspose" else (out, inner // groups)
        inputs = [x, self.weights(f"{name}.w", *shape, kernel, kernel), self.weights(f"{name}.b", out)]
        more = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": groups, **more}
        return self.add(op, inputs, f"{name}.out", name, **more)

    def model(self, inputs, outputs, opset=17):
        """`inputs` and `outputs`: names with shapes; masks begin with 'mask'."""
        kinds = [
            helper.make_tensor_value_info(
                name, TensorProto.BOOL if name.startswith("mask") else TensorProto.FLOAT, shape
            )
            for name, shape in inputs.items()
        ]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, "test", kinds, results, self.initializers)
        opsets = [helper.make_opsetid("", opset), OPSETS[1]]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def draw_integers(random, kind, *shape):
    """Numbers of the whole range of an integer type."""
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max + 1, shape).astype(kind)


PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider"],
    "cuda and cpu": ["CUDAExecutionProvider", "CPUExecutionProvider"],
}


def run(model, feeds, threads=None, device="cpu"):
    options = session_options(threads)
    options.log_severity_level = 3
    if device == "cuda":
        # Every node runs on the GPU, or the session fails.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS[device])
    return session.run(None, feeds)


FLOAT, BOOL, INT = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32


def run_node(op, inputs, constants=(), opset=23, domain="distile", types=(FLOAT,), device="cpu", **attributes):
    """The result of one node, or the results if it has several `types`: `inputs` are arrays or None; those whose places
    are in `constants` become initializers."""
    names = [f"input{place}" if value is not None else "" for place, value in enumerate(inputs)]
    outputs = [f"output{place}" for place in range(len(types))]
    node = helper.make_node(op, names, outputs, "node", domain=domain, **attributes)

    def info(name, value):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    given = [(place, name, inputs[place]) for place, name in enumerate(names) if name]
    graph = helper.make_graph(
        [node],
        "test",
        [info(name, value) for place, name, value in given if place not in constants],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, types)],
        [numpy_helper.from_array(value, name) for place, name, value in given if place in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), OPSETS[1]], ir_version=10)
    results = run(model, {name: value for place, name, value in given if place not in constants}, device=device)
    return results[0] if len(results) == 1 else results


def feeds_of(model, density, seed=1):
    random = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
        boolean = value.type.tensor_type.elem_type == TensorProto.BOOL
        feeds[value.name] = (
            random.random(shape) < density if boolean else random.standard_normal(shape).astype(np.float32)
        )
    return feeds


def check(model):
    onnx.checker.check_model(model)
    return model
