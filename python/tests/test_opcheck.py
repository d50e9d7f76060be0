"""torch.library.opcheck for each form of each operator in torch.ops.distile. An operator without a row here fails."""

import pytest
import torch

import distile  # noqa: F401 (defines the operators)

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")

# Operators that no graph holds: state of the library, and the dense twins that it calls itself.
UNSEEN = {
    "_allow_general", "_chain_collect", "_chain_free", "_chain_info", "_chain_kept", "_chain_lacks", "_chain_make",
    "_chain_run", "_check_contents", "_define_twins", "_dense_attention", "_dense_conv2d", "_dense_conv_transpose2d",
    "_dense_linear", "_dense_upsample_conv2d", "_fix_mask", "_fix_result", "_free_weights", "_group_free", "_group_make",
    "_keeps_two_of_four", "_load", "_most_stage_words", "_pack_stage_weights", "_planner_bytes", "_planner_free", "_planner_make", "_planner_next", "_polykernel_version",
    "_release_mask", "_run_stage", "_set_stage_teams", "_set_math", "_switch_free", "_switch_info", "_switch_launch", "_switch_make",
    "_switch_set", "_times_packed", "_trace_stages",
}  # fmt: skip


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def mask(*shape):
    return torch.rand(shape) < 0.5


def heads():
    return [part.transpose(1, 2) for part in torch.randn(2, 9, 3, 3, 64).unbind(2)]


# Arguments by operator, with a PolyKernel and without one.
CONV = dict(padding=[1] * 4, activation="relu")
CASES = {
    "conv2d": [
        lambda: ((image(1, 128, 6, 5), torch.randn(128, 128, 3, 3) / 30, torch.randn(128), mask(1, 6, 5)), CONV),
        lambda: (
            (image(2, 4, 7, 6), torch.randn(6, 2, 3, 2), torch.randn(6), mask(2, 4, 5), image(2, 6, 4, 5)),
            dict(stride=[2, 1], padding=[1, 1, 0, 0], groups=2, activation="silu"),
        ),
        lambda: ((image(1, 4, 6, 5), torch.randn(4, 1, 3, 3), None, mask(1, 6, 5)), dict(CONV, groups=4)),
    ],
    "conv_transpose2d": [
        lambda: (
            (image(1, 4, 5, 5), torch.randn(4, 6, 4, 4), torch.randn(6), mask(1, 10, 10)),
            dict(stride=[2, 2], padding=[1] * 4),
        )
    ],
    "upsample_conv2d": [
        lambda: ((image(1, 4, 5, 5), torch.randn(6, 4, 3, 3), None, mask(1, 10, 10)), dict(padding=[1] * 4))
    ],
    "linear": [
        lambda: ((torch.randn(2, 9, 384), torch.randn(1152, 384) / 20, torch.randn(1152), mask(2, 9)), {}),
        lambda: (
            (torch.randn(2, 9, 5), torch.randn(7, 5), None, mask(2, 9), torch.randn(2, 9, 7)), dict(activation="gelu")
        ),
    ],
    "_halt": [
        lambda: (
            (torch.randn(2, 9, 5), torch.randn(5), mask(2, 9), torch.rand(2, 9), torch.randn(2, 1, 5), torch.rand(9), 1.0, 0.9),
            {},
        ),
        lambda: ((torch.randn(2, 9, 5), torch.randn(5), None, torch.rand(2, 9), None, None, -1.0, 0.9), {}),
    ],
    "attention": [
        lambda: ((*heads(), mask(2, 9), mask(2, 9)), {}),
        lambda: ((*torch.randn(3, 1, 2, 9, 8).unbind(0), mask(1, 9)), dict(causal=True)),
    ],
    "layer_norm": [
        lambda: ((torch.randn(2, 9, 24), mask(2, 9), torch.randn(24), torch.randn(24)), {}),
        lambda: ((image(2, 24, 3, 4), mask(2, 3, 4), torch.randn(24), None), {}),
    ],
    "rms_norm": [lambda: ((torch.randn(2, 9, 24), mask(2, 9), torch.randn(24)), {})],
    "max_pool2d": [lambda: ((image(2, 8, 6, 7), mask(2, 5, 6), [2, 2]), {})],
    "avg_pool2d": [lambda: ((image(2, 8, 6, 7), mask(2, 6, 7), [3, 3]), dict(padding=[1, 1]))],
    "global_pool": [
        lambda: ((image(2, 8, 6, 7), mask(2, 6, 7)), {}),
        lambda: ((image(2, 8, 6, 7),), dict(maximum=True)),
    ],
    "add": [
        lambda: ((image(2, 8, 6, 7), image(2, 8, 6, 7), mask(2, 6, 7)), dict(activation="silu")),
        lambda: ((torch.randn(2, 9, 8), torch.randn(2, 1, 8), mask(2, 9)), {}),
    ],
    "multiply": [
        lambda: ((image(2, 8, 6, 7), image(2, 8, 1, 1), mask(2, 6, 7)), dict(other_activation="sigmoid")),
        lambda: ((torch.randn(1, 9, 8), torch.randn(1, 1, 8), mask(1, 9)), {}),
    ],
    "activate": [lambda: ((image(2, 8, 6, 7), mask(2, 6, 7)), dict(activation="gelu"))],
    "group_norm": [
        lambda: ((image(2, 8, 6, 7), mask(2, 6, 7), torch.randn(8), torch.randn(8)), dict(groups=4, activation="silu")),
        lambda: (
            (image(2, 8, 6, 7), mask(2, 6, 7), torch.randn(8), None, torch.randn(2, 4), torch.rand(2, 4)),
            dict(groups=4),
        ),
        lambda: ((torch.randn(2, 9, 8), mask(2, 9), torch.randn(8), None), dict(groups=2)),
    ],
    "upsample_nearest": [lambda: ((image(2, 8, 3, 4), mask(2, 6, 12)), dict(scale=[2, 3]))],
    "group_statistics": [lambda: ((image(2, 8, 6, 7), mask(2, 6, 7)), dict(groups=2))],
    "pack": [lambda: ((torch.randn(2, 9, 24), mask(2, 9)), {}), lambda: ((image(1, 8, 3, 4), mask(1, 3, 4)), {})],
    "unpack": [lambda: ((torch.randn(18, 24), mask(2, 9)), {}), lambda: ((torch.randn(12, 8), mask(1, 3, 4)), {})],
    "cumulative_lengths": [lambda: ((mask(3, 9),), {})],
    "mask_scores": [lambda: ((image(2, 8, 6, 7), torch.randn(8)), dict(threshold=0.5))],
    "mask_dilate": [lambda: ((mask(1, 10, 9), 1, 2), {})],
    "mask_pool": [lambda: ((mask(1, 10, 9), 2, 3), {})],
    "mask_needed_input": [lambda: ((mask(1, 10, 9), [10, 9], [3, 3]), dict(padding=[1, 1]))],
    "mask_affected_output": [lambda: ((mask(1, 10, 9), [5, 5], [3, 3]), dict(stride=[2, 2], padding=[1, 1]))],
    "mask_difference": [lambda: ((*image(2, 4, 5, 6)[:, None].unbind(0), 0.5), {})],
    "mask_from_indices": [lambda: ((torch.tensor([[0, 9, 9], [1, 2, 3]], dtype=torch.int32), 2, 8), {})],
    "mask_from_bits": [lambda: ((torch.randint(-9, 9, (2, 3, 2), dtype=torch.int32), 40), {})],
    "mask_to_bits": [lambda: ((mask(2, 3, 40),), {})],
    "stage": [
        lambda: (
            ([image(2, 6, 7, 9), image(2, 6, 7, 9)], [mask(2, 7, 9)],
             [torch.randn(4, 6, 1, 1), torch.randn(4), torch.randn(6), torch.randn(6, 4, 3, 3)]),
            dict(
                steps=[0, 0, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1,
                       1, 1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, -1, 0,
                       0, 2, 1, 1, 1, 0, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, -1, 1],
                numbers=[0.0, 0.0, 0.1, 0.2, 0.0, 0.0], activations="relu,none,silu", outputs=[3, -2], places=[0] * 3,
            ),
        )
    ],
    "_convolution_backward": [
        lambda: (
            (image(1, 6, 5, 4), image(1, 4, 5, 4), torch.randn(6, 4, 3, 3), torch.randn(6), mask(1, 5, 4),
             image(1, 6, 5, 4), 0, [1, 1], [1] * 4, [1, 1], 1, "silu", [True] * 4),
            {},
        )
    ],
    "_linear_backward": [
        lambda: (
            (torch.randn(2, 9, 7), torch.randn(2, 9, 5), torch.randn(7, 5), torch.randn(7), mask(2, 9), None, "relu",
             [True, True, True, False]),
            {},
        )
    ],
    "_attention_backward": [lambda: ((torch.randn(2, 3, 9, 64), *heads(), mask(2, 9), mask(2, 9), 0.0, False), {})],
    "_unpack_backward": [lambda: ((torch.randn(2, 9, 24), mask(2, 9), 18), {})],
    "_norm_backward": [
        lambda: ((torch.randn(2, 9, 24), torch.randn(2, 9, 24), mask(2, 9), torch.randn(24), 1e-5, True), {})
    ],
}  # fmt: skip
WITHOUT_OUT = {"stage"}
# Their gradients are an error, or they have none.
NO_GRADIENTS = {"group_statistics", "cumulative_lengths"}
NO_GRADIENTS_BY = {"mean", "variance"}
ROWS = [(name, case) for name, cases in CASES.items() for case in range(len(cases))]
PUBLIC = [row for row in ROWS if not row[0].startswith("_")]


def operators():
    """The operators by name, with the names of their forms."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "distile":
            found.setdefault(name, set()).add(schema.overload_name or "default")
    return found


def test_the_table_has_every_operator():
    seen = {name for name in operators() if name.removesuffix("_inference").removesuffix("_into") not in CASES}
    assert seen == UNSEEN
    assert CASES.keys() <= operators().keys()
    for name, forms in operators().items():
        public = not name.startswith("_") and not name.endswith(("_inference", "_into"))
        assert forms == ({"default", "out"} if public and name not in WITHOUT_OUT else {"default"}), name


def arguments(name, case, gradients):
    torch.manual_seed(0)
    tensors, keywords = CASES[name][case]()
    if gradients:
        names = [argument.name for argument in getattr(ops, name).default._schema.arguments]
        tensors = [
            tensor.detach().requires_grad_()
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and of not in NO_GRADIENTS_BY
            else tensor
            for tensor, of in zip(tensors, names)
        ]
        tensors = [
            [one.detach().requires_grad_(one.is_floating_point()) for one in tensor] if isinstance(tensor, list) else tensor
            for tensor in tensors
        ] if name == "stage" else tensors
    return tensors, keywords


@pytest.mark.parametrize("name, case", ROWS)
def test_functional(name, case):
    tensors, keywords = arguments(name, case, False)
    torch.library.opcheck(getattr(ops, name).default, tensors, keywords)
    if f"{name}_inference" in operators():
        torch.library.opcheck(getattr(ops, f"{name}_inference").default, tensors, keywords)


@pytest.mark.parametrize("name, case", [row for row in PUBLIC if row[0] not in NO_GRADIENTS and "mask_" not in row[0]])
def test_with_gradients(name, case):
    tensors, keywords = arguments(name, case, True)
    torch.library.opcheck(getattr(ops, name).default, tensors, keywords)


@pytest.mark.parametrize("name, case", [row for row in PUBLIC if row[0] not in WITHOUT_OUT])
def test_out(name, case):
    """Writes what the functional form returns, and nothing but the tensors given."""
    tensors, keywords = arguments(name, case, False)
    operator = getattr(ops, name).out
    expected = getattr(ops, name)(*tensors, **keywords)
    if isinstance(expected, tuple):
        given = {name: torch.empty_like(tensor) for name, tensor in zip(("mean", "variance"), expected)}
    else:
        given = dict(out=torch.ones_like(expected))
    zero = any(argument.name == "zero" for argument in operator._schema.arguments)
    for more in (dict(zero=False), dict(zero=True)) if zero else ({},):
        torch.library.opcheck(operator, tensors, dict(keywords, **more, **given))
        into = given if isinstance(expected, tuple) else dict(into=given["out"])
        torch.library.opcheck(getattr(ops, f"{name}_into").default, tensors, dict(keywords, **more, **into))
        returned = operator(*tensors, **keywords, **more, **given)
    if not isinstance(expected, tuple):
        returned, expected = (returned,), (expected,)
    for got, tensor, right in zip(returned, given.values(), expected):
        assert got is tensor or got.data_ptr() == tensor.data_ptr()
        assert torch.equal(tensor, right)


@pytest.mark.parametrize("name", sorted({name for name, _ in PUBLIC} - WITHOUT_OUT))
def test_out_of_another_type_or_shape(name):
    tensors, keywords = arguments(name, 0, False)
    expected = getattr(ops, name)(*tensors, **keywords)
    if isinstance(expected, tuple):
        good = dict(zip(("mean", "variance"), expected))
        bad = [dict(good, mean=good["mean"].half()), dict(good, variance=good["variance"][:, :1])]
    else:
        bad = [dict(out=expected.half()), dict(out=torch.cat([expected] * 2))]
        if name in ("pack", "unpack"):  # Packed tokens may have room for more, and the mask says how many there are.
            bad = bad[:1]
    for given in bad:
        with pytest.raises((RuntimeError, ValueError), match="distile"):
            getattr(ops, name).out(*tensors, **keywords, **given)
