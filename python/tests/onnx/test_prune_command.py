"""`python -m distile prune`: files of weights and ONNX models. It needs no PyTorch."""

import json

import numpy as np
import onnx
import pytest
from networks import Builder, run
from onnx import numpy_helper
from test_pruned import sparse_tensor

from distile import __main__ as command
from distile.magnitudes import Pruning
from distile.weight_files import read_weights

RANDOM = np.random.default_rng(0)


def draw(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def prune(*arguments) -> int:
    return command.main(["prune", *map(str, arguments)])


def check_least(before, after):
    """What became 0 is less than what is left, which is as it was."""
    kept = after != 0
    assert (after[kept] == before[kept]).all()
    assert np.abs(before[kept]).min() >= np.abs(before[~kept]).max()


def test_share(tmp_path, capsys):
    before = draw(16, 10, 3, 3)
    np.save(tmp_path / "layer.npy", before)
    assert prune(tmp_path / "layer.npy", "--zeros", 0.9) == 0
    after = np.load(tmp_path / "layer.pruned.npy")
    assert after.shape == before.shape and (after == 0).sum() == int(0.9 * before.size)
    check_least(before, after)
    assert (np.load(tmp_path / "layer.npy") == before).all()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["layer", "weights", "zeros", "before", "zeros"]
    assert lines[1].split() == ["layer", *"16 x 10 x 3 x 3".split(), "0.0%", "90.0%"]
    assert lines[2].split() == ["total", "1440", "0.0%", "90.0%"]
    assert lines[4] == f"wrote {tmp_path / 'layer.pruned.npy'}"


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_several_files(scope, tmp_path, capsys):
    """Layers of unlike sizes, in every format, as JSON."""
    small, large = draw(8, 12) * np.float32(1e-3), draw(20, 12)
    small[0], large[3] = 0, 0
    np.save(tmp_path / "small.npy", small)
    rows, columns = np.nonzero(large)
    np.savez(tmp_path / "large.npz", row=rows, col=columns, data=large[rows, columns], shape=[20, 12], format=b"coo")
    (tmp_path / "places.smtx").write_text("2, 3, 2\n0 1 2\n2 0\n")
    names, folder = ["small.npy", "large.npz", "places.smtx"], tmp_path / "pruned" / "here"
    assert prune(*(tmp_path / name for name in names), "--zeros", 0.5, "--scope", scope, "-o", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [file["file"] for file in found["files"]] == [str(tmp_path / name) for name in names]
    after = [np.load(file["output"]) for file in found["files"]]
    assert {path.name for path in folder.iterdir()} == {f"{name.split('.')[0]}.pruned.npy" for name in names}
    for file, pruned, before in zip(found["files"], after, (small, large, read_weights(tmp_path / names[2]))):
        (row,) = file["layers"]
        assert row["shape"] == list(pruned.shape) == list(before.shape)
        assert row["zeros_before"] == (before == 0).mean() and row["zeros"] == (pruned == 0).mean()
    if scope == "layer":
        assert [(weights == 0).sum() for weights in after[:2]] == [48, 120]
        check_least(large, after[1])
    else:
        assert (after[0] == 0).all() and (after[1] != 0).sum() == (96 + 240 + 6) - 171 - 2
        check_least(large, after[1])
    total = found["total"]
    assert total["weights"] == 96 + 240 + 6
    assert total["zeros"] == pytest.approx(sum((weights == 0).sum() for weights in after) / total["weights"])


@pytest.mark.parametrize("block", [(1, 4), (4, 1), (8, 1), (16, 1), (1, 16), (3, 2)])
@pytest.mark.parametrize("shape", [(32, 48), (35, 50), (34, 33, 3, 2)])
def test_blocks(block, shape, tmp_path):
    before = draw(*shape)
    np.save(tmp_path / "layer.npy", before)
    assert prune(tmp_path / "layer.npy", "--zeros", 0.75, "--block", f"{block[0]}x{block[1]}") == 0
    after = np.load(tmp_path / "layer.pruned.npy")
    outer, inner = (extent // size * size for extent, size in zip(shape, block))
    # What no block has is as it was.
    assert (after[outer:] == before[outer:]).all() and (after[:, inner:] == before[:, inner:]).all()
    sums, zeros = [], []
    for o in range(0, outer, block[0]):
        for i in range(0, inner, block[1]):
            for tap in np.ndindex(*shape[2:]):
                place = (slice(o, o + block[0]), slice(i, i + block[1]), *tap)
                sums.append(np.abs(before[place]).sum())
                zeros.append((after[place] == 0).all())
                assert zeros[-1] or (after[place] == before[place]).all()
    assert sum(zeros) == int(0.75 * len(zeros))
    sums, zeros = np.array(sums), np.array(zeros)
    assert sums[zeros].max() <= sums[~zeros].min()


@pytest.mark.parametrize("shape", [(6, 16), (5, 24, 3, 3), (4, 10, 1, 2)])
def test_pattern(shape, tmp_path):
    before = draw(*shape)
    np.save(tmp_path / "layer.npy", before)
    assert prune(tmp_path / "layer.npy", "--pattern", "2:4") == 0
    after = np.load(tmp_path / "layer.pruned.npy")
    for o in range(shape[0]):
        for tap in np.ndindex(*shape[2:]):
            for first in range(0, shape[1], 4):
                four = (o, slice(first, first + 4), *tap)
                assert (after[four] != 0).sum() == 2
                check_least(before[four], after[four]) if shape[1] - first >= 4 else None


def test_matrices_of_kernels(tmp_path, capsys):
    """Their columns are input channels and kernel positions, as the filter has them in memory."""
    before = draw(8, 12, 3, 2)
    np.save(tmp_path / "filter.npy", before)
    np.save(tmp_path / "matrix.npy", before.reshape(8, -1))
    for more in (["--pattern", "2:4"], ["--zeros", 0.7, "--block", "1x4"], ["--zeros", 0.7]):
        assert prune(tmp_path / "filter.npy", *more) == 0
        assert prune(tmp_path / "matrix.npy", "--kernel", "3x2", *more) == 0
        filter, matrix = np.load(tmp_path / "filter.pruned.npy"), np.load(tmp_path / "matrix.pruned.npy")
        assert matrix.shape == (8, 72) and (matrix.reshape(filter.shape) == filter).all()
    with pytest.raises(SystemExit):
        prune(tmp_path / "matrix.npy", "--kernel", "5x5", "--pattern", "2:4")
    assert "72 columns, which are no input channels of 5 x 5" in capsys.readouterr().err


def test_equal_magnitudes():
    """As many become 0 as of others."""
    (where,) = Pruning(0.9).left_out([np.ones((10, 10), np.float32)])
    assert where.sum() == 90


def model_of(kind=np.float32, sparse: bool = False) -> onnx.ModelProto:
    """Layers that are pruned (of a constant node, too), and others that are not."""
    b, sparse_ones = Builder(), []

    def constant(name, *shape, node=False):
        weights = b.random.standard_normal(shape).astype(kind)
        if node:
            b.nodes.append(onnx.helper.make_node("Constant", [], [name], value=numpy_helper.from_array(weights)))
            return name
        if sparse:
            weights[b.random.random(shape) < 0.2] = 0
            sparse_ones.append(sparse_tensor(weights, name, False))
            return name
        return b.constant(name, weights)

    b.add("Conv", ["x", constant("conv.w", 16, 8, 3, 3)], "a", "conv", pads=[1] * 4)
    b.add("Conv", ["a", b.constant("depthwise.w", b.random.standard_normal((16, 1, 3, 3)).astype(kind))], "c", "depthwise",
          group=16, pads=[1] * 4)  # fmt: skip
    b.add("Transpose", ["c"], "t", perm=[0, 2, 3, 1])
    b.add("Reshape", ["t", b.constant("shape", np.array([-1, 16]))], "rows")
    b.add("Gemm", ["rows", constant("gemm.w", 24, 16), b.constant("bias", np.ones(24, kind))], "g", "gemm", transB=1)
    b.add("MatMul", ["g", constant("matmul.w", 24, 24, node=True)], "h", "matmul")
    b.add("MatMul", ["h", "matmul.w"], "y", "again")  # It has the weights of the one before.
    model = b.model({"x": [1, 8, 7, 9]}, {"y": [63, 24]})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    model.graph.sparse_initializer.extend(sparse_ones)
    return model


def constants_of(model) -> dict[str, np.ndarray]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "Constant"]
    return found | {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in nodes}


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_models(kind, tmp_path, capsys):
    onnx.save(model_of(kind), tmp_path / "model.onnx")
    assert prune(tmp_path / "model.onnx", "--zeros", 0.75, "--json") == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    shapes = {row["layer"]: row["shape"] for row in file["layers"]}
    assert shapes == {"conv": [16, 8, 3, 3], "gemm": [24, 16], "matmul": [24, 24]}
    assert all(row["zeros_before"] == 0 and row["zeros"] == 0.75 for row in file["layers"])
    pruned = onnx.load(file["output"])
    assert file["output"] == str(tmp_path / "model.pruned.onnx")
    onnx.checker.check_model(pruned)
    before, after = constants_of(model_of(kind)), constants_of(pruned)
    assert before.keys() == after.keys()
    for name, weights in after.items():
        if name in ("conv.w", "gemm.w", "matmul.w"):
            assert weights.dtype == kind and (weights == 0).mean() == 0.75
            check_least(before[name], weights)
        else:
            assert (weights == before[name]).all()
    assert run(pruned, {"x": draw(1, 8, 7, 9).astype(kind)})[0].shape == (63, 24)


def test_pattern_of_models(tmp_path):
    """The pattern is of input channels, which are the rows of a MatMul's weights; sparse constants become dense."""
    onnx.save(model_of(sparse=True), tmp_path / "model.onnx")
    assert prune(tmp_path / "model.onnx", "--pattern", "2:4") == 0
    pruned = onnx.load(tmp_path / "model.pruned.onnx")
    assert not pruned.graph.sparse_initializer
    for name, axis in (("conv.w", 1), ("gemm.w", 1), ("matmul.w", 0)):
        weights = np.moveaxis(constants_of(pruned)[name], axis, -1)
        assert (np.count_nonzero(weights.reshape(-1, 4), -1) <= 2).all()


def test_weights_in_files(tmp_path):
    model = model_of()
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    assert prune(tmp_path / "model.onnx", "--zeros", 0.5, "-o", tmp_path / "here") == 0
    assert (constants_of(onnx.load(tmp_path / "here" / "model.pruned.onnx"))["gemm.w"] == 0).mean() == 0.5


def test_one_share_of_models_and_files(tmp_path, capsys):
    onnx.save(model_of(), tmp_path / "model.onnx")
    np.save(tmp_path / "layer.npy", draw(30, 40) * 100)
    assert prune(tmp_path / "model.onnx", tmp_path / "layer.npy", "--zeros", 0.5, "--scope", "global", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(file["layers"]) for file in found["files"]] == [3, 1]
    assert found["files"][1]["layers"][0]["zeros"] < 0.1
    assert found["total"]["zeros"] == pytest.approx(0.5, abs=1e-3)


WRONG = {
    "nothing said": (["layer.npy"], "say the share of zeros, as --zeros .9, or --pattern 2:4"),
    "all": (["layer.npy", "--zeros", "1"], "a share from 0 to below 1"),
    "no number": (["layer.npy", "--zeros", "most"], "invalid float value"),
    "not finite": (["layer.npy", "--zeros", "nan"], "a share from 0 to below 1"),
    "both": (["layer.npy", "--zeros", ".5", "--pattern", "2:4"], "a pattern says which weights become 0"),
    "no pattern": (["layer.npy", "--pattern", "1:4"], "invalid choice: '1:4'"),
    "no block": (["layer.npy", "--zeros", ".5", "--block", "0x4"], "'0x4' is not as 1x4"),
    "no scope": (["layer.npy", "--zeros", ".5", "--scope", "all"], "invalid choice: 'all'"),
    "another format": (["layer.txt", "--zeros", ".5"], "does not end with one of .npy, .npz, .smtx, .onnx"),
    "no file": (["none.npy", "--zeros", ".5"], "No such file"),
    "a broken file": (["broken.npy", "--zeros", ".5"], "broken.npy"),
    "no model": (["broken.onnx", "--zeros", ".5"], "broken.onnx holds no ONNX model"),
    "a model without layers": (["empty.onnx", "--zeros", ".5"], "has no convolution and no linear layer"),
    "a model of no numbers": (["nan.onnx", "--zeros", ".5"], "a weight of the node 'matmul' is no finite number"),
    "two of one name": (["layer.npy", "layer.npz", "--zeros", ".5"], "two files would become"),
}


@pytest.mark.parametrize("arguments, message", WRONG.values(), ids=WRONG)
def test_wrong_arguments(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("layer.npy", draw(4, 8))
    np.savez("layer.npz", row=[0], col=[1], data=np.float32([2]), shape=[3, 4], format=b"coo")
    for name in ("broken.npy", "broken.onnx"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    b = Builder()
    b.add("Relu", ["x"], "y")
    onnx.save(b.model({"x": [2]}, {"y": [2]}), "empty.onnx")
    b = Builder()
    b.add("MatMul", ["x", b.constant("w", np.full((2, 3), np.nan, np.float32))], "y", "matmul")
    onnx.save(b.model({"x": [2, 2]}, {"y": [2, 3]}), "nan.onnx")
    with pytest.raises(SystemExit) as left:
        prune(*arguments)
    assert left.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.pruned.*"))
