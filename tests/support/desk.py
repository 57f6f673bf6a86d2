"""A browser in front of the dashboard of a server with keys: who looks, and what is wrong to see.

Needs Playwright; a module that uses it is skipped where there is no chromium.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page
from prometheus_client.parser import text_string_to_metric_families

from keepwarm.demo.child_server import ChildServer
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tools.screenshots import opened

ACME, GLOBEX, BOSS, READER = "key-of-acme", "key-of-globex", "key-of-the-boss", "key-that-reads"
ROLES = {
    ACME: ("acme", Role.TENANT),
    GLOBEX: ("globex", Role.TENANT),
    BOSS: ("acme", Role.OPERATOR),
    READER: ("acme", Role.READ_ONLY),
}
MODEL = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "32", "--threads", "1"]
PRICES = ["--price", "input=3,cached=0.3,output=15"]
WAIT_MS = 15_000
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


def write_keys(path: Path, keys: dict[str, tuple[str, Role]], quotas: str) -> None:
    """A tenants file."""
    rows = [
        key_row(ApiKey.of(key, tenant=tenant, role=role)) for key, (tenant, role) in keys.items()
    ]
    path.write_text("\n".join([*rows, quotas]))
    path.chmod(0o600)


def in_thread(story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Agents beside the browser, whose own loop holds this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(story())).result(timeout=240)


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
