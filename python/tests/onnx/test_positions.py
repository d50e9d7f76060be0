"""Which mask a node gets: its place over the image, found by labels that run through the graph."""

import numpy as np
import pytest
from networks import Builder, feeds_of, run
from onnx import TensorProto, helper
from test_conversion import compare, ops

import distile.grids
from distile.onnx import Left, Replaced, Rule, convert
from distile.positions import ALL, CONSTANT, Positions
from distile.rules import Grid

IMAGE, TOKENS = [None] * 4, [None] * 3  # Shapes that inference finds.


def mappings(report):
    return {row.name: str(row.mapping) for row in report if isinstance(row, Replaced)}


def reasons(report):
    return {row.name: row.reason for row in report if isinstance(row, Left)}


def chain(size, layers, batch=1):
    """Convolutions and pools in a row, each an output too: (name, kernel, stride, padding)."""
    b, x, outputs = Builder(), "x", {}
    for name, kernel, stride, padding in layers:
        x = b.conv(name, x, 4, 4, kernel, stride, pads=[padding] * 4)
        outputs[x] = IMAGE
    return b.model({"x": [batch, 4, *size]}, outputs)


def active(result):
    """The pixels that a masked convolution with a bias computed."""
    return np.abs(result).max(1) > 0


def cells(mask, extents, stride, offset=0):
    """Blocks of true stride: the first reaches to the start, and the last to the end."""
    result = np.zeros((len(mask), *extents), bool)
    for n, y, x in np.argwhere(mask):
        place = [min(max((at - offset) // stride, 0), count - 1) for at, count in zip((y, x), extents)]
        result[(n, *place)] = True
    return result


@pytest.mark.parametrize("open_size", [False, True])
@pytest.mark.parametrize("size", [(100, 100), (720, 1280)])
def test_sizes_that_strides_do_not_divide(size, open_size):
    layers = [(f"c{place}", 3, 2, 1) for place in range(6)]
    model = chain(["h", "w"] if open_size else size, layers)
    more = {} if open_size else {"mask_sizes": {"mask": size}}
    mask = np.zeros((1, *size), bool)
    mask[0, 31, 31] = mask[0, 63, 95] = mask[0, -1, -1] = True
    for reference in (False, True):
        converted, _ = convert(model, [Rule("*", "mask")], reference=reference, **more)
        x = np.random.default_rng(0).standard_normal((1, 4, *size)).astype(np.float32)
        for level, result in enumerate(run(converted, {"x": x, "mask": mask}), 1):
            found = active(result)
            assert (found == cells(mask, found.shape[1:], 2**level)).all(), (level, reference)


@pytest.mark.parametrize("open_size", [False, True])
def test_windows_without_padding(open_size):
    """As in MTCNN: strides are 2 and 4, whatever the extents suggest."""
    layers = [("c1", 3, 1, 0), ("c2", 3, 2, 0), ("c3", 3, 1, 0), ("c4", 2, 2, 0), ("c5", 4, 1, 0)]
    size = 41, 38
    model = chain(["h", "w"] if open_size else size, layers, 2)
    more = {} if open_size else {"mask_sizes": {"mask": size}}
    converted, report = convert(model, [Rule("*", "mask")], **more)
    reference, _ = convert(model, [Rule("*", "mask")], reference=True, **more)
    found = list(mappings(report).values())
    assert [text.split(", grid")[0] for text in found] == [
        "stride 1x1, offset 1x1", "stride 2x2, offset 1.5x1.5", "stride 2x2, offset 3.5x3.5",
        "stride 4x4, offset 3.5x3.5", "stride 4x4, offset 9.5x9.5",
    ]  # fmt: skip
    mask = np.zeros((2, *size), bool)
    mask[0, 20, 17] = mask[1, 0, 37] = True
    x = np.random.default_rng(0).standard_normal((2, 4, *size)).astype(np.float32)
    for model in (converted, reference):
        for result, stride, offset in zip(run(model, {"x": x, "mask": mask}), (1, 2, 2, 4, 4), (1, 1, 3, 3, 9)):
            assert (active(result) == cells(mask, result.shape[2:], stride, offset)).all()


@pytest.mark.parametrize("open_size", [False, True])
def test_masks_of_a_larger_output(open_size):
    """A transposed convolution makes more pixels than the mask has."""
    b = Builder()
    b.conv("up", b.conv("c", "x", 4, 4), 4, 4, 4, 2, op="ConvTranspose", pads=[1] * 4)
    model = b.model({"x": [1, 4, *(["h", "w"] if open_size else (6, 5))]}, {"up.out": IMAGE})
    more = {} if open_size else {"mask_sizes": {"mask": (6, 5)}}
    converted, _ = compare(model, [Rule("*", "mask")], given=not open_size, **more)
    mask = np.random.default_rng(0).random((1, 6, 5)) < 0.4
    (result,) = run(converted, {"x": np.ones((1, 4, 6, 5), np.float32), "mask": mask})
    assert (active(result) == mask.repeat(2, 1).repeat(2, 2)).all()


def squeeze_excite():
    b = Builder()
    b.conv("c1", "x", 8, 4, stride=2)
    b.add("GlobalAveragePool", ["c1.out"], "pooled")
    b.add("Relu", [b.conv("squeeze", "pooled", 4, 8, 1)], "r")
    b.add("HardSigmoid", [b.conv("excite", "r", 8, 4, 1)], "gate")
    b.add("Mul", ["c1.out", "gate"], "scaled")
    b.add("Add", [b.conv("c2", "scaled", 8, 8), "scaled"], "sum")
    b.add("Relu", [b.conv("c3", "sum", 4, 8, stride=2)], "y")
    return b.model({"x": ["n", 4, "h", "w"]}, {"y": IMAGE})


def test_images_of_any_size():
    converted, report = convert(squeeze_excite(), [Rule("*", "mask")])
    assert reasons(report) == dict.fromkeys(("squeeze", "excite"), "each of its outputs sees all pixels")
    assert len(mappings(report)) == 3
    # One chain in NHWC, in which the sum is taken in.
    assert [node.op_type for node in report[1].nodes] == ["Conv", "Add"]
    (mask,) = [value for value in converted.graph.input if value.name == "mask"]
    assert [dim.dim_param for dim in mask.type.tensor_type.shape.dim] == ["n", "h", "w"]
    reference, _ = convert(squeeze_excite(), [Rule("*", "mask")], reference=True)
    random = np.random.default_rng(0)
    for size in ((2, 16, 24), (1, 17, 23), (2, 5, 40)):
        feeds = {
            "x": random.standard_normal((size[0], 4, *size[1:])).astype(np.float32),
            "mask": random.random(size) < 0.3,
        }
        np.testing.assert_allclose(*(run(model, feeds)[0] for model in (converted, reference)), rtol=1e-4, atol=1e-5)


def test_what_does_not_follow_from_an_open_size():
    b = Builder()
    sizes = b.constant("sizes", np.array([1, 4, 64, 64], np.int64))
    b.add("Resize", [b.conv("c1", "x", 4, 4), "", "", sizes], "fixed")
    b.conv("c2", "fixed", 4, 4)
    model = b.model({"x": [1, 4, "h", "w"]}, {"c2.out": IMAGE})
    _, report = convert(model, [Rule("*", "mask")])
    assert list(mappings(report)) == ["c1"] and set(reasons(report)) == {"c2", "Resize_fixed"}
    _, report = convert(model, [Rule("*", "mask")], mask_sizes={"mask": (8, 8)})
    assert set(reasons(report).values()) >= {"the mask 'mask' has a fixed size, and the image has none"}


def tokens_of(b, x, channels, rows, columns, batch=2):
    """Patches as tokens [N, T, C]."""
    b.add("Reshape", [x, b.constant(f"{x}.flat", np.array([batch, channels, rows * columns], np.int64))], f"{x}.r")
    return b.add("Transpose", [f"{x}.r"], f"{x}.tokens", perm=[0, 2, 1])


@pytest.mark.parametrize("before, after", [(0, 0), (1, 0), (0, 3), (5, 2)])
def test_tokens_beside_those_of_the_image(before, after):
    b = Builder()
    tokens = tokens_of(b, b.conv("patches", "x", 16, 3, 4, 4, pads=[0] * 4), 16, 5, 6)
    parts = (
        [b.weights("before", 2, before, 16)] * (before > 0)
        + [tokens]
        + [b.weights("after", 2, after, 16)] * (after > 0)
    )
    x = b.add("Concat", parts, "all", axis=1) if len(parts) > 1 else tokens
    b.add("MatMul", [x, b.weights("w", 16, 16)], "y", "fc")
    model = b.model({"x": [2, 3, 20, 24]}, {"y": TOKENS})
    converted, report = compare(model, [Rule("*", "mask")], mask_sizes={"mask": (20, 24)})
    assert mappings(report)["fc"] == f"stride 4x4, offset 0x0, grid 5x6, tokens {before}+30+{after}"
    mask = np.zeros((2, 20, 24), bool)
    mask[1, 9, 23] = True
    (result,) = run(converted, {"x": feeds_of(model, 0)["x"], "mask": mask})
    expected = np.zeros((2, before + 30 + after), bool)
    expected[:, :before] = expected[:, before + 30 :] = expected[1, before + 2 * 6 + 5] = True
    assert (np.abs(result).max(2) > 0)[expected].all() and not np.abs(result[~expected]).any()
    # The mask of the tokens serves the image too.
    compare(model, [Rule("*", "mask")], mask_sizes={"mask": (before + 30 + after,)})


def test_text_is_no_image():
    b = Builder()
    b.conv("c", "x", 4, 4)
    b.add("MatMul", ["text", b.weights("w", 8, 8)], "t", "text/fc")
    model = b.model({"x": [1, 4, 16, 16], "text": [1, 256, 8]}, {"c.out": IMAGE, "t": TOKENS})
    converted, report = convert(model, [Rule("*", "mask")])
    assert (
        reasons(report) == {"text/fc": "it sees another input than the image"} and ops(converted).count("MatMul") == 1
    )
    # The user may say that they are, or name a grid.
    compare(model, [Rule("text/*", "tokens")], images=["text"])
    compare(model, [Rule("text/*", "tokens", grid=Grid(16, 16))])
    with pytest.raises(ValueError, match="'c.out' is no input"):
        convert(model, [Rule("*", "mask")], images=["c.out"])


def test_channels_that_are_no_tokens():
    """Token mixing, and maps of attention."""
    b = Builder()
    tokens = tokens_of(b, "x", 16, 4, 4)
    b.add("MatMul", [b.add("Transpose", [tokens], "t", perm=[0, 2, 1]), b.weights("w1", 16, 16)], "mixed", "mix")
    b.add("Transpose", [tokens], "k", perm=[0, 2, 1])
    scores = b.add("Softmax", [b.add("MatMul", [tokens, "k"], "products", "scores")], "soft", axis=-1)
    four = b.constant("four", np.array([2, 16, 4, 4], np.int64))
    b.add("MatMul", [b.add("Reshape", [scores, four], "maps"), b.weights("w2", 4, 4)], "y", "heads")
    _, report = convert(b.model({"x": [2, 16, 4, 4]}, {"mixed": TOKENS, "y": IMAGE}), [Rule("*", "mask")])
    found = reasons(report)
    assert found["mix"] == "each of its outputs sees all pixels"
    assert found["heads"] == "a pixel stands in several of its outputs" and not mappings(report)


def windowed(b, x, rows, columns, window, channels, batch):
    """[N * windows, tokens of a window, C] from [N, H, W, C], as Swin makes them, shifted by a pixel."""
    parts = [b.add("Slice", [x, b.constant(f"{x}.s{i}", np.array([start])), b.constant(f"{x}.e{i}", np.array([end])),
                             b.constant(f"{x}.a{i}", np.array([1]))], f"{x}.part{i}")
             for i, (start, end) in enumerate(((1, 99), (0, 1)))]  # fmt: skip
    b.add("Concat", parts, f"{x}.rolled", axis=1)
    split = [batch, rows // window, window, columns // window, window, channels]
    b.add("Reshape", [f"{x}.rolled", b.constant(f"{x}.split", np.array(split, np.int64))], f"{x}.six")
    b.add("Transpose", [f"{x}.six"], f"{x}.turned", perm=[0, 1, 3, 2, 4, 5])
    return b.add(
        "Reshape", [f"{x}.turned", b.constant(f"{x}.join", np.array([-1, window**2, channels], np.int64))], "win"
    )


@pytest.mark.parametrize("batch", [1, 2])
def test_windows(batch):
    b = Builder()
    b.add("Transpose", [b.conv("c", "x", 8, 3, 2, 2, pads=[0] * 4)], "nhwc", perm=[0, 2, 3, 1])
    b.add("MatMul", [windowed(b, "nhwc", 6, 4, 2, 8, batch), b.weights("w", 8, 8)], "y", "fc")
    model = b.model({"x": [batch, 3, 12, 8]}, {"y": TOKENS})
    converted, report = compare(model, [Rule("*", "mask")])
    assert mappings(report)["fc"] == "stride 2x2, offset 0x0, grid 6x4, 6 windows"
    mask = np.random.default_rng(0).random((batch, 6, 4)) < 0.4
    (result,) = run(converted, {"x": feeds_of(model, 0)["x"], "mask": mask})
    expected = np.roll(mask, -1, 1).reshape(batch, 3, 2, 2, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 4)
    assert ((np.abs(result).max(2) > 0) == expected).all()


@pytest.mark.parametrize("open_size", [False, True])
def test_one_mask_for_a_batch(open_size):
    layers = [("c1", 3, 2, 1), ("c2", 3, 1, 0)]
    model = chain(["h", "w"] if open_size else (9, 11), layers, "n")
    converted, _ = convert(model, [Rule("*", "mask")], **({} if open_size else {"mask_sizes": {"mask": (9, 11)}}))
    random = np.random.default_rng(0)
    x, mask = random.standard_normal((3, 4, 9, 11)).astype(np.float32), random.random((1, 9, 11)) < 0.4
    each = run(converted, {"x": x, "mask": mask.repeat(3, 0)})
    for result, expected in zip(run(converted, {"x": x, "mask": mask}), each):
        np.testing.assert_array_equal(result, expected)


def test_images_in_nhwc():
    b = Builder()
    b.add("Transpose", ["x"], "nchw", perm=[0, 3, 1, 2])
    b.conv("c", "nchw", 4, 3, stride=2)
    _, report = compare(b.model({"x": [2, 9, 12, 3]}, {"c.out": IMAGE}), [Rule("*", "mask")])
    assert mappings(report) == {"c": "stride 2x2, offset 0x0, grid 5x6"}


MOVES = {
    "slice": (lambda b: b.add("Slice", ["c.out", *(b.constant(name, np.array([value])) for name, value in
                                                    (("s", 1), ("e", 99), ("a", 3)))], "m"), "1x1, offset 0x1, grid 8x11"),
    "pad": (lambda b: b.add("Pad", ["c.out", b.constant("p", np.array([0, 0, 2, 1, 0, 0, 0, 1]))], "m"),
            "1x1, offset -2x-1, grid 10x14"),
    "reflect": (lambda b: b.add("Pad", ["c.out", b.constant("p", np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "m",
                                mode="reflect"), "1x1, offset -1x-1, grid 10x14"),
    "to depth": (lambda b: b.add("SpaceToDepth", ["c.out"], "m", blocksize=2), "2x2, offset 0x0, grid 4x6"),
    "to space": (lambda b: b.add("DepthToSpace", ["c.out"], "m", blocksize=2), "0.5x0.5, offset 0x0, grid 16x24"),
    "strided": (lambda b: b.add("MaxPool", ["c.out"], "m", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
                "2x2, offset 0.5x0.5, grid 4x6"),
    "gate": (lambda b: b.add("Mul", ["c.out", b.add("ReduceMean", ["c.out"], "r", axes=[2, 3])], "m"),
             "1x1, offset 0x0, grid 8x12"),
}  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
def test_moves(move):
    make, place = MOVES[move]
    b = Builder()
    b.conv("c", "x", 4, 4)
    channels = {"to depth": 16, "to space": 1}.get(move, 4)
    b.conv("d", make(b), 4, channels, 1, pads=[0] * 4)
    _, report = compare(b.model({"x": [2, 4, 8, 12]}, {"d.out": IMAGE}), [Rule("*", "mask")], given=False)
    assert mappings(report)["d"] == f"stride {place}"


def test_named_grids():
    """Where an operator in front hides where outputs are."""
    b = Builder()
    b.add("NonMax", ["x"], "hidden", domain="unknown")
    b.add("MatMul", ["hidden", b.weights("w", 8, 8)], "y", "fc")
    model = b.model({"x": [2, 8, 8, 8]}, {"y": [2, 18, 8]})
    model.opset_import.append(helper.make_opsetid("unknown", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [2, 18, 8]))
    _, report = convert(model, [Rule("*", "mask")])
    assert reasons(report) == {"fc": "each of its outputs sees all pixels"}
    _, report = convert(model, [Rule("*", "mask", grid=Grid(4, 4, 1, 1))])
    assert mappings(report) == {"fc": "stride 2x2, offset 0x0, grid 4x4, tokens 1+16+1"}
    _, report = convert(model, [Rule("*", "mask", grid=Grid(4, 4))])
    assert "a rule says that its grid is 0+4x4+0, and its output is [2, 18, 8]" in reasons(report)["fc"]
    _, report = convert(model, [Rule("*", "mask", grid=Grid(6, 3))])
    assert "which does not divide the image" in reasons(report)["fc"]
    _, report = convert(model, [Rule("*", "mask", grid=Grid(6, 3, stride=1))])
    assert list(mappings(report)) == ["fc"]


def test_a_mask_that_is_computed_later():
    b = Builder()
    b.conv("c", "x", 4, 4)
    b.add("Greater", [b.add("ReduceMax", ["c.out"], "m", axes=[1], keepdims=0), b.constant("z", np.float32(0))], "own")
    b.conv("d", "c.out", 4, 4, stride=2)
    _, report = compare(b.model({"x": [2, 4, 7, 5]}, {"d.out": IMAGE}), [Rule("*", "own")], given=False)
    assert reasons(report) == {"c": "the mask 'own' is computed after it"}
    assert mappings(report) == {"d": "stride 2x2, offset 0x0, grid 4x3"}


def test_blocks_at_the_end_of_an_odd_image():
    """Patches that are merged after padding, as in Swin."""
    b = Builder()
    b.add("Transpose", [b.conv("c", "x", 4, 3)], "nhwc", perm=[0, 2, 3, 1])
    b.add("Pad", ["nhwc", b.constant("p", np.array([0, 0, 0, 0, 0, 1, 1, 0]))], "padded")
    b.add("Reshape", ["padded", b.constant("six", np.array([2, 4, 2, 3, 2, 4], np.int64))], "split")
    b.add("Transpose", ["split"], "turned", perm=[0, 1, 3, 4, 2, 5])
    b.add("Reshape", ["turned", b.constant("join", np.array([2, 4, 3, 16], np.int64))], "merged")
    b.add("MatMul", ["merged", b.weights("w", 16, 8)], "y", "fc")
    _, report = compare(b.model({"x": [2, 3, 7, 5]}, {"y": IMAGE}), [Rule("*", "mask")])
    assert mappings(report)["fc"] == "stride 2x2, offset 0x0, grid 4x3"


def test_a_reshape_that_does_not_fit_the_example():
    """The height is open, and 8 when the model runs."""
    b = Builder()
    b.add("Reshape", [b.conv("c", "x", 4, 4), b.constant("rows", np.array([2, 4, 48]))], "tokens")
    b.add("MatMul", ["tokens", b.weights("w", 48, 8)], "y", "fc")
    _, report = convert(b.model({"x": [2, 4, "h", 6]}, {"y": TOKENS}), [Rule("*", "mask")])
    assert mappings(report) == {"c": "stride 1x1, offset 0x0, grid 320x6"}
    assert reasons(report) == {"fc": "each of its outputs sees all pixels"}


def test_borders_of_a_grid_are_constants():
    positions = Positions(1, 4, 4)
    labels = np.full((1, 4, 4), ALL)
    labels[0, 3, 3] = positions.whole()[0, 3, 3]
    assert positions.grid_of(labels) == ALL
    labels[labels == ALL] = CONSTANT
    assert isinstance(positions.grid_of(labels), distile.grids.Grid)
