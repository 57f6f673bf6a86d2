"""Triton's kernels on a GPU, or under Triton's interpreter where there is none.

Triton reads TRITON_INTERPRET when a kernel is defined, so it is set here, before any test
module is imported. Nothing here runs where Triton is not installed.
"""

import importlib.util
import os

import pytest
import torch

WITHOUT_TRITON = pytest.mark.skip(reason="Triton is not installed; `make kernels` has it")
INTERPRETER_WARNS = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
)
"""Triton 3.6 makes a loop's bound an int in a way that numpy 2.3 warns of and 2.4 refuses."""

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark = INTERPRETER_WARNS if importlib.util.find_spec("triton") else WITHOUT_TRITON
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(mark)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
