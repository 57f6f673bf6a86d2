"""Where a journal is that a command is to look at, and how what it refuses is told."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from sessions.command.settings import fault_of_file
from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.journal.places import in_postgres, open_postgres, state_folder

JOURNAL = click.Option(
    ["--journal"],
    envvar="KEEPWARM_JOURNAL",
    help="the journal's file, or postgresql://...; default: the files in the user's state folder",
)
AS_JSON = click.Option(["--json", "as_json"], is_flag=True, help="print JSON")


@contextmanager
def refusals() -> Iterator[None]:
    """A journal's refusals as those of the command."""
    try:
        yield
    except JournalError as error:
        raise click.ClickException(str(error)) from error


def places(journal: str | None) -> Sequence[Path | str]:
    """Files, or the address of a database in PostgreSQL."""
    if journal is not None and in_postgres(journal):
        return [journal]
    if journal:
        return [there(journal)]
    found = sorted(state_folder(os.environ).glob("journal-*.sqlite3"))
    if not found:
        raise click.ClickException("there is no journal yet; --journal names another file")
    return found


def there(file: str) -> Path:
    """The path of a journal's file, as a server would take it; it is an error if there is none."""
    path = Path(os.path.expanduser(file))
    if fault := fault_of_file(path):
        raise click.ClickException(f"{file}: {fault}")
    return path


def one_place(journal: str | None) -> Path | str:
    """The one journal that a command is about; it is an error where there are several."""
    found = places(journal)
    if len(found) > 1:
        raise click.ClickException(f"there are several: --journal names one of {_names(found)}")
    return found[0]


def beside_servers(address: str) -> Journal:
    """A journal in PostgreSQL, to be looked at or to delete something, also while servers use
    it."""
    return open_postgres(address, fingerprint=b"", owner="", beside=True)


def _names(found: Sequence[Path | str]) -> str:
    return ", ".join(map(str, found))
