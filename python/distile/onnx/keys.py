"""Operators as the keys of the library for ONNX Runtime: the numbers of OperatorKey in bindings/registry.h."""

from __future__ import annotations

from .._facts import ACTIVATIONS, FLOAT_TYPES, OPERATOR_KINDS, QUANTIZED_TYPES
from .._onnxruntime import DEVICES
from ..description import Operator

# A depthwise convolution has a generator of its own.
KINDS = OPERATOR_KINDS | {"masked_depthwise_conv2d": OPERATOR_KINDS["masked_conv2d"]}
TYPES = {name: number for name, (number, _) in (FLOAT_TYPES | QUANTIZED_TYPES).items()}


def key_of(operator: Operator) -> list[int]:
    """Device, types of input, output and weights, kind, and the numbers of the operator's struct in polykernel.h."""
    params = dict(operator.params)
    types = [TYPES[params["dtype"]], TYPES[params.get("output_dtype", params["dtype"])], TYPES["float32"]]
    return [DEVICES[operator.device], *types, KINDS[operator.generator], *_numbers(operator.generator, params)]


def _numbers(generator: str, params: dict) -> list[int]:
    if generator == "masked_attention":
        return [params["heads"], params["head_dim"], int(params["causal"])]
    end = [list(ACTIVATIONS).index(params["epilogue"]), int(params["residual"])]
    if generator == "masked_linear":
        return [params["in_channels"], params["out_channels"], *end]
    channels = [params["channels"]] * 3 if "channels" in params else [params["in_channels"], params["out_channels"]]
    steps = "scale" if generator == "masked_upsample_conv2d" else "stride"
    more = [params.get(f"output_padding_{axis}", 0) for axis in "hw"]
    return [
        *channels[:2],
        channels[0] if "channels" in params else params.get("groups", 1),
        *(params[f"{name}_{axis}"] for name in ("kernel", steps) for axis in "hw"),
        params["pad_top"],
        params["pad_bottom"] - more[0],
        params["pad_left"],
        params["pad_right"] - more[1],
        *(params[f"dilation_{axis}"] for axis in "hw"),
        *end,
    ]


def operator_of(key: list[int]) -> Operator:
    """The operator with a key, which may have more numbers behind."""
    device, input_type, output_type, _, kind, *numbers = key
    params: dict[str, object] = {"dtype": _name(TYPES, input_type)}
    if params["dtype"] in QUANTIZED_TYPES:
        params["output_dtype"] = _name(TYPES, output_type)
    generator = _name(OPERATOR_KINDS, kind)
    if generator == "masked_attention":
        params.update(heads=numbers[0], head_dim=numbers[1], causal=bool(numbers[2]))
    elif generator == "masked_linear":
        params.update(in_channels=numbers[0], out_channels=numbers[1], **_end(numbers[2:]))
    else:
        generator, more = _convolution(generator, numbers)
        params.update(more)
    return Operator.make(generator, **params).on(_name(DEVICES, device))


def _convolution(generator: str, numbers: list[int]) -> tuple[str, dict[str, object]]:
    steps = "scale" if generator == "masked_upsample_conv2d" else "stride"
    names = ["kernel_h", "kernel_w", f"{steps}_h", f"{steps}_w", "pad_top", "pad_bottom", "pad_left", "pad_right"]
    inner, outer, groups = numbers[:3]
    params = dict(zip([*names, "dilation_h", "dilation_w"], numbers[3:13])) | _end(numbers[13:])
    if generator == "masked_conv2d" and groups == inner == outer:
        return "masked_depthwise_conv2d", {"channels": inner, **params}
    if generator == "masked_conv2d" or groups != 1:
        params["groups"] = groups
    if generator == "masked_conv_transpose2d":
        # The output padding is taken off the padding behind, which is usually as wide as that before.
        for axis, before, behind in (("h", "pad_top", "pad_bottom"), ("w", "pad_left", "pad_right")):
            more = max(params[before] - params[behind], 0)
            params[f"output_padding_{axis}"] = more
            params[behind] += more
    return generator, {"in_channels": inner, "out_channels": outer, **params}


def _end(numbers: list[int]) -> dict[str, object]:
    return {"epilogue": list(ACTIVATIONS)[numbers[0]], "residual": bool(numbers[1])}


def _name(names: dict[str, int], number: int) -> str:
    return next(name for name, own in names.items() if own == number)
