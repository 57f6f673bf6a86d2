"""A real server process for the tests of this folder, with a watch on its event loop.

No callback of the front end may take longer than 20 ms of CPU time while these tests run
(``tests.support.watched_server``); the test in which one does fails, and its stacks are printed.
With ``KEEPWARM_WATCH_LOOP=0`` nobody watches, and the loop is the one that users have.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from keepwarm.demo import child_server as children
from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.desk import Desk, World
from tests.support.stolen_time import watched_cores
from tests.support.watched_server import long_callbacks

OPTIONS = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
"""Random weights: calls are forced and strings bounded, so that loops end. A model this small
is fastest on one thread, above all beside other work."""


@pytest.fixture(scope="session", autouse=True)
def loop_report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that child servers write their long callbacks to."""
    report = tmp_path_factory.mktemp("loop") / "long_callbacks.jsonl"
    report.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "LOOP_WATCH_REPORT", str(report))
        if os.environ.get("KEEPWARM_WATCH_LOOP", "1") != "0":
            patch.setattr(children, "_entry", _watched)
        with watched_cores(report):
            yield report


def _watched(checkout: Path | None) -> str:
    return "tests.support.watched_server" if checkout is None else "keepwarm"


@pytest.fixture(autouse=True)
def short_callbacks(loop_report: Path) -> Iterator[None]:
    """Fails the test in which a server's loop was held up."""
    before = loop_report.stat().st_size
    yield
    if told := long_callbacks(loop_report, before):
        pytest.fail("; ".join(told), pytrace=False)


@pytest.fixture(scope="session")
def shared_servers() -> list[ChildServer]:
    """What ``server`` has started: none before a test asks for it, then one."""
    return []


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, loop_report: Path, shared_servers: list[ChildServer]
) -> Iterator[ChildServer]:
    """``keepwarm serve`` on a free port, shared by all tests that leave it as it was."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(OPTIONS, log=log) as serving:
        shared_servers.append(serving)
        yield serving


@pytest.fixture(autouse=True)
def shared_server_lives(shared_servers: list[ChildServer]) -> Iterator[None]:
    """Fails the test that ends the server of all, not the next ones that ask for it."""
    yield
    ended = [each.process for each in shared_servers if each.process.poll() is not None]
    if ended:
        shared_servers.clear()
        pytest.fail(f"the shared server ended with {ended[0].returncode}", pytrace=False)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """A browser of the module's own; only for modules that are skipped where there is none."""
    from tools.screenshots import browser

    with browser() as found:
        yield found


@pytest.fixture
def desk(chrome: Browser, world: World) -> Iterator[Desk]:
    """Pages of the server of a module's ``world``, on which nothing may go wrong."""
    made = Desk(chrome, world.serving)
    yield made
    made.close()
