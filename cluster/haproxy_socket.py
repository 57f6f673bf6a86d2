"""HAProxy's runtime socket: commands, and what it shows of its slots and of its table.

A reply that is not empty is not always an error: where a command changes nothing it says so.

Always true: each command has a connection of its own, so that a reply that does not come belongs to
nothing else.
"""

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.membership import Slot

REPLY_S = 5.0
MOST_PATH = 96
"""Bytes of the socket's path: HAProxy binds it under a longer name first."""
_AT_ONCE = 64
"""Commands that one connection carries where nobody asks which of them failed."""
_HARMLESS = ("no need to change", "changed from", "updated")
_MAINTAINED, _DRAINED, _CHECKED = 0x23, 0x18, 0x04
"""Bits of ``srv_admin_state`` and ``srv_check_state``, src/haproxy/server-t.h and check-t.h."""


class HaproxyGone(Exception):
    """Nobody answers at the socket."""


class HaproxyBusy(HaproxyGone):
    """Somebody is there, and does not answer in time: it must not be replaced."""


class CommandRefused(Exception):
    """HAProxy did not do what it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A session's home, as the table has it."""

    key: str
    server_id: int


class HaproxySocket:
    """The runtime socket of one HAProxy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, command: str) -> str:
        """Give one command; returns the answer.

        Raises:
            HaproxyGone, HaproxyBusy: nobody is there, or answers.
        """
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.settimeout(REPLY_S)
            try:
                asking.connect(str(self.path))
                asking.sendall(command.encode() + b"\n")
                parts = list(iter(lambda: asking.recv(1 << 16), b""))
            except TimeoutError as error:
                raise HaproxyBusy(f"HAProxy is busy at {self.path}") from error
            except OSError as error:
                raise HaproxyGone(f"HAProxy does not answer at {self.path}: {error}") from error
        return b"".join(parts).decode(errors="replace").strip()

    def do(self, command: str) -> None:
        """Have one command done.

        Raises:
            HaproxyGone, CommandRefused: it was not.
        """
        if not harmless(said := self.ask(command)):
            raise CommandRefused(f"HAProxy: {command}: {said.splitlines()[0]}")

    def slots(self, backend: str) -> list[Slot]:
        """All slots as they are now. Raises HaproxyGone."""
        return read_slots(self.ask(f"show servers state {backend}"))

    def table(self, backend: str) -> list[Entry]:
        """All homes that are known. Raises HaproxyGone."""
        return read_table(self.ask(f"show table {backend}"))

    def fill(self, backend: str, entries: Iterable[Entry]) -> None:
        """Put homes into the table; one that is refused is left out. Raises HaproxyGone."""
        commands = (
            f"set table {backend} key {each.key} data.server_id {each.server_id}"
            for each in entries
        )
        for some in _in_parts(commands):
            self.ask("; ".join(some))

    def process(self) -> int:
        """Its number. Raises HaproxyGone."""
        for line in self.ask("show info").splitlines():
            name, _, value = line.partition(":")
            if name == "Pid":
                return int(value)
        raise HaproxyGone(f"whoever answers at {self.path} is no HAProxy")


def harmless(reply: str) -> bool:
    """Whether a reply says that the command was done, or had nothing to do."""
    return not reply or any(words in reply for words in _HARMLESS)


def read_slots(shown: str) -> list[Slot]:
    """Read ``show servers state``; the columns are named in its second line."""
    _, _, rest = shown.partition("# ")
    head, *lines = rest.splitlines() or [""]
    names = head.split()
    return [_slot(dict(zip(names, line.split(), strict=False))) for line in lines if line.strip()]


def _slot(row: dict[str, str]) -> Slot:
    admin, host = int(row["srv_admin_state"]), row["srv_addr"]
    return Slot(
        number=int(row["srv_name"].removeprefix("r")),
        id=int(row["srv_id"]),
        address=f"[{host}]:{row['srv_port']}" if ":" in host else f"{host}:{row['srv_port']}",
        up=int(row["srv_op_state"]) != 0,
        maintained=bool(admin & _MAINTAINED),
        drained=bool(admin & _DRAINED),
        checked=bool(int(row["srv_check_state"]) & _CHECKED),
        weight=int(row["srv_uweight"]),
    )


def read_table(shown: str) -> list[Entry]:
    """Read the answer to ``show table``."""
    found = []
    for line in shown.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if fields.get("key") and fields.get("server_id", "").isdecimal():
            found.append(Entry(key=fields["key"], server_id=int(fields["server_id"])))
    return found


def _in_parts(commands: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for command in commands:
        part.append(command)
        if len(part) == _AT_ONCE:
            yield part
            part = []
    if part:
        yield part
