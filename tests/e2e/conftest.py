"""A real server process for the tests of this folder."""

from collections.abc import Iterator

import pytest

from keepwarm.demo.child_server import ChildServer, child_server

OPTIONS = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
"""Random weights: calls are forced and strings bounded, so that loops end. A model this small
is fastest on one thread, above all beside other work."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """``keepwarm serve`` on a free port, shared by all tests that leave it as it was."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(OPTIONS, log=log) as serving:
        yield serving
