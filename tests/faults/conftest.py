"""Servers that most faults are done to, one after the other."""

import sys
from collections.abc import Iterator

import pytest

from tests.support.faults import Faulty, faulty_server


@pytest.fixture(scope="package")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with faulty_server(tmp_path_factory.mktemp("faulty")) as server:
        yield server


@pytest.fixture(scope="package")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """One whose engines are there at once, where the system allows it."""
    folder = tmp_path_factory.mktemp("quick")
    with faulty_server(folder, forked=sys.platform == "linux") as server:
        yield server
