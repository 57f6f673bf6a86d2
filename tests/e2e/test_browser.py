"""The dashboard in a real browser: its numbers, its stories, its manners.

Needs ``chromium`` (Debian's, whole or ``chromium-headless-shell``, or what ``CHROMIUM`` names) and,
for the check of accessibility, npm; skipped by name without.
"""

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.durable.ledger import dollars
from sessions.journal.encoding import decode_turn
from sessions.journal.view import SqliteView
from tests.support.architecture import ROOT
from tests.support.desk import (
    READER,
    ROLES,
    VIEWS,
    Desk,
    World,
    in_a_browser,
    in_thread,
    lived,
    metrics,
    session_address,
)
from tools.dashboard_load import agent, forking, play, tool_loop
from tools.dashboard_server import ACME, BOSS, GLOBEX, MODEL, write_keys
from tools.screenshots import opened

pytestmark = in_a_browser

QUOTAS = "[tenants.acme]\nturns_per_minute = 100_000\nbudget = { output = 1_000_000 }\n"
MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
AXE = Path(__file__).parent / "axe"


async def _story(url: str) -> None:
    await play(url, {"acme": ACME, "globex": GLOBEX}, tool_s=0.02)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lived(tmp_path_factory.mktemp("pages"), _story, quotas=QUOTAS) as found:
        yield found


def test_at_a_quiet_point_page_metrics_ledgers_and_journal_say_the_same(
    desk: Desk, world: World
) -> None:
    page = desk.open(BOSS)
    expect(page.locator("tbody tr").first).to_be_visible()
    counted = metrics(desk.origin)
    tile = page.locator("#hit")
    for name in ("input", "cached", "output"):
        shown = int(tile.get_attribute(f"data-{name}") or "")
        assert shown == counted[f"keepwarm_{name}_tokens_total"] > 0
    cost = float(page.locator("#saved").get_attribute("data-cost") or "")
    assert cost == pytest.approx(counted["keepwarm_cost_dollars_total"], abs=1e-12)
    reasons = page.locator("#why li").evaluate_all(
        "all => all.map(each => [each.dataset.reason, Number(each.dataset.tokens)])"
    )
    missed = {name: n for name, n in counted.items() if "missed_tokens_total" in name and n}
    assert {f"keepwarm_missed_tokens_total{reason}": n for reason, n in reasons} == missed
    assert sum(missed.values()) == (
        counted["keepwarm_input_tokens_total"] - counted["keepwarm_cached_tokens_total"]
    )
    basic = httpx.BasicAuth("any", BOSS)
    ledgers = httpx.get(f"{desk.origin}/sessions.json", auth=basic).json()["sessions"]
    assert len(ledgers) == page.locator("tbody tr").count()
    for name in ("input", "cached", "output"):
        whole = sum(ledger[f"{name}_tokens"] for ledger in ledgers)
        assert whole == counted[f"keepwarm_{name}_tokens_total"]
    # A session whose only turn was refused has used nothing, and at most an empty row.
    shown = {ledger["session"]: ledger for ledger in ledgers if ledger["turns"]}
    with contextlib.closing(SqliteView(world.journal)) as journal:
        rows = {each.name: each.account for each in journal.sessions()}
        ended = [journal.session_turns(each.tenant, each.name) for each in journal.sessions()]
    kept = {name: account for name, account in rows.items() if account.turns}
    assert set(kept) == set(shown)
    assert not any(rows[name].cost for name in set(rows) - set(kept))
    for name, account in kept.items():
        usage = account.usage
        assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, account.turns) == (
            *(shown[name][f"{kind}_tokens"] for kind in ("input", "cached", "output")),
            shown[name]["turns"],
        )
        assert dollars(account.cost) == pytest.approx(shown[name]["cost"], abs=1e-12)
    bodies = [decode_turn(row) for rows in ended for row in rows]
    assert (
        sum(body.usage.output_tokens for body in bodies) == counted["keepwarm_output_tokens_total"]
    )
    listed = page.locator("tr[data-session]")
    expect(listed).to_have_count(min(len(rows), 50))
    for name in listed.evaluate_all("all => all.map(each => each.dataset.session)"):
        told = page.locator(f'tr[data-session="{name}"] td[data-label="Turns"]')
        expect(told).to_have_text(re.compile(rf"^{rows[name].turns}( \d failed)?$"))


def test_a_sessions_turns_add_up_to_its_account_and_say_why(desk: Desk) -> None:
    page = desk.open(ACME, session_address("acme", "acme-report"))
    rows = page.locator("tr[data-turn]")
    expect(rows).to_have_count(4)
    expect(rows.nth(1)).to_contain_text(re.compile(r"tools changed at token \d+"))
    expect(page.locator(".account")).to_contain_text("tools changed at token")
    whole = sum(
        int(text.replace(",", "")) for text in page.locator(".t-prompt .sub b").all_inner_texts()
    )
    expect(page.locator(".account article").first).to_contain_text(f"of {whole:,} tokens")
    page.goto("/dashboard" + session_address("acme", "acme-digest"))
    expect(page.locator("tr[data-turn]").nth(1)).to_contain_text("instructions changed at token")


def test_a_session_is_followed_through_tools_a_fork_and_its_budgets_end(
    desk: Desk, world: World
) -> None:
    page = desk.open(ACME, session_address("acme", "followed"))
    expect(page.locator(".empty")).to_contain_text("no such session")

    async def tools() -> None:
        async with agent(world.serving.url, ACME) as who:
            await tool_loop(who, "followed", 3, 0.05, budget={"output": 400})

    in_thread(tools)
    expect(page.locator(".session-head .chip").first).to_have_text("waiting for tools")
    expect(page.locator("tr[data-turn]")).to_have_count(3)
    newest = page.locator("tr[data-turn]").first
    expect(newest).to_contain_text("waiting for tools")
    expect(newest.locator(".calls code")).to_have_text("price")
    expect(newest.locator(".asked")).to_have_text("1 result of tools")
    expect(newest.locator(".run")).to_have_text("price 50 ms failed")
    expect(page.locator("tr[data-turn]").nth(1).locator(".run")).to_have_text("price 50 ms")
    expect(page.locator("tr[data-turn]").nth(2).locator(".run")).to_have_count(0)

    async def beyond() -> None:
        async with agent(world.serving.url, ACME) as who:
            await who.turn("followed-2", "Go on.", keepwarm={"budget": [{"output": 10}]})
            await who.turn("followed-2", "And on.")
            await forking(who, "forked")

    in_thread(beyond)
    page.goto("/dashboard" + session_address("acme", "followed-2"))
    expect(page.locator(".turns")).to_contain_text("budget exhausted")
    bound = page.locator('.bounds tr[data-scope="session"][data-kind="output"] td')
    expect(bound.nth(1)).to_have_text("0")
    expect(bound.nth(2)).to_have_text("10")
    expect(bound.nth(4)).to_have_text("10")
    page.goto("/dashboard" + session_address("acme", "forked"))
    expect(page.locator('.graph[aria-label="forks"]')).to_have_count(1)
    expect(page.locator("tr[data-turn] .asked").first).to_have_text("And now?")
    page.locator("button.open").first.click()
    expect(page.locator(".items").first).to_contain_text("And now?")
    wide = page.locator(".items").first.bounding_box()
    whole = page.locator("table.turns").bounding_box()
    assert wide is not None
    assert whole is not None
    assert wide["width"] > 0.9 * whole["width"]
    page.locator("button.open").first.press("Enter")
    expect(page.locator(".items").first).to_be_hidden()


def test_keys_see_what_is_their_own_and_no_more(desk: Desk) -> None:
    for key in (ACME, READER):
        page = desk.open(key)
        expect(page.locator("tbody tr").first).to_be_visible()
        names = page.locator("tbody th").all_inner_texts()
        assert names
        assert not [name for name in names if "globex" in name]
        expect(page.locator('nav a[data-view="tenants"]')).to_be_hidden()
        expect(page.locator("#running")).to_be_hidden()
        page.goto("/dashboard" + session_address("globex", "globex-report"))
        expect(page.locator(".empty")).to_contain_text("no such session")
        page.goto("/dashboard#cache")
        expect(page.locator("button.node").first).to_be_visible()
        assert "globex" not in page.content()
        page.context.close()
    page = desk.open(BOSS, "#tenants")
    expect(page.locator("tbody tr")).to_have_count(2)
    limits = page.locator('tr[data-tenant-name="acme"] td[data-label="Limits"]')
    expect(limits).to_contain_text(re.compile(r"\d+ of 100k turns a minute"))
    expect(limits).to_contain_text(re.compile(r"[\d,]+ of 1.00M output"))
    held = page.locator('td[data-label="KV blocks"]')
    expect(held.first).to_have_text(re.compile(r"\d+ \(\d+%\)"))
    expect(held.nth(1)).to_have_text(re.compile(r"\d+ \(\d+%\)"))
    globex = page.locator('tr[data-tenant-name="globex"] td[data-label="Limits"]')
    expect(globex).to_have_text("none")
    page.goto("/dashboard" + session_address("globex", "globex-report"))
    expect(page.locator(".not-yours").first).to_have_text("not yours")


def test_the_list_is_searched_filtered_and_sorted(desk: Desk) -> None:
    page = desk.open(BOSS)
    page.locator("#search").fill("QUESTION-3")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("#tally")).to_have_text("2")
    page.locator("#search").fill("no such name")
    expect(page.locator(".empty")).to_contain_text("None of")
    page.locator("#search").fill("")
    page.locator("#several").check()
    expect(page.locator('tr[data-session="acme-question-0"]')).to_have_count(0)
    page.get_by_role("button", name="From cache").click()
    expect(page.locator("tbody tr").first).to_contain_text("report")
    assert "sort=hit" in page.url


def test_names_with_markup_are_shown_as_they_are_and_run_nowhere(desk: Desk, world: World) -> None:
    async def named() -> None:
        async with agent(world.serving.url, ACME) as who:
            await who.turn(MARKUP, f"Say {MARKUP}", instructions=MARKUP)

    in_thread(named)
    page = desk.open(BOSS)
    expect(page.locator("tbody th a").first).to_have_text(MARKUP)
    for address in ("#curves", "#cache", "#tenants", session_address("acme", MARKUP)):
        page.goto("/dashboard" + address)
        expect(page.locator("#view > *").first).to_be_visible()
    page.locator("button.open").first.click()
    expect(page.locator(".items").first).to_contain_text("window.hacked=1")
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_axe_finds_nothing_serious(desk: Desk, scheme: str) -> None:
    source = _axe()
    page = desk.open(BOSS, color_scheme=scheme, bypass_csp=True)
    found = []
    sessions = [session_address("acme", name) for name in ("acme-support", "acme-lead-tester")]
    for address in (*VIEWS, "#sessions?budget=1", *sessions):
        page.goto("about:blank")
        page.goto("/dashboard" + address)
        expect(page.locator("#status")).to_have_text("engine up")
        page.wait_for_selector("tbody tr, canvas, button.node")
        for button in page.locator("button.open").all():
            button.click()
        page.evaluate(source)
        report = page.evaluate("axe.run()")
        found += [
            (address, each["id"], each["nodes"][0]["html"][:200])
            for each in report["violations"]
            if each["impact"] in {"serious", "critical"}
        ]
    assert found == []


def test_the_keyboard_reaches_everything_and_phones_do_not_scroll_sideways(desk: Desk) -> None:
    page = desk.open(BOSS, viewport={"width": 390, "height": 844})
    expect(page.locator("tbody tr").first).to_be_visible()
    for address in (*VIEWS, session_address("acme", "acme-support")):
        page.goto("/dashboard" + address)
        page.wait_for_selector("tbody tr, canvas, button.node")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, address
    page.goto("/dashboard#cache")
    expect(page.locator("button.node").first).to_be_visible()
    paths = page.locator("button.node").evaluate_all("all => all.map(each => each.dataset.path)")
    above = next(i for i, path in enumerate(paths) if any(p.startswith(path + "/") for p in paths))
    page.locator("button.node").nth(above).focus()
    page.keyboard.press("Enter")
    expect(page.locator("aside")).to_contain_text("Sessions (")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.path").startswith(paths[above] + "/")


def test_a_wrong_key_gets_nothing_and_a_revoked_one_is_told(desk: Desk, world: World) -> None:
    context = desk.open(ACME)
    expect(context.locator("#status")).to_have_text("engine up")
    try:
        write_keys(world.keys, {key: role for key, role in ROLES.items() if key != ACME}, "")
        world.serving.process.send_signal(signal.SIGHUP)
        expect(context.locator("#status")).to_contain_text("key refused")
    finally:
        write_keys(world.keys, ROLES, QUOTAS)
        world.serving.process.send_signal(signal.SIGHUP)
    expect(context.locator("#status")).to_have_text("engine up", timeout=30_000)
    for key in ("wrong-key-of-acme", None):
        auth = None if key is None else httpx.BasicAuth("any", key)
        for path in ("/dashboard", "/dashboard/events", "/dashboard/assets/dashboard.js"):
            assert httpx.get(desk.origin + path, auth=auth).status_code == 401
    desk.errors.clear()  # the browser tells of the stream that was cut, and of each 401


def test_a_page_left_open_finds_the_server_again(chrome: Browser, tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    options = [*MODEL, "--port", str(port), "--journal", str(tmp_path / "journal")]
    page = None
    for life in range(2):
        with child_server(options, log=tmp_path / f"server{life}.log") as serving:
            if page is None:
                page = opened(chrome, serving.url.removesuffix("/v1"), None)
                page.goto("/dashboard")
                page.locator("#search").fill("kept")
            expect(page.locator("#status")).to_have_text("engine up", timeout=30_000)

            async def ask(url: str = serving.url, name: str = f"kept-{life}") -> None:
                async with agent(url) as who:
                    await who.turn(name, "Hello")

            began = time.time() // 60
            in_thread(ask)
            # The one before the restart is in the journal alone, and in the same list.
            expect(page.locator("tbody th")).to_have_text(
                [f"kept-{n}" for n in range(life, -1, -1)]
            )
            # Without prices the page speaks of tokens, and says how to see money.
            expect(page.locator("#saved-sub")).to_contain_text("--price")
            if life == 1:  # curves go on over the restart; long ones know of minutes that ended
                both, ended = re.compile("^2 turns "), re.compile("^(1 turn|2 turns) ")
                whole = {"hour": both, "day": both, "week": ended, "month": ended}
                for level, told in whole.items():
                    page.goto(f"/dashboard#curves?level={level}")
                    tally = page.locator("#curves-tally")
                    expect(tally).to_have_text(told)
                    text = tally.inner_text()
                    if told is ended and time.time() // 60 == began:
                        assert text.startswith("1 turn "), "the second turn's minute has not ended"
        expect(page.locator("#status")).to_have_text(re.compile("not reachable|restarting"))
    assert page is not None
    page.context.close()


def test_a_hundred_open_pages_are_all_kept_true_and_slow_nobody(world: World) -> None:
    port = int(world.serving.url.rsplit(":", 1)[1].removesuffix("/v1"))

    async def story() -> tuple[float, float, int]:
        alone_s = await _turns(world.serving, "alone")
        head = f"GET /dashboard/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        head += f"Authorization: Bearer {ACME}\r\n\r\n"
        pages = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in pages:
            writer.write(head.encode())
        for reader, _ in pages:
            assert b" 200 " in await reader.readline()
        beside_s = await _turns(world.serving, "beside")
        told = 0
        for reader, writer in pages:
            async with asyncio.timeout(20):
                while b"beside" not in await reader.readuntil(b"\n\n"):
                    pass
            told += 1
            writer.close()
        return alone_s, beside_s, told

    alone_s, beside_s, told = in_thread(story)
    assert told == 100
    assert beside_s < 4 * alone_s + 30.0, "far beyond what a busy machine takes"


async def _turns(serving: ChildServer, session: str) -> float:
    """Seconds for five turns."""
    async with agent(serving.url, ACME) as who:
        began = time.monotonic()
        for _ in range(5):
            await who.turn(session, "Hello")
        return time.monotonic() - began


def _axe() -> str:
    """The source of axe-core as it is pinned; skips where npm or its registry is not to be had."""
    folder = ROOT / ".venv-clients/axe"
    lock = (AXE / "package-lock.json").read_bytes()
    if not (folder / "package-lock.json").is_file() or (
        (folder / "package-lock.json").read_bytes() != lock
    ):
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core: there is no npm on the path")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(AXE, folder)
        command = [npm, "ci", "--ignore-scripts"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder)
            assert "EINTEGRITY" not in done.stderr
            pytest.skip("axe-core: npm cannot fetch it here")
    return (folder / "node_modules/axe-core/axe.min.js").read_text()
