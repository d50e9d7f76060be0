"""Gradients: against differences and those of the dense operator and then the mask, in float64; and with PolyKernels,
which have no float64, against the latter."""

import pytest
import torch

import distile
from distile import compiler, dense, layers, polykernels

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


def tensors(*shapes):
    torch.manual_seed(5)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def same_gradients(masked, reference, inputs):
    actual, expected = masked(), reference()
    torch.testing.assert_close(actual, expected)
    seed = torch.randn_like(actual)
    for got, wanted in zip(torch.autograd.grad(actual, inputs, seed), torch.autograd.grad(expected, inputs, seed)):
        torch.testing.assert_close(got, wanted)


CONV = [
    # in, out, kernel, stride, padding, dilation, groups
    (4, 6, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (4, 6, (3, 2), (2, 1), (0, 2, 1, 0), (1, 2), 2),
    (4, 4, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 4),
    (4, 8, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("activation", dense.ACTIVATIONS)
@pytest.mark.parametrize("ins, outs, kernel, stride, padding, dilation, groups", CONV)
def test_conv2d(ins, outs, kernel, stride, padding, dilation, groups, activation):
    args = (stride, padding, dilation, groups, activation)
    x, weight, bias = tensors((2, ins, 7, 6), (outs, ins // groups, *kernel), (outs,))
    shape = dense.conv2d(x, weight, bias, torch.ones(1, 1, 1), None, *args).shape
    residual = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    keywords = dict(zip(("stride", "padding", "dilation", "groups", "activation"), args))
    same_gradients(
        lambda: ops.conv2d(x, weight, bias, mask, residual, **keywords),
        lambda: dense.conv2d(x, weight, bias, mask, residual, *args),
        (x, weight, bias, residual),
    )


@pytest.mark.parametrize(
    "kernel, stride, output_padding, padding, dilation, groups",
    [((4, 4), (2, 2), (0, 0), (1, 1, 1, 1), (1, 1), 1), ((3, 2), (2, 3), (1, 2), (1, 0, 0, 1), (1, 2), 2)],
)
def test_conv_transpose2d(kernel, stride, output_padding, padding, dilation, groups):
    args = (stride, output_padding, padding, dilation, groups, "silu")
    x, weight, bias = tensors((2, 4, 5, 4), (4, 6 // groups, *kernel), (6,))
    shape = dense.conv_transpose2d(x, weight, bias, torch.ones(1, 1, 1), None, *args).shape
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    keywords = dict(zip(("stride", "output_padding", "padding", "dilation", "groups", "activation"), args))
    same_gradients(
        lambda: ops.conv_transpose2d(x, weight, bias, mask, None, **keywords),
        lambda: dense.conv_transpose2d(x, weight, bias, mask, None, *args),
        (x, weight, bias),
    )


def test_upsample_conv2d():
    args = ((2, 3), (1, 1, 1, 0), (1, 2), 1, "relu")
    x, weight, bias = tensors((1, 3, 4, 5), (5, 3, 3, 3), (5,))
    shape = dense.upsample_conv2d(x, weight, bias, torch.ones(1, 1, 1), None, *args).shape
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    keywords = dict(zip(("scale", "padding", "dilation", "groups", "activation"), args))
    same_gradients(
        lambda: ops.upsample_conv2d(x, weight, bias, mask, None, **keywords),
        lambda: dense.upsample_conv2d(x, weight, bias, mask, None, *args),
        (x, weight, bias),
    )


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_linear(activation):
    x, weight, bias, residual = tensors((2, 9, 5), (7, 5), (7,), (2, 9, 7))
    mask = torch.rand(2, 9) < 0.5
    same_gradients(
        lambda: ops.linear(x, weight, bias, mask, residual, activation=activation),
        lambda: dense.linear(x, weight, bias, mask, residual, activation),
        (x, weight, bias, residual),
    )


ACTIVATIONS = (*dense.ACTIVATIONS, "leaky_relu(-0.5)")
KINDS = {
    # operator, input, weight, mask, parameters
    "conv": ("conv2d", (2, 2, 4, 3), (2, 2, 3, 3), (2, 4, 3), dict(padding=[1] * 4)),
    "1x1": ("conv2d", (1, 3, 4, 3), (4, 3, 1, 1), (1, 4, 3), {}),
    "grouped": ("conv2d", (1, 4, 5, 4), (6, 2, 3, 2), (1, 5, 5), dict(padding=[1, 1, 1, 1], groups=2)),
    "depthwise": ("conv2d", (1, 4, 5, 4), (4, 1, 3, 3), (1, 5, 4), dict(padding=[1] * 4, groups=4)),
    "strided": ("conv2d", (1, 2, 6, 5), (3, 2, 3, 3), (1, 3, 3), dict(stride=[2, 2], padding=[1] * 4)),
    "strided depthwise": (
        "conv2d", (1, 4, 6, 5), (4, 1, 3, 3), (1, 3, 3), dict(stride=[2, 2], padding=[1] * 4, groups=4)
    ),
    "dilated": ("conv2d", (1, 2, 7, 6), (3, 2, 3, 2), (1, 5, 5), dict(padding=[1, 1, 2, 1], dilation=[2, 4])),
    "one side padded": ("conv2d", (1, 2, 5, 4), (3, 2, 3, 3), (1, 4, 3), dict(padding=[1, 0, 0, 1])),
    "transposed": (
        "conv_transpose2d", (1, 2, 3, 4), (2, 3, 4, 4), (1, 6, 8), dict(stride=[2, 2], padding=[1] * 4)
    ),
    "transposed in groups": (
        "conv_transpose2d", (1, 4, 3, 3), (4, 2, 3, 2), (1, 6, 10),
        dict(stride=[2, 3], output_padding=[1, 2], padding=[1, 1, 1, 0], dilation=[1, 2], groups=2),
    ),
    "upsampled": ("upsample_conv2d", (1, 2, 3, 3), (3, 2, 3, 3), (1, 6, 6), dict(padding=[1] * 4)),
    "upsampled unevenly": (
        "upsample_conv2d", (1, 2, 3, 2), (3, 2, 3, 3), (1, 6, 3), dict(scale=[2, 3], padding=[1, 1, 1, 0],
        dilation=[1, 2]),
    ),
    "linear": ("linear", (2, 5, 4), (3, 4), (2, 5), {}),
}  # fmt: skip


# The derivative of an activation is the same code in all kinds.
CHECKED = [(kind, *rest) for kind in KINDS for rest in (("silu", False), ("none", True))] + [
    (kind, activation, True) for kind in ("conv", "linear") for activation in ACTIVATIONS
]


@pytest.mark.parametrize("kind, activation, residual", CHECKED)
def test_gradcheck(kind, activation, residual):
    name, shape, weight, where, keywords = KINDS[kind]
    outs = weight[0] if name != "conv_transpose2d" else weight[1] * keywords.get("groups", 1)
    added = (where[0], outs, *where[1:]) if len(where) == 3 else (*where, outs)
    inputs = tensors(shape, weight, (outs,), *([added] if residual else []))
    mask = torch.rand(where) < 0.5
    assert mask.any() and not mask.all()

    def run(input, weight, bias, residual=None):
        return getattr(ops, name)(input, weight, bias, mask, residual, **keywords, activation=activation)

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_of_attention(causal):
    inputs = tensors((1, 2, 4, 2), (1, 2, 5, 2), (1, 2, 5, 2))
    mask, key_mask = torch.rand(1, 4) < 0.6, torch.rand(1, 5) < 0.6
    assert torch.autograd.gradcheck(lambda *t: ops.attention(*t, mask, key_mask, causal=causal, scale=0.7), inputs)


class Plain(torch.autograd.Function):
    """An operator that has no float64: its gradients, after its definition in plain PyTorch."""

    @staticmethod
    def forward(ctx, operator, backward, keywords, *inputs):
        ctx.save_for_backward(*(given for given in inputs if given is None or isinstance(given, torch.Tensor)))
        ctx.others = [given for given in inputs if isinstance(given, list)]
        ctx.backward_of, ctx.keywords = backward, keywords
        return operator(*inputs, **keywords)

    @staticmethod
    def backward(ctx, gradient):
        whole = ctx.needs_input_grad

        class Context:
            needs_input_grad, saved_tensors, others, keywords = whole[3:], ctx.saved_tensors, ctx.others, ctx.keywords

        found = ctx.backward_of(Context, gradient)
        return None, None, None, *found, *([None] * (len(whole) - 3 - len(found)))


def kept(*shape):
    return torch.rand(shape) < 0.5


LAYERS = {
    "max_pool2d": (
        layers._of_max_pool, [(1, 2, 5, 4)], lambda: (kept(1, 2, 2), [2, 2]),
        dict(stride=[2, 2], padding=[0, 0], dilation=[1, 1]),
    ),
    "avg_pool2d": (
        layers._of_avg_pool, [(1, 2, 5, 4)], lambda: (kept(1, 5, 4), [3, 3]),
        dict(stride=[1, 1], padding=[1, 1], count_padding=False),
    ),
    "global_pool": (layers._of_global_pool, [(2, 3, 3, 2)], lambda: (kept(2, 3, 2),), dict(maximum=False)),
    "global_pool max": (layers._of_global_pool, [(2, 3, 3, 2)], lambda: (kept(2, 3, 2),), dict(maximum=True)),
    "add": (layers._of_add, [(2, 3, 3, 2)] * 2, lambda: (kept(2, 3, 2),), dict(activation="gelu")),
    "add a token": (layers._of_add, [(2, 4, 3), (2, 1, 3)], lambda: (kept(2, 4),), dict(activation="none")),
    "multiply": (
        layers._of_multiply, [(2, 3, 3, 2)] * 2, lambda: (kept(2, 3, 2),),
        dict(other_activation="silu", activation="sigmoid"),
    ),
    "multiply by a pixel": (
        layers._of_multiply, [(2, 3, 3, 2), (2, 3, 1, 1)], lambda: (kept(2, 3, 2),),
        dict(other_activation="sigmoid", activation="none"),
    ),
    "upsample_nearest": (layers._of_upsample, [(1, 2, 3, 2)], lambda: (kept(1, 6, 6),), dict(scale=[2, 3])),
    **{
        f"activate {name}": (layers._of_activate, [(2, 3, 3, 2)], lambda: (kept(2, 3, 2),), dict(activation=name))
        for name in ACTIVATIONS
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_gradcheck_of_layers(name):
    backward, shapes, rest, keywords = LAYERS[name]
    inputs = tensors(*shapes)
    rest = rest()
    plain = getattr(layers, name.split()[0])
    assert torch.autograd.gradcheck(lambda *t: Plain.apply(plain, backward, keywords, *t, *rest), inputs)


@pytest.mark.parametrize("given", [False, True])
def test_gradcheck_of_group_norm(given):
    x, weight, bias = tensors((2, 6, 3, 3), (6,), (6,))
    mask, keywords = kept(2, 3, 3), dict(groups=2, epsilon=1e-5, activation="silu")
    statistics = (torch.randn(2, 2), torch.rand(2, 2) + 0.5) if given else ()

    def run(x, weight, bias):
        return Plain.apply(layers.group_norm, layers._of_group_norm, keywords, x, mask, weight, bias, *statistics)

    assert torch.autograd.gradcheck(run, (x, weight, bias))


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 5, 3, 2)])
@pytest.mark.parametrize("layer", [False, True])
def test_gradcheck_of_norms(shape, layer):
    x, weight, bias = tensors(shape, (5,), (5,))
    mask = kept(2, 4) if len(shape) == 3 else kept(2, 3, 2)

    def backward(ctx, gradient):
        for_input, for_weight, for_bias = ops._norm_backward(gradient, *ctx.saved_tensors[:3], 1e-5, layer)
        return for_input, None, for_weight, for_bias if layer else None

    if layer:
        run = lambda x, weight, bias: Plain.apply(dense.layer_norm, backward, dict(epsilon=1e-5), x, mask, weight, bias)
    else:
        run = lambda x, weight: Plain.apply(dense.rms_norm, backward, dict(epsilon=1e-5), x, mask, weight)
    assert torch.autograd.gradcheck(run, (x, weight, bias) if layer else (x, weight))


def float_gradients(run, plain, inputs, bound=1e-4):
    """Gradients in the types of the inputs: of an operator and its definition, in parts of the largest."""
    actual, expected = run(*inputs), plain(*inputs)
    seed = torch.randn_like(actual)
    found = torch.autograd.grad(actual, inputs, seed)
    for got, wanted, input in zip(found, torch.autograd.grad(expected, inputs, seed.to(expected.dtype)), inputs):
        assert got.dtype == input.dtype and got.shape == input.shape
        torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=bound * float(wanted.abs().max()))


def operator_and_plain(name, mask, keywords):
    """The masked operator, and its definition, of the same tensors."""
    defaults = {
        "conv2d": dict(stride=(1, 1), padding=(0,) * 4, dilation=(1, 1), groups=1, activation="none"),
        "conv_transpose2d": dict(
            stride=(1, 1), output_padding=(0, 0), padding=(0,) * 4, dilation=(1, 1), groups=1, activation="none"
        ),
        "upsample_conv2d": dict(scale=(2, 2), padding=(0,) * 4, dilation=(1, 1), groups=1, activation="none"),
        "linear": dict(activation="none"),
    }[name]

    def run(input, weight, bias, residual=None):
        return getattr(ops, name)(input, weight, bias, mask, residual, **keywords)

    def plain(input, weight, bias, residual=None):
        # In float32 PyTorch's own convolutions may round more.
        wide = [tensor if tensor is None else tensor.double() for tensor in (input, weight, bias, residual)]
        return getattr(dense, name)(*wide[:3], mask, wide[3], *{**defaults, **keywords}.values())

    return run, plain


def leaves(*shapes, dtype=torch.float32):
    torch.manual_seed(7)
    made = [torch.randn(shape) / (max(1, len(shape) - 1) if shape else 1) for shape in shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in made]


SHIPPED = {
    "conv": ("conv2d", (1, 128, 6, 7), (128, 128, 3, 3), (1, 6, 7), dict(padding=[1] * 4, activation="relu"), False),
    "1x1": ("conv2d", (2, 96, 5, 6), (576, 96, 1, 1), (2, 5, 6), dict(activation="relu6"), False),
    "residual": ("conv2d", (2, 576, 5, 6), (96, 576, 1, 1), (2, 5, 6), {}, True),
    "depthwise": (
        "conv2d", (1, 576, 4, 5), (576, 1, 3, 3), (1, 4, 5),
        dict(padding=[1] * 4, groups=576, activation="relu6"), False,
    ),
    "strided depthwise": (
        "conv2d", (1, 576, 4, 5), (576, 1, 3, 3), (1, 2, 3),
        dict(stride=[2, 2], padding=[1] * 4, groups=576, activation="relu6"), False,
    ),
    "transposed": (
        "conv_transpose2d", (1, 256, 3, 4), (256, 128, 4, 4), (1, 6, 8),
        dict(stride=[2, 2], padding=[1] * 4, activation="relu"), False,
    ),
    "upsampled": ("upsample_conv2d", (1, 256, 3, 4), (256, 256, 3, 3), (1, 6, 8), dict(padding=[1] * 4), False),
    "linear": ("linear", (2, 9, 384), (1536, 384), (2, 9), dict(activation="gelu"), False),
    "linear residual": ("linear", (2, 9, 1536), (384, 1536), (2, 9), {}, True),
}  # fmt: skip


def sharp(name, shape, weight, where, residual):
    """Tensors of such sizes, scaled so that the result's elements are about 1."""
    outs = weight[1] if name == "conv_transpose2d" else weight[0]
    added = (where[0], outs, *where[1:]) if len(where) == 3 else (*where, outs)
    inputs = leaves(shape, weight, (outs,), *([added] if residual else []))
    reads = weight[1] if name == "linear" else weight[0 if name == "conv_transpose2d" else 1] * weight[2] * weight[3]
    with torch.no_grad():
        inputs[1].div_(reads**0.5)
    return inputs


@pytest.mark.parametrize("kind", SHIPPED)
def test_polykernels(kind, no_dense):
    """The forward runs the masked kernel."""
    name, shape, weight, where, keywords, residual = SHIPPED[kind]
    inputs, mask = sharp(name, shape, weight, where, residual), torch.rand(where) < 0.4
    float_gradients(*operator_and_plain(name, mask, keywords), inputs)


BUILT = {
    "1x1": ("conv2d", (1, 8, 5, 6), (8, 8, 1, 1), (1, 5, 6), dict(activation="silu"), False),
    "grouped": (
        "conv2d", (1, 16, 5, 6), (16, 8, 3, 3), (1, 5, 6),
        dict(padding=[1] * 4, groups=2, activation="hardsigmoid"), True,
    ),
    "strided": (
        "conv2d", (1, 8, 7, 6), (16, 8, 3, 3), (1, 4, 3),
        dict(stride=[2, 2], padding=[1] * 4, activation="sigmoid"), False,
    ),
    "dilated": (
        "conv2d", (1, 8, 7, 6), (8, 8, 3, 3), (1, 7, 6),
        dict(padding=[2] * 4, dilation=[2, 2], activation="hardswish"), False,
    ),
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.skipif(compiler.compiler_folder() is None, reason="distile's compiler is not installed")
def test_polykernels_that_are_built():
    cases = {}
    for kind, (name, shape, weight, where, keywords, residual) in BUILT.items():
        inputs, mask = sharp(name, shape, weight, where, residual), torch.rand(where) < 0.4
        cases[kind] = (*operator_and_plain(name, mask, keywords), inputs)
    with polykernels.recording() as missing:
        for run, _, inputs in cases.values():
            run(*inputs)
    distile.build(*missing)
    with polykernels.recording() as missing:
        for run, plain, inputs in cases.values():
            float_gradients(run, plain, inputs)
    assert not missing


@pytest.mark.parametrize("key_mask", [False, True])
def test_attention_with_a_polykernel(key_mask, no_dense):
    inputs = leaves((2, 3, 7, 64), (2, 3, 9, 64), (2, 3, 9, 64))
    mask, keys = torch.rand(2, 7) < 0.6, (torch.rand(2, 9) < 0.6) if key_mask else None
    float_gradients(
        lambda *t: ops.attention(*t, mask, keys),
        lambda *t: dense.attention(*(tensor.double() for tensor in t), mask, keys, 0, False),
        inputs,
    )


NARROW = {torch.bfloat16: 0.03, torch.float16: 0.004}


@pytest.mark.parametrize("weights", [None, torch.float32])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", ["conv", "grouped", "transposed", "linear"])
def test_types_of_16_bits(kind, dtype, weights):
    """Weights may have another type than the input, as they have in autocast; their gradients have theirs."""
    name, shape, weight, where, keywords = KINDS[kind]
    inputs = [tensor.detach().to(dtype) for tensor in sharp(name, shape, weight, where, False)]
    inputs[1:] = [tensor.to(weights or dtype) for tensor in inputs[1:]]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    mask = torch.rand(where) < 0.6
    for activation in ("none", "silu"):
        run, plain = operator_and_plain(name, mask, dict(keywords, activation=activation))
        float_gradients(run, plain, inputs, NARROW[dtype])


@pytest.mark.parametrize("parameters", [None, torch.float32])
@pytest.mark.parametrize("dtype", NARROW)
def test_norms_and_attention_of_16_bits(dtype, parameters):
    x, weight, bias = leaves((2, 7, 12), (12,), (12,))
    x = x.detach().to(dtype).requires_grad_()
    weight, bias = (tensor.detach().to(parameters or dtype).requires_grad_() for tensor in (weight, bias))
    mask = torch.rand(2, 7) < 0.6
    float_gradients(
        lambda *t: ops.layer_norm(t[0], mask, *t[1:]),
        lambda *t: dense.layer_norm(t[0].double(), mask, *(tensor.double() for tensor in t[1:]), 1e-5),
        (x, weight, bias),
        NARROW[dtype],
    )
    float_gradients(
        lambda *t: ops.rms_norm(t[0], mask, t[1]),
        lambda *t: dense.rms_norm(t[0].double(), mask, t[1].double(), 1e-6),
        (x, weight),
        NARROW[dtype],
    )
    float_gradients(
        lambda *t: ops.group_norm(t[0], mask, *t[1:], groups=3),
        lambda *t: layers.group_norm(t[0].double(), mask, *(tensor.double() for tensor in t[1:]), groups=3),
        (x, weight, bias),
        NARROW[dtype],
    )
    heads = leaves((2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)
    float_gradients(
        lambda *t: ops.attention(*t, mask, mask),
        lambda *t: dense.attention(*(tensor.double() for tensor in t), mask, mask, 0, False),
        heads,
        NARROW[dtype],
    )


@pytest.mark.parametrize("form", ["tokens", "images"])
def test_packing(form):
    x = leaves((2, 6, 5) if form == "tokens" else (2, 5, 3, 4))[0]
    mask = torch.rand((2, 6) if form == "tokens" else (2, 3, 4)) < 0.5
    packed = ops.pack(x, mask)
    seed = torch.randn_like(packed)
    (found,) = torch.autograd.grad(packed, x, seed)
    assert torch.equal(found, ops.unpack(seed, mask))
    room = torch.randn(30, 5, requires_grad=True)
    unpacked = ops.unpack(room, mask)
    seed = torch.randn_like(unpacked)
    (found,) = torch.autograd.grad(unpacked, room, seed)
    assert torch.equal(found[: mask.sum()], ops.pack(seed, mask)) and not found[mask.sum() :].any()


def test_masks_have_no_gradients():
    x = leaves((2, 8, 6, 7))[0]
    assert not ops.mask_scores(x).requires_grad
    assert not distile.masks.difference(x, x.detach() + 1).requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    query, key, value = tensors((2, 3, 6, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    mask, key_mask = torch.rand(2, 6) < 0.6, torch.rand(2, 9) < 0.6
    key_mask[:, 0] = True
    same_gradients(
        lambda: ops.attention(query, key, value, mask, key_mask, causal=causal),
        lambda: dense.attention(query, key, value, mask, key_mask, 0, causal),
        (query, key, value),
    )


@pytest.mark.parametrize("shape", [(2, 7, 12), (2, 12, 3, 4)])
def test_norms(shape):
    torch.manual_seed(6)
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in (shape, (12,), (12,)))
    mask = torch.rand(shape[:2] if len(shape) == 3 else (2, 3, 4)) < 0.5
    for masked, reference, inputs in [
        (
            lambda: ops.layer_norm(x, mask, weight, bias),
            lambda: dense.layer_norm(x, mask, weight, bias, 1e-5),
            (x, weight, bias),
        ),
        (lambda: ops.rms_norm(x, mask, weight), lambda: dense.rms_norm(x, mask, weight, 1e-6), (x, weight)),
    ]:
        actual, expected = masked(), reference()
        seed = torch.randn_like(actual)
        for got, wanted in zip(torch.autograd.grad(actual, inputs, seed), torch.autograd.grad(expected, inputs, seed)):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
