"""A browser in front of the dashboard of a server with keys: who looks, and what is wrong to see.

Needs Playwright; a module that uses it is skipped where there is no chromium.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from prometheus_client.parser import text_string_to_metric_families

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.journal.records import SessionRecord
from sessions.journal.view import SqliteView
from sessions.tenants import Role
from tools.dashboard_server import BOSS, KEYS, MODEL, options_in
from tools.screenshots import chromium, opened

in_a_browser = pytest.mark.skipif(chromium() is None, reason="there is no chromium on the path")
"""The mark of modules that open one."""

READER = "key-that-reads"
ROLES = {**KEYS, READER: ("acme", Role.READ_ONLY)}
WAIT_MS = 15_000
expect.set_options(timeout=WAIT_MS)
VIEWS = (
    "#sessions",
    "#usage",
    "#curves",
    "#curves?level=day",
    "#curves?level=month",
    "#cache",
    "#tenants",
)
"""The last one is an operator's."""
NOTHING_SAID = re.compile(r"NaN|undefined|Infinity|\bnull\b|\[object")
"""What a script writes where it had nothing to say."""


def in_thread(story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Agents beside the browser, whose own loop holds this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(story())).result(timeout=240)


Story = Callable[[str], Coroutine[Any, Any, Any]]
"""What agents do with the server at an address."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A server that has had its agents, and what it has kept of them."""

    serving: ChildServer
    keys: Path
    """Its tenants file."""
    journal: Path
    began_s: int
    """When its last life began, seconds since the epoch."""
    told: dict[str, Any] = field(default_factory=dict)
    """What its last story returned."""

    def records(self, tenant: str | None = "acme") -> dict[str, SessionRecord]:
        """The sessions of a tenant by name; None: of all."""
        with contextlib.closing(SqliteView(self.journal)) as view:
            return {each.name: each for each in view.sessions(tenant)}

    def spent(self, tenant: str | None = None) -> int:
        """Nano-dollars, as the accounts of sessions add up."""
        return sum(each.account.cost for each in self.records(tenant).values())


@contextlib.contextmanager
def lived(folder: Path, *stories: Story, quotas: str = "") -> Iterator[World]:
    """A server with prices, the keys of ``ROLES`` and a journal, that has had a life for each
    story; the last one goes on. ``quotas``: more of its tenants file."""
    options = [*MODEL, *options_in(folder, ROLES, quotas)]
    for number, story in enumerate(stories, start=1):
        with child_server(options, log=folder / f"server{number}.log") as serving:
            began_s = int(time.time())
            told = in_thread(lambda: story(serving.url))  # noqa: B023 - played at once
            if number == len(stories):
                yield World(
                    serving=serving,
                    keys=folder / "tenants.toml",
                    journal=folder / "journal",
                    began_s=began_s,
                    told=told or {},
                )


def session_address(tenant: str, name: str) -> str:
    """Of the session's own page."""
    return "#session?" + urlencode({"tenant": tenant, "name": name})


def metrics(origin: str) -> dict[str, float]:
    """Sample values by name, labels behind it."""
    text = httpx.get(f"{origin}/metrics", headers={"Authorization": f"Bearer {BOSS}"}).text
    return {
        sample.name + "".join(sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Desk:
    """Pages that are watched for errors."""

    def __init__(self, chrome: Browser, server: ChildServer) -> None:
        self._chrome = chrome
        self.origin = server.url.removesuffix("/v1")
        self.errors: list[str] = []

    def open(self, key: str | None, address: str = "", **options: Any) -> Page:
        """A page that shows ``address``. ``clock``: its time goes on as the test says, too."""
        clock = options.pop("clock", False)
        page = opened(self._chrome, self.origin, key, **options)
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        if clock:
            page.clock.install()
        page.goto("/dashboard" + address)
        return page

    def close(self) -> None:
        """Nothing was wrong on any page."""
        for context in self._chrome.contexts:
            context.close()
        assert not self.errors

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)
