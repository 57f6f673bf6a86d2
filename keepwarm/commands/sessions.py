"""``keepwarm sessions``: what is in a journal, and what is to be taken out of it.

``list`` and ``show`` look at a file or a database in PostgreSQL, ``delete`` changes it, both also
while servers use it; ``vacuum`` does so to a file, and ``recover`` reads a damaged one. What copies
a whole journal stands in ``journal_copies``.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import click
import orjson

from keepwarm.commands.journal_copies import COPIES
from keepwarm.commands.journal_place import (
    AS_JSON,
    JOURNAL,
    beside_servers,
    places,
    refusals,
    there,
)
from keepwarm.top.feed import printable
from sessions.durable.budgets import HeldBudget
from sessions.durable.ledger import block_seconds, dollars
from sessions.journal.encoding import decode_turn
from sessions.journal.journal import Journal
from sessions.journal.kept_budgets import budgets_kept
from sessions.journal.listing import ListAsked, ListedSession, ListPlace, Order
from sessions.journal.records import StoredTurn, TurnRecord, options_kept
from sessions.journal.recovery import recover as recover_file
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.view import SqliteView
from sessions.pages.rows import budget_row

_TENANT = click.Option(["--tenant"], default="default", show_default=True, help="whose session")
_NAME = click.Argument(["name"])
_FILTERS = (
    click.Option(["--tenant"], help="only this one's"),
    click.Option(["--search"], default="", help="part of a name or of a label"),
    click.Option(["--label", "labels"], multiple=True, metavar="NAME:VALUE", help="repeatable"),
    click.Option(["--failed"], is_flag=True, help="only those with a turn that failed"),
    click.Option(["--budget", "bounded"], is_flag=True, help="only those with a budget"),
    click.Option(["--several"], is_flag=True, help="only those of more than one turn"),
    click.Option(["--from", "from_s"], type=int, help="last used then or later, epoch seconds"),
    click.Option(["--to", "to_s"], type=int, help="last used before"),
    click.Option(["--sort", "order"], type=click.Choice(get_args(Order)), default="recent"),
    click.Option(["--limit", "most"], type=click.IntRange(min=1), help="so many at most"),
)
_AT_ONCE = 500


def show_all(journal: str | None, as_json: bool, most: int | None, **filters: Any) -> int:
    """Print the sessions that are asked for, in their order; returns the exit status."""
    asked = _asked(**filters)
    with refusals():
        found = [each for place in places(journal) for each in _read_sessions(place, asked, most)]
    found.sort(key=lambda each: each[0].sorted_by)
    _print([row for _, row in found[:most]], as_json, _SESSION_COLUMNS)
    return 0


def _asked(
    *,
    tenant: str | None,
    search: str,
    labels: tuple[str, ...],
    order: Order,
    from_s: int | None,
    to_s: int | None,
    **switches: bool,
) -> ListAsked:
    pairs = [label.partition(":") for label in labels]
    if not all(name and colon for name, colon, _ in pairs):
        raise click.ClickException("--label is not NAME:VALUE")
    return ListAsked(
        tenant=tenant,
        search=search.casefold(),
        labels=tuple(sorted({(name, value) for name, _, value in pairs})),
        from_ms=None if from_s is None else from_s * 1000,
        to_ms=None if to_s is None else to_s * 1000,
        order=order,
        **switches,
    )


def show(journal: str | None, tenant: str, name: str, as_json: bool) -> int:
    """Print the turns of a session, the oldest first; returns the exit status."""
    with refusals():
        for place in places(journal):
            with closing(_view(place)) as view:
                turns = [_turn(turn) for turn in view.session_turns(tenant, name)]
                turns += [_running(held) for held in view.reservations(tenant, name)]
                session = view.session(tenant, name)
                if turns or session is not None:
                    _print(turns, as_json, _TURN_COLUMNS)
                    if session is not None and not as_json:
                        _print_budgets(budgets_kept(view, session), name)
                    return 0
    raise click.ClickException(f"there is no session {name!r} of tenant {tenant!r}")


def delete(journal: str | None, tenant: str, name: str, as_json: bool) -> int:
    """Delete a session and what stands on it; returns the exit status."""
    with refusals():
        for place in places(journal):
            with closing(_beside(place)) as opened:
                if opened.session(tenant, name) is not None:
                    ended = opened.delete_session(tenant, name)
                    _print([{"deleted": name, "ended": list(ended)}], as_json, _DELETED_COLUMNS)
                    return 0
    raise click.ClickException(f"there is no session {name!r} of tenant {tenant!r}")


def vacuum(journal: str | None) -> int:
    """Leave nothing of what was deleted in the files; returns the exit status."""
    with refusals():
        for place in places(journal):
            if isinstance(place, str):
                raise click.ClickException("a journal in PostgreSQL is vacuumed by its own tools")
            with closing(SqliteJournal(place, fingerprint=b"", beside=True)) as opened:
                click.echo(f"{place}: {opened.vacuum()} bytes smaller")
    return 0


def recover(source: str, target: Path) -> int:
    """Save what is whole of a damaged journal; returns the exit status: 1 if not all was."""
    with refusals():
        report = recover_file(there(source), target)
    for line in report.lost:
        click.echo(f"lost: {line}", err=True)
    click.echo(f"{target}: {report.turns} turns of {report.sessions} sessions")
    return 1 if report.lost else 0


def _view(place: Path | str) -> SqliteView | Journal:
    return beside_servers(place) if isinstance(place, str) else SqliteView(place)


def _beside(place: Path | str) -> Journal:
    if isinstance(place, str):
        return beside_servers(place)
    return SqliteJournal(place, fingerprint=b"", beside=True)


def _read_sessions(
    place: Path | str, asked: ListAsked, most: int | None
) -> list[tuple[ListPlace, dict[str, Any]]]:
    found: list[tuple[ListPlace, dict[str, Any]]] = []
    after: ListPlace | None = None
    with closing(_view(place)) as view:
        while most is None or len(found) < most:
            some, _ = view.listed(asked, after, _AT_ONCE)
            found += [
                (each.place, _session(each, budgets_kept(view, each.record))) for each in some
            ]
            if len(some) < _AT_ONCE:
                break
            after = some[-1].place
    return found


def _session(listed: ListedSession, budgets: Sequence[HeldBudget]) -> dict[str, Any]:
    record, account = listed.record, listed.record.account
    kept = options_kept(record.options)
    return {
        "tenant": record.tenant,
        "session": record.name,
        "turns": account.turns,
        "input": account.usage.input_tokens,
        "cached": account.usage.cached_tokens,
        "output": account.usage.output_tokens,
        "block_seconds": block_seconds(account.usage.residency),
        "cost": dollars(account.cost),
        "cost_nano": account.cost,
        "tree_cost": dollars(listed.tree.cost),
        "tree_cost_nano": listed.tree.cost,
        "computed_again": record.computed_again,
        "failed": record.failed,
        "labels": dict(kept.labels),
        "head": record.head_id,
        "parent": kept.parent,
        "budgets": list(map(budget_row, budgets)),
        "updated_s": record.updated_s,
    }


def _turn(turn: StoredTurn) -> dict[str, Any]:
    body = decode_turn(turn)
    return {
        "response": turn.response_id,
        "parent": turn.parent_id,
        "status": body.status,
        "reason": body.reason,
        "input": body.usage.input_tokens,
        "cached": body.usage.cached_tokens,
        "output": body.usage.output_tokens,
        "block_seconds": block_seconds(body.usage.residency),
        "cost": dollars(body.cost),
        "created_s": turn.created_s,
    }


def _running(held: TurnRecord) -> dict[str, Any]:
    """A turn that runs, or did when its server died: what it may consume."""
    return {
        "response": held.response_id,
        "parent": held.parent_id,
        "status": "running",
        "reason": None,
        "input": held.usage.input_tokens,
        "cached": held.usage.cached_tokens,
        "output": held.usage.output_tokens,
        "block_seconds": 0.0,
        "cost": dollars(held.cost),
        "created_s": held.created_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column of a table for people; JSON has everything."""

    title: str
    text: Callable[[dict[str, Any]], str]
    is_number: bool = False


def _plain(name: str, *, is_number: bool = False) -> _Column:
    return _Column(title=name, text=lambda row: _cell(row[name]), is_number=is_number)


def _moment(title: str, name: str) -> _Column:
    return _Column(title=title, text=lambda row: _time(row[name]))


_LONGEST = 64
"""Characters of a cell; a name may have hundreds."""


def _print(found: Sequence[dict[str, Any]], as_json: bool, columns: Sequence[_Column]) -> None:
    if as_json:
        click.echo(orjson.dumps(list(found)))  # UTF-8, whatever the terminal has
        return
    lines = [[column.title for column in columns]]
    lines += [[column.text(each) for column in columns] for each in found]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _print_budgets(budgets: Sequence[HeldBudget], session: str) -> None:
    for budget in map(budget_row, budgets):
        for kind, limit in budget["limit"].items():
            left, spent = _cell(budget["left"][kind]), _cell(budget["spent"][kind])
            told = f"{left} of {_cell(limit)} {kind} left, {spent} spent"
            click.echo(f"{_whose(budget, session)}: {told}")


def _budgets_left(row: dict[str, Any]) -> str:
    told = []
    for budget in row["budgets"]:
        left = ", ".join(f"{_cell(n)} {kind}" for kind, n in budget["left"].items())
        told += [f"{_whose(budget, row['session'])}: {left}"] if left else []
    return "; ".join(told) or "-"


def _whose(budget: dict[str, Any], session: str) -> str:
    """Which budget it is, as a session sees it."""
    scope, owner = budget["scope"], budget["owner"]
    return f"tree of {_cell(owner)}" if scope == "tree" and owner != session else str(scope)


def _time(moment_s: float) -> str:
    """A time by the clock of this machine."""
    if not moment_s:
        return "-"
    return datetime.fromtimestamp(moment_s).isoformat(sep=" ", timespec="seconds")


def _cell(value: object) -> str:
    """Names are clients' words: none of them gives a terminal orders."""
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "-"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    text = printable("-" if value is None else str(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


_SESSION_COLUMNS = (
    _plain("tenant"),
    _plain("session"),
    _moment("last_turn", "updated_s"),
    *(_plain(name, is_number=True) for name in ("turns", "input", "output", "block_seconds")),
    _plain("cost", is_number=True),
    _Column(title="budget_left", text=_budgets_left),
    _plain("head"),
)
_TURN_COLUMNS = (
    *(_plain(name) for name in ("response", "parent", "status", "reason")),
    _moment("ended", "created_s"),
    *(_plain(name, is_number=True) for name in ("input", "output", "block_seconds", "cost")),
)
_DELETED_COLUMNS = (_plain("deleted"), _plain("ended"))

COMMAND = click.Group(
    "sessions",
    help="Show what is in a journal, and take things out of it.",
    commands=[
        click.Command(
            "list",
            callback=show_all,
            params=[JOURNAL, *_FILTERS, AS_JSON],
            help="List sessions, the most recently active first, and what their budgets leave.",
        ),
        click.Command(
            "show",
            callback=show,
            params=[JOURNAL, _TENANT, _NAME, AS_JSON],
            help="List the turns of a session, what those that run may consume, and its budgets.",
        ),
        click.Command(
            "delete",
            callback=delete,
            params=[JOURNAL, _TENANT, _NAME, AS_JSON],
            help="Delete a session, and say which forks of it end.",
        ),
        click.Command(
            "vacuum",
            callback=vacuum,
            params=[JOURNAL],
            help="Leave nothing of what was deleted in the file.",
        ),
        click.Command(
            "recover",
            callback=recover,
            params=[
                click.Argument(["source"]),
                click.Argument(["target"], type=click.Path(path_type=Path)),
            ],
            help="Save what is whole of a damaged journal into a new file, and name the rest.",
        ),
        *COPIES,
    ],
)
