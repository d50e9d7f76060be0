#!/usr/bin/env python3
"""Measures masked convolutions beside dense ones of PyTorch in the same type, all sides in turns.

On a CPU, PyTorch's side is oneDNN's convolution with packed weights, channels last, with the activation in the same
call. In uint8, with weights of int8, ONNX Runtime's QLinearConv is another side. In float32 there are oneDNN itself,
of versions 3 and 2, ONNX Runtime, OpenVINO (in bfloat16 too) and Halide's autoschedulers on the dense operator, whichever are installed
(requirements/bench-python.txt), and what sparse code does without kernels of its own: gathering pixels, or blocks of an
explicit im2col as PIT does, multiplying and scattering; and skipping empty tiles without a list, as DeltaCNN does, by
Halide. Every side is checked. On a GPU it is cuDNN's convolution,
and then the activation. PyTorch has no quantized convolution there: in uint8 its side is cuDNN in float16, whose images
have twice the bytes, and for 1x1 also cuBLAS's product of int8, whose results are the sums of int32 alone. Our own
dense variant is measured too. Masks are blobs: a smooth random field, cut off at the density.

Examples, for one machine and several numbers of threads:
  convolutions.py --library libdistile.so --objects folder --threads 16 --dtype bfloat16 --out conv.json
  convolutions.py --library libdistile.so --objects folder --threads 8 --dtype bfloat16 --out conv.json --resume

The folder has the PolyKernels that OPERATORS names, or some of them, with _<dtype> unless that is float32, and with the
name of a plan behind it.
"""
import csv
import ctypes
import json
import pathlib

import numpy as np

import peer_gathered
import peer_halide
import peer_onednn
import peer_onnxruntime
import peer_openvino
from c_api import DTYPES, Distile, Quantization, RunArgs, Scale, Tensor
from measuring import (CpuClock, GpuClock, Results, draw_blobs, fastest, find_object, measure, onnxruntime,
                       parse_options, times_of, torch)

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"


def rows_of_table(ids):
    """Operators of data/operators.csv by their rows: height and width, channels, kernel, stride, groups, activation and
    the padding before and after; the activation "add" adds a residual."""
    with open(DATA / "operators.csv", encoding="utf-8") as file:
        lines = {line["id"]: line for line in csv.DictReader(line for line in file if not line.startswith("#"))}
    operators = {}
    for number in ids:
        line = lines[str(number)]
        params = json.loads((DATA / "operators" / f"{line['operator']}.json").read_text(encoding="utf-8"))["params"]
        size, inputs, outputs, kernel, stride = (
            int(line[column]) for column in ("height", "in_channels", "out_channels", "kernel", "stride"))
        groups = inputs if line["category"] == "depthwise" else 1
        operators[f"op{number}"] = (line["operator"], size, inputs, outputs, kernel, stride, groups,
                                    "add" if params.get("residual") else params["epilogue"],
                                    (params["pad_top"], params["pad_bottom"]))
    return operators


OPERATORS = rows_of_table([*range(1, 27), 31, 32, 33, 35, 40])
# Grouped operators of bench/own/operators: ResNeXt-50's of 4 channels, and widths of RegNet.
OPERATORS |= {name: (name, size, groups * width, groups * width, 3, 1, groups, "relu", (1, 1)) for name, groups, width, size in (
    ("grouped3x3_32x4_56", 32, 4, 56), ("grouped3x3_16x8_28", 16, 8, 28), ("grouped3x3_8x24_28", 8, 24, 28),
    ("grouped3x3_8x40_28", 8, 40, 28), ("grouped3x3_8x56_14", 8, 56, 14), ("grouped3x3_4x100_14", 4, 100, 14))}
ACTIVATIONS = {"relu": ("relu", [], ""), "relu6": ("hardtanh", [0., 6.], "")}  # As PyTorch's fused operators take them.
BATCHES = {"cpu": [1, 2, 4], "cuda": [1, 4, 32]}
DENSITIES = [.3, .1, .5, .05, .7, .9, 1.0]
SEED = 4711
BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-3}  # Relative to the largest value.


class Problem:
    """A convolution, with random numbers."""

    def __init__(self, operator, batch, density, dtype, device="cpu"):
        (self.name, size, self.inputs, self.outputs, self.kernel, self.stride, self.groups, self.activation,
         self.margins) = OPERATORS[operator]
        self.random, self.batch, self.dtype = np.random.default_rng(SEED), batch, dtype
        self.size = self.height = self.width = size // self.stride
        # Libraries that pad alike on all sides read an image that has the zeros.
        self.padding = self.margins[0] if self.margins[0] == self.margins[1] else 0
        fan_in = self.inputs // self.groups * self.kernel ** 2
        self.filter = self.random.standard_normal(
            (self.outputs, self.inputs // self.groups, self.kernel, self.kernel), np.float32) * (2 / fan_in) ** .5
        self.bias = self.random.uniform(-.1, .1, self.outputs).astype(np.float32)
        self.image = self.draw_image(self.inputs, size, device)
        self.residual = self.draw_image(self.outputs, self.width, device) if self.activation == "add" else None
        self.mask = torch.from_numpy(draw_blobs(batch, self.width, density, self.random)).to(device)
        self.density = float(self.mask.float().mean())
        self.store()

    def draw_image(self, channels, size, device):
        numbers = self.random.standard_normal((self.batch, channels, size, size), np.float32)
        return torch.from_numpy(numbers).to(device)

    def store(self):
        """Stores the images in the type."""
        self.image, self.residual = (
            image if image is None else image.to(getattr(torch, self.dtype)).contiguous(
                memory_format=torch.channels_last) for image in (self.image, self.residual))

    def padded(self, image):
        """The image as libraries read it."""
        before, after = self.margins
        if before == after:
            return image
        return torch.nn.functional.pad(image, (before, after, before, after)).contiguous(
            memory_format=torch.channels_last)

    def sums(self, image, filter_, bias):
        image = self.padded(image)
        filter_, bias = (torch.from_numpy(array).to(image.device, image.dtype) for array in (filter_, bias))
        return torch.nn.functional.conv2d(image, filter_, bias, self.stride, self.padding, groups=self.groups)

    def finish(self, values, residual, unit=1):
        """The result of sums in this unit."""
        if self.activation == "add":
            return values + residual
        return values.relu() if self.activation == "relu" else values.clamp(0, 6 / unit)

    def expected(self):
        """In float32, with the type's roundings of the images alone."""
        residual = None if self.residual is None else self.residual.float()
        return self.finish(self.sums(self.image.float(), self.filter, self.bias), residual)

    def packed(self, distile, kernel):
        return distile.weights(kernel, self.filter, self.bias)

    def window(self):
        """Padding, stride, dilation and groups as PyTorch's operators take them."""
        return [[self.padding] * 2, [self.stride] * 2, [1, 1], self.groups]


def quantized(image):
    """An image of numbers that are not negative, in uint8 with the zero point 0, and its scale."""
    scale = float(image.max()) / 255
    return torch.round(image / scale).to(torch.uint8).contiguous(memory_format=torch.channels_last), scale


class QuantizedProblem(Problem):
    """Images as they follow a ReLU, in uint8 with the zero point 0; a filter of int8 with a scale for each channel."""

    def store(self):
        self.image, self.residual_scale = self.image.relu(), 0
        residual = None if self.residual is None else self.residual.relu()
        sums = self.sums(self.image, self.filter, self.bias)
        self.output_scale = float(self.finish(sums, residual).max()) / 255
        self.sums_scale = float(sums.abs().max()) / 127
        self.image, self.image_scale = quantized(self.image)
        if residual is not None:
            self.residual, self.residual_scale = quantized(residual)
        self.scales = np.abs(self.filter).reshape(self.outputs, -1).max(1) / np.float32(127)
        self.filter = np.round(self.filter / self.scales[:, None, None, None]).astype(np.int8)
        self.bias = np.round(self.bias / (self.image_scale * self.scales)).astype(np.int32)

    def expected(self):
        """The integers that are stored. The sums are exact in float64."""
        sums = self.sums(self.image.double(), self.filter, self.bias)
        scales = torch.from_numpy(self.image_scale * self.scales).to(sums)
        residual = None if self.residual is None else self.residual.double() * self.residual_scale
        real = self.finish(sums * scales[:, None, None], residual)
        return torch.round(real / self.output_scale).clamp(0, 255)

    def packed(self, distile, kernel):
        numbers = Quantization(Scale(self.image_scale, 0), self.scales.ctypes.data, self.bias.ctypes.data,
                               Scale(self.output_scale, 0), Scale(self.residual_scale, 0))
        return distile.weights(kernel, self.filter, None, numbers)


def tensor_of(image, dtype):
    """A tensor of the C API, over a PyTorch tensor with channels last."""
    batch, channels, height, width = image.shape
    return ctypes.pointer(Tensor(image.data_ptr(), DTYPES[dtype], batch, height, width, channels,
                                 height * width * channels, width * channels, channels))


class Masked:
    """Our side."""

    def __init__(self, distile, kernel, problem):
        self.distile, self.kernel, self.problem = distile, kernel, problem
        self.mask = distile.mask()
        self.output = torch.full((problem.batch, problem.outputs, problem.height, problem.width), 7,
                                 dtype=problem.image.dtype, device=problem.image.device).contiguous(
                                     memory_format=torch.channels_last)
        self.args = RunArgs(input=tensor_of(problem.image, problem.dtype), mask=self.mask,
                            output=tensor_of(self.output, problem.dtype),
                            weights=problem.packed(distile, kernel))
        if problem.residual is not None:
            self.args.residual = tensor_of(problem.residual, problem.dtype)
        self.set_mask = distile.mask_setter(self.mask, problem.mask.data_ptr(), problem.batch, problem.width,
                                            problem.height)
        self.set_mask()
        self.variant = distile.chosen(kernel, self.mask)
        if problem.mask.is_cuda:
            # In a graph the GPU would choose; our other benchmarks name the variant, too.
            self.args.variant = self.variant
        # Our own dense variant: with every pixel active, the one that every plan has.
        self.all = distile.mask()
        self.everything = torch.ones_like(problem.mask)
        distile.mask_setter(self.all, self.everything.data_ptr(), problem.batch, problem.width, problem.height)()
        dense = next(name for name in distile.variants(kernel) if name.startswith(b"dense"))
        self.dense_output = torch.empty_like(self.output)
        self.dense_args = RunArgs(input=self.args.input, residual=self.args.residual, mask=self.all,
                                  weights=self.args.weights, variant=dense,
                                  output=tensor_of(self.dense_output, problem.dtype))

    def sides(self):
        return {**self.distile.sides(self.kernel, self.args, self.set_mask),
                "own dense": self.distile.runner(self.kernel, self.dense_args)}

    def error(self):
        """The largest error of active pixels by the largest value; throws if another pixel was written."""
        self.set_mask()
        self.distile.run(self.kernel, self.args)
        if self.output.is_cuda:
            torch.cuda.synchronize()
        active = self.problem.mask.bool()[:, None].expand_as(self.output)
        if not (self.output[~active] == 7).all():
            raise RuntimeError("an inactive pixel was written")
        expected = self.problem.expected()
        return float((self.output.float() - expected)[active].abs().max() / expected.abs().max())


def torch_sides(problem):
    filter_, bias = (torch.from_numpy(array).to(problem.image.dtype) for array in (problem.filter, problem.bias))
    window = problem.window()
    image = problem.padded(problem.image)
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(filter_.to_mkldnn(), *window, list(image.shape))
    if problem.residual is not None:
        return {"dense PyTorch": lambda: torch.ops.mkldnn._convolution_pointwise.binary(
            image, problem.residual, packed, bias, *window, "add", 1., None, [], None)}
    return {"dense PyTorch": lambda: torch.ops.mkldnn._convolution_pointwise(
        image, packed, bias, *window, *ACTIVATIONS[problem.activation])}


def quantized_torch_sides(problem):
    """What PyTorch's compiler calls for quantized convolutions: oneDNN, with packed weights."""
    window, scales = problem.window(), torch.from_numpy(problem.scales)
    image = problem.padded(problem.image)
    stride, padding, dilation, groups = window[1], window[0], window[2], window[3]
    packed = torch.ops.onednn.qconv_prepack(torch.from_numpy(problem.filter), scales, problem.image_scale, 0, stride,
                                            padding, dilation, groups, list(image.shape))
    bias = torch.from_numpy((problem.bias * problem.image_scale * problem.scales).astype(np.float32))
    zeros = torch.zeros(problem.outputs, dtype=torch.int32)
    shared = (bias, stride, padding, dilation, groups, problem.output_scale, 0, torch.uint8)
    if problem.residual is not None:
        # It adds in place: from the second call on, to its own result.
        result = problem.residual.clone(memory_format=torch.channels_last)
        return {"dense PyTorch": lambda: torch.ops.onednn.qconv2d_pointwise.binary(
            image, problem.image_scale, 0, packed, scales, zeros, result, *shared, problem.residual_scale, 0,
            "sum", 1., "none", [], "")}
    return {"dense PyTorch": lambda: torch.ops.onednn.qconv2d_pointwise(
        image, problem.image_scale, 0, packed, scales, zeros, *shared, *ACTIVATIONS[problem.activation])}


def cuda_sides(problem):
    """cuDNN's convolution and then the activation; in float16 for quantized numbers."""
    half = problem.dtype == "uint8"
    image = problem.padded(problem.image.half() if half else problem.image)
    filter_, bias = (torch.from_numpy(array).to(image) for array in (problem.filter, problem.bias))
    if half:
        # Real numbers in units of the output, as the quantized operator has them before it rounds.
        unit = torch.from_numpy(problem.image_scale * problem.scales / problem.output_scale).to(filter_)
        filter_, bias = filter_ * unit[:, None, None, None], bias * unit
    filter_ = filter_.contiguous(memory_format=torch.channels_last)
    residual = problem.residual
    if half and residual is not None:
        residual = residual.half() * (problem.residual_scale / problem.output_scale)
    return {"dense cuDNN float16" if half else "dense cuDNN": lambda: problem.finish(torch.nn.functional.conv2d(
        image, filter_, bias, problem.stride, problem.padding, groups=problem.groups), residual,
        problem.output_scale if half else 1)}


def sums_of_cublas(problem):
    """cuBLAS's product of int8, which is no result yet: of images with half the range, because it reads no uint8."""
    rows = (problem.image // 2).to(torch.int8).permute(0, 2, 3, 1).reshape(-1, problem.inputs)
    columns = torch.from_numpy(problem.filter).to(rows).reshape(problem.outputs, problem.inputs).t()
    if not (torch._int_mm(rows, columns)[:64].double() == rows[:64].double() @ columns.double()).all():
        raise RuntimeError("cuBLAS's sums are wrong")
    return {"dense cuBLAS int8 sums": lambda: torch._int_mm(rows, columns)}


def onnxruntime_sides(problem, threads):
    """QLinearConv, which saturates as the activation does, and QLinearAdd. ONNX Runtime drops the transpositions: its
    own kernels have channels last."""
    import onnx
    batch = len(problem.image)
    constants = {"x_scale": np.float32(problem.image_scale), "w": problem.filter, "w_scale": problem.scales,
                 "y_scale": np.float32(problem.output_scale), "b": problem.bias, "x_zero": np.uint8(0),
                 "w_zero": np.zeros(problem.outputs, np.int8), "y_zero": np.uint8(0)}
    nodes = [onnx.helper.make_node("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2]),
             onnx.helper.make_node("QLinearConv", ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale",
                                                   "y_zero", "b"], ["y"], pads=[*problem.margins[:1] * 2, *problem.margins[1:] * 2],
                                   strides=[problem.stride] * 2, group=problem.groups)]
    images, last = {"image": problem.image}, "y"
    if problem.residual is not None:
        # The convolution's own results are negative, too.
        images["residual"], last = problem.residual, "sum"
        constants |= {"y_scale": np.float32(problem.sums_scale), "y_zero": np.uint8(128),
                      "r_scale": np.float32(problem.residual_scale), "sum_scale": np.float32(problem.output_scale)}
        nodes += [onnx.helper.make_node("Transpose", ["residual"], ["r"], perm=[0, 3, 1, 2]),
                  onnx.helper.make_node("QLinearAdd", ["y", "y_scale", "y_zero", "r", "r_scale", "x_zero", "sum_scale",
                                                       "x_zero"], ["sum"], domain="com.microsoft")]
    nodes.append(onnx.helper.make_node("Transpose", [last], ["output"], perm=[0, 2, 3, 1]))
    arrays = {name: image.permute(0, 2, 3, 1).numpy() for name, image in images.items()}
    arrays["output"] = np.zeros((batch, problem.height, problem.width, problem.outputs), np.uint8)
    *inputs, output = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, array.shape)
                       for name, array in arrays.items())
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "convolution", inputs, [output], [
            onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]),
        ir_version=9, opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in images:
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(arrays[name]))
    binding.bind_ortvalue_output("output", onnxruntime.OrtValue.ortvalue_from_numpy(arrays["output"]))

    def run():
        session.run_with_iobinding(binding)
        return torch.from_numpy(arrays["output"]).permute(0, 3, 1, 2)

    return {"dense ONNX Runtime": run}


def dense_sides(problem, threads):
    """The libraries. Each was checked: quantized results may differ by one step, others by the rounding of their
    type."""
    bound = 1 if problem.residual is None else 2  # ONNX Runtime rounds before it adds, too.
    if problem.image.is_cuda:
        sides = cuda_sides(problem)
        bound = 2  # Float16 rounds images, weights and results.
    elif problem.dtype != "uint8":
        sides = {**torch_sides(problem), **peer_onednn.sides(problem, threads), **peer_onnxruntime.sides(problem, threads),
                 **peer_openvino.sides(problem, threads), **peer_halide.dense_sides(problem, threads)}
    else:
        sides = quantized_torch_sides(problem)
        if onnxruntime:
            sides.update(onnxruntime_sides(problem, threads))
    expected = problem.expected()
    if problem.dtype != "uint8":
        bound = BOUNDS[problem.dtype] * float(expected.abs().max())
    for name, side in sides.items():
        result = side().float()
        # In float16, what quantized numbers saturate to is not cut off.
        error = float(((result.clamp(0, 255) if problem.dtype == "uint8" else result) - expected).abs().max())
        if not error <= bound:
            raise RuntimeError(f"{name} is wrong at {problem.name}: its error is {error:.3g}, above {bound:.3g}")
    sides.update(checked_sparse_sides(problem, threads, expected, bound))
    if problem.image.is_cuda and problem.dtype == "uint8" and (problem.kernel, problem.stride) == (1, 1):
        sides.update(sums_of_cublas(problem))
    return sides


def checked_sparse_sides(problem, threads, expected, bound):
    """Other ways to compute the active pixels alone, from the byte mask on."""
    if problem.image.is_cuda or problem.dtype == "uint8":
        return {}
    sides = {**peer_gathered.sides(problem), **peer_halide.tile_sides(problem, threads)}
    active = problem.mask.bool()[:, None].expand_as(expected)
    for name, side in sides.items():
        error = float((side().float() - expected)[active].abs().max())
        if not error <= bound:
            raise RuntimeError(f"{name} is wrong at {problem.name}: its error is {error:.3g}, above {bound:.3g}")
    return sides


def measure_row(distile, kernel, problem, options):
    ours = Masked(distile, kernel, problem)
    sides = {**ours.sides(), **dense_sides(problem, options.threads)}
    clock = GpuClock(distile) if problem.image.is_cuda else CpuClock("dense ONNX Runtime" in sides or "dense OpenVINO" in sides)
    times = measure(clock, sides, options.rounds)
    masked, kernels = times["masked"]["median"], times["kernels"]["median"]
    peer, peer_us = fastest(times, "dense")
    kind = "quantized" if problem.image.is_cuda and problem.dtype == "uint8" else "scaling"
    return {"status": "measured", "kind": kind, "shape": problem.name, "dtype": problem.dtype,
            "batch": problem.batch, "threads": options.threads, "mask": "blob", "mode": "keep",
            "density": problem.density, "max_rel_err": ours.error(), "variant": ours.variant.decode(),
            "t_masked_us": masked, "t_kernels_us": kernels, "t_peer_us": peer_us, "peer": peer,
            "t_own_dense_us": times["own dense"]["median"],
            "eta": peer_us * problem.density / masked, "eta_kernel": peer_us * problem.density / kernels,
            "times_us": times}


def main():
    options = parse_options(__doc__, ["cpu", "cuda"], ["float32", "bfloat16", "float16", "uint8"])
    if torch is None:
        raise SystemExit("convolutions.py: PyTorch is needed")
    results = Results(options, {"OpenVINO": peer_openvino.version(), "Halide": peer_halide.version(),
                                **({} if cuda else peer_onednn.versions(options.threads))})
    cuda = options.device == "cuda"
    torch.backends.cudnn.benchmark = True
    distile = Distile(options.library, options.threads, cuda)
    rows = [(operator, batch, density) for density in DENSITIES for operator in OPERATORS
            for batch in BATCHES[options.device]]
    for number, (operator, batch, density) in enumerate(rows, 1):
        name = f"{operator}/{density}/n{batch}/{options.dtype}" + ("" if cuda else f"/t{options.threads}")
        if not results.wants(name):
            continue
        plan = OPERATORS[operator][0] + ("" if options.dtype == "float32" else f"_{options.dtype}")
        path = find_object(options.objects, plan)
        if path is None:
            results.add(name, {"status": "skipped", "reason": f"'{options.objects}' has no {plan}"})
            print(f"[{number}/{len(rows)}] {name}: skipped, no {plan}", flush=True)
            continue
        kind = QuantizedProblem if options.dtype == "uint8" else Problem
        problem = kind(operator, batch, density, options.dtype, options.device)
        row = measure_row(distile, distile.kernel(path, times_of(options, path)), problem, options)
        results.add(name, {"op": operator, **row})
        print(f"[{number}/{len(rows)}] {name}: {row['variant']} {row['t_masked_us']:.1f} us, {row['peer']} "
              f"{row['t_peer_us']:.1f}: eta {row['eta']:.2f} ({row['eta_kernel']:.2f}), error {row['max_rel_err']:.0e}",
              flush=True)


if __name__ == "__main__":
    main()
