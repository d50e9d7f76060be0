"""What benchmarks measure convolutions beside computes the same: every library that is installed, on small shapes."""
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "python"))

import convolutions
import pruned
import pruned_operators
import pruned_peers

pytestmark = pytest.mark.cpu
# Height and width, channels, kernel, stride, groups, activation and padding, as the operators of the benchmark.
SHAPES = {"conv3": (16, 32, 48, 3, 1, 1, "relu", (1, 1)), "stride2": (16, 32, 64, 3, 2, 1, "relu", (1, 1)),
          "asymmetric": (16, 32, 64, 3, 2, 1, "relu", (0, 1)), "point": (20, 64, 32, 1, 1, 1, "relu", (0, 0)),
          "depthwise": (16, 32, 32, 3, 1, 32, "relu6", (1, 1)), "residual": (16, 32, 32, 1, 1, 1, "add", (0, 0))}
THREADS = 2


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("density", [.3, 1.])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32(shape, batch, density, monkeypatch):
    monkeypatch.setitem(convolutions.OPERATORS, shape, (shape, *SHAPES[shape]))
    problem = convolutions.Problem(shape, batch, density, "float32")
    # It throws where one is wrong.
    sides = convolutions.dense_sides(problem, THREADS)
    wanted = {"dense PyTorch"}
    wanted |= {"dense ONNX Runtime"} if convolutions.onnxruntime else set()
    wanted |= {"dense OpenVINO"} if convolutions.peer_openvino.version() else set()
    if problem.activation == "relu":
        wanted |= {f"dense oneDNN {each.major}" for each in convolutions.peer_onednn.libraries(THREADS)}
        wanted |= {"gathered pixels", "gathered im2col blocks"}
        if convolutions.peer_halide.version():
            wanted |= {"dense Halide Mullapudi2016", "dense Halide Adams2019", "Halide skipping empty tiles"}
    assert set(sides) == wanted


@pytest.mark.parametrize("shape", ["3x3", "1x1", "linear"])
def test_pruned(shape):
    kernel = 3 if shape == "3x3" else 1
    operator = pruned_operators.linear(40, 24) if shape == "linear" else pruned_operators.convolution(40, 24, 9, kernel)
    problem = pruned.Problem(shape, operator, 0.8, "cpu")
    # It throws where one is wrong.
    sides = set(pruned_peers.sides_of(problem, THREADS))
    libraries = [f"oneDNN {each.major}" for each in pruned_peers.peer_onednn.libraries(THREADS)]
    wanted = {"dense PyTorch", "sparse PyTorch", *(f"sparse {name}" for name in libraries if name == "oneDNN 3")}
    wanted |= set() if shape == "linear" else {f"dense {name}" for name in libraries}
    ways = ["", " product"] if shape == "1x1" else [""]
    for names, packages in ((["dense ONNX Runtime"], ["onnxruntime"]), (["dense OpenVINO", "sparse OpenVINO"], ["openvino"])):
        wanted |= {name + way for name in names for way in ways} if pruned_peers.has(*packages, "onnx") else set()
    wanted |= {"sparse SciPy"} if pruned_peers.has("scipy") else set()
    wanted |= {"sparse MKL"} if pruned_peers.mkl_library() else set()
    assert sides == wanted


@pytest.mark.parametrize("shape", ["conv3", "asymmetric", "residual"])
def test_other_types(shape, monkeypatch):
    monkeypatch.setitem(convolutions.OPERATORS, shape, (shape, *SHAPES[shape]))
    assert convolutions.dense_sides(convolutions.QuantizedProblem(shape, 2, .3, "uint8"), THREADS)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert convolutions.dense_sides(convolutions.Problem(shape, 2, .3, "bfloat16"), THREADS)


def test_wrong_side_is_found(monkeypatch):
    monkeypatch.setitem(convolutions.OPERATORS, "point", ("point", *SHAPES["point"]))
    right = convolutions.peer_gathered.sides

    def wrong(problem):
        sides = right(problem)
        return {name: lambda side=side: side() * 1.01 for name, side in sides.items()}

    monkeypatch.setattr(convolutions.peer_gathered, "sides", wrong)
    with pytest.raises(RuntimeError, match="gathered pixels is wrong at point"):
        convolutions.dense_sides(convolutions.Problem("point", 1, .3, "float32"), THREADS)


def test_operators_are_those_of_the_table():
    names = convolutions.OPERATORS
    assert len([name for name in names if name.startswith("op")]) == 31
    assert names["op14"] == ("conv3x3s2_128_asymmetric", 256, 128, 128, 3, 2, 1, "relu", (0, 1))
    assert names["op33"][7] == "add"
