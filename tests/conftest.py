"""Options and hooks of the whole suite."""

import asyncio
import inspect
import logging
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

# No test's server writes into the folder of whoever runs the tests, or reads their settings.
os.environ["KEEPWARM_JOURNAL"] = ":memory:"
os.environ["KEEPWARM_CONFIG"] = ""
KEPT_VARIABLES = ("KEEPWARM_CONFIG", "KEEPWARM_JOURNAL", "KEEPWARM_KERNELS", "KEEPWARM_NATIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long campaigns too")
    parser.addoption("--seed", type=int, default=0, help="what tests draw with torch follows")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_to_the_tail(items)
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="long campaign: needs --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Servers and clients of tests see no setting of whoever runs the tests, nor the variables of
    tests (CONTRIBUTING.md): test modules have read those by now, where they are imported."""
    for name in [each for each in os.environ if each.startswith("KEEPWARM_")]:
        if name not in KEPT_VARIABLES:
            del os.environ[name]


def leave_to_the_tail(items: list[pytest.Item]) -> None:
    """Of a test marked ``samples(n)``, all cases but n of them, evenly spread, are for the tail."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("samples"):
            name = getattr(item, "originalname", item.name)
            cases.setdefault((item.path, name), []).append(item)
    for each in cases.values():
        mark = each[0].get_closest_marker("samples")
        assert mark is not None
        (number,) = mark.args
        quick = {len(each) * n // number for n in range(number)}
        for at, item in enumerate(each):
            if at not in quick:
                item.add_marker(pytest.mark.tail)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Torch computes on one thread, whatever the engine of the test before has set: models this
    small gain nothing from more, and beside other work they wait for each other. What a test draws
    follows from its name and ``--seed``, not from the tests before it."""
    take_down_logs()
    if "torch" in sys.modules:
        seed = zlib.crc32(f"{item.config.getoption('--seed')} {item.nodeid}".encode())
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].manual_seed(seed)
    if "kernels.native_library" in sys.modules:
        sys.modules["kernels.native_library"].own_threads(None)


def take_down_logs() -> None:
    """Those that a command has set up in this process, as some tests let it."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers[:]:
        if not type(handler).__module__.startswith("_pytest."):
            root.removeHandler(handler)
            handler.close()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """For what has to be the same however work is split."""
    import torch

    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def`` tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
