"""The pictures of the dashboard in ``docs/images``: light, dark, on a phone, in a terminal.

``python -m tools.screenshots`` serves a model, plays agents against it and lets a browser look:
Playwright from the ``dev`` extra, and Debian's ``chromium-headless-shell`` or ``chromium``, or the
one named by ``CHROMIUM``.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from keepwarm.demo.child_server import child_server
from keepwarm.top.app import Top
from keepwarm.top.feed import Feed
from tools.dashboard_load import play
from tools.dashboard_server import BOSS, TENANTS, options_in

FOLDER = Path(__file__).resolve().parent.parent / "docs/images"
DESK = {"width": 1320, "height": 760}
TALL = {"width": 1320, "height": 980}
PHONE = {"width": 390, "height": 844}
TERMINAL = (110, 30)
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
QUOTAS = """
[tenants.acme]
turns_per_minute = 240
tokens_per_minute = 200_000
budget = { cost = 0.5, output = 100_000 }
[tenants.globex]
models = ["default"]
turns_per_minute = 120
"""


def chromium() -> str | None:
    """The browser's command, None if there is none. Where it is installed that is the same engine
    without the windows of a desktop, which takes less CPU time."""
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    return os.environ.get("CHROMIUM") or found


@contextlib.contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """A headless browser, with further ``arguments`` of its command line."""
    needed = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=[*needed, *arguments])
        try:
            yield found
        finally:
            found.close()


def opened(of: Browser, origin: str, key: str | None, **options: Any) -> Page:
    """A page in a browser's context of its own, signed in with ``key``."""
    if key is not None:
        options["http_credentials"] = {"username": "any", "password": key}
    context = of.new_context(base_url=origin, **options)
    return context.new_page()


def _settle(page: Page, address: str, wait_for: str) -> None:
    page.goto(address)
    page.wait_for_selector(wait_for)
    page.wait_for_timeout(1600)


def take(origin: str, folder: Path) -> None:
    """All pictures."""
    session = "/dashboard#session?tenant=acme&name=acme-"
    usage = "/dashboard#usage?range=24h&by=tool"
    shots = [
        ("sessions", "/dashboard", "tbody tr", "light", DESK),
        ("sessions-dark", "/dashboard", "tbody tr", "dark", DESK),
        ("sessions-phone", "/dashboard", "tbody tr", "light", PHONE),
        ("session", session + "shopper", "tr[data-turn]", "light", TALL),
        ("session-dark", session + "report", "tr[data-turn]", "dark", TALL),
        ("session-fork", session + "refactor", "tr[data-turn]", "dark", TALL),
        ("session-phone", session + "shopper", "tr[data-turn]", "dark", PHONE),
        ("tree", session + "lead", "tr[data-part]", "light", TALL),
        ("tree-dark", session + "lead", "tr[data-part]", "dark", TALL),
        ("usage", usage, "#usage-values tbody tr", "light", TALL),
        ("usage-dark", usage, "#usage-values tbody tr", "dark", TALL),
        ("curves", "/dashboard#curves", "figure canvas", "light", DESK),
        ("tenants", "/dashboard#tenants", "tbody tr", "light", DESK),
        ("cache-dark", "/dashboard#cache", "button.node", "dark", DESK),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as found:
        for name, address, wait_for, scheme, size in shots:
            page = opened(found, origin, BOSS, color_scheme=scheme, viewport=size)
            _settle(page, address, wait_for)
            if name.startswith("cache"):
                page.locator("button.node").nth(0).click()
                page.wait_for_timeout(300)
            page.screenshot(path=folder / f"{name}.png")
            page.context.close()


def take_terminal(origin: str, folder: Path) -> None:
    """Take a picture of ``keepwarm top`` on the same server."""

    async def look() -> None:
        app = Top(Feed(origin, BOSS), every_s=0.5)
        async with app.run_test(size=TERMINAL) as pilot:
            await asyncio.sleep(3.0)
            await pilot.pause()
            drawn = app.export_screenshot(title="keepwarm top")
        own = _FONT.sub("", drawn)  # a picture loads nothing from elsewhere
        (folder / "top.svg").write_text(own, encoding="utf-8")

    asyncio.run(look())


def main(words: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="default")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--model", arguments.model, *options_in(Path(scratch), quotas=QUOTAS)]
        log = Path(scratch) / "server.log"
        with child_server([*options, "--kv-cache-mib", "64", "--threads", "1"], log=log) as server:
            asyncio.run(play(server.url, dict(TENANTS)))
            take(server.url.removesuffix("/v1"), arguments.folder)
            take_terminal(server.url.removesuffix("/v1"), arguments.folder)


if __name__ == "__main__":
    main()
