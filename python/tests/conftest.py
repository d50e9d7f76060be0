import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "networks"))

# Tests see no PolyKernels of the user's cache.
os.environ["DISTILE_CACHE"] = tempfile.mkdtemp(prefix="distile-test-")

import pytest


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the tests run: cpu, or cuda for an NVIDIA GPU")


def pytest_configure(config):
    """Before the tests are imported, because some make tensors then. On a GPU, all new tensors are there, and nothing
    multiplies in TF32."""
    config.addinivalue_line("markers", "cpu: not for GPUs")
    if config.getoption("device") == "cpu":
        return
    import torch

    import distile

    torch.set_default_device(config.getoption("device"))
    distile.set_math("float32")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def pytest_collection_modifyitems(config, items):
    if config.getoption("device") != "cpu":
        for item in items:
            if item.get_closest_marker("cpu"):
                item.add_marker(pytest.mark.skip(reason="not for GPUs"))


@pytest.fixture
def device(request):
    """The name of the device."""
    return request.config.getoption("device")


@pytest.fixture
def no_dense(device):
    """Fails the test if an operator ran dense for lack of a PolyKernel. Fewer ship for GPUs."""
    from distile import polykernels

    with polykernels.recording() as found:
        yield
    assert not found or device != "cpu"
