"""Refusals and failures of a journal, each as a type of its own.

Every message is one line that a person can act on. None of them is an answer to a client:
those are made where a turn meets the journal.
"""


class JournalError(Exception):
    """The journal cannot do what it was asked; nothing was changed by that call."""


class JournalInUse(JournalError):
    """Another server has this file; it was not opened."""


class JournalOtherVersion(JournalError):
    """The journal's tables are of a version that this program does not read; it was not opened."""


class JournalUnavailable(JournalError):
    """Locked, full, read-only or out of reach: the same call may succeed later."""


class JournalDisplaced(JournalUnavailable):
    """The open file is not the one that its path names, or is spoilt: nothing more is written into
    it."""


class JournalPooled(JournalUnavailable):
    """A pooler before PostgreSQL gives one session of the database to several clients, or was told
    to while this program runs: nothing is read or written through it."""

    def __init__(self) -> None:
        super().__init__(
            "PostgreSQL: a pooler at this address gives one session of the database to several "
            "clients: have it keep a session for each, and tidy it up behind him (PgBouncer: "
            "pool_mode = session, server_reset_query = DISCARD ALL), or name the database's own "
            "address"
        )


class JournalAbsent(JournalUnavailable):
    """There is no journal yet where somebody only looks; the first server makes it."""


class JournalBusy(JournalUnavailable):
    """A session's owner did not let go in time."""


class AddressTaken(JournalBusy):
    """A server that lives, or died a moment ago, has the address in its cluster."""


class ClusterRefused(JournalError):
    """A cluster serves something else than the server that would be its member."""


class JournalElsewhere(JournalBusy):
    """The turn that was asked for runs, or is about to, at another server that lives."""


class JournalDamaged(JournalError):
    """The bytes that were read are not those that were written. ``keepwarm sessions recover`` saves
    what is whole."""


def contradiction(what: str) -> JournalDamaged:
    """Two things that were written together do not agree."""
    return JournalDamaged(
        f"the journal contradicts itself: {what}; stop the server and run 'keepwarm sessions "
        "recover'"
    )


def other_version(place: str, found: int, version: int) -> JournalOtherVersion:
    """The tables at ``place`` are of version ``found``, and those of ``version`` alone are read."""
    return JournalOtherVersion(
        f"{place} has tables of version {found}, and this program reads version {version} alone: "
        "serve it with the keepwarm that made it, or name another place with --journal"
    )


class JournalParentGone(JournalError):
    """The response that a turn stands on was deleted while it ran; nothing of it was written."""
