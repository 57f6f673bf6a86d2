"""A session's page in a browser: its tree and bounds against the ledger, after a restart too.

The first half of its turns ended before the server was started: the journal alone has them. Needs
``chromium``, as ``test_browser``.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.desk import Desk, World, in_a_browser, lived, session_address
from tools.dashboard_load import agent, team, tool_loop
from tools.dashboard_server import ACME, BOSS, GLOBEX

pytestmark = in_a_browser

QUOTAS = "[tenants.acme]\nbudget = { output = 1_000_000 }\n"
DEEPER = ("lead-coder-a", "lead-coder-b")


async def _first(url: str) -> None:
    async with agent(url, ACME) as who:
        await team(who, "lead")
        for name in DEEPER:
            parent = {"parent_session": "lead-coder"}
            await who.turn(name, "And yours?", max_output_tokens=4, keepwarm=parent)
        await tool_loop(who, "shopper", 3, 0.0)
        await who.turn("old", "Said before the restart.", max_output_tokens=4)


async def _second(url: str) -> None:
    async with agent(url, ACME) as who:
        await who.turn("lead-coder", "Once more?", max_output_tokens=4)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lived(tmp_path_factory.mktemp("session"), _first, _second, quotas=QUOTAS) as found:
        yield found


def detail(desk: Desk, name: str) -> dict[str, Any]:
    """What the server tells programs."""
    answer = httpx.get(
        f"{desk.origin}/sessions.json", params={"session": name}, auth=httpx.BasicAuth("any", ACME)
    )
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


def test_a_tree_names_every_part_with_its_turns_and_adds_up(desk: Desk, world: World) -> None:
    records = {n: each for n, each in world.records().items() if n.startswith("lead")}
    page = desk.open(ACME, session_address("acme", "lead"))
    rows = page.locator("tr[data-part]")
    expect(rows).to_have_count(len(records))
    names = rows.evaluate_all("all => all.map(each => each.dataset.part)")
    assert (
        set(names)
        == set(records)
        == {"lead", *(f"lead-{n}" for n in ("coder", "tester")), *DEEPER, "lead-writer"}
    )
    for name in names:
        turns = page.locator(f'tr[data-part="{name}"] td[data-label="Turns"]')
        expect(turns).to_have_text(str(records[name].account.turns))
    whole = sum(each.account.turns for each in records.values())
    expect(page.locator(".sum-turns")).to_have_text(str(whole))
    tree = detail(desk, "lead")["tree"]
    assert tree["cost_nano"] == sum(each.account.cost for each in records.values())
    assert [row["session"] for row in tree["rows"]] == names
    # Each stands behind, and deeper than, what it is a part of.
    lefts = rows.locator("th > :last-child").evaluate_all(
        "all => all.map(each => each.getBoundingClientRect().left)"
    )
    at = dict(zip(names, lefts, strict=True))
    assert at["lead"] < at["lead-coder"] == at["lead-writer"] < at["lead-coder-a"]
    page.locator('tr[data-part="lead-coder-a"] a').click()
    expect(page.locator(".above a")).to_have_text(["lead", "lead-coder"])
    page.locator(".above a").first.click()
    expect(page.locator("#session-name")).to_have_text("lead")


def test_every_bound_stands_there_with_scope_spent_held_and_left(desk: Desk) -> None:
    page = desk.open(ACME, session_address("acme", "lead-coder"))
    bounds = detail(desk, "lead-coder")["bounds"]
    wanted = {(each["scope"], kind) for each in bounds for kind in each["limit"]}
    assert wanted == {
        ("session", "output"),
        ("tree", "output"),
        ("tree", "cost"),
        ("tenant", "output"),
    }
    rows = page.locator(".bounds tr[data-scope]")
    expect(rows).to_have_count(len(wanted))
    for each in bounds:
        row = page.locator(f'tr[data-scope="{each["scope"]}"][data-kind="output"]')
        spent = row.locator('td[data-label="Spent"]')
        expect(spent).to_have_text(f"{each['spent']['output']:,}")


def test_turns_from_before_a_restart_stand_in_the_same_table(desk: Desk) -> None:
    page = desk.open(ACME, session_address("acme", "lead-coder"))
    rows = page.locator("tr[data-turn]:has(.asked)")  # the other ones pay for KV that has gone
    expect(rows).to_have_count(2)
    assert rows.evaluate_all("all => all.map(each => each.dataset.turn)") == ["2", "1"]
    expect(rows.nth(0).locator(".asked")).to_have_text("Once more?")
    expect(rows.nth(1).locator(".asked")).to_have_text("Your part, lead-coder?")
    # A session that only the journal knows: its address holds, its items open.
    page.goto("/dashboard" + session_address("acme", "old"))
    expect(page.locator("tr[data-turn] .asked")).to_have_text("Said before the restart.")
    page.locator("button.open").click()
    expect(page.locator(".items")).to_contain_text("You are the support agent")
    page.goto("/dashboard" + session_address("acme", "shopper"))
    expect(page.locator("tr[data-turn] .calls code").first).to_have_text("price")


def test_words_are_for_keys_of_the_own_tenant_alone(desk: Desk) -> None:
    page = desk.open(BOSS, session_address("acme", "old"))
    expect(page.locator("tr[data-turn] .asked")).to_have_text("Said before the restart.")
    other = desk.open(GLOBEX, session_address("acme", "old"))
    expect(other.locator(".empty")).to_contain_text("no such session")
    assert "Said before" not in other.content()


def test_nothing_is_cut_or_scrolls_sideways_at_1280_and_390(desk: Desk) -> None:
    for width in (1280, 390):
        page = desk.open(ACME, viewport={"width": width, "height": 800})
        for name in ("lead-coder", "shopper"):
            page.goto("/dashboard" + session_address("acme", name))
            expect(page.locator("tr[data-turn]").first).to_be_visible()
            page.locator("button.open").first.click()
            expect(page.locator(".items .said").first).to_be_visible()
            assert page.evaluate(CUT) == [], (width, name)


CUT = """() => [document.body, ...document.querySelectorAll("#view :is(.scroll, td, th)")]
    .filter(each => each.getClientRects().length && each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 40)}`)"""
