"""A person at the dashboard: a real browser looks at a served model and says what is untrue.

``python -m tools.person --sessions 400 --json`` serves a model to two tenants, plays agents against
it (trees, forks, budgets, failures, questions), restarts it and compares what the pages say with
the journal's ledger, check by check, each with a name. Exit status 1 where one of them failed.
Needs ``chromium``, as ``tools.screenshots``.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, expect

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.journal.records import SessionRecord, options_kept
from sessions.journal.view import SqliteView
from tools.dashboard_load import crowd, play
from tools.dashboard_server import ACME, BOSS, MODEL, TENANTS, options_in
from tools.screenshots import browser, opened

VIEWS = (
    "#sessions",
    "#usage",
    "#usage?by=tool",
    "#curves",
    "#curves?level=day",
    "#cache",
    "#tenants",
)
WIDTHS = (1440, 1280, 390)
PLAYED = 30
"""Sessions that the stories make."""
CUT = """() => [document.body, ...document.querySelectorAll("#view .scroll")]
    .filter(each => each.getClientRects().length && each.scrollWidth > each.clientWidth + 1)
    .filter(each => !each.querySelector(".tree"))
    .map(each => each.getAttribute("aria-label") ?? each.tagName)"""
Records = dict[tuple[str, str], SessionRecord]


@dataclass(slots=True)
class Checks:
    """What was looked at, by name."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def same(self, name: str, seen: Any, wanted: Any) -> None:
        """Note whether the page says what the ledger has."""
        if seen == wanted:
            self.passed.append(name)
        else:
            self.failed[name] = f"the page has {seen!r:.200}, the ledger {wanted!r:.200}"

    def attempt(self, name: str, look: Callable[[], tuple[Any, Any]]) -> None:
        """The same of what ``look`` sees and wants; a page that does not answer is a failure."""
        try:
            self.same(name, *look())
        except Exception as error:  # whatever went wrong is what is to be told
            self.failed[name] = f"{type(error).__name__}: {error!s:.300}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A question by the address, and who is found."""

    address: dict[str, str]
    wanted: Callable[[SessionRecord], bool]


FILTERS = {
    "all": Filter(address={}, wanted=lambda _: True),
    "several": Filter(address={"several": "1"}, wanted=lambda each: each.account.turns > 1),
    "failed": Filter(address={"failed": "1"}, wanted=lambda each: each.failed > 0),
    "name": Filter(address={"q": "REPORT"}, wanted=lambda each: "report" in each.name),
    "tenant": Filter(address={"tenant": "globex"}, wanted=lambda each: each.tenant == "globex"),
    "idle": Filter(
        address={"q": "question", "state": "idle"}, wanted=lambda each: "question" in each.name
    ),
    "both": Filter(
        address={"q": "job", "several": "1"},
        wanted=lambda each: "job" in each.name and each.account.turns > 1,
    ),
    "none": Filter(address={"q": "no such name"}, wanted=lambda _: False),
}


def _hit(record: SessionRecord) -> float:
    usage = record.account.usage
    return usage.cached_tokens / usage.input_tokens if usage.input_tokens else 2.0


SORTS: dict[str, Callable[[SessionRecord], float]] = {
    "recent": lambda each: -each.updated_s,
    "cost": lambda each: -each.account.cost,
    "again": lambda each: -each.computed_again,
    "hit": _hit,
}


class Person:
    """Looks at the pages of one server, and compares."""

    def __init__(self, chrome: Browser, server: ChildServer, journal: Path) -> None:
        self._chrome = chrome
        self._origin = server.url.removesuffix("/v1")
        self.checks = Checks()
        with contextlib.closing(SqliteView(journal)) as view:
            found = [each for tenant in TENANTS for each in view.sessions(tenant)]
        self.records: Records = {(each.tenant, each.name): each for each in found}

    @contextlib.contextmanager
    def looking(self, name: str, key: str = BOSS, **options: Any) -> Iterator[Page]:
        """A page; that nothing was wrong on it is a check."""
        errors: list[str] = []
        page = opened(self._chrome, self._origin, key, **options)
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        try:
            yield page
        finally:
            page.context.close()
            self.checks.same(f"{name}: no error on the console", errors, [])

    def all(self) -> None:
        """Every look."""
        self._lists()
        self._sessions()
        self._usage()
        self._sizes()
        self._way_back()

    def _lists(self) -> None:
        with self.looking("lists") as page:
            for name, each in FILTERS.items():
                wanted = {key for key, record in self.records.items() if each.wanted(record)}
                seen = self._seen(page, each.address, wanted)
                self.checks.attempt(f"filter {name}", partial(_both, seen, wanted))
            for sort, key in SORTS.items():
                ordered = self._seen(page, {"q": "job", "sort": sort}, set(self.records))

                def values(ordered: Any = ordered, key: Any = key) -> tuple[Any, Any]:
                    found = [key(self.records[each]) for each in ordered()]
                    jobs = [key(r) for r in self.records.values() if "job" in r.name]
                    return found, sorted(jobs)

                self.checks.attempt(f"sort {sort}", values)

    def _seen(
        self, page: Page, address: dict[str, str], wanted: set[Any]
    ) -> Callable[[], list[tuple[str, str]]]:
        def look() -> list[tuple[str, str]]:
            page.goto("about:blank")
            page.goto("/dashboard#sessions?" + urlencode(address))
            page.wait_for_selector("tr[data-session]" if wanted else "#view .empty a")
            names = _rows(page)
            on = page.locator("nav.pages button").nth(1)
            while on.is_visible() and on.is_enabled():
                before = page.locator("nav.pages span").inner_text()
                on.click()
                expect(page.locator("nav.pages span")).not_to_have_text(before)
                names += _rows(page)
            return names

        return look

    def _sessions(self) -> None:
        with self.looking("sessions") as page:
            for (tenant, name), record in self.records.items():
                if "job" in name or "question" in name:
                    continue
                self._session(page, tenant, name, record)
            for tenant in TENANTS:
                self._tree(page, tenant, f"{tenant}-lead")

    def _session(self, page: Page, tenant: str, name: str, record: SessionRecord) -> None:
        page.goto("/dashboard#session?" + urlencode({"tenant": tenant, "name": name}))
        usage = record.account.usage

        def sums() -> tuple[Any, Any]:
            page.wait_for_selector(f'#session-name:text-is("{name}")')
            page.wait_for_selector("tr[data-turn]")
            told = page.locator(".account .sub").first.inner_text()
            return told, f"{usage.cached_tokens:,} of {usage.input_tokens:,} tokens"

        def turns() -> tuple[Any, Any]:
            texts = page.locator("tr[data-turn] .t-prompt .sub b").all_inner_texts()
            return sum(int(text.replace(",", "")) for text in texts), usage.input_tokens

        self.checks.attempt(f"{name}: sums", sums)
        self.checks.attempt(f"{name}: turns add up", turns)

    def _tree(self, page: Page, tenant: str, name: str) -> None:
        page.goto("/dashboard#session?" + urlencode({"tenant": tenant, "name": name}))
        below = {each.name for each in self.records.values() if self._is_below(each, name)}

        def rows() -> tuple[Any, Any]:
            page.wait_for_selector(f'tr[data-part="{name}"]')
            seen = page.locator("tr[data-part]").evaluate_all("a => a.map(e => e.dataset.part)")
            return set(seen), below

        def turns() -> tuple[Any, Any]:
            whole = sum(self.records[tenant, each].account.turns for each in below)
            return page.locator(".sum-turns").inner_text(), str(whole)

        self.checks.attempt(f"{name}: tree", rows)
        self.checks.attempt(f"{name}: the tree's turns", turns)

    def _is_below(self, record: SessionRecord, top: str) -> bool:
        name: str | None = record.name
        while name is not None and name != top:
            name = options_kept(self.records[record.tenant, name].options).parent
        return name == top

    def _usage(self) -> None:
        whole = sum(each.account.cost for each in self.records.values())
        with self.looking("usage") as page:
            for by in ("", "tenant", "key", "model", "tool"):
                for bucket in ("1h", "1d", "1mo"):
                    address = urlencode({"by": by, "bucket": bucket})

                    def total(address: str = address) -> tuple[Any, Any]:
                        page.goto("about:blank")
                        page.goto("/dashboard#usage?" + address)
                        foot = page.locator("#usage-rows tfoot tr")
                        return int(foot.get_attribute("data-nano") or ""), whole

                    self.checks.attempt(f"usage by {by or 'nothing'} in {bucket}", total)

    def _sizes(self) -> None:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                size = {"width": width, "height": 900}
                name = f"{width} {scheme}"
                with self.looking(name, viewport=size, color_scheme=scheme) as page:
                    for address in VIEWS:

                        def cut(address: str = address, page: Page = page) -> tuple[Any, Any]:
                            page.goto("/dashboard" + address)
                            expect(page.locator("#status")).to_have_text("engine up")
                            expect(page.locator("#view")).to_have_attribute("aria-busy", "false")
                            return page.evaluate(CUT), []

                        self.checks.attempt(f"{name} {address}: nothing is cut", cut)

    def _way_back(self) -> None:
        with self.looking("back", ACME, viewport={"width": 1280, "height": 500}) as page:

            def back() -> tuple[Any, Any]:
                page.goto("/dashboard#sessions?sort=cost")
                page.wait_for_selector("tr[data-session]")
                page.evaluate("scrollTo(0, 300)")
                page.wait_for_function("() => history.state?.y === scrollY && scrollY > 0")
                there = page.evaluate("scrollY"), _rows(page)
                page.locator("tr[data-session] a").nth(4).click()
                page.wait_for_selector("tr[data-turn]")
                page.go_back()
                page.wait_for_selector("tr[data-session]")
                page.wait_for_function("there => scrollY === there", arg=there[0])
                return (page.evaluate("scrollY"), _rows(page)), there

            self.checks.attempt("the way back leads to the same lines", back)


def _both(
    seen: Callable[[], list[tuple[str, str]]], wanted: set[tuple[str, str]]
) -> tuple[Any, Any]:
    return set(seen()), wanted


def _rows(page: Page) -> list[tuple[str, str]]:
    found = page.locator("tr[data-session]").evaluate_all(
        "all => all.map(each => [each.dataset.tenantName, each.dataset.session])"
    )
    return [(tenant, name) for tenant, name in found]


async def _agents(url: str, sessions: int) -> None:
    await play(url, dict(TENANTS), tool_s=0.02)
    names = [f"job-{number:03}" for number in range(max(sessions - PLAYED, 0))]
    await crowd(url, ACME, {name: 1 + (index % 3 == 0) for index, name in enumerate(names)})


def look(sessions: int) -> Checks:
    """Serve, play, restart and look."""
    with tempfile.TemporaryDirectory() as scratch:
        options = [*MODEL, *options_in(Path(scratch))]
        with child_server(options, log=Path(scratch) / "first.log") as server:
            asyncio.run(_agents(server.url, sessions))
        with child_server(options, log=Path(scratch) / "second.log") as server, browser() as chrome:
            person = Person(chrome, server, Path(scratch) / "journal")
            person.all()
            return person.checks


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; 0 where all that was looked at is true."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    began_s = time.monotonic()
    checks = look(arguments.sessions)
    told = {
        "sessions": arguments.sessions,
        "checks": len(checks.passed) + len(checks.failed),
        "failed": checks.failed,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(told if arguments.json else told | {"passed": checks.passed}, indent=1))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
