"""Pruned layers on NVIDIA GPUs. What only compiles, and what is asked for, runs without one; the rest with `pytest
--device cuda`."""

import contextlib
import pathlib

import graphs
import pytest
import torch

import distile
from distile import description, explain, polykernels, toolchain, weight_zeros
from distile.building import needed_by
from distile.nn import MaskedConv2d, MaskedLinear
from distile.operators import Operator
from distile.weight_zeros import form_of, why_not_skipped, zeros_for_tensor

pytestmark = pytest.mark.filterwarnings("ignore:distile")


@pytest.fixture(scope="module", autouse=True)
def with_bitmap():
    """Builds take code for few tokens, too."""
    with pytest.MonkeyPatch.context() as patch:
        forms = (weight_zeros.BITMAP, *weight_zeros.FORMS)
        for module in (weight_zeros, description):
            patch.setattr(module, "FORMS", forms)
        yield


def has_gpu_code() -> bool:
    folder = toolchain.compiler_folder()
    return folder is not None and (pathlib.Path(folder) / "distile_cuda_nonzeros.o").is_file()


NEEDS_COMPILER = pytest.mark.skipif(not has_gpu_code(), reason="distile's compiler for GPUs is not installed")


def linear(dtype="float32", inputs=64, outputs=48, **more) -> Operator:
    params = dict(in_channels=inputs, out_channels=outputs, epilogue="none", residual=False)
    return Operator.make("masked_linear", dtype=dtype, **params, **more).on("cuda")


def conv(dtype="float32", inputs=64, outputs=48, generator="masked_conv2d", kernel=3, **more) -> Operator:
    window = {f"{name}_{axis}": size for name, size in (("kernel", kernel), ("stride", 1)) for axis in "hw"}
    padding = {f"pad_{side}": kernel // 2 for side in ("top", "bottom", "left", "right")}
    params = dict(in_channels=inputs, out_channels=outputs, **window, **padding, epilogue="relu", residual=False)
    return Operator.make(generator, dtype=dtype, **params, **more).on("cuda")


def prune(layer, zeros: float):
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < zeros] = 0
    return layer


def keep_two_of_four(layer):
    with torch.no_grad():
        fours = layer.weight.movedim(1, -1).unflatten(-1, (-1, 4))
        least = torch.rand(fours.shape, device=fours.device).argsort(-1) < 2
        layer.weight.copy_(torch.where(least, 0, fours).flatten(-2).movedim(-1, 1))
    return layer


FEW, MANY = {"batch": 2, "tokens": 4}, {"batch": 2, "tokens": 5}
TWO_FOUR = {"weight_zeros": 0.5, "weight_pattern": "2:4"}
IMAGE = {"batch": 1, "height": 20, "width": 20}


@pytest.mark.parametrize(
    ("operator", "typical", "math", "reason"),
    [
        (linear(), MANY | {"weight_zeros": 0.5}, "default", ""),
        (linear(), MANY, "default", ""),
        (linear(), MANY | {"weight_zeros": 0.9}, "tf32", "TF32"),
        (linear(inputs=60), MANY | {"weight_zeros": 0.9}, "tf32", ""),
        (conv(), IMAGE | {"weight_zeros": 0.9}, "float32", ""),
        (conv(), IMAGE | {"weight_zeros": 0.9}, "default", "TF32"),
        (conv(outputs=45), IMAGE | {"weight_zeros": 0.9}, "default", ""),
        (conv(groups=16), IMAGE | {"weight_zeros": 0.9}, "default", ""),
        (conv("float16"), IMAGE | {"weight_zeros": 0.95}, "default", "linear layers"),
        (conv(generator="masked_depthwise_conv2d"), IMAGE | {"weight_zeros": 0.9}, "float32", "not depthwise"),
        (conv(generator="masked_conv_transpose2d"), IMAGE | {"weight_zeros": 0.9}, "float32", "linear layers"),
        (linear("float16"), FEW | {"weight_zeros": 0.9}, "default", ""),
        (linear("bfloat16"), FEW | {"weight_zeros": 0.9}, "tf32", ""),
        (linear("float16"), FEW | {"weight_zeros": 0.89}, "default", "below 90%"),
        (linear("float16"), MANY | {"weight_zeros": 0.9}, "default", "more than 8 tokens"),
        (linear("float16"), MANY | {"weight_zeros": 0.5}, "default", "lack the pattern 2:4"),
        (linear("float16"), MANY | TWO_FOUR, "default", ""),
        (linear("float16"), FEW | TWO_FOUR, "default", ""),
        (linear("float16"), FEW | TWO_FOUR | {"weight_zeros": 0.95}, "default", ""),
        (linear("float16", 60), MANY | TWO_FOUR, "default", "multiples of 8"),
        (conv("bfloat16"), IMAGE | TWO_FOUR, "default", ""),
        (conv("bfloat16", groups=2), IMAGE | TWO_FOUR, "default", "no groups"),
        (linear(), MANY | TWO_FOUR, "default", ""),
        (linear("float8_e4m3fn"), FEW | {"weight_zeros": 0.9}, "default", "float8_e4m3fn"),
        (linear("uint8", output_dtype="uint8"), FEW | {"weight_zeros": 0.9}, "default", "uint8"),
    ],
)
def test_which_operators_skip_zeros(operator, typical, math, reason):
    why = why_not_skipped(operator, typical, math)
    assert (reason in why) if reason else not why
    skips = "weight_zeros" in typical and not reason
    assert bool(form_of(operator, typical, math)) == skips
    built = operator.built_for(typical, math)
    assert built.skips_zeros == skips and built.plain == operator
    few = typical.get("batch", 1) * typical.get("tokens", 400) <= 8 and typical["weight_zeros"] >= 0.9
    has_pattern = operator.dtype != "float32" and "weight_pattern" in typical and not few
    assert built.name == operator.name + (("_two_four" if has_pattern else "_nonzeros") if skips else "")
    said = {"weight_pattern" if has_pattern else "weight_zeros"} if skips else set()
    assert {name for name in built.to_json(typical)["typical"] if name.startswith("weight")} == said


@pytest.mark.parametrize("layer", [MaskedLinear(32, 24), MaskedConv2d(32, 24, 3), MaskedConv2d(30, 24, 1)])
def test_patterns_are_found(layer):
    operator = (linear if isinstance(layer, MaskedLinear) else conv)("float16", *reversed(layer.weight.shape[:2]))
    assert zeros_for_tensor(layer.weight, operator) == {}
    prune(layer, 0.7)
    assert set(zeros_for_tensor(layer.weight, operator)) == {"weight_zeros"}
    if layer.weight.shape[1] % 4 == 0:
        keep_two_of_four(layer)
        found = zeros_for_tensor(layer.weight, operator)
        assert found["weight_pattern"] == "2:4" and found["weight_zeros"] >= 0.5
        assert zeros_for_tensor(layer.weight, operator.on("cpu")).keys() == {"weight_zeros"}
        with torch.no_grad():
            layer.weight[5, 8:11] = 1
        assert "weight_pattern" not in zeros_for_tensor(layer.weight, operator)


def test_polykernels_for_few_tokens_serve_no_other_calls():
    wide, narrow = linear(), linear("float16")
    assert wide.skipping_zeros() in wide.ways and wide in wide.skipping_zeros().ways
    assert narrow.ways == [narrow] and narrow in narrow.skipping_zeros().ways
    two_of_four = narrow.built_for(MANY | TWO_FOUR)
    assert two_of_four.skips_zeros and two_of_four.ways == [narrow, two_of_four]


@contextlib.contextmanager
def known(operator: Operator, typical: dict):
    polykernels.note_own_weights({operator: typical})
    yield
    polykernels._own_weights.pop(operator)


@NEEDS_COMPILER
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
@pytest.mark.parametrize(
    ("operator", "typical", "layout"),
    [
        (linear(inputs=20, outputs=36), MANY | {"weight_zeros": 0.9}, b"cuda-nonzeros"),
        (linear("float16", 264, 72), FEW | {"weight_zeros": 0.9}, b"cuda-bitmap"),
        (linear("bfloat16", 64, 136), MANY | TWO_FOUR, b"cuda-two-four"),
    ],
)
def test_compiles_for_gpus(compiler, operator, typical, layout, monkeypatch):
    monkeypatch.setenv("CUDACXX", compiler)
    if not toolchain.cuda_compiler():
        pytest.skip(f"there is no {compiler}")
    skipping = operator.built_for(typical)
    polykernels.shared_object(skipping).unlink(missing_ok=True)
    with known(skipping, typical):
        assert distile.build(skipping) == [skipping] and not distile.build(skipping)
    code = polykernels.shared_object(skipping).read_bytes()
    assert layout in code and b"all_dense" in code
    polykernels.shared_object(skipping).unlink()


@pytest.fixture
def on_a_gpu(device):
    if device != "cuda":
        pytest.skip("for NVIDIA GPUs")
    yield
    distile.set_math("float32")


def layers():
    """Layers with inputs and masks, of which no PolyKernel ships."""
    torch.manual_seed(0)
    image = torch.randn(2, 40, 17, 21).to(memory_format=torch.channels_last)
    tokens = torch.randn(2, 300, 520)
    return {
        "conv": (MaskedConv2d(40, 72, 3, padding=1, activation="relu"), image, torch.rand(2, 17, 21) < 0.5),
        "strided": (MaskedConv2d(40, 64, 3, stride=2, groups=4), image, torch.rand(2, 8, 10) < 0.3),
        "linear": (MaskedLinear(520, 136, activation="gelu"), tokens, torch.rand(2, 300) < 0.5),
        "float16": (MaskedLinear(520, 136).half(), tokens[:, :4].half(), torch.rand(2, 4) < 0.7),
        "bfloat16": (MaskedLinear(264, 72).bfloat16(), tokens[:1, :5, :264].bfloat16(), torch.rand(1, 5) < 0.7),
    }


NAMES = ["conv", "strided", "linear", "float16", "bfloat16"]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Each(torch.nn.Module):
    """All layers in one call, so that one build compiles side by side."""

    def __init__(self, cases):
        super().__init__()
        self.layers = torch.nn.ModuleList(layer for layer, _, _ in cases.values())
        self.rest = [(x, mask) for _, x, mask in cases.values()]

    def forward(self, x):
        return [layer(x, mask) for layer, (x, mask) in zip(self.layers, self.rest)]


@pytest.fixture(scope="module")
def built(request):
    if request.config.getoption("device") != "cuda":
        pytest.skip("for NVIDIA GPUs")
    if not has_gpu_code():
        pytest.skip("distile's compiler for GPUs is not installed")
    cases = layers()
    for layer, _, _ in cases.values():
        prune(layer, 0.93)
    model = Each(cases)
    operators = distile.build(model, torch.zeros(1), mask=None)
    assert len(operators) == len(cases) and all(operator.skips_zeros for operator in operators)
    assert not distile.build(model, torch.zeros(1), mask=None)
    return operators


def check(layer, x, mask, result=None):
    whole = layer(x)
    spread = mask[..., None] if whole.dim() == 3 else mask[:, None]
    close = TOLERANCE[x.dtype]
    result = layer(x, mask) if result is None else result
    torch.testing.assert_close(result, torch.where(spread, whole, 0.0), rtol=close, atol=close)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_layers(name, built, on_a_gpu):
    layer, x, mask = layers()[name]
    # Other zeros, and few or none, need no other PolyKernel, whatever the mask.
    for zeros in (0.93, 0.98, 0.5, 0.0):
        torch.nn.init.normal_(layer.weight)
        prune(layer, zeros)
        for density in (0.4, 1.0, 0.0, 0.05):
            mask.copy_(torch.rand(mask.shape) < density)
            with polykernels.recording() as missing:
                check(layer, x, mask)
            assert not missing


@torch.no_grad()
def test_zeros_are_skipped(built, on_a_gpu):
    """What a weight of 0 would multiply may be no number."""
    layer, x, mask = layers()["linear"]
    prune(layer, 0.97)
    layer.weight[:, 7] = 0
    expected = layer(x, mask)
    x[:, :, 7] = torch.nan
    torch.testing.assert_close(layer(x, mask), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_more_tokens_take_code_for_all_weights(built, on_a_gpu):
    layer, x, mask = layers()["float16"]
    prune(layer, 0.93)
    many, wide = torch.randn(2, 300, 520).half(), torch.rand(2, 300) < 0.5
    (operator,) = needed_by(layer, many, mask=wide)
    assert not operator.skips_zeros
    check(layer, many, wide)  # Dense.
    assert distile.build(layer, many, mask=wide) == [operator]
    packed = torch.ops.distile._times_packed()
    for _ in range(3):  # Calls in turn keep their packed weights.
        check(layer, many, wide)
        check(layer, x, mask)
    assert torch.ops.distile._times_packed() - packed <= 2
    assert not needed_by(layer, x, mask=mask) and not needed_by(layer, many, mask=wide)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_graphs(name, built, on_a_gpu):
    layer, x, mask = layers()[name]
    prune(layer, 0.93)
    captured = graphs.Captured(lambda: layer(x, mask))
    for density in (0.3, 0.0, 1.0, 0.05):
        mask.copy_(torch.rand(mask.shape) < density)
        check(layer, x, mask, captured())
    # Other weights, also with none that is 0, after another capture.
    torch.nn.init.normal_(layer.weight)
    captured = graphs.Captured(lambda: layer(x, mask))
    mask.copy_(torch.rand(mask.shape) < 0.6)
    check(layer, x, mask, captured())


@torch.no_grad()
def test_a_capture_packs_nothing(built, on_a_gpu):
    layer, x, mask = layers()["linear"]
    prune(layer, 0.93)
    check(layer, x, mask)
    layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="packed while a graph is captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            layer(x, mask)
    torch.cuda.synchronize()
    check(layer, x, mask)


@torch.no_grad()
def test_a_capture_loads_nothing(on_a_gpu):
    layer, x = prune(MaskedLinear(72, 56), 0.93), torch.randn(1, 20, 72)
    mask = torch.rand(1, 20) < 0.5
    layer(x)
    result = None
    with polykernels.recording() as missing:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            result = layer(x, mask)
    graph.replay()
    check(layer, x, mask, result)
    assert [operator.device for operator in missing] == ["cuda"]


@torch.no_grad()
def test_weights_of_inference_mode(built, on_a_gpu):
    with torch.inference_mode():
        for name in NAMES:
            layer, x, mask = layers()[name]
            prune(layer, 0.93)
            assert not needed_by(layer, x, mask=mask)
            check(layer, x, mask)


def test_gradients(built, on_a_gpu):
    for name in ("conv", "strided", "linear"):
        layer, x, mask = layers()[name]
        prune(layer, 0.93)
        spread = mask[..., None] if name == "linear" else mask[:, None]
        found = []
        for masked in (True, False):
            x = x.detach().requires_grad_()
            layer.zero_grad()
            result = layer(x, mask) if masked else torch.where(spread, layer(x), 0.0)
            result.square().sum().backward()
            found.append([x.grad, layer.weight.grad, layer.bias.grad])
        for one, other in zip(*found):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


@torch.no_grad()
def test_explained(built, on_a_gpu):
    for name in NAMES:
        layer, x, mask = layers()[name]
        prune(layer, 0.93)
        ((row,), _) = explain.explain(layer, x, mask=mask, seconds=0.01)
        assert row.zeros.endswith("% zeros") and not row.runs_dense
    layer, x, mask = prune(MaskedConv2d(128, 128, 3, padding=1), 0.9), torch.randn(1, 128, 24, 20), None
    mask = torch.rand(1, 24, 20) < 0.5
    for math, words in {"float32": "which its PolyKernel multiplies with", "default": "TF32 multiplies all"}.items():
        distile.set_math(math)
        ((row,), _) = explain.explain(layer, x, mask=mask, seconds=0.01)
        assert words in row.zeros
        skipping = [operator for operator in needed_by(layer, x, mask=mask) if operator.skips_zeros]
        assert len(skipping) == (math == "float32")


@torch.no_grad()
@pytest.mark.skipif(not has_gpu_code(), reason="distile's compiler for GPUs is not installed")
def test_built_when_needed(on_a_gpu):
    layer, x, mask = prune(MaskedLinear(44, 60), 0.9), torch.randn(1, 50, 44), torch.rand(1, 50) < 0.5
    try:
        distile.set_build("now", progress=lambda line: None)
        check(layer, x, mask)
    finally:
        distile.set_build("never")
    (operator,) = (one for one in polykernels._loaded if ("in_channels", 44) in one.params)
    assert b"cuda-nonzeros" in polykernels.shared_object(operator.skipping_zeros()).read_bytes()


@torch.no_grad()
@pytest.mark.skipif(not has_gpu_code(), reason="distile's compiler for GPUs is not installed")
def test_two_of_four(on_a_gpu):
    torch.manual_seed(0)
    image = torch.randn(2, 64, 17, 21).bfloat16().to(memory_format=torch.channels_last)
    cases = {
        "linear": (MaskedLinear(520, 264, activation="gelu").half(), torch.randn(2, 300, 520).half(), None),
        "conv": (MaskedConv2d(64, 72, 3, padding=1, activation="relu").bfloat16(), image, None),
    }
    cases["linear"] = (*cases["linear"][:2], torch.rand(2, 300) < 0.5)
    cases["conv"] = (*cases["conv"][:2], torch.rand(2, 17, 21) < 0.5)
    for layer, _, _ in cases.values():
        keep_two_of_four(layer)
    operators = distile.build(Each(cases), torch.zeros(1))
    assert {operator.zeros for operator in operators} == {"_two_four"}
    for layer, x, mask in cases.values():
        for _ in range(2):
            for density in (0.4, 1.0, 0.0):
                mask.copy_(torch.rand(mask.shape) < density)
                with polykernels.recording() as missing:
                    check(layer, x, mask)
                assert not missing
            torch.nn.init.normal_(layer.weight)
            keep_two_of_four(layer)
        mask.copy_(torch.rand(mask.shape) < 0.5)
        captured = graphs.Captured(lambda: layer(x, mask))
        mask.copy_(torch.rand(mask.shape) < 0.3)
        check(layer, x, mask, captured())
        # Other weights need another PolyKernel.
        torch.nn.init.normal_(layer.weight)
        (operator,) = needed_by(layer, x, mask=mask)
        assert not operator.skips_zeros
        check(layer, x, mask)
        keep_two_of_four(layer)
        assert not needed_by(layer, x, mask=mask)
        check(layer, x, mask)
