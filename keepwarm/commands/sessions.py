"""``keepwarm sessions``: what is in a journal, and what is to be taken out of it.

``list`` and ``show`` look at a file or a database in PostgreSQL, ``delete`` changes it, both also
while servers use it; ``vacuum`` does so to a file, and ``recover`` reads a damaged one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import orjson

from sessions.command.journal_options import in_postgres, open_postgres, state_folder
from sessions.durable.ledger import block_seconds, dollars
from sessions.journal.encoding import decode_turn
from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.journal.records import SessionRecord, StoredTurn, TurnRecord
from sessions.journal.recovery import recover as recover_file
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.view import SqliteView

_JOURNAL = click.Option(
    ["--journal"],
    envvar="KEEPWARM_JOURNAL",
    help="the journal's file, or postgresql://...; default: the files in the user's state folder",
)
_TENANT = click.Option(["--tenant"], default="default", show_default=True, help="whose session")
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="print JSON")
_NAME = click.Argument(["name"])


def show_all(journal: str | None, tenant: str | None, as_json: bool) -> int:
    """Print the sessions, the most recently used first; returns the exit status."""
    with _refusals():
        found = [_session(s) for place in _places(journal) for s in _read_sessions(place, tenant)]
    _print(
        found,
        as_json,
        ("tenant", "session", "turns", "input", "output", "block_seconds", "cost", "head"),
    )
    return 0


def show(journal: str | None, tenant: str, name: str, as_json: bool) -> int:
    """Print the turns of a session, the oldest first; returns the exit status."""
    with _refusals():
        for place in _places(journal):
            with closing(_view(place)) as view:
                turns = [_turn(turn) for turn in view.session_turns(tenant, name)]
                turns += [_running(held) for held in view.reservations(tenant, name)]
                if turns or view.session(tenant, name) is not None:
                    columns = (
                        "response",
                        "parent",
                        "status",
                        "reason",
                        "input",
                        "output",
                        "block_seconds",
                    )
                    _print(turns, as_json, columns)
                    return 0
    raise click.ClickException(f"there is no session {name!r} of tenant {tenant!r}")


def delete(journal: str | None, tenant: str, name: str, as_json: bool) -> int:
    """Delete a session and what stands on it; returns the exit status."""
    with _refusals():
        for place in _places(journal):
            with closing(_beside(place)) as opened:
                if opened.session(tenant, name) is not None:
                    ended = opened.delete_session(tenant, name)
                    _print([{"deleted": name, "ended": list(ended)}], as_json, ("deleted", "ended"))
                    return 0
    raise click.ClickException(f"there is no session {name!r} of tenant {tenant!r}")


def vacuum(journal: str | None) -> int:
    """Leave nothing of what was deleted in the files; returns the exit status."""
    with _refusals():
        for place in _places(journal):
            if isinstance(place, str):
                raise click.ClickException("a journal in PostgreSQL is vacuumed by its own tools")
            with closing(SqliteJournal(place, fingerprint=b"", beside=True)) as opened:
                click.echo(f"{place}: {opened.vacuum()} bytes smaller")
    return 0


def recover(source: Path, target: Path) -> int:
    """Save what is whole of a damaged journal; returns the exit status: 1 if not all was."""
    with _refusals():
        report = recover_file(source, target)
    for line in report.lost:
        click.echo(f"lost: {line}", err=True)
    click.echo(f"{target}: {report.turns} turns of {report.sessions} sessions")
    return 1 if report.lost else 0


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except JournalError as error:
        raise click.ClickException(str(error)) from error


def _places(journal: str | None) -> Sequence[Path | str]:
    """Files, or the address of a database in PostgreSQL."""
    if journal is not None and in_postgres(journal):
        return [journal]
    if journal is not None:
        if not Path(journal).is_file():
            raise click.ClickException(f"{journal}: no such file")
        return [Path(journal)]
    found = sorted(state_folder(os.environ).glob("journal-*.sqlite3"))
    if not found:
        raise click.ClickException("there is no journal yet; --journal names another file")
    return found


def _view(place: Path | str) -> SqliteView | Journal:
    return _postgres(place) if isinstance(place, str) else SqliteView(place)


def _beside(place: Path | str) -> Journal:
    if isinstance(place, str):
        return _postgres(place)
    return SqliteJournal(place, fingerprint=b"", beside=True)


def _postgres(address: str) -> Journal:
    return open_postgres(address, fingerprint=b"", owner="", beside=True)


def _read_sessions(place: Path | str, tenant: str | None) -> list[SessionRecord]:
    with closing(_view(place)) as view:
        return view.sessions(tenant)


def _session(record: SessionRecord) -> dict[str, Any]:
    account = record.account
    return {
        "tenant": record.tenant,
        "session": record.name,
        "turns": account.turns,
        "input": account.usage.input_tokens,
        "cached": account.usage.cached_tokens,
        "output": account.usage.output_tokens,
        "block_seconds": block_seconds(account.usage.residency),
        "cost": dollars(account.cost),
        "head": record.head_id,
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


def _print(found: Sequence[dict[str, Any]], as_json: bool, columns: Sequence[str]) -> None:
    if as_json:
        click.echo(orjson.dumps(list(found)).decode())
        return
    lines = [list(columns), *([_cell(each[name]) for name in columns] for each in found)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


COMMAND = click.Group(
    "sessions",
    help="Show what is in a journal, and take things out of it.",
    commands=[
        click.Command(
            "list",
            callback=show_all,
            params=[_JOURNAL, click.Option(["--tenant"], help="only this one's"), _JSON],
            help="List the sessions, the most recently used first.",
        ),
        click.Command(
            "show",
            callback=show,
            params=[_JOURNAL, _TENANT, _NAME, _JSON],
            help="List the turns of a session, and what those that run may consume.",
        ),
        click.Command(
            "delete",
            callback=delete,
            params=[_JOURNAL, _TENANT, _NAME, _JSON],
            help="Delete a session, and say which forks of it end.",
        ),
        click.Command(
            "vacuum",
            callback=vacuum,
            params=[_JOURNAL],
            help="Leave nothing of what was deleted in the file.",
        ),
        click.Command(
            "recover",
            callback=recover,
            params=[
                click.Argument(
                    ["source"], type=click.Path(path_type=Path, exists=True, dir_okay=False)
                ),
                click.Argument(["target"], type=click.Path(path_type=Path)),
            ],
            help="Save what is whole of a damaged journal into a new file, and name the rest.",
        ),
    ],
)
