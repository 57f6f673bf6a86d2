"""``keepwarm sessions backup``, ``restore`` and ``copy``: a whole journal somewhere else.

``backup`` goes beside servers, ``restore`` and ``copy`` only where none has the journal. A journal
in PostgreSQL is backed up by that database's own programs, which are named.
"""

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import orjson

from keepwarm.commands.journal_place import (
    AS_JSON,
    JOURNAL,
    beside_servers,
    one_place,
    refusals,
    there,
)
from sessions.durable.ledger import dollars
from sessions.journal.backup import BackedUp, back_up
from sessions.journal.backup import restore as put_back
from sessions.journal.copying import JournalSums, copy
from sessions.journal.file_state import file_beside, left_alone
from sessions.journal.places import in_postgres, open_postgres
from sessions.journal.sql import SqlJournal
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.view import SqliteView


def backup(target: Path, journal: str | None, as_json: bool) -> int:
    """Copy a journal's file as it is now; returns the exit status."""
    place = one_place(journal)
    if isinstance(place, str):
        raise click.ClickException(
            "a journal in PostgreSQL is backed up by its own program: pg_dump --format=custom "
            f"--file={shlex.quote(str(target))} {_shown(place)}"
        )
    with refusals():
        _tell(back_up(place, target), as_json)
    return 0


def restore(source: Path, journal: str | None, replace: bool, as_json: bool) -> int:
    """Put a backup where servers look for their journal; returns the exit status."""
    if journal is not None and in_postgres(journal):
        raise click.ClickException(
            "a journal in PostgreSQL is restored by its own program, into an empty database: "
            f"pg_restore --no-owner --dbname={_shown(journal)} {shlex.quote(str(source))}; "
            "'keepwarm sessions copy' takes a file there"
        )
    target = Path(os.path.expanduser(journal)) if journal else one_place(None)
    assert isinstance(target, Path)
    aside = time.strftime(".replaced-%Y%m%dT%H%M%SZ", time.gmtime()) if replace else None
    with refusals():
        _tell(put_back(source, target, aside=aside), as_json)
    return 0


def copy_all(source: str, target: str, as_json: bool) -> int:
    """Copy a journal from one store into another; returns the exit status."""
    with refusals(), _read_alone(source) as reading, _made(target) as writing:
        told = copy(reading, writing)
    _tell_sums(told, target, as_json)
    return 0


@contextmanager
def _read_alone(place: str) -> Iterator[SqlJournal]:
    """A journal that no server has meanwhile."""
    if in_postgres(place):
        with closing(beside_servers(place)) as journal:
            yield _sql(journal)
        return
    path = there(place)
    with left_alone(path, "copy"), closing(SqliteView(path)) as view:
        yield view


@contextmanager
def _made(place: str) -> Iterator[SqlJournal]:
    """A journal to copy into; of a file that is not filled in the end nothing is left."""
    if in_postgres(place):
        with closing(open_postgres(place, fingerprint=b"", owner="")) as opened:
            yield _sql(opened)
        return
    path = Path(os.path.expanduser(place))
    if path.exists():
        raise click.ClickException(f"{place} exists: name another file")
    try:
        with closing(SqliteJournal(path, fingerprint=b"")) as journal:
            yield journal
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        for what in ("mark", "reserve", "lock"):
            file_beside(path, what).unlink(missing_ok=True)
        raise


def _sql(journal: object) -> SqlJournal:
    assert isinstance(journal, SqlJournal)
    return journal


def _shown(address: str) -> str:
    """A journal's address for a command line, which others on the machine can read: without the
    password."""
    parts = urlsplit(address)
    who, at, host = parts.netloc.rpartition("@")
    query = "&".join(word for word in parts.query.split("&") if not word.startswith("password="))
    plain = f"{parts.scheme}://{who.partition(':')[0]}{at}{host}{parts.path}"
    return shlex.quote(f"{plain}?{query}" if query else plain)


def _tell(done: BackedUp, as_json: bool) -> None:
    row: dict[str, Any] = {
        "journal": str(done.path),
        "sessions": done.sessions,
        "turns": done.turns,
        "cost": dollars(done.cost),
        "cost_nano": done.cost,
        "commits": done.commits,
        "bytes": done.num_bytes,
        "key": done.with_key,
        "aside": None if done.aside is None else str(done.aside),
    }
    if as_json:
        click.echo(orjson.dumps(row))
        return
    key = ", with the key of compaction items" if done.with_key else ""
    click.echo(
        f"{done.path}: {done.turns} turns of {done.sessions} sessions, {done.num_bytes} bytes{key}"
    )
    if done.aside is not None:
        click.echo(f"what was there is now {done.aside}")


def _tell_sums(told: JournalSums, target: str, as_json: bool) -> None:
    rows = {
        table: {"rows": each.count, "digest": f"{each.digest:032x}"}
        for table, each in told.tables.items()
    }
    if as_json:
        row = {"sessions": told.sessions, "turns": told.turns, "cost_nano": told.cost}
        click.echo(orjson.dumps(row | {"tables": rows}))
        return
    for table, each in told.tables.items():
        click.echo(f"{table:14}{each.count:>12} rows  {each.digest:032x}")
    where = "PostgreSQL" if in_postgres(target) else target
    click.echo(
        f"{where}: {told.turns} turns of {told.sessions} sessions, ${told.cost / 1e9:.9f}; counts "
        "and sums are those of the source"
    )


_FILE = click.Path(path_type=Path)
COPIES = (
    click.Command(
        "backup",
        callback=backup,
        params=[click.Argument(["target"], type=_FILE), JOURNAL, AS_JSON],
        help="Copy a journal's file as it is now, also while servers use it.",
    ),
    click.Command(
        "restore",
        callback=restore,
        params=[
            click.Argument(["source"], type=_FILE),
            JOURNAL,
            click.Option(["--replace"], is_flag=True, help="put aside the journal that is there"),
            AS_JSON,
        ],
        help="Put a backup where a server looks for its journal.",
    ),
    click.Command(
        "copy",
        callback=copy_all,
        params=[
            click.Argument(["source"], metavar="FROM"),
            click.Argument(["target"], metavar="TO"),
            AS_JSON,
        ],
        help="Copy a journal from a file to PostgreSQL or back, and compare counts and sums.",
    ),
)
