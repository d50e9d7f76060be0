"""Writes operator files for pruned layers into a folder, for run.sh with OPERATOR_FOLDER.

    python bench/own/pruned_operators.py FOLDER [uint8]

The products and the convolutions that SparseRT measures (Wang, PACT 2020, tables 1 and 3), at a batch of 1: those of a
pruned ResNet-50, Transformer and MobileNet V1, with the shares of zeros that the tables have; 3x3 convolutions from 50 %
on, which shows where they break even; and two layers of large images, with as many pixels as small ones have in a batch. In uint8: the ResNet-50's,
the Transformer's and the 3x3 convolutions, all with a ReLU, at 80, 90 and 95 % of quads of four input channels, for
bench/python/pruned_quantized.py.
"""

import argparse
import json
import pathlib

# Output channels, input channels, rows of the square image.
RESNET = [(64, 256, 56), (256, 64, 56), (128, 512, 28), (512, 128, 28), (256, 1024, 14), (1024, 256, 14)]
RESNET += [(512, 2048, 7), (2048, 512, 7)]
MOBILENET = [(64, 32, 112), (128, 64, 56), (128, 128, 56), (256, 128, 28), (256, 256, 28), (512, 256, 14)]
MOBILENET += [(512, 512, 14), (1024, 512, 7), (1024, 1024, 7)]
LARGE = [(512, 512, 160)]
# Output features, input features, of 256 tokens.
TRANSFORMER = [(2048, 512), (512, 2048), (512, 512)]
# Channels, rows of the square image.
CONVOLUTIONS = [(64, 56), (128, 28), (256, 14), (512, 7)]
LARGE_CONVOLUTIONS = [(128, 112)]


def convolution(outputs: int, inputs: int, size: int, kernel: int) -> dict:
    pads = {f"pad_{side}": kernel // 2 for side in ("top", "bottom", "left", "right")}
    params = {"in_channels": inputs, "out_channels": outputs, "kernel_h": kernel, "kernel_w": kernel, **pads}
    typical = {"batch": 1, "height": size, "width": size}
    return {"generator": "masked_conv2d", "params": {**params, "epilogue": "relu"}, "typical": typical}


def linear(outputs: int, inputs: int) -> dict:
    params = {"in_channels": inputs, "out_channels": outputs}
    return {"generator": "masked_linear", "params": params, "typical": {"batch": 1, "tokens": 256}}


def operators():
    """Names and operators, without zeros; and percents of zeros."""
    for outputs, inputs, size in RESNET:
        yield f"1x1_{inputs}_{outputs}_{size}", convolution(outputs, inputs, size, 1), (90, 95)
    for outputs, inputs, size in LARGE:
        yield f"1x1_{inputs}_{outputs}_{size}", convolution(outputs, inputs, size, 1), (90, 95)
    for channels, size in LARGE_CONVOLUTIONS:
        yield f"3x3_{channels}_{size}", convolution(channels, channels, size, 3), (90, 95)
    for outputs, inputs, size in MOBILENET:
        yield f"1x1_{inputs}_{outputs}_{size}", convolution(outputs, inputs, size, 1), (90,)
    for outputs, inputs in TRANSFORMER:
        yield f"linear_{inputs}_{outputs}", linear(outputs, inputs), (90, 95)
    for channels, size in CONVOLUTIONS:
        yield f"3x3_{channels}_{size}", convolution(channels, channels, size, 3), (50, 60, 70, 80, 90, 95)


def quantized_operators():
    """Quantized layers, without zeros; and percents of quads of zeros."""
    resnet = [(f"1x1_{inputs}_{outputs}_{size}", convolution(outputs, inputs, size, 1))
              for outputs, inputs, size in RESNET]
    convolutions = [(f"3x3_{channels}_{size}", convolution(channels, channels, size, 3))
                    for channels, size in CONVOLUTIONS]
    transformer = [(f"linear_{inputs}_{outputs}", linear(outputs, inputs)) for outputs, inputs in TRANSFORMER]
    for shape, operator in resnet + convolutions + transformer:
        operator["params"] |= {"dtype": "uint8", "epilogue": "relu"}
        yield f"{shape}_uint8", operator, (80, 90, 95)


def main(folder: pathlib.Path, quantized: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shape, operator, percents in quantized_operators() if quantized else operators():
        for percent in percents:
            name = f"pruned{percent}_{shape}"
            typical = {**operator["typical"], "weight_zeros": percent / 100}
            described = {"distile_operator": 1, "name": name, **operator, "typical": typical}
            (folder / f"{name}.json").write_text(json.dumps(described, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="the folder for the files")
    parser.add_argument("type", nargs="?", choices=("float32", "uint8"), default="float32", help="of the operators")
    given = parser.parse_args()
    main(given.folder, given.type == "uint8")
