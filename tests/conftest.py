"""Options and hooks of the whole suite."""

import asyncio
import inspect
import os
import sys
from collections.abc import Iterator

import pytest

# No test's server writes into the folder of whoever runs the tests.
os.environ["KEEPWARM_JOURNAL"] = ":memory:"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long campaigns too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="long campaign: needs --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Torch computes on one thread, whatever the engine of the test before has set: models this
    small gain nothing from more, and beside other work they wait for each other."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "kernels.native_library" in sys.modules:
        sys.modules["kernels.native_library"].own_threads(None)


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
