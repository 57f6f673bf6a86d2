"""``keepwarm top`` as a person meets it, on a terminal of 80 by 24, before a server of HTTP."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from keepwarm.top.app import Top
from keepwarm.top.feed import Feed

KEY = "an-operators-key"
DEADLINE_S = 20.0
HOSTILE = "[bold red]all[/] \x1b[2Jof it"


def session(name: str, state: str, cost: float, **fields: Any) -> dict[str, Any]:
    plain = {"session": name, "tenant": "acme", "state": state, "turns": 2, "input_tokens": 200,
             "cached_tokens": 150, "output_tokens": 20, "cost": cost, "saved": 0.0,
             "budget_left": {}, "idle_s": 3.0}  # fmt: skip
    return plain | fields


class FakeServer:
    """Answers with what it is told to say."""

    def __init__(self) -> None:
        self.says: dict[str, Any] = {
            "server": {"model": "tiny", "engine_up": True, "uptime_s": 90.0, "operator": True},
            "engine": {"running": 1, "waiting": 0, "kv_usage": 0.5},
            "totals": {"turns": 6, "failed": 1, "input_tokens": 600, "cached_tokens": 450,
                       "output_tokens": 60, "hit_ratio": 0.75, "cost": 0.06, "saved": 0.02,
                       "streamed_tokens": 60},
            "num_sessions": 3,
            "sessions": [
                session("planner", "idle", 0.01),
                session("coder", "waiting_for_tools", 0.03, budget_left={"cost": 0.5}),
                session(HOSTILE, "running", 0.02),
            ],
        }  # fmt: skip
        self.grows = 0
        """Tokens between two requests."""
        self.port = 0
        self._http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.says.get("totals", {"streamed_tokens": 0})["streamed_tokens"] += server.grows
                good = self.headers.get("Authorization") == f"Bearer {KEY}"
                body = orjson.dumps(server.says) if self.path == "/sessions.json" else b""
                self.send_response(200 if good else 401)
                self.send_header("Content-Length", str(len(body) if good else 0))
                self.end_headers()
                self.wfile.write(body if good else b"")

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.02,)).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None


class Screen:
    """The app and what can be read on it."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app = app
        self.press = pilot.press
        self._pilot = pilot

    def text(self, name: str) -> str:
        return str(self.app.query_one(f"#{name}", Static).content)

    @property
    def table(self) -> DataTable[Any]:
        return self.app.query_one(DataTable)

    def column(self, title: str) -> list[str]:
        places = [str(column.label).strip() for column in self.table.ordered_columns]
        place = places.index(title)
        rows = range(self.table.row_count)
        return [str(self.table.get_row_at(number)[place]).strip() for number in rows]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the app go on until it does."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, (self.text("totals"), self.text("state"))
            await self._pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)


@pytest.fixture
def server() -> Any:
    made = FakeServer()
    made.start()
    yield made
    made.stop()


def play(
    server: FakeServer,
    scenario: Callable[[Screen], Coroutine[Any, Any, None]],
    key: str | None = KEY,
) -> None:
    async def run() -> None:
        app = Top(Feed(server.url, key), every_s=0.1)
        async with app.run_test(size=(80, 24)) as pilot:
            await scenario(Screen(app, pilot))

    asyncio.run(run())


def test_it_shows_sessions_totals_and_curves(server: FakeServer) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        assert screen.column("state") == ["idle", "tools", "running"]
        assert screen.column("hit") == ["75%"] * 3
        assert screen.column("cost") == ["$0.0100", "$0.0300", "$0.0200"]
        assert "tiny" in screen.text("totals")
        assert "turns 6, 1 failed  in 600  cached 75%  out 60" in screen.text("totals")
        assert "$0.0600, saved $0.0200" in screen.text("totals")
        assert screen.text("state").startswith("3 of 3 sessions by idle")
        server.grows = 50
        await screen.until(lambda: "█" in screen.text("curve0"))
        assert screen.text("curve3").startswith("running 1\n")
        assert all(len(line) <= 80 for line in screen.text("totals").splitlines())
        assert screen.table.virtual_size.width <= 80, "nothing has to be scrolled to"

    play(server, scenario)


def test_names_are_shown_as_they_are_and_do_nothing(server: FakeServer) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        shown = screen.column("session")[2]
        assert shown.startswith("[bold red]a")
        await screen.press("down", "down")
        await screen.until(lambda: screen.text("detail").startswith("[bold red]all[/] "))
        assert "\x1b" not in screen.text("detail")

    play(server, scenario)


def test_it_sorts_and_filters_and_the_cursor_stays_with_its_session(server: FakeServer) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        while "by cost" not in screen.text("state"):
            await screen.press("s")
        assert screen.column("cost") == ["$0.0300", "$0.0200", "$0.0100"]
        assert screen.text("detail").startswith("planner")
        assert screen.table.cursor_row == 2
        await screen.press("r")
        assert screen.column("session")[0] == "planner"
        assert screen.table.cursor_row == 0
        await screen.press("slash", *"cod")
        assert screen.column("session") == ["coder"]
        assert screen.text("detail") == "coder (acme)  left: $0.5000 cost"
        await screen.press("enter")
        assert not screen.app.query_one("#filter", Input).display
        await screen.press("escape")
        assert screen.table.row_count == 3
        await screen.press("f")
        assert screen.column("state") == ["idle"]
        assert "idle only" in screen.text("state")
        await screen.press("escape")
        assert screen.table.row_count == 3

    play(server, scenario)


def test_a_server_that_goes_is_said_to_be_gone_and_found_when_it_is_back(
    server: FakeServer,
) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        await asyncio.to_thread(server.stop)
        await screen.until(lambda: screen.text("state").startswith("! no answer since"))
        assert screen.table.row_count == 3, "what was seen last stays"
        server.says["totals"] |= {"turns": 0, "streamed_tokens": 0}
        server.says["sessions"] = []
        server.start()
        await screen.until(lambda: screen.table.row_count == 0)
        assert "turns 0" in screen.text("totals")
        assert not screen.text("state").startswith("!")

    play(server, scenario)


def test_a_server_that_is_not_there_yet_is_waited_for(server: FakeServer) -> None:
    server.stop()

    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.text("state").startswith("! no answer yet"))
        server.start()
        await screen.until(lambda: screen.table.row_count == 3)

    play(server, scenario)


@pytest.mark.parametrize("key", [None, "another"])
def test_a_key_that_is_refused_is_said_and_nothing_is_shown(
    server: FakeServer, key: str | None
) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: "the key is refused (status 401)" in screen.text("state"))
        assert "KEEPWARM_API_KEY" in screen.text("state")
        assert screen.table.row_count == 0

    play(server, scenario, key)


def test_a_tenants_key_shows_no_tenant_and_no_engine(server: FakeServer) -> None:
    server.says["engine"] = None

    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        titles = [str(column.label).strip() for column in screen.table.ordered_columns]
        assert "tenant" not in titles
        assert not screen.app.query_one("#curve3").display

    play(server, scenario)


def test_budgets_of_every_scope_are_told_whole_on_a_narrow_screen(server: FakeServer) -> None:
    scopes = [("session", "coder"), ("tree", "coder"), ("tree", "planner"), ("tenant", "acme")]
    budgets = [
        {"scope": scope, "owner": owner, "left": {"output": 100 - place, "cost": 0.5}}
        for place, (scope, owner) in enumerate(scopes)
    ]
    server.says["sessions"] = [session("coder", "idle", 0.0, budgets=budgets)]

    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 1)
        detail = screen.app.query_one("#detail", Static)
        for part in ("session 100 output", "tree 99", "tree of planner 98", "tenant 97 output"):
            assert part in screen.text("detail")
        await screen.until(lambda: detail.size.height > 1)
        assert detail.size.height * detail.size.width >= len(screen.text("detail"))
        await screen.resize(120, 40)
        await screen.until(lambda: len(screen.table.ordered_columns) == 11)
        assert screen.column("left") == ["$0.5000"]

    play(server, scenario)


def test_more_room_shows_more_columns(server: FakeServer) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        assert len(screen.table.ordered_columns) == 10
        await screen.resize(120, 40)
        await screen.until(lambda: len(screen.table.ordered_columns) == 11)
        assert screen.column("left")[1] == "$0.5000"

    play(server, scenario)


def test_without_colours_everything_is_there(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 3)
        picture = screen.app.export_screenshot()
        assert "planner" in picture
        reds = {line for line in picture.split() if line.startswith("fill:#")}
        shades = [line.removeprefix("fill:#").rstrip(";") for line in reds]
        assert all(shade[:2] == shade[2:4] == shade[4:6] for shade in shades if len(shade) == 6)

    play(server, scenario)


def test_an_answer_that_is_no_keepwarms_is_told(server: FakeServer) -> None:
    server.says = {"hello": "world"}

    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: "is this a keepwarm server?" in screen.text("state"))

    play(server, scenario)


def test_of_ten_thousand_sessions_those_that_the_server_tells_of_are_shown(
    server: FakeServer,
) -> None:
    rows = [session(f"agent {number}", "idle", number / 1e4) for number in range(200)]
    server.says |= {"num_sessions": 10_000, "sessions": rows}

    async def scenario(screen: Screen) -> None:
        await screen.until(lambda: screen.table.row_count == 200)
        assert screen.text("state").startswith("200 of 10000 sessions")
        await screen.press("slash", *"19", "enter")
        await screen.until(lambda: screen.table.row_count == 12)

    play(server, scenario)
