"""Where journals are: a file, an address of a database in PostgreSQL, the user's state folder."""

from collections.abc import Mapping
from pathlib import Path

from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from tools_api.home_folder import home_folder

MEMORY = ":memory:"
"""The place of a journal that is not kept."""
_POSTGRES = ("postgresql://", "postgres://")


def state_folder(environment: Mapping[str, str]) -> Path:
    """Where programs keep what they cannot make again."""
    home = environment.get("XDG_STATE_HOME") or home_folder() / ".local/state"
    return Path(home) / "keepwarm"


def in_postgres(place: str) -> bool:
    """Whether a journal's place is the address of a database, no file."""
    return place.startswith(_POSTGRES)


def open_postgres(
    address: str, *, fingerprint: bytes, owner: str, beside: bool = False, patient: bool = False
) -> Journal:
    """As ``PostgresJournal``, where the extra is installed.

    Raises:
        JournalError: it is not, or the journal cannot be opened.
    """
    try:
        from sessions.journal.postgres import PostgresJournal
    except ImportError as error:
        raise JournalError(
            "a journal in PostgreSQL needs the extra 'postgres': pip install 'keepwarm[postgres]'"
        ) from error
    return PostgresJournal(
        address, fingerprint=fingerprint, owner=owner, beside=beside, patient=patient
    )
