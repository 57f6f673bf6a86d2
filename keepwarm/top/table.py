"""The table of sessions: which rows, in which order, and what stands in each cell.

Pure: rows in, text out. Nothing here is coloured; what a colour could say stands in words.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from keepwarm.top.feed import BudgetRow, SessionRow

Cell = Callable[[SessionRow], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    width: int
    """The column's width in characters."""
    text: Cell
    order: Callable[[SessionRow], float | str]
    largest_first: bool = True
    """Where it is a number; words stand by the alphabet."""

    @property
    def is_number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.title not in ("session", "tenant", "state")


def amount(number: float) -> str:
    """A count in at most five characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size * (10 if unit == "k" else 0.9995):
            scaled = number / size
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"


def money(dollars: float) -> str:
    """Dollars in at most eight characters; nothing where there is nothing."""
    if dollars == 0:
        return "-"
    if dollars < 0.0001:
        return "<$0.0001"
    return f"${dollars:.4f}" if dollars < 1 else f"${dollars:.2f}"


def duration(seconds: float) -> str:
    """A time in at most four characters."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h" if seconds < 86400 else f"{seconds / 86400:.0f}d"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.0f}%"


def left(row: SessionRow) -> str:
    """The amount that may still be spent, in at most eight characters: of money where that is
    bounded, else of the first kind that is. It is the least that the session's own budget, those of
    its trees and its tenant's leave."""
    least = row.least_left
    if "cost" in least:
        return money(least["cost"]) if least["cost"] else "$0"
    for kind, value in least.items():
        return f"{_short(value)} {_KINDS.get(kind, kind)[:3]}"
    return "-"


_KINDS = {
    "input_uncached": "in",
    "input_cached": "hit",
    "output": "out",
    "reasoning": "thk",
    "residency": "kv",
}
"""In three characters, as the columns are called where there is one."""


def _short(number: float) -> str:
    """A count in at most four characters."""
    text = amount(number)
    return text if len(text) <= 4 else text.split(".")[0] + text[-1]


def described(row: SessionRow) -> str:
    """The text that the table has no room for."""
    owned = "; ".join(
        f"{_whose(budget, row)} {_amounts(budget.left)}{_taken(budget)}"
        for budget in row.budgets
        if budget.left
    )
    bounds = owned or _amounts(row.budget_left) or "no bounds"
    return f"{row.session} ({row.tenant})  left: {bounds}"


def _whose(budget: BudgetRow, row: SessionRow) -> str:
    """Its scope, and which tree where it is another session's."""
    others = budget.scope == "tree" and budget.owner != row.session
    scope = f"tree of {budget.owner}" if others else budget.scope
    return f"{scope}'s {budget.every}" if budget.every else scope


def _taken(budget: BudgetRow) -> str:
    """What is spent, and what turns that run hold."""
    held = tuple((kind, value) for kind, value in budget.held if value)
    told = [
        f"{_amounts(some)} {how}" for some, how in ((budget.spent, "spent"), (held, "held")) if some
    ]
    return f" ({', '.join(told)})" if told else ""


def _amounts(bounds: Iterable[tuple[str, float]]) -> str:
    return ", ".join(
        f"{money(value) if kind == 'cost' else amount(value)} {kind}" for kind, value in bounds
    )


COLUMNS: tuple[Column, ...] = (
    Column(title="session", width=0, text=lambda row: row.session, order=lambda row: row.session),
    Column(title="tenant", width=8, text=lambda row: row.tenant, order=lambda row: row.tenant),
    Column(title="state", width=7, text=lambda row: row.state, order=lambda row: row.state),
    Column(title="turns", width=5, text=lambda row: amount(row.turns), order=lambda row: row.turns),
    Column(
        title="in",
        width=5,
        text=lambda row: amount(row.input_tokens),
        order=lambda row: row.input_tokens,
    ),
    Column(
        title="hit",
        width=4,
        text=lambda row: percent(row.hit_ratio),
        order=lambda row: row.hit_ratio or 0,
    ),
    Column(
        title="out",
        width=5,
        text=lambda row: amount(row.output_tokens),
        order=lambda row: row.output_tokens,
    ),
    Column(title="cost", width=8, text=lambda row: money(row.cost), order=lambda row: row.cost),
    Column(title="saved", width=8, text=lambda row: money(row.saved), order=lambda row: row.saved),
    Column(
        title="left",
        width=8,
        text=left,
        order=lambda row: row.least_left.get("cost", math.inf),
        largest_first=False,
    ),
    Column(
        title="idle",
        width=4,
        text=lambda row: duration(row.idle_s),
        order=lambda row: row.idle_s,
        largest_first=False,
    ),
)
"""The columns from left to right; that of the session's name is as wide as the others leave it."""
LEAST_SESSION_WIDTH = 12
BESIDE = 3
"""Characters that no column has: the scroll bar's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The choices of the person at the terminal."""

    sorted_by: str = "idle"
    reverse: bool = False
    words: str = ""
    """Each of them stands somewhere in a row's session, tenant or state."""
    state: str | None = None
    """Only sessions in this state."""

    def sort(self, title: str) -> "View":
        """By a column; by the same one again: the other way round."""
        if title == self.sorted_by:
            return replace(self, reverse=not self.reverse)
        return replace(self, sorted_by=title, reverse=False)

    def next_state(self, rows: Iterable[SessionRow]) -> "View":
        """The next of the states that there are; after the last of them all."""
        states = [None, *sorted({row.state for row in rows})]
        place = states.index(self.state) if self.state in states else 0
        return replace(self, state=states[(place + 1) % len(states)])

    def shown(self, rows: Iterable[SessionRow]) -> list[SessionRow]:
        """The rows that are wanted, in order; equal ones stay as the server has them."""
        column = next(column for column in COLUMNS if column.title == self.sorted_by)
        wanted = [row for row in rows if self._wants(row)]
        backwards = (column.is_number and column.largest_first) != self.reverse
        return sorted(wanted, key=column.order, reverse=backwards)

    def _wants(self, row: SessionRow) -> bool:
        if self.state is not None and row.state != self.state:
            return False
        text = f"{row.session} {row.tenant} {row.state}".lower()
        return all(word in text for word in self.words.lower().split())


def columns(*, operator: bool, width: int) -> list[Column]:
    """Those that say something to the owner of the key and have room in ``width`` characters."""
    chosen = [column for column in COLUMNS if operator or column.title != "tenant"]
    for title in ("left", "saved", "tenant", "in"):
        if _rest(chosen, width) < LEAST_SESSION_WIDTH:
            chosen = [column for column in chosen if column.title != title]
    session = replace(chosen[0], width=max(_rest(chosen, width), LEAST_SESSION_WIDTH))
    return [session, *chosen[1:]]


def _rest(chosen: list[Column], width: int) -> int:
    return width - BESIDE - sum(column.width + 1 for column in chosen)
