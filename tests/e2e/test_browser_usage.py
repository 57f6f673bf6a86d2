"""The page of usage in a browser: its sums are the ledger's, to the nano-dollar.

Needs ``chromium``, as ``test_browser``.
"""

import csv
import io
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.desk import Desk, World, in_a_browser, in_thread, lived
from tools.dashboard_load import agent, crowd, tool_loop
from tools.dashboard_server import ACME, BOSS, GLOBEX

pytestmark = in_a_browser

ODD = "=1+1 <b>#&%</b> 会"
TEAMS = ["red", ODD, "blue"]


async def _play(url: str) -> None:
    async with agent(url, ACME) as who:
        for team in TEAMS:
            labels = {"labels": {"team": team}}
            await who.turn(f"of {team}", "Hello", max_output_tokens=4, keepwarm=labels)
        await tool_loop(who, "shopper", 3, 0.0)
    await crowd(url, GLOBEX, {"theirs": 2})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lived(tmp_path_factory.mktemp("usage"), _play) as found:
        yield found


def nanos(page: Page, part: str) -> dict[str, int]:
    """Nano-dollars of a table's rows by what they are of."""
    found: dict[str, int] = page.locator(f"#{part} tbody tr").evaluate_all(
        "all => Object.fromEntries(all.map(each => "
        "[each.querySelector('th').textContent, Number(each.dataset.nano)]))"
    )
    return found


def total(page: Page) -> int:
    return int(page.locator("#usage-rows tfoot tr").get_attribute("data-nano") or "")


@pytest.mark.parametrize("bucket", ["1h", "1d", "1mo"])
def test_rows_and_their_sum_are_what_the_ledger_has(desk: Desk, world: World, bucket: str) -> None:
    page = desk.open(BOSS, f"#usage?bucket={bucket}&by=tenant")
    expect(page.locator("#usage-values tbody tr")).to_have_count(2)
    sums = nanos(page, "usage-values")
    assert sums == {name: world.spent(name) for name in ("acme", "globex")}
    assert total(page) == world.spent() == sum(sums.values())
    expect(page.locator("figure canvas")).to_be_visible()
    expect(page.locator("figure .legend li")).to_have_text(sorted(sums, key=lambda n: -sums[n]))


def test_a_tenant_sees_its_own_and_groups_by_label_and_tool(desk: Desk, world: World) -> None:
    page = desk.open(ACME, "#usage")
    expect(page.locator("#usage-rows tbody tr").first).to_be_visible()
    assert total(page) == world.spent("acme")
    expect(page.locator("#usage-tenant")).to_be_hidden()
    page.locator("#by").select_option("label")
    page.locator("#usage-label").fill("team")
    page.locator("#usage-label").press("Enter")
    expect(page.locator("#usage-values tbody tr")).to_have_count(len(TEAMS) + 1)
    sums = nanos(page, "usage-values")
    assert set(sums) == {*TEAMS, "without one"}
    assert sum(sums.values()) == total(page) == world.spent("acme")
    page.locator("#by").select_option("tool")
    expect(page.locator('#usage-values tr[data-value="price"]')).to_be_visible()
    assert sum(nanos(page, "usage-values").values()) == world.spent("acme")
    page.go_back()
    expect(page.locator("#usage-label")).to_have_value("team")
    page.locator("#usage-label").fill("nothing")
    page.locator("#usage-label").press("Enter")
    expect(page.locator(".empty")).to_contain_text("nothing")
    desk.errors.clear()  # the browser tells of the refusal


def test_what_is_typed_stays_when_the_server_tells_of_itself_anew(desk: Desk) -> None:
    page = desk.open(ACME, "#usage?by=label")
    page.locator("#usage-label").fill("team")
    for _ in range(3):
        with page.expect_response(lambda answer: "/dashboard/events" in answer.url):
            page.evaluate("['pagehide', 'pageshow'].map(each => dispatchEvent(new Event(each)))")
        page.wait_for_timeout(200)
    expect(page.locator("#usage-label")).to_have_value("team")
    page.locator("#usage-label").press("Enter")
    expect(page.locator("#usage-values tbody tr")).to_have_count(len(TEAMS) + 1)


def test_the_link_gives_the_same_rows_as_csv_that_computes_nothing(
    desk: Desk, world: World
) -> None:
    page = desk.open(ACME, "#usage?by=label&label=team&range=7d")
    expect(page.locator("#usage-values tbody tr")).to_have_count(len(TEAMS) + 1)
    link = page.locator("#csv").get_attribute("href")
    answer = httpx.get(f"{desk.origin}{link}", auth=httpx.BasicAuth("any", ACME))
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(int(row["cost_nano"]) for row in rows) == world.spent("acme")
    assert f"'{ODD}" in {row["value"] for row in rows}


def test_ranges_end_where_they_say_and_a_page_that_stays_open_goes_on(
    desk: Desk, world: World
) -> None:
    page = desk.open(ACME, "#usage?range=own&from=2001-01-01&to=2001-01-31")
    expect(page.locator(".empty")).to_have_text("Nothing was used in this range.")
    page.locator("#range").select_option("24h")
    expect(page.locator("#bucket")).to_have_value("1h")
    expect(page).to_have_url(re.compile("#usage\\?range=24h$"))
    expect(page.locator("#usage-rows tbody tr").first).to_be_visible()
    turns = page.locator("#usage-rows tfoot td").first
    before = int(turns.inner_text())
    in_thread(lambda: crowd(world.serving.url, ACME, {"later": 1}))
    expect(turns).to_have_text(str(before + 1))
    assert total(page) == world.spent("acme")
