"""A real server process for the tests of this folder."""

from collections.abc import Iterator

import pytest

from examples.demo.child_server import ChildServer, child_server

MODEL = "random:qwen3-tiny"
"""Random weights: calls are forced and strings bounded, so that loops end."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """``keepwarm serve`` on a free port, shared by all tests that leave it as it was."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(["--model", MODEL], log=log) as serving:
        yield serving
