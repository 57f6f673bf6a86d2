"""The dashboard of a server that has had no turn, and then one: what there is not yet is not drawn.

Needs ``chromium``, as ``test_browser``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.desk import Desk, World, in_a_browser, in_thread, lived
from tools.dashboard_load import agent
from tools.dashboard_server import ACME, BOSS

pytestmark = in_a_browser

NONE = "\u2013"

PENS = """
window.drawn = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
  const plot = this.canvas.closest("figure")?.querySelector("figcaption").firstChild.textContent;
  window.drawn.push([plot?.trim(), text]);
  return fill.call(this, text, ...where);
};
"""
"""What is written on a canvas, by the title of its figure."""


async def _nothing(_: str) -> None:
    """No agent."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with lived(tmp_path, _nothing) as found:
        yield found


def scales(page: Page) -> dict[str, set[str]]:
    """The numbers and times at each plot's axes."""
    found: dict[str, set[str]] = {}
    for title, text in page.evaluate("window.drawn"):
        found.setdefault(title, set()).add(text)
    return found


def test_what_there_is_not_yet_has_scales_that_can_be_read_and_no_picture(
    desk: Desk, world: World
) -> None:
    page = desk.open(BOSS)
    page.context.add_init_script(PENS)
    page.goto("/dashboard#curves")
    page.reload()
    expect(page.locator("figure canvas").first).to_be_visible()
    expect(page.locator("figcaption small").first).to_have_text("in 0 · from cache 0 · out 0")
    expect(page.locator("figcaption small").nth(3)).to_have_text(
        f"median {NONE} · 95 % within {NONE}"
    )
    page.wait_for_function("window.drawn.some(([title]) => title === 'Whole turns')")
    seen = scales(page)
    assert {"0 ms", "50 ms", "100 ms"} <= seen["Time to first token"]
    assert {"$0", "$0.0050", "$0.010"} <= seen["Dollars a minute"]
    assert {"0", "0.5", "1.0"} <= seen["Tokens a second"]
    assert not [text for texts in seen.values() for text in texts if "/" in text or "am" in text]
    page.goto("/dashboard#cache")
    expect(page.locator("#view small")).to_have_text("holds nothing yet")
    expect(page.locator(".cache")).to_be_hidden()

    async def one() -> None:
        async with agent(world.serving.url, ACME) as who:
            await who.turn("only", "Hello")

    in_thread(one)
    expect(page.locator("#view small")).to_have_text("1 piece")
    expect(page.locator(".cache")).to_be_visible()
