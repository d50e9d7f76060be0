import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "networks"))

# Tests see no PolyKernels of the user's cache.
os.environ["DISTILE_CACHE"] = tempfile.mkdtemp(prefix="distile-test-")

import pytest


@pytest.fixture
def no_dense():
    """Fails the test if an operator ran dense for lack of a PolyKernel."""
    from distile import polykernels

    with polykernels.recording() as found:
        yield
    assert not found
