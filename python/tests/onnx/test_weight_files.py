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


@pytest.mark.filterwarnings("ignore")
def test_files_with_other_bytes(tmp_path):
    """They are read, or refused by the one error."""
    random, path = np.random.default_rng(0), tmp_path / "w.npz"
    for save in (np.savez, np.savez_compressed):
        save(path, **CSR)
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        refused = 0
        for _ in range(500):
            broken = whole.copy()
            broken[random.integers(len(whole), size=2)] = random.integers(256, size=2)
            path.write_bytes(broken.tobytes())
            try:
                assert np.isfinite(read_weights(path)).all()
            except ValueError as error:
                assert str(path) in str(error)
                refused += 1
        assert refused > 100


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
