"""A connection to PostgreSQL on which nothing waits for ever, directly or through a pooler.

Limits are set behind the connecting, since poolers refuse or drop parameters of the start. What is
between is told by the number of the server's process: a pooler says another one at the start than
the database does. It has to give a client one session of the database as long as it stays
(PgBouncer's ``pool_mode = session``): locks that outlive a transaction, ``LISTEN``, the limits, and
the identity of the journal, which is asked for once, are the session's. So such a session is
marked, and each transaction of a pooled connection begins by looking for the mark.

Always true: no row is read or written in a session that was not made ready; a pooler that is found
to give sessions away at the connecting is left without a setting of ours.
"""

import os
import re
import secrets
import select
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from sessions.journal.errors import JournalError, JournalPooled

STATEMENT_MS = 5000
IDLE_IN_TRANSACTION_MS = 5000
CONNECT_S = 5
FIRST_ANSWER_S = 5.0
"""A pooler takes whoever comes, and has him wait at his first statement: two minutes, unasked."""
LOST_HOST = {
    "tcp_user_timeout": 5000,
    "keepalives_idle": 4,
    "keepalives_interval": 1,
    "keepalives_count": 5,
}
"""Milliseconds, seconds and a number: a host that is gone without a word is given up after so long,
where the address does not say otherwise. Without them the system waits for a quarter of an hour."""
MARK = "keepwarm.session"
"""A setting that the database keeps for us; ``DISCARD ALL`` takes it away."""
_MARKED = f"SELECT coalesce(current_setting('{MARK}', true), '')"
_SEEN = f"{_MARKED}, pg_backend_pid()"
_LIMITS = (
    ("statement_timeout", str(STATEMENT_MS)),
    ("idle_in_transaction_session_timeout", str(IDLE_IN_TRANSACTION_MS)),
    ("synchronous_commit", "on"),
)
_PROBES = 3
_OPTION = re.compile(r"(?:\\.|[^\s\\])+")
_REFUSED_OPTIONS = "unsupported startup parameter"


class JournalConnection(psycopg.Connection[Any]):
    """One of a journal's; made by ``connected``."""

    mark = ""
    """What its session is marked with; "" where nothing is between it and the database."""

    def begin(self, first: str = "") -> None:
        """Begin a transaction with this statement, if any.

        Raises:
            JournalPooled: it is in another session than the one that was made ready.
        """
        statements = [first] if first else []
        if self.mark:
            statements.append(_MARKED)
        if not statements:
            return
        with self.cursor() as cursor:
            cursor.execute("; ".join(statements).encode(), prepare=False)
            while cursor.nextset():
                pass
            if self.mark and cursor.fetchone() != (self.mark,):
                raise JournalPooled


def connected(address: str, *, probe: bool = True) -> JournalConnection:
    """A connection whose session is made ready. What the address says stays as it is, e.g. the
    schema in its ``options``, but for the limits and the encoding.

    Args:
        probe: whether a pooler is asked if it gives sessions away, by a second connection that is
            closed again; without it that is found out by the next transaction.

    Raises:
        psycopg.Error: it cannot be had.
        JournalPooled: a pooler gives sessions away.
        JournalError: the address has an option that no pooler takes.
    """
    connection, options = _opened(address)
    try:
        mark, process = _ask(connection, _SEEN)
        settings = list(_LIMITS)
        if int(process) != connection.info.backend_pid:
            if mark:
                raise JournalPooled
            if probe:
                _probe(address, connection, process)
            connection.mark = secrets.token_hex(8)
            settings = [*_settings(options), *_LIMITS, (MARK, connection.mark)]
        _set(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(address: str) -> tuple[JournalConnection, str]:
    """A connection as it is at its start, and the options that were asked of it."""
    asked = conninfo_to_dict(address)
    options = str(asked.get("options") or os.environ.get("PGOPTIONS", ""))
    given: dict[str, Any] = {**LOST_HOST, **asked, "options": options}
    given |= {"connect_timeout": CONNECT_S, "client_encoding": "utf8"}
    try:
        return JournalConnection.connect(**given), options
    except psycopg.OperationalError as error:
        if not options or _REFUSED_OPTIONS not in str(error):
            raise
        return JournalConnection.connect(**given | {"options": ""}), options


def _settings(options: str) -> Iterator[tuple[str, str]]:
    """Name and value of each setting in options of a start, as ``-c name=value``."""
    words = iter(re.sub(r"\\(.)", r"\1", word) for word in _OPTION.findall(options))
    for word in words:
        said = word.removeprefix("--") if word.startswith("--") else ""
        if word.startswith("-c"):
            said = word.removeprefix("-c") or next(words, "")
        name, equals, value = said.partition("=")
        if not equals:
            raise JournalError(
                f"the address of PostgreSQL has the option {word!r}, and the pooler that it leads "
                "to takes settings alone: -c NAME=VALUE"
            )
        yield name.replace("-", "_"), value


def _set(connection: JournalConnection, settings: Sequence[tuple[str, str]]) -> None:
    each = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    values = [value for setting in settings for value in setting]
    connection.autocommit = True
    connection.execute(f"SELECT {each}".encode(), values, prepare=False)
    connection.autocommit = False


def _probe(address: str, connection: JournalConnection, process: str) -> None:
    """Raise JournalPooled where another client is given this one's session between two of its
    statements, or this one another's."""
    other, _ = _opened(address)
    try:
        for _ in range(_PROBES):
            seen = [_ask(each, _SEEN)[1] for each in (other, connection)]
            if seen[0] == process or seen[1] != process:
                raise JournalPooled
    finally:
        other.close()


def _ask(connection: JournalConnection, sql: str) -> list[str]:
    """The row that a query has, as text, within ``FIRST_ANSWER_S``: no limit holds yet on the
    other side. Raises psycopg.Error."""
    raw, until = connection.pgconn, time.monotonic() + FIRST_ANSWER_S
    raw.send_query(sql.encode())
    raw.flush()
    answer = None
    while True:
        while raw.is_busy():
            rest_s = until - time.monotonic()
            if rest_s <= 0 or not _readable(raw.socket, rest_s):
                raise psycopg.OperationalError(
                    f"no answer to the first statement within {FIRST_ANSWER_S:g} s: the database "
                    "hangs, or the pooler before it has no connection to spare (pool_size)"
                )
            raw.consume_input()
        found = raw.get_result()
        if found is None:
            break
        answer = found
    if answer is None or answer.status != ExecStatus.TUPLES_OK:
        said = b"the connection was closed" if answer is None else answer.error_message
        raise psycopg.OperationalError(said.decode(errors="replace"))
    return [(answer.get_value(0, column) or b"").decode() for column in range(answer.nfields)]


def _readable(descriptor: int, wait_s: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(1, round(wait_s * 1000))))
