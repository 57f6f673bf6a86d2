"""``keepwarm top`` on the screen: a server's sessions, totals and curves, seen again and again.

What is shown comes from ``feed``, ``curves`` and ``table``; here it is only placed and keys are
taken. The server is asked in a thread. If it does not answer, what was seen last stays with a line
that says so, and it is asked again.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import WorkType

from keepwarm.top.curves import Curves, drawn
from keepwarm.top.feed import Feed, FeedError, KeyRefused, SessionRow, Snapshot
from keepwarm.top.table import Column, View, amount, columns, described, duration, money, percent

CURVES = ("out/s", "in/s", "cached/s", "running", "KV %")


class Top(App[None]):
    """The screen of one server."""

    TITLE = "keepwarm top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #totals { height: auto; }
    #state { height: auto; }
    #detail { height: auto; min-height: 1; max-height: 4; }
    #curves { height: 2; }
    .curve { width: 1fr; height: 2; padding: 0 1 0 0; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort back", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("f", "state", "state"),
        Binding("escape", "clear", "all"),
    ]

    def __init__(
        self,
        feed: Feed,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            every_s: between two looks.
            clock: monotonic seconds.
        """
        super().__init__()
        self.feed = feed
        self._every_s = every_s
        self._clock = clock
        self._curves = Curves()
        self._snapshot: Snapshot | None = None
        self._seen_at: float | None = None
        self._trouble: FeedError | None = None
        self._wanted = View()
        self._titles: list[tuple[str, int]] = []
        self._rows: list[SessionRow] = []

    def compose(self) -> ComposeResult:
        """Totals and state above, curves beside them, then the table."""
        yield Static(id="totals", markup=False)
        yield Static(id="state", markup=False)
        with Horizontal(id="curves"):
            for number, _ in enumerate(CURVES):
                yield Static(id=f"curve{number}", classes="curve", markup=False)
        yield Input(id="filter", placeholder="words of a session, tenant or state; Enter")
        yield DataTable[Text](cursor_type="row", cell_padding=0)
        yield Static(id="detail", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Look at once, and then again and again."""
        self.query_one(DataTable).focus()
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
            snapshot = await asyncio.to_thread(self.feed.read)
        except FeedError as error:
            self._trouble = error
        else:
            self._trouble = None
            self._snapshot, self._seen_at = snapshot, self._clock()
            self._curves.add(snapshot, self._seen_at)
        self._show()

    def on_resize(self) -> None:
        """Draw the screen anew: there is more room, or less."""
        self._show()

    # What a person does

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or the one before."""
        titles = [column.title for column in self._columns()]
        place = titles.index(self._wanted.sorted_by) if self._wanted.sorted_by in titles else 0
        self._want(self._wanted.sort(titles[(place + step) % len(titles)]))

    def action_reverse(self) -> None:
        """Sort by the same column, the other way round."""
        self._want(self._wanted.sort(self._wanted.sorted_by))

    def action_filter(self) -> None:
        """Ask for words by which sessions are filtered."""
        words = self.query_one("#filter", Input)
        words.display = True
        words.focus()

    def action_state(self) -> None:
        """Only sessions in the next state."""
        self._want(self._wanted.next_state(self._snapshot.rows if self._snapshot else ()))

    def action_clear(self) -> None:
        """Show all sessions again, without a filter."""
        self.query_one("#filter", Input).value = ""
        self._end_filter()
        self._want(replace(self._wanted, words="", state=None))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Only sessions with the words that are typed."""
        self._want(replace(self._wanted, words=event.value))

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._end_filter()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked."""
        self._want(self._wanted.sort(self._titles[event.column_index][0]))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor stands on another row."""
        self._show_detail(event.cursor_row)

    def _end_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(DataTable).focus()

    def _want(self, view: View) -> None:
        self._wanted = view
        self._show()

    # What is on the screen

    def _show(self) -> None:
        with contextlib.suppress(NoMatches):  # before the first moment, or after the last
            self.query_one("#totals", Static).update(self._totals())
            self.query_one("#state", Static).update(self._state())
            self._show_curves()
            self._show_table()

    def _totals(self) -> str:
        seen = self._snapshot
        if seen is None:
            return self.feed.address
        server = seen.server
        engine = "up" if server.get("engine_up") else "DOWN"
        head = f"{server.get('model', '?')} at {self.feed.address}  engine {engine}"
        head += f"  up {duration(float(server.get('uptime_s') or 0))}"
        ratio = seen.totals.get("hit_ratio")
        tokens = f"turns {amount(seen.total('turns'))}, {amount(seen.total('failed'))} failed"
        tokens += f"  in {amount(seen.total('input_tokens'))}"
        tokens += f"  cached {percent(ratio if isinstance(ratio, float | int) else None)}"
        tokens += f"  out {amount(seen.total('output_tokens'))}"
        return f"{head}\n{tokens}  {self._money(seen)}"

    def _money(self, seen: Snapshot) -> str:
        if not seen.total("cost") and not seen.total("saved"):
            return "no prices"
        return f"{money(seen.total('cost'))}, saved {money(seen.total('saved'))}"

    def _state(self) -> str:
        if self._trouble is not None:
            return self._complaint(self._trouble)
        if self._snapshot is None:
            return "asking ..."
        seen = self._snapshot
        if seen.not_ready:
            return "! not ready: " + "; ".join(f"{part}: {why}" for part, why in seen.not_ready)
        shown = len(self._wanted.shown(seen.rows))
        text = f"{shown} of {seen.num_sessions} sessions by {self._wanted.sorted_by}"
        if self._wanted.state is not None:
            text += f", {self._wanted.state} only"
        if self._wanted.words:
            text += f", {self._wanted.words!r}"
        late = self._curves.first_token_s(0.95)
        if seen.engine is not None:
            text += f"  waiting {amount(float(seen.engine.get('waiting') or 0))}"
        return text if late is None else f"{text}  TTFT p95 {late:g} s"

    def _complaint(self, trouble: FeedError) -> str:
        if isinstance(trouble, KeyRefused):
            return f"! {trouble}: give another with --api-key or KEEPWARM_API_KEY"
        since = "yet"
        if self._seen_at is not None:
            since = f"since {duration(self._clock() - self._seen_at)}"
        return f"! no answer {since}: {trouble}; asking again every {self._every_s:g} s"

    def _show_curves(self) -> None:
        for number, name in enumerate(CURVES):
            points = self._curves.points(name)
            curve = self.query_one(f"#curve{number}", Static)
            curve.display = bool(points)
            if points:
                width = self.size.width // len(CURVES) - 1
                curve.update(f"{name} {amount(points[-1])}\n{drawn(points, width)}")

    def _columns(self) -> list[Column]:
        operator = self._snapshot is None or self._snapshot.engine is not None
        return columns(operator=operator, width=self.size.width)

    def _show_table(self) -> None:
        table = self.query_one(DataTable)
        chosen = self._columns()
        titles = [(column.title, column.width) for column in chosen]
        rows = self._wanted.shown(self._snapshot.rows if self._snapshot else ())
        if titles != self._titles:
            self._titles = titles
            table.clear(columns=True)
            for column in chosen:
                table.add_column(_cell(column, column.title), width=column.width + 1)
        elif rows == self._rows:
            return
        place = self._place(rows, table)
        table.clear()
        for row in rows:
            table.add_row(*(_cell(column, column.text(row)) for column in chosen))
        self._rows = rows
        if rows:
            table.move_cursor(row=place, animate=False)
        self._show_detail(place)

    def _show_detail(self, place: int) -> None:
        """The whole of what has no room in the table, for the row of the cursor."""
        text = described(self._rows[place]) if place < len(self._rows) else ""
        self.query_one("#detail", Static).update(text)

    def _place(self, rows: list[SessionRow], table: DataTable[Text]) -> int:
        """Where the session is now that the cursor stood on."""
        if table.cursor_row >= len(self._rows):
            return 0
        before = self._rows[table.cursor_row]
        names = [(row.tenant, row.session) for row in rows]
        wanted = (before.tenant, before.session)
        if wanted in names:
            return names.index(wanted)
        return max(min(table.cursor_row, len(rows) - 1), 0)


def _cell(column: Column, text: str) -> Text:
    """Numbers stand at the right. Text that a client chose is no markup here."""
    cell = Text(text, no_wrap=True, justify="right" if column.is_number else "left")
    cell.truncate(column.width, overflow="ellipsis")
    return cell
