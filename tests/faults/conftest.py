"""A server that most faults are done to, one after the other."""

from collections.abc import Iterator

import pytest

from tests.support.faults import Faulty, faulty_server


@pytest.fixture(scope="package")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with faulty_server(tmp_path_factory.mktemp("faulty")) as server:
        yield server
