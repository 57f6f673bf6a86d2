"""``keepwarm top --cluster`` on the screen: a cluster's servers, seen again and again.

A row each, by slot; what a server said last stays with a line that says so where nobody answers.
"""

import asyncio
import contextlib
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Static
from textual.worker import WorkType

from keepwarm.top.feed import ClusterSnapshot, Feed, FeedError, ServerRow
from keepwarm.top.table import amount, percent

COLUMNS = ("server", "state", "slot", "sockets", "sessions", "KV", "cached", "turns", "version")
_LEFT = ("server", "state", "version")


class ClusterTop(App[None]):
    """The servers of the cluster that one of them stands in."""

    TITLE = "keepwarm top"
    ENABLE_COMMAND_PALETTE = False
    CSS = "#totals { height: auto; } #state { height: auto; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, *, every_s: float) -> None:
        """``every_s``: between two looks."""
        super().__init__()
        self.feed = feed
        self._every_s = every_s
        self._seen: ClusterSnapshot | None = None
        self._trouble: FeedError | None = None

    def compose(self) -> ComposeResult:
        """The cluster's sums above its servers."""
        yield Static(id="totals", markup=False)
        yield Static(id="state", markup=False)
        yield DataTable[Text](cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        """Look at once, and then again and again."""
        table = self.query_one(DataTable)
        for title in COLUMNS:
            table.add_column(_cell(title, title), key=title)
        table.focus()
        self._show()
        self.look()
        self.set_interval(self._every_s, self.look)

    def look(self) -> None:
        """Ask the server, unless it is being asked."""
        if not any(worker.name == "look" for worker in self.workers):
            work: WorkType[None] = self._look  # not a coroutine, which may never be awaited
            self.run_worker(work, name="look")

    async def _look(self) -> None:
        try:
            self._seen = await asyncio.to_thread(self.feed.read_cluster)
        except FeedError as error:
            self._trouble = error
        else:
            self._trouble = None
        self._show()

    def _show(self) -> None:
        with contextlib.suppress(NoMatches):  # before the first moment, or after the last
            self.query_one("#totals", Static).update(totals(self.feed.address, self._seen))
            self.query_one("#state", Static).update(self._state())
            table = self.query_one(DataTable)
            place = table.cursor_row
            table.clear()
            for server in self._seen.servers if self._seen is not None else ():
                table.add_row(*map(_cell, COLUMNS, cells(server)))
            table.move_cursor(row=max(min(place, table.row_count - 1), 0), animate=False)

    def _state(self) -> str:
        if self._trouble is not None:
            return f"! {self._trouble}; asking again every {self._every_s:g} s"
        if self._seen is None:
            return "asking ..."
        if not self._seen.cluster:
            return "this server stands in no cluster"
        return ""


def totals(address: str, seen: ClusterSnapshot | None) -> str:
    """The numbers of a cluster in one line."""
    if seen is None or not seen.cluster:
        return address
    ready = sum(each.state == "ready" for each in seen.servers)
    sockets = sum(each.sockets for each in seen.servers)
    sessions = sum(each.sessions for each in seen.servers)
    running = sum(each.running for each in seen.servers)
    waiting = sum(each.waiting for each in seen.servers)
    text = f"{seen.cluster} at {address}  {ready} of {len(seen.servers)} ready"
    text += f"  sockets {amount(sockets)}  sessions {amount(sessions)}"
    return f"{text}  turns {amount(running)}, {amount(waiting)} waiting"


def cells(server: ServerRow) -> tuple[str, ...]:
    """A server's row, by column."""
    turns = f"{server.running}" + (f"+{server.waiting}" if server.waiting else "")
    return (
        server.address,
        server.state,
        str(server.slot) if server.slot else "-",
        amount(server.sockets),
        amount(server.sessions),
        percent(server.kv),
        percent(server.hit_ratio),
        turns,
        server.version or "-",
    )


def _cell(title: str, text: str) -> Text:
    return Text(text, no_wrap=True, justify="left" if title in _LEFT else "right")
