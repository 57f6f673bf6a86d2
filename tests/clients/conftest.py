"""One server with the default model for all clients."""

from collections.abc import Iterator

import pytest

from keepwarm.demo.child_server import ChildServer, child_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(["--kv-cache-mib", "256", "--threads", "1"], log=log) as serving:
        yield serving
