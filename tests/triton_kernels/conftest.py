"""The tests of Triton's kernels: on a GPU, or else in Triton's interpreter, on any CPU."""

import os

import pytest
import torch

# Read when triton is first imported: so these tests have processes of their own (make triton).
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def triton():
    """Skip the tests where Triton is missing, but fail in CI."""
    try:
        import triton
    except ImportError:
        give_up = pytest.fail if os.environ.get("HPCFL_REQUIRE_TRITON") == "1" else pytest.skip
        give_up("Triton is not installed: pip install triton")
    return triton


@pytest.fixture(scope="session")
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def tf32():
    """Matrix products in tf32, which the interpreter computes in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
