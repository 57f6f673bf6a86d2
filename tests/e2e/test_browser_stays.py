"""Pages of the dashboard that somebody stays on: 400 sessions, agents in trees, all budgets.

Most of the time passes on the page's own clock, which the test turns on; on one page it is real.
Needs ``chromium``, as ``test_browser``.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from keepwarm import Client
from sessions.journal.encoding import decode_turn
from sessions.journal.records import RESIDENCY
from sessions.journal.view import SqliteView
from tests.support.desk import (
    NOTHING_SAID,
    READER,
    VIEWS,
    Desk,
    World,
    in_a_browser,
    in_thread,
    lived,
    session_address,
)
from tools.dashboard_load import Agent, agent, crowd, forking, team
from tools.dashboard_server import ACME, BOSS, GLOBEX

pytestmark = in_a_browser

SESSIONS, PAGE, STAY_S, DEPTH = 400, 50, 5, 7
QUOTAS = (
    "[tenants.acme]\nbudget = { output = 1_000_000, cost = 2.5 }\n"
    "[tenants.globex]\nbudget = { residency = 100_000 }\n"
)
AGE = re.compile(r"now|\d+ (s|min)")
SPENT = {"scope": "session", "residency": 1.0}


async def trees_and_budgets(who: Agent) -> dict[str, Any]:
    """Sessions under budgets of every scope, their last responses by name."""

    def budget(**options: Any) -> dict[str, Any]:
        bounds = [{"scope": scope} | each for scope, each in options.items()]
        return {"keepwarm": {"budget": bounds}}

    told = await team(who, "lead")
    told["own"] = await who.turn("own", "Hello", **budget(session={"output": 100}))
    told["both"] = await who.turn(
        "both",
        "Hello",
        **budget(session={"output": 100}, tree={"output": 90}, turn={"output": 20}),
    )
    told["kept"] = await who.turn("kept", "Hello", **budget(tree={"residency": 10_000.0}))
    told["kv"] = await who.turn("kv", "Hello", keepwarm={"budget": [SPENT]})
    for depth in range(DEPTH):
        parent = {"parent_session": f"deep-{depth - 1}"} if depth else {}
        told[f"deep-{depth}"] = await who.turn(f"deep-{depth}", "Hello", keepwarm=parent)
    await forking(who, "forks")
    return told


def sdk_budget(url: str) -> Any:
    """What the SDK says of a session with a budget as it sets them: of the whole tree."""
    with Client(url, api_key=ACME) as client:
        session = client.session(name="sdk", budget={"output": 3000}, max_output_tokens=4)
        session.respond("Hello")
        return session.stats.budget_left


async def _story(url: str) -> dict[str, Any]:
    """By session, the ``keepwarm.budget`` of its last response."""
    async with agent(url, ACME) as who:
        told = await trees_and_budgets(who)
    others = SESSIONS - len(told) - 2  # beside the forks and the SDK's
    await crowd(url, ACME, {f"job-{n:03}": 1 + (n % 3 == 0) for n in range(others)})
    await crowd(url, GLOBEX, {f"question-{n:02}": 1 for n in range(PAGE + 1)})
    budgets = {name: response["keepwarm"]["budget"] for name, response in told.items()}
    return budgets | {"sdk": {"stats": await asyncio.to_thread(sdk_budget, url)}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lived(tmp_path_factory.mktemp("crowd"), _story, quotas=QUOTAS) as found:
        yield found


def names_on(page: Page) -> list[str]:
    """Of the sessions in the list."""
    found: list[str] = page.locator("tr[data-session]").evaluate_all(
        "all => all.map(each => each.dataset.session)"
    )
    return found


def pages_said(page: Page) -> str:
    return page.locator("nav.pages").first.inner_text()


def stay(page: Page) -> None:
    """Five seconds on the page's own clock; then it still says what it should."""
    page.clock.run_for(STAY_S * 1000)
    text = page.locator("body").inner_text()
    assert not NOTHING_SAID.search(text), NOTHING_SAID.findall(text)


# Pages of the list


def test_400_sessions_are_paged_through_and_each_page_is_stayed_on(desk: Desk) -> None:
    page = desk.open(ACME, "#sessions?several=0", clock=True)
    older = page.get_by_role("button", name="Older")
    newer = page.get_by_role("button", name="Newer")
    seen: list[str] = []
    for number in range(1, SESSIONS // PAGE + 1):
        expect(page.locator("nav.pages").first).to_contain_text(f"page {number} of 8")
        expect(page.locator("tr[data-session]")).to_have_count(PAGE)
        stay(page)
        assert f"page {number} of 8" in pages_said(page)
        expect(newer).to_be_enabled(enabled=number > 1)
        expect(older).to_be_enabled(enabled=number < 8)
        for age in page.locator('td[data-label="Active"]').all_inner_texts():
            assert AGE.fullmatch(age), age
        seen += names_on(page)
        if number < 8:
            older.click()
    assert (len(seen), len(set(seen))) == (SESSIONS, SESSIONS)
    expect(newer).to_be_focused()  # the other one has nothing more to turn to
    page.keyboard.press("Enter")
    expect(page.locator("nav.pages").first).to_contain_text("page 7 of 8")
    expect(newer).to_be_focused()


def test_a_page_that_is_really_stayed_on_for_five_seconds_turns_when_it_is_clicked(
    desk: Desk,
) -> None:
    page = desk.open(ACME, "#sessions?several=0&page=1")
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)
    before = names_on(page)
    page.wait_for_timeout(STAY_S * 1000)
    assert pages_said(page).split() == ["Newer", "page", "2", "of", "8", "Older"]
    page.get_by_role("button", name="Older").click()
    expect(page.locator("nav.pages").first).to_contain_text("page 3 of 8")
    expect(page.locator(f'tr[data-session="{before[0]}"]')).to_have_count(0)
    # A session leads back to where it was found, and the browser's way back too.
    shown = names_on(page)
    page.locator("tr[data-session] a").first.click()
    expect(page.locator("#session-name")).to_have_text(shown[0])
    page.get_by_role("link", name="← Sessions").click()
    expect(page.locator("nav.pages").first).to_contain_text("page 3 of 8")
    page.go_back()
    expect(page.locator("#session-name")).to_have_text(shown[0])
    page.go_back()
    expect(page.locator("tr[data-session]").first).to_have_attribute("data-session", shown[0])


def test_sessions_stand_in_the_order_of_their_last_activity_on_all_pages(desk: Desk) -> None:
    page = desk.open(ACME, "#sessions?several=0&q=job")
    older = page.get_by_role("button", name="Older")
    times: list[str] = []
    for number in itertools.count(1):
        expect(page.locator("nav.pages").first).to_contain_text(f"page {number} of 8")
        times += page.locator('td[data-label="Active"] time').evaluate_all(
            "all => all.map(each => each.dateTime)"
        )
        if older.is_disabled():
            break
        older.click()
    assert len(times) > 300
    assert times == sorted(times, reverse=True)


def test_the_controls_say_what_the_address_says_however_one_came_there(desk: Desk) -> None:
    page = desk.open(BOSS, "#sessions?several=0")
    page.locator("#search").fill("own")
    expect(page.locator("tr[data-session]")).to_have_count(1)
    page.get_by_role("button", name="Cost").click()
    page.locator("#budget").check()
    expect(page).to_have_url(re.compile("budget=1"))
    page.go_back()
    page.go_back()
    expect(page.locator("#budget")).not_to_be_checked()
    expect(page.locator("[aria-sort]")).to_have_attribute("data-column", "Active")
    page.locator("#search").fill("no such name")
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#search")).to_have_value("")
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)


def test_where_all_sessions_had_one_turn_they_are_shown_at_once(desk: Desk) -> None:
    page = desk.open(GLOBEX)
    expect(page.locator("tr[data-session]")).to_have_count(PAGE)
    expect(page.locator("#several")).not_to_be_checked()


def test_an_address_that_makes_no_sense_is_told_from_a_lost_connection(desk: Desk) -> None:
    page = desk.open(ACME, "#sessions?state=asleep")
    expect(page.locator(".empty")).to_contain_text("not one of idle, running")
    page.goto("/dashboard#tenants")
    expect(page.locator("#status")).to_have_text("not for this key")
    desk.errors.clear()  # the browser tells of each refusal


# The clock


@pytest.mark.parametrize("key", [ACME, BOSS])
def test_the_clock_changes_times_and_nothing_else(desk: Desk, key: str) -> None:
    page = desk.open(key, clock=True)
    addresses = [*(VIEWS if key == BOSS else VIEWS[:-1]), "#sessions?several=0&page=2"]
    addresses += [session_address("acme", name) for name in ("lead", "forks", "kv")]
    for address in addresses:
        page.context.set_offline(False)
        page.goto("about:blank")
        page.goto("/dashboard" + address)
        page.wait_for_selector("tbody tr, canvas, button.node")
        page.context.set_offline(True)  # what changes from here on the clock has changed
        before = page.evaluate(WITHOUT_TIMES)
        page.clock.run_for(70_000)
        assert page.evaluate(WITHOUT_TIMES) == before, address
        text = page.locator("body").inner_text()
        assert not NOTHING_SAID.search(text), (address, NOTHING_SAID.findall(text))
    desk.errors.clear()  # of the lost connection


WITHOUT_TIMES = """() => {
    const copy = document.getElementById("view").cloneNode(true);
    for (const time of copy.querySelectorAll("time")) time.textContent = "";
    return copy.innerHTML;
}"""


@pytest.mark.parametrize(("key", "views"), [(ACME, 6), (READER, 6), (BOSS, 7)])
def test_every_view_that_is_stayed_on_says_something_everywhere(
    desk: Desk, key: str, views: int
) -> None:
    page = desk.open(key, clock=True)
    sessions = [session_address("acme", name) for name in ("lead-coder", "both", "kv", "deep-6")]
    for address in [*VIEWS[:views], "#sessions?several=0&budget=1", *sessions]:
        page.goto("/dashboard" + address)
        page.wait_for_selector("tbody tr, canvas, button.node")
        stay(page)


def test_what_the_journal_lists_was_active_when_its_last_turn_ended(
    desk: Desk, world: World
) -> None:
    with contextlib.closing(SqliteView(world.journal)) as journal:
        kept = journal.sessions("acme")
        rows = {each.name: journal.session_turns("acme", each.name) for each in kept}
    turns = {
        name: [(row.created_s, decode_turn(row).status) for row in found]
        for name, found in rows.items()
    }
    assert RESIDENCY in {status for _, status in turns["kv"]}, "nobody paid for its KV any longer"
    ended = {
        name: max(at for at, status in found if status != RESIDENCY)
        for name, found in turns.items()
    }
    assert {each.name: each.updated_s for each in kept} == ended
    assert list(rows) == sorted(ended, key=lambda name: (-ended[name], name))
    page = desk.open(ACME, "#sessions?several=0&q=kv")
    told = page.locator('tr[data-session="kv"] time').get_attribute("datetime")
    assert told is not None
    moment = page.evaluate("text => Date.parse(text) / 1000", told)
    assert moment == pytest.approx(ended["kv"], abs=0.06)


# Budgets


def test_the_list_shows_budgets_of_every_scope(desk: Desk, world: World) -> None:
    page = desk.open(ACME, "#sessions?several=0&budget=1")
    wanted = {"lead", "lead-coder", "lead-tester", "lead-writer"}
    wanted |= {"own", "both", "kept", "kv", "sdk"}
    expect(page.locator("tr[data-session]")).to_have_count(len(wanted))
    assert set(names_on(page)) == wanted

    def cell(name: str) -> Any:
        return page.locator(f'tr[data-session="{name}"] td[data-label="Budget left"]')

    told = world.told
    expect(cell("own")).to_have_text(f"{told['own']['left']['output']} out")
    expect(cell("both")).to_have_text(f"{told['both']['tree']['output']} out tree")
    expect(cell("sdk")).to_have_text(f"{told['sdk']['stats']['output']:,} out tree")
    expect(cell("kept")).to_contain_text(re.compile(r"[\d.,k]+ token-(hours|minutes|seconds) tree"))
    expect(cell("kv")).to_have_text("0 token-seconds")
    left = told["lead-writer"]["tree"]["output"]  # it was the last of the tree to take something
    for name in ("lead", "lead-tester", "lead-writer"):
        expect(cell(name)).to_have_text(re.compile(rf"\$0\.0\d+ · {left:,} out tree"))
    own = told["lead-coder"]["left"]["output"]
    expect(cell("lead-coder")).to_have_text(re.compile(rf"{own} out\s*\$0\.0\d+ tree"))
    explained = cell("lead-coder").locator(".budgets").get_attribute("title") or ""
    for line in ("this session: ", "lead and its sub-agents: ", "tenant acme: "):
        assert line in explained
    page.goto("/dashboard#sessions?several=0&q=job-00")
    expect(cell("job-000")).to_have_text(re.compile(r"\$2\.\d+ tenant"))


def test_a_sessions_page_shows_budgets_of_every_scope(desk: Desk, world: World) -> None:
    page = desk.open(ACME, session_address("acme", "lead-tester"))
    left = world.told["lead-writer"]["tree"]["output"]
    lead = page.locator(".bounds tr").filter(has_text="lead and its sub-agents")
    output = [f"{left:,}", f"{2000 - left:,}", re.compile(r"^\W$"), "2,000"]
    expect(lead.and_(page.locator('[data-kind="output"]')).locator("td")).to_have_text(
        ["output", *output]
    )
    expect(lead.and_(page.locator('[data-kind="cost"]')).locator("td").nth(4)).to_have_text(
        "$0.050"
    )
    tenant = page.locator(".bounds tr").filter(has_text="tenant acme")
    expect(tenant.and_(page.locator('[data-kind="cost"]')).locator("td").nth(4)).to_have_text(
        "$2.50"
    )
    page.goto("/dashboard" + session_address("acme", "both"))
    for whose in ("this session", "this session and its sub-agents", "tenant acme"):
        expect(page.get_by_role("rowheader", name=whose, exact=True).first).to_be_visible()


def test_operators_see_what_tenants_budgets_leave_in_their_units(desk: Desk) -> None:
    page = desk.open(BOSS, "#tenants")
    limits = page.locator('tr[data-tenant-name="globex"] td[data-label="Limits"]')
    expect(limits).to_contain_text(
        re.compile(r"^[\d.,]+k? token-\w+ of 444 token-hours of KV kept")
    )


# Trees


def lefts(page: Page) -> dict[str, float]:
    """How far to the right each session's name stands, in pixels."""
    found: dict[str, float] = page.locator("tr[data-session] th").evaluate_all(
        "all => Object.fromEntries(all.map(each => [each.parentNode.dataset.session, "
        "each.querySelector('a').getBoundingClientRect().left]))"
    )
    return found


def test_a_sub_agent_stands_under_what_it_is_a_part_of_and_under_no_stranger(desk: Desk) -> None:
    page = desk.open(ACME, "#sessions?several=0&q=deep-")
    expect(page.locator("tr[data-session]")).to_have_count(DEPTH)
    names = [f"deep-{depth}" for depth in range(DEPTH)]
    assert names_on(page) == names
    places = list(lefts(page).values())
    assert all(above < below for above, below in itertools.pairwise(places))
    # Without its parent in the list a session stands where one without a parent does, and says so.
    page.goto("/dashboard#sessions?several=0&q=tester")
    tester = page.locator('tr[data-session="lead-tester"]')
    expect(tester).to_contain_text("sub-agent of lead-coder")
    alone = lefts(page)["lead-tester"]
    page.goto("/dashboard#sessions?several=0&q=own")
    expect(page.locator('tr[data-session="own"]')).to_be_visible()
    assert alone == lefts(page)["own"]
    page.goto("/dashboard#sessions?several=0&q=lead")
    expect(page.locator("tr[data-session]")).to_have_count(4)
    places = lefts(page)
    assert places["lead"] < places["lead-coder"] == places["lead-writer"] < places["lead-tester"]
    assert names_on(page)[0] == "lead"
    page.locator('tr[data-session="lead-tester"] th a').first.click()
    page.get_by_role("link", name="sub-agent of lead-coder").click()
    expect(page.locator("#session-name")).to_have_text("lead-coder")


# What is read or held is not taken away


def test_who_reads_on_or_stands_on_a_link_keeps_it_while_the_page_is_kept_true(
    desk: Desk, world: World
) -> None:
    page = desk.open(ACME, "#cache")
    expect(page.locator("button.node").first).to_be_visible()
    page.locator("button.node").first.click()
    page.locator("aside a").first.focus()
    name = page.evaluate("document.activeElement.textContent")
    before = page.locator("aside dd").nth(5).inner_text()

    async def turn() -> None:
        async with agent(world.serving.url, ACME) as who:
            await who.turn("own", "And now?")

    in_thread(turn)
    expect(page.locator("aside dd").nth(5)).not_to_have_text(before)
    assert page.evaluate("document.activeElement.textContent") == name
    page.goto("/dashboard#sessions?several=0")
    page.locator('tr[data-session="sdk"] a').focus()
    in_thread(turn)
    expect(page.locator("tr[data-session]").first).to_have_attribute("data-session", "own")
    assert page.evaluate("document.activeElement.textContent") == "sdk"
