"""The one list of sessions in a browser: filters and sorts against a reference, the way back.

The reference is read from the journal's file by this test's own few lines. Needs ``chromium``, as
``test_browser``.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from keepwarm.commands.main import main
from keepwarm.demo.child_server import child_server
from sessions.durable.ledger import dollars
from sessions.journal.records import SessionRecord, options_kept
from tests.support.desk import Desk, World, in_a_browser, in_thread, lived, session_address
from tools.dashboard_load import Agent, agent, changing, crowd, team, tool_loop
from tools.dashboard_server import ACME, BOSS, GLOBEX, MODEL, PRICES

pytestmark = in_a_browser

JOBS, PAGE = 52, 50
ODD = "ünï <b>#&=%</b> 会"
LONG = "long-" + 251 * "n"


async def _first(url: str) -> None:
    async with agent(url, ACME) as who:
        await team(who, "lead")
        await changing(who, "report", "tools")
        await _labelled(who, "red", {"team": "a b", "odd": ODD})
        await _labelled(who, ODD, {"team": "c"})
    await crowd(url, ACME, {f"job-{n:02}": 1 + (n % 5 == 0) for n in range(JOBS)})
    await crowd(url, GLOBEX, {"theirs": 1})


async def _labelled(who: Agent, name: str, labels: dict[str, str]) -> None:
    await who.turn(name, "Hello", max_output_tokens=4, keepwarm={"labels": labels})


async def _second(url: str) -> None:
    async with agent(url, ACME) as who:
        await changing(who, "digest", "instructions")
        bound = {"budget": [{"scope": "session", "output": 4}]}
        await who.turn("short", "Hello", max_output_tokens=4, keepwarm=bound)
        await who.turn("short", "And on?", max_output_tokens=4)
        await who.turn("lead-coder", "Your part again?")
        await tool_loop(who, "waits", 2, 0.0, budget={"output": 2_000, "cost": 0.5})
        await _labelled(who, LONG, {"team": "n" * 256})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """What its first life had is in the journal alone."""
    with lived(tmp_path_factory.mktemp("list"), _first, _second) as found:
        yield found


def shown(page: Page) -> list[str]:
    """Names in the list."""
    found: list[str] = page.locator("tr[data-session]").evaluate_all(
        "all => all.map(each => each.dataset.session)"
    )
    return found


def all_shown(page: Page) -> list[str]:
    """Names on all pages from this one on."""
    names = shown(page)
    on = page.locator("nav.pages button").nth(1)
    while on.is_visible() and on.is_enabled():
        before = page.locator("nav.pages span").inner_text()
        on.click()
        expect(page.locator("nav.pages span")).not_to_have_text(before)
        names += shown(page)
    return names


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question by the controls, and who is found."""

    address: dict[str, Any] = field(default_factory=dict)
    wanted: Callable[[SessionRecord], bool]


def _labels(record: SessionRecord) -> dict[str, str]:
    return dict(options_kept(record.options).labels)


def _bounded(name: str) -> bool:
    return name in {"lead", "lead-coder", "lead-tester", "lead-writer", "short", "waits"}


CASES = {
    "all": Case(wanted=lambda _: True),
    "name": Case(address={"q": "JOB-1"}, wanted=lambda each: "job-1" in each.name),
    "odd name": Case(
        address={"q": "ÜNÏ <b>#&=%"},
        wanted=lambda each: ODD in {each.name, *_labels(each).values()},
    ),
    "several": Case(address={"several": "1"}, wanted=lambda each: each.account.turns > 1),
    "failed": Case(address={"failed": "1"}, wanted=lambda each: each.failed > 0),
    "budget": Case(address={"budget": "1"}, wanted=lambda each: _bounded(each.name)),
    "label": Case(address={"label": "team:a b"}, wanted=lambda each: each.name == "red"),
    "odd label": Case(
        address={"label": f"odd:{ODD}"}, wanted=lambda each: _labels(each).get("odd") == ODD
    ),
    "idle": Case(address={"state": "idle", "q": "lead"}, wanted=lambda each: "lead" in each.name),
    "both": Case(
        address={"several": "1", "q": "job"},
        wanted=lambda each: each.name.startswith("job") and each.account.turns > 1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_filter_finds_whom_the_journal_says(desk: Desk, world: World, name: str) -> None:
    case = CASES[name]
    wanted = {each.name for each in world.records().values() if case.wanted(each)}
    page = desk.open(ACME, "#sessions?" + urlencode(case.address))
    expect(page.locator("#tally")).to_have_text(str(len(wanted)) if wanted else "0")
    found = all_shown(page)
    assert (len(found), set(found)) == (len(wanted), wanted)


def _hit(record: SessionRecord) -> float:
    usage = record.account.usage
    return usage.cached_tokens / usage.input_tokens if usage.input_tokens else 2.0


SORTS: dict[str, tuple[str, Callable[[SessionRecord], float]]] = {
    "Cost": ("cost", lambda each: -each.account.cost),
    "Computed again": ("again", lambda each: -each.computed_again),
    "From cache": ("hit", _hit),
    "Active": ("", lambda each: -each.updated_s),
}


@pytest.mark.parametrize("head", SORTS)
def test_a_columns_head_sorts_all_pages_as_the_journal_does(
    desk: Desk, world: World, head: str
) -> None:
    sort, key = SORTS[head]
    page = desk.open(ACME, "#sessions?sort=cost&q=job" if not sort else "#sessions?q=job")
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)
    page.get_by_role("button", name=head).click()
    expect(page.locator("[aria-sort]")).to_have_attribute("data-column", head)
    expect(page).to_have_url(re.compile(f"sort={sort}" if sort else r"\?q=job$"))
    records = world.records()
    jobs = [each for each in records.values() if "job" in each.name]
    best = min(map(key, jobs))
    page.wait_for_function(
        "names => names.includes(document.querySelector('tr[data-session]').dataset.session)",
        arg=[each.name for each in jobs if key(each) == best],
    )
    found = all_shown(page)
    assert sorted(found) == sorted(each.name for each in jobs)
    values = [key(records[each]) for each in found]
    assert values == sorted(values)


def test_a_stretch_of_time_is_chosen_and_stands_in_the_address(desk: Desk, world: World) -> None:
    page = desk.open(ACME, f"#sessions?from={world.began_s}")
    expect(page.locator("#since")).to_have_value("own")
    later = {each.name for each in world.records().values() if each.updated_s >= world.began_s}
    expect(page.locator("tr[data-session]")).to_have_count(len(later))
    assert set(shown(page)) == later
    page.locator("#since").select_option("3600")
    expect(page).to_have_url(re.compile("#sessions\\?since=3600$"))
    expect(page.locator("#tally")).to_have_text(str(len(world.records())))
    page.locator("#since").select_option("own")
    page.locator("#to").fill("2001-01-01T00:00")
    expect(page.locator(".empty")).to_contain_text("None of the sessions is like this")
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#since")).to_have_value("")
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)


def test_a_label_is_asked_for_and_taken_back(desk: Desk) -> None:
    page = desk.open(ACME)
    page.locator("#label").fill("team:c")
    page.locator("#label").press("Enter")
    expect(page.locator("tr[data-session]")).to_have_count(1)
    expect(page.locator("tr[data-session] .label")).to_have_text("team:c")
    page.get_by_role("button", name="Without the label team:c").click()
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)


def test_the_way_back_leads_to_the_same_page_and_the_same_lines(desk: Desk) -> None:
    page = desk.open(ACME, "#sessions?sort=cost", viewport={"width": 1280, "height": 600})
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("nav.pages")).to_contain_text("page 2 of 2")
    second, address = shown(page), page.url
    page.mouse.wheel(0, 150)
    page.wait_for_function("() => scrollY > 100")
    page.wait_for_timeout(600)  # the wheel's own motion ends
    there = page.evaluate("scrollY")
    page.locator("tr[data-session] a").nth(3).click()
    expect(page.locator("#session-name")).to_be_visible()
    page.go_back()
    expect(page.locator("tr[data-session]").first).to_have_attribute("data-session", second[0])
    page.wait_for_function("there => Math.abs(scrollY - there) < 4", arg=there)
    assert shown(page) == second
    # Whoever is given the address sees the same, and can turn back to the page before.
    other = desk.open(ACME, address.partition("/dashboard")[2])
    expect(other.locator("nav.pages")).to_contain_text("page 2 of 2")
    assert shown(other) == second
    other.get_by_role("button", name="Previous").click()
    expect(other.locator("nav.pages")).to_contain_text("page 1 of 2")
    assert not set(shown(other)) & set(second)


def test_a_cursor_that_was_changed_is_told_and_leads_back(desk: Desk) -> None:
    page = desk.open(ACME, "#sessions?page=1&cursor=AAAA")
    expect(page.locator(".empty")).to_contain_text("cursor")
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)
    desk.errors.clear()  # the browser tells of the refusal


def test_a_row_has_its_cost_with_its_sub_agents(desk: Desk, world: World) -> None:
    records = world.records()
    lead = [each for each in records.values() if each.name.startswith("lead")]
    page = desk.open(BOSS, "#sessions?q=lead")
    cell = page.locator('tr[data-session="lead"] td[data-label="Cost"]')
    cost = _as_shown(sum(each.account.cost for each in lead))
    expect(cell).to_contain_text(f"with sub-agents {cost}")
    own = page.locator('tr[data-session="lead-writer"] td[data-label="Cost"]')
    expect(own).not_to_contain_text("with sub-agents")


def _as_shown(nano: int) -> str:
    """Two digits that count, as ``format.js`` writes small sums."""
    value = dollars(nano)
    assert 0.001 <= value < 0.1
    return f"${value:.4f}" if value < 0.01 else f"${value:.3f}"


CUT = """() => [document.body, ...document.querySelectorAll("#view :is(.scroll, td, th)")]
    .filter(each => each.getClientRects().length && each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 40)}`)"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("key", [ACME, BOSS])
def test_nothing_of_a_row_is_cut_however_long_its_names_are(
    desk: Desk, width: int, key: str
) -> None:
    page = desk.open(key, viewport={"width": width, "height": 800})
    waits = page.locator('tr[data-session="waits"]')
    expect(waits.locator(".chip")).to_have_text("waiting for tools")
    expect(page.locator(f'tr[data-session="{LONG}"]')).to_be_visible()
    expect(page.locator('tr[data-session="digest"] .why-cell')).to_contain_text("instructions")
    assert page.evaluate(CUT) == []


def test_the_list_goes_on_while_it_is_looked_at_and_follows_new_turns(
    desk: Desk, world: World
) -> None:
    page = desk.open(ACME, "#sessions?sort=cost&q=job-07")
    cell = page.locator('tr[data-session="job-07"] td[data-label="Turns"]')
    expect(cell).to_have_text("1")
    page.locator('tr[data-session="job-07"] a').focus()
    in_thread(lambda: crowd(world.serving.url, ACME, {"job-07": 2}))
    expect(cell).to_have_text("3")
    assert page.evaluate("document.activeElement.textContent") == "job-07"
    page.goto("/dashboard" + session_address("acme", "job-07"))
    expect(page.locator("#session-name")).to_have_text("job-07")


def test_a_session_that_a_command_deletes_leaves_the_list(desk: Desk, world: World) -> None:
    in_thread(lambda: crowd(world.serving.url, ACME, {"goes-soon": 1}))
    page = desk.open(ACME, "#sessions?q=goes-soon")
    expect(page.locator('tr[data-session="goes-soon"]')).to_be_visible()
    words = ["sessions", "delete", "--journal", str(world.journal), "--tenant", "acme"]
    assert main([*words, "goes-soon"]) == 0
    expect(page.locator("tr[data-session]")).to_have_count(0, timeout=30_000)
    expect(page.locator("#view .empty")).to_contain_text("None of the sessions")


def test_a_server_without_a_journal_lists_what_is_in_memory(
    chrome: Browser, tmp_path: Path
) -> None:
    options = [*MODEL, *PRICES, "--journal", ":memory:"]
    with child_server(options, log=tmp_path / "server.log") as serving:
        in_thread(lambda: crowd(serving.url, None, {f"job-{n:02}": 1 + n % 2 for n in range(60)}))
        desk = Desk(chrome, serving)
        page = desk.open(None)
        expect(page.locator("#tally")).to_have_text("60")
        assert sorted(all_shown(page)) == [f"job-{n:02}" for n in range(60)]
        page.goto("/dashboard#sessions?several=1")
        expect(page.locator("tr[data-session]")).to_have_count(30)
        page.get_by_role("button", name="Computed again").click()
        expect(page.locator("[aria-sort]")).to_have_attribute("data-sort", "again")
        page.locator("tr[data-session] a").first.click()
        expect(page.locator("tr[data-turn]")).to_have_count(2)
        page.goto("/dashboard#usage")
        expect(page.locator("#view .empty")).to_contain_text("keeps no journal")
        desk.close()
