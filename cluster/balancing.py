"""The balancer's rounds: what the members' rows say is done to HAProxy, again and again.

A round reads rows and slots, and does what is between them. Whatever fails is tried in the next
one. While the database is away HAProxy goes on as it is: nobody new comes, nobody is cut.

Always true: a member is told that it is left alone only after HAProxy did what that takes; no round
ends by an exception that another one may not meet.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from cluster import homes
from cluster.haproxy_file import BACKEND
from cluster.haproxy_socket import CommandRefused, Entry, HaproxyGone, HaproxySocket
from cluster.left_homes import LeftHomes
from cluster.membership import Step, plan
from cluster.targets import TargetsFile
from cluster.watch import Watch
from sessions.journal.errors import JournalError, JournalPooled, JournalUnavailable
from sessions.journal.members import Member

log = logging.getLogger(__name__)

SAVE_EVERY_S = 10.0


class Rows(Protocol):
    """The members' rows. Methods raise JournalError."""

    def read(self) -> list[Member] | None:
        """The rows of the whole cluster; None: another balance is at work on it."""
        ...

    def write(self, slots: Mapping[str, int], told: Sequence[str]) -> None:
        """Which slots members have, and who is left alone from now on."""
        ...


class Carrier(Protocol):
    """The HAProxy that carries the sockets."""

    @property
    def socket(self) -> HaproxySocket:
        """The socket that takes HAProxy's commands."""
        ...

    def take(self) -> bool:
        """Find it, or start it; True: it is new."""
        ...


class Balancer:
    """Keeps HAProxy's list of servers as the journal has it, for one cluster."""

    def __init__(
        self,
        *,
        rows: Rows,
        carrier: Carrier,
        watch: Watch,
        homes_file: Path,
        clock: Callable[[], float],
        targets: TargetsFile | None = None,
    ) -> None:
        """
        Args:
            clock: monotonic seconds.
            targets: is told which members live; None: nobody is.
        """
        self._rows = rows
        self._carrier = carrier
        self._watch = watch
        self._homes_file = homes_file
        self._left = LeftHomes(homes_file.with_name("left"), clock)
        self._clock = clock
        self._targets = targets
        self._save_at: float | None = 0.0
        """When the table is copied next; None: what was saved is to be filled in."""
        self._table: Mapping[str, int] | None = None
        self._trouble: str | None = None
        self._left_out: tuple[str, ...] = ()
        self.carries = False
        """HAProxy was there when it was looked at last."""
        self.waits = False
        """Another balance is at work on the cluster."""

    def round(self) -> None:
        """Look and do once.

        Raises:
            HaproxyError: it cannot be run.
            JournalError: there is a reason that waiting does not change, and nobody has been
                carried yet.
        """
        try:
            members = self._rows.read()
        except JournalError as error:
            lasting = isinstance(error, JournalPooled) or not isinstance(error, JournalUnavailable)
            if lasting and not self.carries:
                raise
            self._watch.nothing_read()
            self._say(f"the database is out of reach: {error}")
            return
        self.waits = members is None
        if members is None:
            self._watch.nothing_read()
            return
        try:
            if self._carrier.take():
                self._save_at = None
            self.carries = True
            self._balance(members)
            self._mind_homes()
        except HaproxyGone as error:
            self._say(str(error))
        except JournalError as error:
            self._say(f"the database is out of reach: {error}")
        else:
            self._say(None)

    def _balance(self, members: Sequence[Member]) -> None:
        seen = self._watch.look(members, self._clock())
        if self._targets is not None:
            self._targets.write(each.member.presence.address for each in seen if each.fresh)
        slots = self._carrier.socket.slots(BACKEND)
        found = plan(BACKEND, seen, slots)
        ids, self._table = {slot.number: slot.id for slot in slots}, None
        if found.left_out and found.left_out != self._left_out:
            log.warning("there is no slot for members members=%s", ", ".join(found.left_out))
        self._left_out = found.left_out
        done = [step for step in found.steps if self._do(step, ids[step.slot])]
        told = [step.tells for step in done if step.tells is not None]
        self._left.save()
        if found.slots or told:
            self._rows.write(found.slots, told)

    def _do(self, step: Step, server_id: int) -> bool:
        """False: not all of it was done."""
        try:
            self._mind_left(step, server_id)
            for command in step.commands:
                log.info("slot=%d %s", step.slot, command)
                self._carrier.socket.do(command)
        except CommandRefused as error:
            log.error("%s", error)
            return False
        return True

    def _mind_left(self, step: Step, server_id: int) -> None:
        """Before a slot is cleared keep who was at home there; before it is another's, fill in
        those of them that went nowhere else."""
        if not (step.clears or step.opens):
            return
        if step.clears:
            homes_there = (key for key, at in self._homes().items() if at == server_id)
            self._left.keep(step.slot, homes_there)
        elif keys := self._left.take(step.slot):
            elsewhere = self._homes()
            mine = [Entry(key=key, server_id=server_id) for key in keys if key not in elsewhere]
            self._carrier.socket.fill(BACKEND, mine)
            log.info("slot=%d sessions come home sessions=%d", step.slot, len(mine))

    def _homes(self) -> Mapping[str, int]:
        """The table as it was in this round: server by key. Who comes meanwhile to one that drains
        is cleared, and kept, in the next."""
        if self._table is None:
            found = self._carrier.socket.table(BACKEND)
            self._table = {each.key: each.server_id for each in found}
        return self._table

    def _mind_homes(self) -> None:
        """Copy the table now and then, or fill it where HAProxy is new."""
        now, socket = self._clock(), self._carrier.socket
        if self._save_at is None:
            entries = homes.load(self._homes_file, socket.slots(BACKEND))
            socket.fill(BACKEND, entries)
            log.info("homes filled in sessions=%d", len(entries))
        elif now >= self._save_at:
            self.save_homes()
        else:
            return
        self._save_at = now + SAVE_EVERY_S

    def save_homes(self) -> None:
        """Copy the table. Raises HaproxyGone."""
        socket = self._carrier.socket
        try:
            homes.save(self._homes_file, socket.table(BACKEND), socket.slots(BACKEND))
        except OSError as error:
            log.warning("the homes of sessions cannot be saved reason=%s", error.strerror)

    def _say(self, trouble: str | None) -> None:
        """Say when something fails, and when it ends, and nothing between."""
        if trouble is not None and self._trouble is None:
            log.error("%s", trouble)
        if trouble is None and self._trouble is not None:
            log.warning("all is at hand again")
        self._trouble = trouble
