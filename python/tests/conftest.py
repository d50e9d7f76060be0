import os
import tempfile

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
