"""Files of weights for the command `distile`. They need neither PyTorch nor ONNX: here they are tested with those that
need no PyTorch."""

import zipfile

import numpy as np
import pytest

from distile import __main__ as command
from distile.weight_files import read_weights

WEIGHTS = np.array([[0, 0, 2, 0], [0, 0, 0, 0], [-1, 0, 0, 3]], np.float32)
CSR = dict(indptr=[0, 1, 1, 3], indices=[2, 0, 3], data=np.float32([2, -1, 3]), shape=[3, 4], format=b"csr")
CSC = dict(indptr=[0, 1, 1, 2, 3], indices=[2, 0, 2], data=np.float32([-1, 2, 3]), shape=[3, 4], format=b"csc")
COO = dict(row=[0, 2, 2], col=[2, 0, 3], data=np.float64([2, -1, 3]), shape=[3, 4], format=b"coo")
SMTX = "3, 4, 3\n0 1 1 3\n2 0 3\n"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("found", [CSR, CSC, COO, {**CSR, "indices": [2, 3, 0], "data": np.float16([2, 3, -1])}])
def test_matrices_of_scipy(found, compressed, tmp_path):
    (np.savez_compressed if compressed else np.savez)(tmp_path / "w.npz", **found)
    weights = read_weights(tmp_path / "w.npz")
    assert weights.dtype == np.float32 and (weights == WEIGHTS).all()


def test_files_as_scipy_writes_them(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    for kind in ("csr", "csc", "coo"):
        for make in (getattr(sparse, f"{kind}_matrix"), getattr(sparse, f"{kind}_array")):
            for compressed in (False, True):
                sparse.save_npz(tmp_path / "w.npz", make(WEIGHTS), compressed=compressed)
                assert (read_weights(tmp_path / "w.npz") == WEIGHTS).all()
    sparse.save_npz(tmp_path / "w.npz", sparse.dia_matrix(WEIGHTS))
    with pytest.raises(ValueError, match=r"its format is 'dia': save it as matrix.tocsr\(\)"):
        read_weights(tmp_path / "w.npz")


@pytest.mark.parametrize("text", [SMTX, SMTX.replace("2 0 3", "2 3 0"), SMTX.replace("\n", " \r\n"), SMTX.strip()])
def test_smtx(text, tmp_path):
    (tmp_path / "w.smtx").write_text(text)
    assert (read_weights(tmp_path / "w.smtx") == (WEIGHTS != 0)).all()


@pytest.mark.parametrize(
    "weights",
    [[[1, 2, 3], [0, 0, 0], [4, 5, 6]], [[0, 0], [0, 0]], [[1], [0], [2]], [[0, 7, 0]], [[0, 3], [0, 4], [0, 5]]],
    ids=["full and empty rows", "empty rows", "a column", "a row", "an empty column"],
)
def test_matrices_of_every_form(weights, tmp_path):
    weights = np.float32(weights)
    rows, columns = np.nonzero(weights)
    counts = {axis: np.count_nonzero(weights, axis) for axis in (0, 1)}
    ends = {axis: np.concatenate([[0], np.cumsum(counts[axis])]) for axis in counts}
    by_column = np.argsort(columns, kind="stable")
    data, shape = weights[rows, columns], weights.shape
    forms = [
        dict(format=b"coo", row=rows, col=columns, data=data),
        dict(format=b"csr", indptr=ends[1], indices=columns, data=data),
        dict(format=b"csc", indptr=ends[0], indices=rows[by_column], data=data[by_column]),
    ]
    for form in forms:
        np.savez(tmp_path / "w.npz", shape=shape, **form)
        assert (read_weights(tmp_path / "w.npz") == weights).all()
    np.save(tmp_path / "w.npy", weights)
    assert (read_weights(tmp_path / "w.npy") == weights).all()
    numbers = (" ".join(map(str, line)) for line in (ends[1], columns))
    (tmp_path / "w.smtx").write_text("\n".join([f"{shape[0]}, {shape[1]}, {len(data)}", *numbers]) + "\n")
    assert (read_weights(tmp_path / "w.smtx") == (weights != 0)).all()


def test_smtx_without_weights(tmp_path):
    (tmp_path / "w.smtx").write_text("2, 3, 0\n0 0 0\n")
    assert (read_weights(tmp_path / "w.smtx") == np.zeros((2, 3))).all()


WRONG = {
    "pointers decrease": ({**CSR, "indptr": [0, 2, 1, 3]}, "each at least the one before"),
    "pointers begin elsewhere": ({**CSR, "indptr": [1, 1, 1, 3]}, "do not go from 0"),
    "pointers end elsewhere": ({**CSR, "indptr": [0, 1, 1, 2]}, "to its 3 indices"),
    "pointers are too few": ({**CSR, "indptr": [0, 1, 3]}, "3 row pointers"),
    "pointers are no integers": ({**CSR, "indptr": [0, 1.5, 1.5, 3]}, "row pointers are no list of integers"),
    "twice the same": ({**CSR, "indices": [2, 3, 3]}, "row 2, column 3 is there twice"),
    "outside": ({**CSR, "indices": [2, 0, 4]}, "in column 4 of 4"),
    "before the first": ({**CSR, "indices": [2, -1, 3]}, "in column -1 of 4"),
    "row outside": ({**COO, "row": [0, 3, 2]}, "in row 3 of 3"),
    "other lengths": ({**COO, "row": [0, 2]}, "2 rows and 3 columns of 3 weights"),
    "other values": ({**CSR, "data": np.float32([1, 2])}, "of 2 weights"),
    "no number": ({**CSR, "data": np.float32([1, np.nan, 2])}, "no finite number"),
    "too large": ({**CSR, "data": np.float64([1, 1e300, 2])}, "no finite number"),
    "no values": ({name: value for name, value in CSR.items() if name != "data"}, "it has no data"),
    "no pointers": ({name: value for name, value in CSR.items() if name != "indptr"}, "indptr"),
    "three dimensions": ({**COO, "shape": [3, 4, 5]}, "no matrix of numbers"),
    "of text": ({**CSR, "data": np.array(["a", "b", "c"])}, "no matrix of numbers"),
    "of objects": ({**CSR, "data": np.array([1, 2, None])}, "allow_pickle=False"),
    "empty": ({**COO, "shape": [0, 4]}, "no matrix of numbers"),
    "larger than memory": ({**COO, "shape": [1 << 20, 1 << 20]}, "no layer has as many weights"),
    "another shape": ({**CSR, "shape": [4, 3]}, "4 row pointers for the shape"),
}


@pytest.mark.parametrize("found, message", WRONG.values(), ids=WRONG)
def test_wrong_matrices(found, message, tmp_path):
    np.savez(tmp_path / "w.npz", **found)
    with pytest.raises(ValueError, match="(?s)the weights '.*w.npz' cannot be used: .*" + message):
        read_weights(tmp_path / "w.npz")


WRONG_TEXTS = {
    "cut off": ("3, 4, 3\n0 1 1 3\n2 0\n", "2 indices instead of 3"),
    "without a head": ("0 1 1 3\n2 0 3\n", "not three lines"),
    "with values": (SMTX + "1.0 2.0 3.0\n", "not three lines"),
    "empty": ("", "not three lines"),
    "of words": ("3, 4, three\n0 1 1 3\n2 0 3\n", "three"),
    "pointers": ("3, 4, 3\n0 2 1 3\n2 0 3\n", "each at least the one before"),
    "twice the same": ("3, 4, 3\n0 1 1 3\n2 3 3\n", "is there twice"),
    "larger than memory": ("2, 9999999999, 0\n0 0 0\n\n", "no layer has as many weights"),
    "negative": ("-3, 4, 0\n0\n\n", "row pointers for the shape"),
    "not of letters": ("3, 4, 3\n0 1 1 3\n2 0 \u0663\n", "ascii"),
}


@pytest.mark.parametrize("text, message", WRONG_TEXTS.values(), ids=WRONG_TEXTS)
def test_wrong_texts(text, message, tmp_path):
    (tmp_path / "w.smtx").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="the weights '.*w.smtx' cannot be used: .*" + message):
        read_weights(tmp_path / "w.smtx")


def test_broken_files(tmp_path):
    np.savez_compressed(tmp_path / "w.npz", **CSR)
    whole = (tmp_path / "w.npz").read_bytes()
    for size in range(0, len(whole), 7):
        (tmp_path / "w.npz").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="w.npz"):
            read_weights(tmp_path / "w.npz")
    np.save(tmp_path / "w.npy", WEIGHTS)
    whole = (tmp_path / "w.npy").read_bytes()
    (tmp_path / "w.npy").write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="w.npy"):
        read_weights(tmp_path / "w.npy")
    (tmp_path / "w.mtx").touch()
    with pytest.raises(ValueError, match="does not end with one of .npy, .npz, .smtx"):
        read_weights(tmp_path / "w.mtx")
    with pytest.raises(FileNotFoundError):
        read_weights(tmp_path / "none.npz")
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("text", "no array")
    with pytest.raises(ValueError, match="it has no data and no format and no shape"):
        read_weights(tmp_path / "other.npz")


def written(path, name: str) -> None:
    """A good file of each format."""
    if path.suffix == ".smtx":
        path.write_text(SMTX)
    elif path.suffix == ".npy":
        np.save(path, WEIGHTS)
    else:
        (np.savez_compressed if name.startswith("compressed") else np.savez)(path, **CSR)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["w.npz", "compressed.npz", "w.npy", "w.smtx"])
def test_files_with_other_bytes(name, tmp_path):
    """They are read, or refused by the one error."""
    random, path = np.random.default_rng(0), tmp_path / name
    written(path, name)
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    refused = 0
    for trial in range(400):
        broken = whole.copy()
        # What stands in text is more than digits.
        values = random.integers(256, size=2) if trial % 2 else random.choice(np.frombuffer(b"0123456789 ,-\n.e", np.uint8), 2)
        broken[random.integers(len(whole), size=2)] = values
        path.write_bytes(broken.tobytes())
        try:
            weights = read_weights(path)
            assert weights.dtype == np.float32 and weights.ndim >= 2 and np.isfinite(weights).all()
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 50


def test_command(tmp_path, capsys):
    np.savez(tmp_path / "w.npz", **CSR)
    assert command.main(["weights", str(tmp_path / "w.npz")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'w.npy'}: 3 x 4, 75.0% zeros\n"
    assert (np.load(tmp_path / "w.npy") == WEIGHTS).all()
    # The result would be written over what is read.
    for arguments, message in ((["w.npy"], "another name with -o"), (["none.npz"], "No such file")):
        with pytest.raises(SystemExit) as left:
            command.main(["weights", *(str(tmp_path / name) for name in arguments)])
        assert left.value.code == 1 and message in capsys.readouterr().err
    assert (np.load(tmp_path / "w.npy") == WEIGHTS).all()
